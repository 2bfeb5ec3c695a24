"""Many small trainings as one: the same numbers as one by one, in slices, and in a table."""

import copy
import json

import pytest
import torch
from here import Here
from weather import tiny_recipe

from contmax_lab import recipes
from contmax_lab.contract import Metric, Repetition, Row, Table
from contmax_lab.drawing import LIGHT
from contmax_lab.errors import Diverged, Interrupted, UsageError
from contmax_lab.registry import find_task
from contmax_lab.report import learning_curves
from contmax_lab.runs import Run
from contmax_lab.tables import Reproduction, reproduce
from contmax_lab.training import _ensemble, train, train_together

FULL = ("--training.batch_size=0", "--training.epochs=12", "--training.evaluate_every=4")


def replicas(folder, *overrides, count=3):
    """Recipes with splits and seeds of their own, the last with more training days than the others."""
    return [
        tiny_recipe(folder, *FULL, *overrides, f"--data.split={place}", f"--seed={place}", f"--data.apart={place < 2}")
        for place in range(count)
    ]


def together(made, folder):
    runs = [Run(folder / str(place)) for place in range(len(made))]
    train_together(made, runs, folder / "ensemble.safetensors")
    assert not (folder / "ensemble.safetensors").exists()
    return [run.results() for run in runs]


@pytest.mark.parametrize("family", ["parabola", "midpoint", "two-networks"])
def test_replicas_learn_what_each_would_alone(tmp_path, family):
    made = replicas(tmp_path, "--model.dropout=0", f"--model.family={family}")
    found = together(made, tmp_path / "together")
    assert len({results["examples"]["train"] for results in found}) > 1
    for place, (recipe, results) in enumerate(zip(made, found, strict=True)):
        alone = train(recipe, Run(tmp_path / "alone" / str(place)), test=True)
        for key in ("best_epoch", "epochs", "steps", "parameters", "examples", "seed"):
            assert results[key] == alone[key]
        for part in ("valid", "test"):
            assert results[part] == pytest.approx(alone[part], rel=2e-4)
        weights = [Run(tmp_path / way / str(place)).weights for way in ("together", "alone")]
        one, other = (_ensemble.read_checkpoint(path).tensors for path in weights)
        torch.testing.assert_close(one, other, rtol=1e-3, atol=1e-4)
        # The learning curve is that of a training alone.
        curve, expected = (Run(tmp_path / way / str(place)).history() for way in ("together", "alone"))
        assert [(record["epoch"], record["step"]) for record in curve] == [(4, 4), (8, 8), (12, 12)]
        for record, other in zip(curve, expected, strict=True):
            assert record["valid"] == pytest.approx(other["valid"], rel=2e-4)
            assert record["train"]["loss"] == pytest.approx(other["train"]["loss"], rel=2e-4)


def test_the_report_shows_the_curves_of_replicas(tmp_path):
    together(replicas(tmp_path, count=2), tmp_path)
    runs = [Run(tmp_path / name) for name in "01"]
    drawn = learning_curves(runs, ["one", "other"], names=["mse"]).draw(LIGHT)
    for run, line in zip(runs, drawn.axes[0].lines, strict=True):
        assert line.get_xdata().tolist() == [4, 8, 12]
        assert line.get_ydata().tolist() == [record["valid"]["mse"] for record in run.history()]


def test_the_last_weights_are_measured_beside_the_best(tmp_path):
    # Steps so large that the first evaluation is the best.
    made = replicas(tmp_path, "--model.dropout=0", "--training.learning_rate=0.5", "--training.evaluate_every=1")
    found = together(made, tmp_path / "together")
    worse = [results["last"]["valid"]["loss"] > results["valid"]["loss"] for results in found]
    assert any(worse)
    assert all(results["last"]["valid"]["loss"] >= results["valid"]["loss"] for results in found)
    assert all((results["best_epoch"] < 12) == is_worse for results, is_worse in zip(found, worse, strict=True))


def test_dropout_draws_anew_for_every_replica_and_every_evaluation(tmp_path):
    # A step of 1e-30 changes no weight, so that losses of equal replicas differ by what was dropped alone.
    options = (*FULL, "--training.evaluate_every=1", "--training.learning_rate=1e-30", "--model.dropout=0.5")
    together([tiny_recipe(tmp_path, *options)] * 2, tmp_path / "together")
    curves = [Run(tmp_path / "together" / name).history() for name in "01"]
    assert curves[0][0]["valid"] == curves[1][-1]["valid"]
    assert len({record["train"]["loss"] for curve in curves for record in curve}) == 2 * 12


def test_of_ties_the_first_weights_are_the_best(tmp_path):
    made = replicas(tmp_path, "--training.learning_rate=1e-30", "--model.dropout=0", count=2)
    found = together(made, tmp_path / "together")
    assert [(results["best_epoch"], results["epochs"]) for results in found] == [(4, 12)] * 2


TRIES = ({"learning_rate": 0.01, "weight_decay": 0.0}, {"learning_rate": 0.03, "weight_decay": 2.0})
TRIED = f"--training.tries={[*TRIES]}"


def test_of_several_tries_the_best_weights_of_each_replica_are_kept(tmp_path):
    common = ("--model.dropout=0", "--training.optimizer=adamw")
    found = together(replicas(tmp_path, *common, TRIED), tmp_path / "tried")
    alone = [
        together(
            replicas(tmp_path, *common, *(f"--training.{key}={x}" for key, x in one.items())), tmp_path / str(place)
        )
        for place, one in enumerate(TRIES)
    ]
    for place, results in enumerate(found):
        best = min(range(2), key=lambda number: alone[number][place]["valid"]["loss"])
        expected = alone[best][place]
        assert results["test"] == pytest.approx(expected["test"], rel=1e-5)
        assert results["try"] == {**TRIES[best], "epochs": expected["best_epoch"]}
        assert results["steps"] == 24
        curves = [Run(tmp_path / name / str(place)).history() for name in ("0", "1", "tried")]
        losses = [[record["valid"]["loss"] for record in curve] for curve in curves]
        assert losses[2] == pytest.approx(losses[0] + losses[1], rel=1e-5)


def test_tries_are_for_ensembles_and_say_what_is_tried(tmp_path):
    with pytest.raises(UsageError, match=r"training.tries are for tables .*: leave tries out"):
        train(replicas(tmp_path, TRIED)[0], Run(tmp_path / "run"))
    for wrong in ("[{learning_rate: 0.1}]", "[{learning_rate: 0, weight_decay: 1}]"):
        with pytest.raises(UsageError, match=r"a positive learning_rate and a weight_decay in each of training.tries"):
            together(replicas(tmp_path, f"--training.tries={wrong}"), tmp_path / "wrong")


def test_a_stopped_ensemble_goes_on_bit_for_bit(tmp_path, monkeypatch):
    # It stops at the fourth evaluation, in the second try.
    made = replicas(tmp_path, "--model.dropout=0.5", "--training.optimizer=adamw", TRIED)
    whole = together(made, tmp_path / "whole")
    assert whole[0]["valid"] != together(replicas(tmp_path, "--model.dropout=0"), tmp_path / "other")[0]["valid"]

    class Stop:
        exit_code = 143
        asked = 0

        def __bool__(self):
            self.asked += 1
            return self.asked > 7

        def __enter__(self):
            return self

        def __exit__(self, *problem):
            pass

    monkeypatch.setattr(_ensemble, "stop_requests", Stop)
    with pytest.raises(Interrupted, match="stopped at step 16, everything is saved"):
        together(made, tmp_path / "slices")
    monkeypatch.undo()
    again = together(made, tmp_path / "slices")
    for place, (one, other) in enumerate(zip(whole, again, strict=True)):
        assert {**one, "timing": None} == {**other, "timing": None}
        curve, expected = (Run(tmp_path / name / str(place)).history() for name in ("slices", "whole"))
        assert [{**record, "seconds": 0} for record in curve] == [{**record, "seconds": 0} for record in expected]


def test_curves_forget_what_was_written_after_the_checkpoint(tmp_path, monkeypatch):
    made = replicas(tmp_path, "--training.checkpoint_seconds=0", count=2)
    save, saved = _ensemble.write_checkpoint, []

    def once(path, checkpoint):
        saved.append(path)
        if len(saved) > 1:
            raise OSError("the disk has gone")
        save(path, checkpoint)

    monkeypatch.setattr(_ensemble, "write_checkpoint", once)
    with pytest.raises(OSError, match="gone"):
        together(made, tmp_path / "runs")
    assert [record["epoch"] for record in Run(tmp_path / "runs" / "1").history()] == [4, 8]
    monkeypatch.undo()
    together(made, tmp_path / "runs")
    for run in (Run(tmp_path / "runs" / name) for name in "01"):
        assert [record["epoch"] for record in run.history()] == [4, 8, 12]
        assert run.spreadsheet.read_text().count("\n") == 4


def test_what_needs_no_training_is_only_measured(tmp_path):
    made = replicas(tmp_path, "--model.family=linear")
    found = together(made, tmp_path / "together")
    assert [(results["steps"], results["parameters"]) for results in found] == [(0, 0)] * 3
    assert len({results["test"]["mse"] for results in found}) == 3
    assert all(results["last"]["test"] == results["test"] for results in found)
    assert Run(tmp_path / "together" / "0").history() == []


@pytest.mark.parametrize(
    ("override", "says"),
    [
        ("--training.batch_size=32", "training.batch_size=0"),
        ("--training.patience=3", "training.patience=0"),
        ("--training.clip_norm=1", "training.clip_norm=0"),
        ("--training.monitor=mse", "training.monitor=loss"),
        ("--training.optimizer=adafactor", "adam, adamw or sgd"),
        ("--training.schedule=plateau", "a schedule that depends on the step"),
    ],
)
def test_recipes_that_cannot_be_trained_together(tmp_path, override, says):
    with pytest.raises(UsageError, match=says):
        together(replicas(tmp_path, override), tmp_path)


def test_recipes_that_differ_in_more_than_data_and_seed(tmp_path):
    mixed = [*replicas(tmp_path), *replicas(tmp_path, "--model.hidden_dim=4")]
    with pytest.raises(UsageError, match="the same except for their data and seed"):
        together(mixed, tmp_path)


def test_a_loss_that_is_not_finite_is_said(tmp_path):
    with pytest.raises(Diverged, match="not finite"):
        together(replicas(tmp_path, "--training.learning_rate=1e30"), tmp_path / "together")


def test_a_table_whose_rows_are_ensembles(tmp_path):
    (tmp_path / "tiny.yaml").write_text(recipes.as_yaml(tiny_recipe(tmp_path, *FULL)))
    task = copy.copy(find_task("intervals"))
    task.recipe_file = tmp_path / "tiny.yaml"
    rows = tuple(Row(name.capitalize(), "", (f"--model.family={name}",)) for name in ("linear", "parabola"))
    repetitions = tuple(
        Repetition(f"{name}-{split}", (f"--data.apart={apart}", f"--data.split={split}"), (name,))
        for name, apart in (("apart", "true"), ("touching", "false"))
        for split in (0, 1)
    )
    metrics = (Metric("test.mse", "MSE", compared=True), Metric("last.test.mse", "MSE, last"))
    table = Table("t", "", rows, repetitions, metrics, baseline="Linear", together=True, shown=("touching",))
    workers = Here()
    job = Reproduction(task, table, tmp_path / "runs", tmp_path / "t.json", workers=workers)
    text = reproduce(job)
    assert [work.folder for work in workers.begun] == [tmp_path / "runs" / row for row in ("linear", "parabola")]
    stored = json.loads((tmp_path / "t.json").read_text())
    assert stored["complete"]
    assert stored["cells"][0]["results"]["timing"]["trained_together"] == 4
    assert list(stored["rows"][0]["groups"]) == ["apart", "touching"]
    lines = [line.strip("| ") for line in text.splitlines()]
    assert [line.partition(" ")[0] for line in lines if line.startswith(("**", "Linear", "Parabola"))] == [
        "**touching**",
        "Linear",
        "Parabola",
        "**touching**",
        "Parabola",
    ]
    # What is done is not done again.
    assert reproduce(job) == text
    assert len(workers.begun) == 2
