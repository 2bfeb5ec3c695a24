"""Folders of runs: what is in them is named when it is damaged, and kept only while it is worth something."""

import csv
import sys
import types

import pytest
from weather import tiny_recipe

from contmax_lab.errors import LabError
from contmax_lab.runs import Run
from contmax_lab.training import train


def test_a_run_without_anything_to_lose_is_begun_anew(tmp_path):
    run = Run(tmp_path / "run")
    with pytest.raises(LabError, match="no such file"):
        train(tiny_recipe(tmp_path, f"--data.path={tmp_path / 'nowhere.csv'}"), run)
    recipe = tiny_recipe(tmp_path)
    train(recipe, run)
    assert run.recipe(recipe.task) == recipe


def test_trained_weights_are_something_to_lose(tmp_path):
    run = Run(tmp_path / "run")
    train(tiny_recipe(tmp_path), run)
    (run.folder / "results.json").unlink()
    with pytest.raises(LabError, match="already holds a run"):
        train(tiny_recipe(tmp_path, "--seed=1"), run)


def test_the_spreadsheet_says_what_the_lines_say(tmp_path, monkeypatch):
    recipe, run = tiny_recipe(tmp_path), Run(tmp_path / "run")
    train(recipe, run)

    def rows():
        with run.spreadsheet.open(encoding="utf-8", newline="") as file:
            return [{name: float(value) for name, value in row.items() if value} for row in csv.DictReader(file)]

    def flat(record):
        parts = {f"{part}.{name}": value for part in ("train", "valid") for name, value in record[part].items()}
        return {**parts, **{name: record[name] for name in ("epoch", "step", "seconds")}}

    assert rows() == [flat(record) for record in run.history()]
    size = len(run.metrics.read_bytes().splitlines(keepends=True)[0])
    run.truncate_metrics(size)
    assert [row["epoch"] for row in rows()] == [1]
    run.append_metrics({"epoch": 2, "train": {"loss": 1.0}, "valid": {"bleu": 2.0}})
    assert [row.get("valid.bleu") for row in rows()] == [None, 2.0]
    run.append_metrics({"epoch": 3, "train": {"loss": 1.0}, "valid": {"bleu": 3.0}})
    assert [row["epoch"] for row in rows()] == [1, 2, 3]


class FakeWandb(types.ModuleType):
    """Remembers what it is told; talks to nobody."""

    def __init__(self):
        super().__init__("wandb")
        self.begun, self.points, self.finished = [], [], 0

    def init(self, **options):
        self.begun.append(options)
        return self

    def log(self, points, step):
        self.points.append((step, points))

    def finish(self):
        self.finished += 1


def test_metrics_go_to_one_run_of_wandb_also_after_an_interruption(tmp_path, monkeypatch):
    from contmax_lab.training import _learner

    recipe, run, wandb = tiny_recipe(tmp_path, "--training.wandb=days"), Run(tmp_path / "run"), FakeWandb()
    monkeypatch.setitem(sys.modules, "wandb", wandb)

    step = _learner.Learner.step

    def limited(self, loaded, number, total):
        # In the second of three epochs, when the first has been sent.
        if wandb.points:
            raise LabError("enough")
        step(self, loaded, number, total)

    with monkeypatch.context() as patch:
        patch.setattr(_learner.Learner, "step", limited)
        with pytest.raises(LabError, match="enough"):
            train(recipe, run)
    assert (wandb.finished, len(wandb.points)) == (1, 1)
    train(recipe, run, resume=True)
    first, second = wandb.begun
    assert first == second
    assert (first["project"], first["name"], first["resume"]) == ("days", "run", "allow")
    assert first["config"]["model"]["hidden_dim"] == 8
    assert wandb.finished == 2
    history = run.history()
    # The first epoch was not saved, so it is trained and sent again: the same numbers for the same step.
    assert [step for step, _ in wandb.points] == [record["step"] for record in [history[0], *history]]
    sent = [points["valid/loss"] for _, points in wandb.points]
    assert sent == [record["valid"]["loss"] for record in [history[0], *history]]


def test_how_often_it_is_saved_is_no_other_recipe(tmp_path):
    run = Run(tmp_path / "run")
    train(tiny_recipe(tmp_path), run)
    assert run.differences(tiny_recipe(tmp_path, "--training.checkpoint_seconds=7")) == []
    assert run.differences(tiny_recipe(tmp_path, "--training.epochs=7"))


@pytest.mark.parametrize("name", ["results.json", "metrics.jsonl"])
def test_a_damaged_file_of_a_run_is_named(tmp_path, name):
    recipe, run = tiny_recipe(tmp_path), Run(tmp_path / "run")
    train(recipe, run)
    (run.folder / name).write_text('{"epoch": 4, "va\n')
    with pytest.raises(LabError, match=f"{name} is damaged") as error:
        run.history() if name == "metrics.jsonl" else train(recipe, run, resume=True)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("name", ["intervals/parabola", "intervals/gaussian-sigma"])
def test_a_training_that_diverges_is_one_line(tmp_path, name):
    recipe = tiny_recipe(tmp_path, "--training.learning_rate=1e30", name=name)
    with pytest.raises(LabError, match=r"(diverged|not finite).*Lower training.learning_rate") as error:
        train(recipe, Run(tmp_path / "run"))
    assert "\n" not in str(error.value)


def test_a_last_line_that_was_cut_short_is_left_out(tmp_path):
    run = Run(tmp_path)
    run.append_metrics({"epoch": 1, "train": {}, "valid": {"loss": 2.0}})
    whole = run.history()
    with run.metrics.open("a") as file:
        file.write('{"epoch": 2, "valid": {"lo')
    assert run.history() == whole
    assert len(whole) == 1


def test_a_run_without_test_examples_has_nothing_left_to_test(tmp_path):
    run = Run(tmp_path)
    assert not run.is_untested()
    for count, test, untested in ((5, None, True), (5, {"loss": 1.0}, False), (0, None, False)):
        run.write_results({"test": test, "examples": {"test": count}})
        assert run.is_untested() is untested
