"""Temperature intervals: one unit for all splits, and forecasts that feed on themselves."""

import dataclasses
import datetime
from pathlib import Path

import pytest
import torch
from torch import nn
from weather import lines, tiny_recipe, write_weather

from contmax_lab.cli import main
from contmax_lab.drawing import LIGHT, rendered
from contmax_lab.registry import find_task, open_trained
from contmax_lab.report import distinct_labels
from contmax_lab.runs import Run
from contmax_lab.tasks.intervals import Forecast
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


class _Constant(nn.Module):
    """The same forecast whatever it is asked; remembers what that was."""

    def __init__(self):
        super().__init__()
        self.asked = []

    def forward(self, batch):
        self.asked.append(batch["features"])
        return Forecast(batch["features"].new_full((len(batch["features"]),), 0.3), torch.tensor(0.1))


def test_a_forecast_goes_on_from_itself_over_days_that_were_not_observed(tmp_path):
    rows = lines()
    del rows[150:160]
    write_weather(tmp_path, rows)
    train(tiny_recipe(tmp_path, "--training.epochs=1"), Run(tmp_path / "run"))
    trained = dataclasses.replace(open_trained(tmp_path / "run"), model=_Constant())
    figures = trained.task.figures([trained])
    assert {rendered(figure.draw, LIGHT)[:4] for figure in figures} == {b"\x89PNG"}
    alone = torch.cat([features for features in trained.model.asked if len(features) == 1])
    days = trained.splits.info["days"]
    assert len(alone) == int(days.ordinal[-1] - days.ordinal[0]) + 1 > len(days)
    torch.testing.assert_close(alone[0], days.features[0])
    torch.testing.assert_close(alone[1, :-1], torch.cat([days.features[0, 2:4], torch.tensor([0.2, 0.4])]))
    own = torch.tensor([0.2, 0.4, 0.2, 0.4])
    torch.testing.assert_close(alone[2:14, :-1], own.expand(12, 4))
    # After a fortnight it is told two observed days again.
    torch.testing.assert_close(alone[14], days.features[14])
    missing = torch.ones(len(alone), dtype=torch.bool)
    missing[days.ordinal - days.ordinal[0]] = False
    assert int(missing.sum()) >= 10
    torch.testing.assert_close(alone[missing][:, 2:4], own[2:].expand(int(missing.sum()), 2))
    torch.testing.assert_close(alone[(days.ordinal - days.ordinal[0]), -1], days.features[:, -1])


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
