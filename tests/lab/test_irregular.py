"""Irregular series: what is dropped, what the networks for channels see, thirteen rows, a long table of a user."""

import csv
import dataclasses
import json
import math
import random

import pytest
import torch
from here import Here

from contmax_lab.channels import Boosting, Sizes, logistic_regression
from contmax_lab.cli import main
from contmax_lab.errors import UsageError
from contmax_lab.registry import find_table, load_recipe
from contmax_lab.settings import ChannelsModel
from contmax_lab.tables import Reproduction, reproduce
from contmax_lab.tasks.series.irregular import IrregularData
from contmax_lab.tasks.series.irregular._data import load

TASK, TABLE = find_table("irregular")
SMALL = ["--model.hidden_dim=4", "--model.leaves=3", "--training.epochs=1", "--training.batch_size=0"]


@pytest.fixture(autouse=True)
def few_trees(monkeypatch):
    monkeypatch.setattr("contmax_lab.channels._boosting.TREES", 20)


def vowels(**changed):
    return load(IrregularData(**changed))


@pytest.fixture(scope="module")
def half():
    return vowels()


@pytest.fixture(scope="module")
def motions():
    return vowels(name="motions", dropped=0.95)


def test_each_channel_loses_its_share_by_itself(half):
    assert [len(part) for part in (half.train, half.valid, half.test)] == [216, 54, 370]
    whole = vowels(dropped=0.0)
    lengths = [len(series) for series in whole.train.positions]
    assert 7 <= min(lengths) <= max(lengths) <= 29
    cells = torch.cat(half.train.observed).float()
    shares = cells.sum(0) / sum(lengths)
    assert shares.tolist() == pytest.approx([0.5] * 12, abs=0.05)
    # Rows that are left hold something, and what one channel loses says nothing of another.
    assert cells.any(-1).all()
    assert abs(float(torch.corrcoef(cells[:, :2].mT)[0, 1])) < 0.05
    again, other = vowels(), vowels(split=1)
    assert torch.equal(again.test.observed[0], half.test.observed[0])
    assert not torch.equal(torch.cat(other.train.observed)[:99], torch.cat(half.train.observed)[:99])


def test_scales_are_those_of_what_is_left_for_training(half):
    values = torch.cat(half.train.values)[:, :-1]
    seen = torch.cat(half.train.observed)
    for channel in range(12):
        own = values[:, channel][seen[:, channel]]
        assert float(own.mean()) == pytest.approx(0, abs=1e-4)
        assert float(own.std(correction=0)) == pytest.approx(1, abs=1e-4)


@pytest.mark.parametrize("row", TABLE.rows, ids=lambda row: row.variant)
def test_every_row_learns_and_ignores_what_was_not_observed(motions, row):
    recipe = load_recipe(f"irregular/{row.variant}", SMALL)
    torch.manual_seed(0)
    model = TASK.build(recipe.model, motions).eval()
    known, few = TASK.batch(motions.train, range(28)), TASK.batch(motions.valid, range(12))
    if hasattr(model, "fit"):
        model.fit(known, few, 0)
    whole = model(few)
    losses, _ = TASK.loss(whole, few)
    losses.mean().backward()
    assert all(parameter.grad.isfinite().all() for parameter in model.parameters() if parameter.grad is not None)
    values = few["values"].clone()
    values[..., :-1][~few["observed"]] = math.nan
    torch.testing.assert_close(model({**few, "values": values}).scores, whole.scores)
    # Nothing observed at all is no error either.
    nothing = model({**few, "observed": torch.zeros_like(few["observed"]), "mask": torch.zeros_like(few["mask"])})
    assert nothing.scores.isfinite().all()
    measures = TASK.measures(whole, few)
    assert ((measures["attended"] > 0).any()) == row.variant.startswith(
        ("frames", "scores", "kernel", "gaussian", "biweight", "parabola", "learned")
    )


def test_what_networks_see_of_a_series(half):
    """By hand: last values, counts, times since, and positions of the observations of each channel."""
    for time in ("whole", "last"):
        model = TASK.build(load_recipe("irregular/kernel", [f"--model.time={time}"]).model, half)
        batch = TASK.batch(half.valid, [3, 4])
        found = model.described(batch)
        seen = batch["observed"][1]
        for channel in range(12):
            places = seen[:, channel].nonzero().squeeze(-1)
            mine = (found["channel"][1] == channel) & found["mask"][1]
            assert found["values"][1][mine].tolist() == batch["values"][1, places, channel].tolist()
            clock = batch["positions"][1] if time == "whole" else batch["values"][1, :, -1]
            hours = 48 * clock[places]
            torch.testing.assert_close(found["hours"][1][mine], hours)
            before = torch.log1p(hours[-1:] - hours) / math.log(49)
            torch.testing.assert_close(found["position"][1][mine], hours / 48 if time == "whole" else before)
            assert found["summary"][1, channel] == batch["values"][1, places[-1], channel]
            assert float(found["summary"][1, 12 + channel]) == pytest.approx(math.log1p(len(places)))


def test_several_classes_are_those_of_scikit_learn():
    from sklearn.ensemble import HistGradientBoostingClassifier
    from sklearn.linear_model import LogisticRegression

    inputs = torch.randn(120, 4, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    labels = inputs[:, :3].argmax(-1)
    weight, bias = logistic_regression(inputs, labels, 0.05, 3)
    theirs = LogisticRegression(C=1 / (0.05 * 120), tol=1e-10, max_iter=1000).fit(inputs.numpy(), labels.numpy())
    ours = (inputs @ weight + bias).softmax(-1)
    torch.testing.assert_close(ours, torch.from_numpy(theirs.predict_proba(inputs.numpy())), atol=1e-5, rtol=0)
    trees = Boosting(ChannelsModel(leaves=3), Sizes(channels=1, numbers=4, static=1, outputs=3))
    trees.fit((inputs, labels), (inputs, labels), 0)
    grown = (trees.value != 0).any(-1).view(20, 3).any(-1).sum()
    theirs = HistGradientBoostingClassifier(
        learning_rate=0.05,
        max_leaf_nodes=3,
        max_iter=int(grown),
        l2_regularization=5.0,
        min_samples_leaf=20,
        early_stopping=False,
        random_state=0,
    ).fit(inputs.numpy(), labels.numpy())
    ours = trees({"summary": inputs}).softmax(-1)
    torch.testing.assert_close(ours.double(), torch.from_numpy(theirs.predict_proba(inputs.numpy())), atol=1e-5, rtol=0)


def test_every_row_tries_as_many_settings_and_sees_the_same_series():
    assert {len(row.tries) for row in TABLE.rows} == {3}
    assert len(TABLE.repetitions) == 5
    assert {len(repetition.groups) for repetition in TABLE.repetitions} == {1}


def test_a_table_of_two_rows(tmp_path):
    rows = tuple(row for row in TABLE.rows if row.variant in ("boosting", "parabola"))
    rows = tuple(dataclasses.replace(row, tries=(), against=()) for row in rows)
    table = dataclasses.replace(TABLE, rows=rows, repetitions=TABLE.repetitions[:2], shown=())
    here = Here()
    options = [*SMALL, "--data.limit=90"]
    making = Reproduction(TASK, table, tmp_path / "runs", tmp_path / "irregular.json", options, here)
    reproduce(making)
    assert len(here.begun) == 2 * 2
    stored = json.loads(making.output.read_text())
    assert stored["complete"]
    assert {cell["variant"] for cell in stored["cells"]} == {"vowels-0.8-0", "vowels-0.8-1"}
    assert all(0 <= cell["accuracy"] <= 1 and 0 <= cell["f1"] <= 1 for cell in stored["cells"])
    assert {entry["against"] for entry in stored["differences"]["rows"]} == {TABLE.baseline}


def test_a_long_table_of_a_user(tmp_path, capsys):
    draw = random.Random(0)
    with (tmp_path / "vitals.csv").open("w", newline="") as file:
        table = csv.writer(file)
        table.writerow(["patient_id", "hours", "variable", "value", "age", "outcome"])
        for patient in range(40):
            ill = patient % 2
            for _ in range(8):
                own = patient, f"{draw.uniform(0, 48):.2f}"
                table.writerow([*own, "pulse", draw.gauss(70 + 30 * ill, 5), 40 + patient, "ill" if ill else "well"])
            table.writerow([patient, 7, "lactate", draw.gauss(2, 1), 40 + patient, "ill" if ill else "well"])
    where = ["--data.train", str(tmp_path / "vitals.csv"), "--data.static", "age", "--data.time", "hours"]
    main(["train", "irregular", *where, *SMALL, "--folder", str(tmp_path / "run")])
    assert "accuracy 1 " in capsys.readouterr().out
    lines = (tmp_path / "vitals.csv").read_text().splitlines()
    (tmp_path / "one.csv").write_text("\n".join(lines[:10]) + "\n")
    main(["predict", str(tmp_path / "run"), str(tmp_path / "one.csv")])
    said = capsys.readouterr().out
    assert said.startswith("well (")
    assert "attended: " in said
    main(["export", str(tmp_path / "run"), "--into", str(tmp_path / "model")])
    capsys.readouterr()
    main(["predict", "--model", str(tmp_path / "model"), str(tmp_path / "one.csv")])
    assert capsys.readouterr().out == said
    numbers = f"--data.train={tmp_path / 'vitals.csv'}", "--data.label=age", "--data.target=number"
    recipe = load_recipe("irregular", numbers)
    splits = recipe.load()
    with pytest.raises(UsageError, match="the labels are numbers; pass --model"):
        TASK.build(recipe.model, splits)
