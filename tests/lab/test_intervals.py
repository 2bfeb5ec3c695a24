"""Temperature intervals: one unit for all splits, and forecasts that feed on themselves."""

import dataclasses
import datetime
import itertools
from pathlib import Path

import matplotlib.dates
import numpy as np
import pytest
import torch
from torch import nn
from weather import lines, tiny_recipe, write_weather

from contmax_lab.cli import main
from contmax_lab.drawing import LIGHT, rendered
from contmax_lab.errors import LabError
from contmax_lab.registry import find_task, load_recipe, open_trained
from contmax_lab.report import distinct_labels
from contmax_lab.runs import Run
from contmax_lab.tasks.intervals._model import Forecast
from contmax_lab.training import train


def test_temperatures_of_all_days_span_the_unit_whatever_the_split(tmp_path):
    infos = []
    for split in range(3):
        splits = find_task("intervals").load(tiny_recipe(tmp_path, f"--data.split={split}").data, 0)
        days = splits.info["days"]
        assert float(days.low.min()) == pytest.approx(-1, abs=1e-6)
        assert float(days.high.max()) == pytest.approx(1, abs=1e-6)
        infos.append((splits.info["center"], splits.info["half_range"]))
        # What a normalised temperature is in degrees, from the file.
        text = (tmp_path / "weather.csv").read_text().splitlines()
        lowest = {line.split(",")[0]: float(line.split(",")[1]) for line in text[1:]}
        observed = splits.test.low * splits.info["half_range"] + splits.info["center"]
        assert set(observed.mul(100).round().long().tolist()) <= {round(100 * value) for value in lowest.values()}
    assert len(set(infos)) == 1


class _OfTheDay(nn.Module):
    """A forecast that depends on the day alone, whatever else it is told; remembers what that was."""

    def __init__(self):
        super().__init__()
        self.asked = []

    def forward(self, batch):
        self.asked.append(batch["features"])
        return Forecast(batch["features"][:, -1], torch.tensor(0.1))


def test_a_forecast_goes_on_from_itself_over_days_that_were_not_observed(tmp_path):
    rows = lines()
    del rows[150:160]
    write_weather(tmp_path, rows)
    train(tiny_recipe(tmp_path, "--training.epochs=1"), Run(tmp_path / "run"))
    trained = open_trained(tmp_path / "run")
    untested = dataclasses.replace(trained.splits, test=trained.splits.test[:0])
    trained = dataclasses.replace(trained, model=_OfTheDay(), splits=untested)
    figures = trained.task.figures([trained])
    assert {rendered(figure.draw, LIGHT)[:4] for figure in figures} == {b"\x89PNG"}
    # First, it was asked for the days ahead of those that were observed.
    alone = torch.cat(trained.model.asked[1:])
    alone = alone[alone[:, -1].argsort()]
    days = trained.splits.info["days"]
    assert len(alone) == int(days.ordinal[-1] - days.ordinal[0]) + 1 > len(days)
    torch.testing.assert_close(alone[0], days.features[0])
    own = torch.stack([alone[:, -1] - 0.1, alone[:, -1] + 0.1], -1)
    torch.testing.assert_close(alone[1, :-1], torch.cat([days.features[0, 2:4], own[0]]))
    torch.testing.assert_close(alone[2:14, :-1], torch.cat([own[:12], own[1:13]], -1))
    # After a fortnight it is told two observed days again.
    torch.testing.assert_close(alone[14], days.features[14])
    missing = torch.ones(len(alone), dtype=torch.bool)
    missing[days.ordinal - days.ordinal[0]] = False
    assert int(missing.sum()) >= 10
    before = own[missing.nonzero().flatten() - 1]
    torch.testing.assert_close(alone[missing][:, 2:4], before)
    torch.testing.assert_close(alone[(days.ordinal - days.ordinal[0]), -1], days.features[:, -1])
    # Each forecast is drawn on its day.
    low = figures[1].draw(LIGHT).axes[0].lines[0].get_ydata()
    shown = (torch.as_tensor(low) - trained.splits.info["center"]) / trained.splits.info["half_range"]
    torch.testing.assert_close(shown, own[:, 0])


def _with_other_test_days(trained):
    """As if it had been warmer on the test days."""
    days, test = trained.splits.info["days"], set(trained.splits.test.ordinal.tolist())
    warmer = torch.tensor([0.5 * (day in test) for day in days.ordinal.tolist()])
    before = torch.tensor([[0.5 * (day - lag in test) for lag in (2, 2, 1, 1)] for day in days.ordinal.tolist()])
    features = torch.cat([days.features[:, :-1] + before, days.features[:, -1:]], -1)
    others = dataclasses.replace(days, features=features, low=days.low + warmer, high=days.high + warmer)
    info = {**trained.splits.info, "days": others}
    return dataclasses.replace(trained, splits=dataclasses.replace(trained.splits, info=info))


@pytest.mark.parametrize("choice", ["random", "regular", "last"])
def test_pictures_show_nothing_of_the_test_days(tmp_path, choice):
    recipe = tiny_recipe(tmp_path, "--training.epochs=1", f"--data.choice={choice}", "--data.valid=7")
    train(recipe, Run(tmp_path / "run"))
    trained = open_trained(tmp_path / "run")
    test = {matplotlib.dates.date2num(datetime.date.fromordinal(day)) for day in trained.splits.test.ordinal.tolist()}
    ahead, alone = trained.task.figures([trained])
    assert all("without its test days" in figure.caption for figure in (ahead, alone))
    for figure in (ahead, alone):
        (axis,) = figure.draw(LIGHT).axes
        observed = axis.collections[0]
        assert observed.get_label() == "observed"
        shown = {x for path in observed.get_paths() for x in path.vertices[:, 0].tolist()}
        assert len(shown) > 100
        assert not shown & test
    # Neither what a model is given, nor the error in the title, knows of them.
    other = trained.task.figures([_with_other_test_days(trained)])[1]
    assert rendered(alone.draw, LIGHT) == rendered(other.draw, LIGHT)


def test_there_is_no_year_where_every_window_has_a_test_day(tmp_path):
    train(tiny_recipe(tmp_path, "--training.epochs=1"), Run(tmp_path / "run"))
    trained = open_trained(tmp_path / "run")
    days = trained.splits.info["days"]
    every_other = dataclasses.replace(trained.splits, test=days[list(range(0, len(days), 2))])
    figures = trained.task.figures([dataclasses.replace(trained, splits=every_other)])
    assert [figure.title for figure in figures] == ["A year of temperatures, predicted one day ahead"]


@pytest.mark.usefixtures("sketched")
def test_runs_of_the_same_name_are_told_apart_by_what_differs(tmp_path):
    folders = [tmp_path / row / "seed-0" for row in ("parabola", "triangular")]
    for folder in folders:
        train(tiny_recipe(tmp_path, "--training.epochs=1", name=f"intervals/{folder.parent.name}"), Run(folder))
    main(["report", *map(str, folders), "--output", str(tmp_path / "out" / "r.html")])
    page = (tmp_path / "out" / "r.html").read_text()
    assert '<th scope="row">parabola</th>' in page
    assert '<th scope="row">triangular</th>' in page


@pytest.mark.parametrize(
    ("folders", "labels"),
    [
        (["a"], ["a"]),
        (["r/a/0", "r/a/1", "r/b/0"], ["a/0", "a/1", "b/0"]),
        (["r/a/0", "r/0"], ["r/a/0", "r/0"]),
        (["r/0", "r/0"], ["0", "0"]),
    ],
)
def test_labels(folders, labels):
    assert distinct_labels([Path(folder) for folder in folders]) == labels


@pytest.mark.parametrize(("hours", "counts"), [("23", False), ("24", True), ("25", True)])
def test_a_day_that_was_not_observed_for_24_hours_does_not_count(tmp_path, hours, counts):
    # The clocks are put forward in spring: a day of local time with 23 hours, and one with 25 in autumn.
    rows = lines()
    rows[89] = rows[89].replace(",24", f",{hours}")
    write_weather(tmp_path, rows)
    days = find_task("intervals").load(tiny_recipe(tmp_path, "--data.hours=n_hours").data, 0).info["days"]
    target = datetime.date.fromisoformat(rows[89].split(",")[0]).toordinal()
    # Without the day itself, nor the two whose windows of two days before hold it.
    missing = set(range(int(days.ordinal[0]), int(days.ordinal[-1]) + 1)) - set(days.ordinal.tolist())
    assert missing == (set() if counts else {target, target + 1, target + 2})


# -- what is held out --------------------------------------------------------------------------------------------------


def held_out(folder, choice, *overrides, split=0):
    data = tiny_recipe(folder, f"--data.choice={choice}", f"--data.split={split}", "--data.valid=7", *overrides).data
    splits = find_task("intervals").load(data, 0)
    return [sorted(part.ordinal.tolist()) for part in (splits.train, splits.valid, splits.test)]


def test_the_last_days_and_stretches_before_them(tmp_path):
    for split in (0, 2):
        train_days, valid, test = held_out(tmp_path, "last", "--data.apart=false", split=split)
        end = datetime.date(2015, 7, 19).toordinal() - 14 * split
        assert test == list(range(end - 6, end + 1))
        assert valid == list(range(end - 13, end - 6))
        assert (max(train_days) < min(valid)) == (split == 0)
    with pytest.raises(LabError, match="there are 14 stretches"):
        held_out(tmp_path, "last", split=14)


def test_regular_days_lie_at_even_distances_and_do_not_overlap(tmp_path):
    for split in (0, 5):
        _, valid, test = held_out(tmp_path, "regular", split=split)
        steps = {after - before for before, after in itertools.pairwise(sorted(valid + test))}
        # 198 windows, 14 of them held out.
        assert steps == {14, 15}
        assert (len(valid), len(test)) == (7, 7)
        # Validation and test in turn.
        taken = [day in valid for day in sorted(valid + test)]
        assert all(one != other for one, other in itertools.pairwise(taken))
    assert held_out(tmp_path, "regular")[2] != held_out(tmp_path, "regular", split=5)[2]
    with pytest.raises(LabError, match="equal to --data"):
        held_out(tmp_path, "regular", "--data.valid=8")


@pytest.mark.parametrize("choice", ["random", "regular", "last"])
def test_training_windows_share_no_day_with_held_out_ones_unless_they_may(tmp_path, choice):
    for apart in (True, False):
        train_days, valid, test = held_out(tmp_path, choice, f"--data.apart={apart}")
        nearest = min(abs(one - other) for one in train_days for other in valid + test)
        assert nearest == (3 if apart else 1)


# -- forecasts without a network ---------------------------------------------------------------------------------------


def reference(folder, family):
    recipe = tiny_recipe(folder, f"--model.family={family}")
    splits = recipe.task.load(recipe.data, 0)
    batch = recipe.task.batch(splits.test, range(len(splits.test)))
    return recipe.task, splits, batch, recipe.task.build(recipe.model, splits)(batch)


def test_as_yesterday(tmp_path):
    _, _, batch, forecast = reference(tmp_path, "persistence")
    low, high = forecast.loc - forecast.half_width, forecast.loc + forecast.half_width
    torch.testing.assert_close(torch.stack([low, high], -1), batch["features"][:, 2:4])


@pytest.mark.parametrize("season", [False, True])
def test_least_squares_is_that_of_numpy(tmp_path, season):
    _, splits, _, forecast = reference(tmp_path, "linear-season" if season else "linear")
    first = datetime.date(2015, 1, 1).toordinal()

    def known(days):
        angle = 2 * np.pi * (days.ordinal.numpy() - first)[:, None] / 365.2425
        waves = [np.cos(angle), np.sin(angle), np.cos(2 * angle), np.sin(2 * angle)] if season else []
        return np.hstack([days.features.double().numpy(), np.ones((len(days), 1)), *waves])

    for edge, found in (("low", forecast.loc - forecast.half_width), ("high", forecast.loc + forecast.half_width)):
        fitted, *_ = np.linalg.lstsq(known(splits.train), getattr(splits.train, edge).double().numpy(), rcond=None)
        np.testing.assert_allclose(found.numpy(), known(splits.test) @ fitted, atol=1e-4)


def test_two_networks_learn_one_thing_each(tmp_path):
    recipe = tiny_recipe(tmp_path, "--model.family=two-networks")
    splits = recipe.task.load(recipe.data, 0)
    model = recipe.task.build(recipe.model, splits)
    batch = recipe.task.batch(splits.test, range(len(splits.test)))
    output = model(batch)
    middle, half = (batch["low"] + batch["high"]) / 2, (batch["high"] - batch["low"]) / 2
    expected = (output.loc - middle).square() + (output.half_width - half).square()
    torch.testing.assert_close(recipe.task.loss(output, batch)[0], expected)
    output.loc.sum().backward()
    assert all(p.grad is not None for p in model.loc.parameters())
    assert all(p.grad is None for p in model.half_width.parameters())


def test_jaccard_as_mean_of_ratios_and_as_ratio_of_sums():
    task = find_task("intervals")
    batch = {"low": torch.tensor([0.0, 0.0]), "high": torch.tensor([1.0, 4.0])}
    # [0, 1] against [0, 2], and [0, 4] against [3, 5].
    measured = task.measures(Forecast(torch.tensor([1.0, 4.0]), torch.tensor([1.0, 1.0])), batch)
    summary = task.summarise(measured)
    assert summary["jaccard"] == pytest.approx((1 / 2 + 1 / 5) / 2)
    assert summary["jaccard_of_sums"] == pytest.approx(2 / 7)
    assert "common" not in summary


def test_the_settings_of_the_paper_are_those_of_its_appendix():
    printed = {  # learning rate, width, dropout
        "Baseline": (0.002, 64, 0.2),
        "Gaussian-σ": (0.001, 256, 0.1),
        "Gaussian-95 %": (0.0005, 32, 0.2),
        "Truncated parabola": (0.001, 256, 0.1),
        "Triangular": (0.001, 256, 0.05),
    }
    table = next(table for table in find_task("intervals").tables() if table.name == "intervals-paper")
    for row in table.rows[:5]:
        recipe = load_recipe(f"intervals/{row.variant}", row.overrides)
        training, model = recipe.training, recipe.model
        assert (training.learning_rate, model.hidden_dim, model.dropout) == printed[row.label]
        assert (training.epochs, training.batch_size, training.weight_decay) == (50000, 0, 0.0)
        assert (training.optimizer, training.schedule) == ("adam", "constant")
    assert len({repetition.groups for repetition in table.repetitions}) == 12
