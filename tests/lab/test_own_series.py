"""Series of the user's own: from a table in long format to a run, an answer and a report."""

import math
import re
import time

import pytest
import torch
from own_data import learns, padding_changes_nothing, sensors

from contmax_lab.cli import main
from contmax_lab.errors import LabError
from contmax_lab.registry import load_recipe, open_trained, shipped_recipes
from contmax_lab.tasks.series import SeriesData
from contmax_lab.tasks.series._task import TASK

VARIANTS = [name for name in shipped_recipes() if name.startswith("series/")]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Sensors and a run."""
    folder = tmp_path_factory.mktemp("series")
    train = sensors(folder / "sensors.csv")
    short = ("--training.epochs=12", "--training.learning_rate=0.01", "--model.hidden_dim=16", "--model.functions=12")
    main(["train", "series", "--data.train", str(train), *short, "--folder", str(folder / "run")])
    return folder


def test_states_are_learned(folder):
    trained = open_trained(folder / "run")
    assert trained.results["valid"]["accuracy"] > 0.7
    assert trained.splits.info["classes"] == ("dip", "ok", "peak")
    assert trained.splits.info["channels"] == "level, heat"


def test_predict_answers_a_table_with_one_series(folder, contmax, tmp_path):
    lines = (folder / "sensors.csv").read_text().splitlines()
    own = [line.rpartition(",")[0] for line in lines if line.startswith(("machine,", "4,"))]
    (tmp_path / "new.csv").write_text("\n".join(own))
    code, out, _ = contmax("predict", folder / "run", tmp_path / "new.csv", "--figure", tmp_path / "a.png")
    assert code == 0
    count = len(own) - 1
    assert re.match(rf"\w+ \(\d+%\), .*\nattended: \d+ of {count} observations, between the times \d", out), out
    assert (tmp_path / "a.png").is_file()
    for words, says in (
        ([tmp_path / "none.csv"], "no such file"),
        (["a", "b"], "one series"),
    ):
        code, _, complaint = contmax("predict", folder / "run", *words)
        assert (code > 0, len(complaint)) == (True, 1)
        assert says in complaint[0]


@pytest.mark.usefixtures("sketched")
def test_report_shows_where_it_looks(folder, contmax, tmp_path):
    code, _, errors = contmax("report", folder / "run", "--output", tmp_path / "report.html", "--examples", 1)
    assert (code, errors) == (0, [])
    assert list(tmp_path.rglob("where-the-models-look-over-time*.png"))


@pytest.mark.parametrize("name", VARIANTS)
def test_every_variant_gives_finite_losses_and_gradients(tmp_path, name):
    path = table(tmp_path, [*GOOD, "single,5,1,2,a"])
    recipe = load_recipe(name, [f"--data.train={path}", "--model.hidden_dim=4", "--model.functions=4"])
    learns(recipe)


def test_padding_changes_nothing(folder):
    padding_changes_nothing(folder / "run")


# -- data --------------------------------------------------------------------------------------------------------------


def table(folder, lines, header="id,time,x,y,label", name="a.csv"):
    path = folder / name
    path.write_text("\n".join([header, *lines, ""]), encoding="utf-8")
    return path


# Four series of three observations; the lines of two of them alternate, and their times fall.
GOOD = [f"{i},{time},{time + i},7,{'ab'[i % 2]}" for i in (0, 1) for time in (3, 1, 2)]
GOOD += [f"{i},{time},{time + i},7,{'ab'[i % 2]}" for time in (10.5, 9, 4) for i in (2, 3)]


def test_times_are_sorted_and_go_to_positions(tmp_path):
    splits = TASK.load(SeriesData(train=table(tmp_path, GOOD), validation=table(tmp_path, GOOD, name="v.csv")), 0)
    assert splits.train.names == ["0", "1", "2", "3"]
    assert splits.train.positions[0].tolist() == [0, 0.5, 1]
    assert splits.train.positions[2].tolist() == pytest.approx([0, 5 / 6.5, 1])
    values = torch.cat(splits.train.values)
    assert values[:, 0].mean().item() == pytest.approx(0, abs=1e-6)
    assert values[:, 0].std(correction=0).item() == pytest.approx(1, abs=1e-6)
    assert values[:, 1].tolist() == [0.0] * 12  # a channel that never changes
    assert splits.train.values[0][:, 2].tolist() == pytest.approx([0, 1 / 6.5, 2 / 6.5])


def test_columns_by_name_are_those_by_position(tmp_path):
    moved = [",".join([line.split(",")[i] for i in (4, 2, 0, 3, 1)]) for line in GOOD]
    named = table(tmp_path, moved, "label,x,id,y,time", "named.csv")
    one = TASK.load(SeriesData(train=table(tmp_path, GOOD)), 0)
    two = TASK.load(SeriesData(train=named, series="id", time="time", label="label"), 0)
    assert torch.equal(torch.cat(one.train.values), torch.cat(two.train.values))
    assert one.train.names == two.train.names
    partly = [",".join(line.split(",")[i] for i in (0, 4, 1, 2, 3)) for line in GOOD]
    three = TASK.load(SeriesData(train=table(tmp_path, partly, "id,label,time,x,y", "p.csv"), label="label"), 0)
    assert torch.equal(torch.cat(one.train.values), torch.cat(three.train.values))


def test_times_may_be_dates(tmp_path):
    dated = [re.sub(r"^(\d),([\d.]+)", lambda m: f"{m[1]},2024-02-{math.ceil(float(m[2])):02d}T12:00", x) for x in GOOD]
    splits = TASK.load(SeriesData(train=table(tmp_path, dated)), 0)
    assert splits.train.positions[0].tolist() == [0, 0.5, 1]


@pytest.mark.parametrize("zone", ["America/New_York", "Asia/Kolkata"])
def test_times_without_a_zone_are_the_same_on_every_machine(tmp_path, monkeypatch, zone):
    """The clocks of New York were put forward on 10 March 2024: a local day has 23 hours, one in UTC has 24."""
    days = ["2024-03-09", "2024-03-10", "2024-03-11T00:00", "2024-03-12T00:00:00+00:00"]
    lines = [f"{i},{day},{i},7,{'ab'[i % 2]}" for i in (0, 1, 2, 3) for day in days]
    monkeypatch.setenv("TZ", zone)
    time.tzset()
    try:
        splits = TASK.load(SeriesData(train=table(tmp_path, lines)), 0)
    finally:
        monkeypatch.undo()
        time.tzset()
    assert splits.train.positions[0].tolist() == pytest.approx([0, 1 / 3, 2 / 3, 1])


def test_a_whole_series_is_held_out(folder):
    splits = TASK.load(SeriesData(train=folder / "sensors.csv", limit=30), 0)
    assert len(splits.train) + len(splits.valid) == 30
    assert not {*splits.train.names} & {*splits.valid.names}


HOSTILE = {
    "label changes": ([*GOOD, "0,4,1,1,b"], {}, r"line 14: the label of series 0 is 'b' here and 'a' in line 2"),
    "no number": ([*GOOD, "0,4,one,1,a"], {}, r"line 14: x is 'one', which is not a number"),
    "infinite": ([*GOOD, "0,4,1,-inf,a"], {}, r"line 14: y is '-inf'; it must be finite"),
    "time": ([*GOOD, "0,noon,1,1,a"], {}, r"line 14: time is 'noon', which is not a number"),
    "ragged": ([*GOOD, "0,4,1,a"], {}, r"line 14: 4 fields where the header has 5"),
    "times too far": (
        [*GOOD, "0,1e308,1,1,a", "0,-1e308,1,1,a"],
        {},
        r"line 2: the times of series 0 reach from -1e\+308",
    ),
    "decimal comma": ([*GOOD, '0,9,"1,5",1,a'], {}, r"line 14: .* is '1,5', which is not a number; write a point"),
    "one class": (GOOD[:3], {}, "every label is 'a'"),
    "missing column": (GOOD, {"time": "when"}, r"line 1: no column when"),
    "the same column": (GOOD, {"time": "id", "series": "id"}, r"line 1: got the columns"),
    "nothing": ([], {}, "has no rows"),
}


@pytest.mark.parametrize("case", HOSTILE)
def test_hostile_series_are_one_line(tmp_path, case):
    lines, keys, says = HOSTILE[case]
    with pytest.raises(LabError, match=says) as caught:
        TASK.load(SeriesData(train=table(tmp_path, lines), **keys), 0)
    assert "a.csv" in str(caught.value)


def test_too_few_columns_and_labels_unseen(tmp_path):
    with pytest.raises(LabError, match="one channel or more"):
        TASK.load(SeriesData(train=table(tmp_path, ["1,2,a"], "id,time,label")), 0)
    other = table(tmp_path, ["9,1,1,1,c"], name="test.csv")
    with pytest.raises(LabError, match=r"test\.csv, line 2: no training example has the label 'c'"):
        TASK.load(SeriesData(train=table(tmp_path, GOOD), test=other), 0)


@pytest.mark.parametrize("power", [150, 307])
def test_extreme_numbers_stay_finite(tmp_path, power):
    far = [f"{i},{time}e12,{time + i}e{power},-{time}e-300,{'ab'[i % 2]}" for i in range(4) for time in (1, 2, 3)]
    splits = TASK.load(SeriesData(train=table(tmp_path, far)), 0)
    network = TASK.build(load_recipe("series").model, splits).eval()
    batch = TASK.batch(splits.train, range(len(splits.train)))
    assert all(values.isfinite().all() for values in batch.values())
    assert network(batch).scores.isfinite().all()
