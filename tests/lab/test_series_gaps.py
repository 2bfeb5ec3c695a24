"""Series as clinics and sensors have them: gaps, several values at one time, static columns, long tables."""

import json
import math
import re

import pytest
import torch
from own_data import learns

from contmax_lab.errors import LabError
from contmax_lab.registry import load_recipe, shipped_recipes
from contmax_lab.tasks.series import SeriesData, SeriesModel
from contmax_lab.tasks.series._task import TASK

VARIANTS = [name for name in shipped_recipes() if name.startswith("series/")]
# Six series of two channels, which are seldom observed together.
WIDE = ["id,time,x,y,label"]
for number in range(6):
    for hour in range(4):
        first, second = f"{number + hour}", f"{hour * 10 - number}"
        cells = (first, second) if hour == 2 else (first, "") if hour % 2 else ("nan", second)
        WIDE.append(f"{number},{hour},{cells[0]},{cells[1]},{'ab'[number % 2]}")


def table(folder, lines, name="a.csv", begin=""):
    path = folder / name
    path.write_text(begin + "\n".join([*lines, ""]), encoding="utf-8")
    return path


def loaded(folder, lines, name="a.csv", begin="", **keys):
    return TASK.load(SeriesData(train=table(folder, lines, name, begin), **keys), 0)


def as_long(lines, names=("id", "time", "variable", "value", "label")):
    header, *rows = [line.split(",") for line in lines]
    long = [",".join(names)]
    for row in rows:
        long += [f"{row[0]},{row[1]},{header[place]},{row[place]},{row[-1]}" for place in range(2, len(row) - 1)]
    return long


def tensors(splits):
    parts = [getattr(splits, name) for name in ("train", "valid")]
    return [[*part.values, *part.observed, *part.positions, part.static, part.target] for part in parts]


def same(one, two):
    return all(
        torch.equal(a, b) for x, y in zip(tensors(one), tensors(two), strict=True) for a, b in zip(x, y, strict=True)
    )


def network_of(splits, **model):
    torch.manual_seed(0)
    return TASK.build(SeriesModel(hidden_dim=8, functions=6, **model), splits).eval()


# -- gaps --------------------------------------------------------------------------------------------------------------


def test_statistics_are_those_of_observed_training_values(tmp_path):
    keys = {"validation": table(tmp_path, ["id,time,x,y,label", "9,0,1e6,,a", "9,1,,1e6,a"], "v.csv")}
    scale = loaded(tmp_path, WIDE, **keys).info["scale"]
    xs = [number + hour for number in range(6) for hour in (1, 2, 3)]
    ys = [10 * hour - number for number in range(6) for hour in (0, 2)]
    for place, numbers in enumerate((xs, ys)):
        found = torch.tensor(numbers, dtype=torch.float64)
        assert scale.centres[place] == pytest.approx(found.mean().item())
        assert scale.deviations[place] == pytest.approx(found.std(correction=0).item())
    assert scale.gaps == (True, True)


@pytest.mark.parametrize("name", VARIANTS)
def test_every_variant_learns_from_gaps_and_from_series_without_observations(tmp_path, name):
    keys = [f"--data.train={table(tmp_path, [*WIDE, '7,0,,NA,a', '8,1,5,,b'])}", "--model.hidden_dim=4"]
    _, output, batch = learns(load_recipe(name, [*keys, "--model.functions=4"]))
    empty = ~batch["mask"].any(-1)
    assert empty.sum() == 1
    measures = TASK.measures(output, batch)
    assert all(values.isfinite().all() for values in measures.values())
    assert measures["attended"][empty].item() == 0


@pytest.mark.parametrize("name", VARIANTS)
def test_what_was_not_observed_never_matters(tmp_path, name):
    """Neither to an answer, nor to a gradient: bit for bit, whatever stands there."""
    splits = loaded(tmp_path, WIDE)
    model = load_recipe(name, ["--model.hidden_dim=8", "--model.functions=6"]).model
    network, batch = TASK.build(model, splits).eval(), TASK.batch(splits.train, range(len(splits.train)))
    found = []
    for garbage in (0.0, 1e30, math.nan, math.inf):
        values = batch["values"].clone()
        values[..., :-1] = torch.where(batch["observed"], values[..., :-1], garbage)
        values.requires_grad_()
        network.zero_grad()
        output = network({**batch, "values": values})
        TASK.loss(output, batch)[0].sum().backward()
        assert (values.grad[..., :-1][~batch["observed"]] == 0).all()
        weights = [parameter.grad for parameter in network.parameters() if parameter.grad is not None]
        found.append([output.scores.detach(), *weights])
    for other in found[1:]:
        assert all(torch.equal(a, b) for a, b in zip(found[0], other, strict=True))


def test_a_line_without_any_value_is_as_good_as_none(tmp_path):
    more = [*WIDE, *(f"{number},{time},,NaN,{'ab'[number % 2]}" for number in range(6) for time in (-7, 1.5, 99))]
    one, two = loaded(tmp_path, WIDE), loaded(tmp_path, more, "b.csv")
    assert same(one, two)
    batches = [TASK.batch(splits.train, range(len(splits.train))) for splits in (one, two)]
    answers = [network_of(splits)(batch).scores for splits, batch in zip((one, two), batches, strict=True)]
    assert torch.equal(*answers)


def test_complete_series_need_no_inputs_for_gaps(tmp_path):
    whole = [re.sub(r",(nan)?,", ",3,", line.replace(",,", ",3,")) for line in WIDE]
    network = network_of(loaded(tmp_path, whole))
    assert network.first.in_channels == 4
    assert network_of(loaded(tmp_path, WIDE, "gaps.csv")).first.in_channels == 6


@pytest.mark.parametrize("sign", ["", "NaN", "nan", "NA", "n/a", "null", "None", "<NA>", " "])
def test_every_sign_of_absence(tmp_path, sign):
    lines = [line.replace(",nan,", f",{sign},") for line in WIDE]
    assert same(loaded(tmp_path, WIDE), loaded(tmp_path, lines, "b.csv"))


def test_a_channel_without_values_works_and_a_table_without_any_is_one_line(tmp_path):
    lines = [line.replace(",label", ",z,label") if "label" in line else f"{line[:-1]},{line[-1]}" for line in WIDE]
    splits = loaded(tmp_path, lines)
    assert splits.info["channels"] == "x, y, z"
    batch = TASK.batch(splits.train, [0])
    network = network_of(splits)
    assert network(batch).scores.isfinite().all()
    # Nothing was learned of it, so that later values of it matter to nothing.
    later = table(tmp_path, [lines[0], "9,0,1,2,,a", "9,1,3,4,,a"], "later.csv")
    known = table(tmp_path, [lines[0], "9,0,1,2,5,a", "9,1,3,4,7,a"], "known.csv")
    found = [loaded(tmp_path, lines, validation=path).valid for path in (later, known)]
    assert torch.equal(*(network(TASK.batch(part, [0])).scores for part in found))
    nothing = [re.sub(r"^(\d,\d),.*,(\w)$", r"\1,,,\2", line) for line in WIDE]
    with pytest.raises(LabError, match=r"a\.csv: no training series has any observation"):
        loaded(tmp_path, nothing)


def test_a_batch_of_series_without_observations(tmp_path):
    splits = loaded(tmp_path, [*WIDE, *(f"{number},0,,,a" for number in range(10, 20))])
    empty = [place for place, positions in enumerate(splits.train.positions) if not len(positions)]
    network, batch = network_of(splits), TASK.batch(splits.train, empty)
    answer = network(batch)
    assert answer.scores.isfinite().all()
    # Nothing is attended to, beside others too.
    beside = network(TASK.batch(splits.train, [*empty, 0]))
    torch.testing.assert_close(beside.scores[:-1], answer.scores)


# -- times -------------------------------------------------------------------------------------------------------------


def test_several_values_at_one_time_are_one_observation(tmp_path):
    split = [WIDE[0]]
    for line in WIDE[1:]:
        name, time, x, y, label = line.split(",")
        split += [f"{name},{time},{x},,{label}", f"{name},{time},,{y},{label}"]
    assert same(loaded(tmp_path, WIDE), loaded(tmp_path, split, "b.csv"))
    twice = [*WIDE, "0,1,4,,a", "0,1,10,,a"]
    scattered = [twice[0], *reversed(twice[1:])]
    # Only the order of the series changes, so that all are taken from a file of their own.
    whole = {"validation": table(tmp_path, WIDE, "v.csv")}
    one, two = (loaded(tmp_path, lines, f"{i}.csv", **whole) for i, lines in enumerate((twice, scattered)))
    first, second = (dict(zip(splits.train.names, splits.train.values, strict=True)) for splits in (one, two))
    scale = one.info["scale"]
    assert first["0"][1, 0].item() == pytest.approx((5 - scale.centres[0]) / scale.deviations[0], rel=1e-5)
    assert all(torch.equal(first[name], second[name]) for name in first)


def test_durations_and_dates_are_seconds(tmp_path):
    def at(write):
        return [WIDE[0], *(re.sub(r"^(\d),(\d)", lambda m: f"{m[1]},{write(int(m[2]))}", line) for line in WIDE[1:])]

    clocks = {
        "duration": lambda hour: f"{hour:02d}:00",
        "long duration": lambda hour: f"{hour}:00:00.0",
        "days": lambda hour: f"0 days 0{hour}:00:00",
        "date": lambda hour: f"2024-01-31 0{hour}:00",
    }
    plain = loaded(tmp_path, WIDE)
    for name, write in clocks.items():
        splits = loaded(tmp_path, at(write), f"{name}.csv")
        assert same(plain, splits), name
        assert splits.info["scale"].duration == 3 * 3600
    assert splits.info["scale"].clock == "date"


# -- long tables, static columns ---------------------------------------------------------------------------------------


def test_a_long_table_is_its_wide_one(tmp_path):
    wide = loaded(tmp_path, WIDE)
    found = [
        loaded(tmp_path, as_long(WIDE), "long.csv"),
        loaded(tmp_path, as_long(WIDE, ("Patient ID", "TIMESTAMP", "Parameter", "ValueNum", "Outcome")), "usual.csv"),
        loaded(
            tmp_path,
            as_long(WIDE, ("who", "when", "test", "result", "end")),
            "named.csv",
            variable="test",
            value="result",
        ),
        loaded(tmp_path, [line.replace(",", ";") for line in as_long(WIDE)], "semicolons.csv", "\ufeff"),
        loaded(tmp_path, [line.replace(",", "\t") for line in as_long(WIDE)], "tabs.tsv"),
    ]
    header, *rows = [line.split(",") for line in as_long(WIDE)]
    plain = [json.dumps({**dict(zip(header, row, strict=True)), "value": float(row[3] or "nan")}) for row in rows]
    found.append(loaded(tmp_path, [line.replace("NaN", "null") for line in plain], "lines.jsonl"))
    for splits in found:
        assert same(wide, splits)
        assert splits.info["channels"] == "x, y"


def test_lines_of_a_long_table_may_stand_in_any_order(tmp_path):
    header, *rows = as_long(WIDE)
    by_variable = sorted(rows, key=lambda row: (row.split(",")[0], row.split(",")[2], row.split(",")[1]))
    assert same(loaded(tmp_path, [header, *rows]), loaded(tmp_path, [header, *by_variable], "b.csv"))


def test_usual_names_go_before_places(tmp_path):
    moved = [",".join(line.split(",")[place] for place in (4, 2, 1, 3, 0)) for line in WIDE]
    assert same(loaded(tmp_path, WIDE), loaded(tmp_path, moved, "b.csv"))


def people(lines, ages, sexes):
    named = {str(number): (ages[number], sexes[number]) for number in range(6)}
    head, *rows = lines
    return [f"{head},age,sex", *(f"{row},{','.join(named[row.split(',')[0]])}" for row in rows)]


AGES, SEXES = ["60", "70", "", "80", "90", "50"], ["f", "m", "m", "", "f", "m"]


def test_static_columns_reach_the_classifier(tmp_path):
    lines = people(WIDE, AGES, SEXES)
    splits = loaded(tmp_path, lines, static=["age", "sex"])
    assert splits.info["channels"] == "x, y"
    scale, names = splits.info["scale"], splits.train.names
    assert [own.names for own in scale.static] == [(), ("f", "m")]
    known = [float(AGES[int(name)]) for name in names if AGES[int(name)]]
    assert scale.static[0].centre == pytest.approx(sum(known) / len(known))
    network = network_of(splits)
    batch = TASK.batch(splits.train, range(len(names)))
    older = {**batch, "static": batch["static"] + torch.tensor([1.0] + [0.0] * (batch["static"].shape[1] - 1))}
    assert not torch.equal(network(batch).scores, network(older).scores)
    # They are no part of the attention.
    assert torch.equal(network(batch).heads[0].context, network(older).heads[0].context)


def test_static_columns_of_every_kind_of_table(tmp_path):
    static = {"static": ["age", "sex"]}
    columns = loaded(tmp_path, people(WIDE, AGES, SEXES), **static)
    values = [
        f"{i},0,{name},{cells[i]},{'ab'[i % 2]}" for i in range(6) for name, cells in (("age", AGES), ("sex", SEXES))
    ]
    variables = loaded(tmp_path, [*as_long(WIDE), *values], "variables.csv", **static)
    assert same(columns, variables)
    bare = [line.rpartition(",")[0] for line in as_long(WIDE)]
    persons = ["id,sex,age,label", *(f"{i},{SEXES[i]},{AGES[i]},{'ab'[i % 2]}" for i in (5, 3, 1, 0, 2, 4))]
    apart = loaded(tmp_path, bare, "bare.csv", labels=table(tmp_path, persons, "persons.csv"), **static)
    assert same(columns, apart)
    mixed = loaded(
        tmp_path,
        [line.rpartition(",")[0] for line in WIDE],
        "mixed.csv",
        labels=table(tmp_path, persons, "persons.csv"),
        **static,
    )
    assert same(columns, mixed)


HOSTILE = {
    "text": ([*WIDE, "0,9,high,1,a"], {}, r"line 26: x is 'high', which is not a number.*pass --data\.variable x"),
    "infinite": ([*as_long(WIDE), "0,9,x,inf,a"], {}, r"line 50: x \(value\) is 'inf'; it must be finite"),
    "text in a long table": ([*as_long(WIDE), "0,9,x,high,a"], {}, r"line 50: x \(value\) is 'high', which is not"),
    "no variable": ([*as_long(WIDE), "0,9,,1,a"], {}, r"line 50: nothing in the column variable"),
    "a duration below 0": ([*WIDE, "0,-0:30,1,1,a"], {}, r"line 26: time is '-0:30', a duration below 0"),
    "no time": ([*WIDE, "0,31/12/2024,1,1,a"], {}, r"line 26: time is '31/12/2024', .*nor an ISO date such as 2024"),
    "times of two kinds": ([*WIDE, "0,2024-01-31,1,1,a"], {}, r"line 26: time is '2024-01-31', a date, but line 2 has"),
    "no label": ([*WIDE, "9,1,1,1,"], {}, r"line 26: series 9 has no label: nothing in the column label"),
    "static changes": (
        [f"{WIDE[0]},age", *(f"{line},{i}" for i, line in enumerate(WIDE[1:]))],
        {"static": ["age"]},
        r"line 3: the static column age of series 0 is '1' here and '0' in line 2",
    ),
    "static without values": (
        people(WIDE, [""] * 6, SEXES),
        {"static": ["age", "sex"]},
        "no training series has a value of",
    ),
    "static of two kinds": (
        people(WIDE, ["60", "old", "60", "old", "60", "old"], SEXES),
        {"static": ["age", "sex"]},
        r"line \d+: the static column age is 'old' here and '60' elsewhere",
    ),
    "no static column": (WIDE, {"static": ["age"]}, r"line 1: got the columns id.*no column age"),
    "no static variable": (as_long(WIDE), {"static": ["age"]}, "neither a column nor a variable age"),
    "static twice": (WIDE, {"static": ["x", "x"]}, "name one column"),
    "only static": (
        [",".join(line.split(",")[i] for i in (0, 1, 2, 4)) for line in WIDE],
        {"static": ["x"]},
        "one chan",
    ),
    "a value without a variable": (WIDE, {"value": "x"}, r"--data\.variable and --data\.value go together"),
    "long without labels": ([line.rpartition(",")[0] for line in as_long(WIDE)], {}, r"or pass the labels as a table"),
}


@pytest.mark.parametrize("case", HOSTILE)
def test_hostile_tables_are_one_line(tmp_path, case):
    lines, keys, says = HOSTILE[case]
    with pytest.raises(LabError, match=says) as caught:
        loaded(tmp_path, lines, **keys)
    assert "a.csv" in str(caught.value)
    assert "\n" not in str(caught.value)


def test_hostile_tables_of_labels_are_one_line(tmp_path):
    bare = [line.rpartition(",")[0] for line in as_long(WIDE)]
    for lines, says in (
        (["id,label", "0,a"], r"a\.csv, line 10: series 1 is not in the table of labels"),
        (["id,label", "0,a", "0,b"], r"l\.csv, line 3: series 0 is also in line 2"),
        (["id,label", *(f"{i}," for i in range(6))], r"l\.csv, line 2: nothing in the column label"),
        (["id"], r"l\.csv has no rows"),
        (["id", "0"], r"l\.csv, line 1: got the columns id; a series id and a label are needed"),
    ):
        with pytest.raises(LabError, match=says):
            loaded(tmp_path, bare, labels=table(tmp_path, lines, "l.csv"))


def test_other_parts_are_read_as_the_training_series(tmp_path):
    for lines, says in (
        ([WIDE[0], "9,2024-01-31,1,1,a"], r"v\.csv, line 2: the times of series 9 are dates, those of the training"),
        (["id,time,x,label", "9,1,1,a"], r"v\.csv, line 1: no column y"),
    ):
        with pytest.raises(LabError, match=says):
            loaded(tmp_path, WIDE, validation=table(tmp_path, lines, "v.csv"))
    people_lines = people(WIDE, ["60"] * 6, SEXES)
    old = table(tmp_path, [people_lines[0], "9,1,1,1,a,old,m"], "v.csv")
    with pytest.raises(LabError, match=r"v\.csv, line 2: the static column age is 'old', which is not a number as in"):
        loaded(tmp_path, people_lines, static=["age", "sex"], validation=old)


def test_one_line_for_each_series(tmp_path):
    splits = loaded(tmp_path, ["id,time,x,label", *(f"{i},{i},{i},{'ab'[i % 2]}" for i in range(8))])
    assert all(positions.tolist() == [0.5] for positions in splits.train.positions)
    assert network_of(splits)(TASK.batch(splits.train, [0, 1])).scores.isfinite().all()


@pytest.mark.usefixtures("sketched")
def test_a_run_on_dates_with_gaps_predicts_draws_and_is_exported(tmp_path, contmax):
    dated = [
        WIDE[0],
        *(re.sub(r"^(\d),(\d)", r"\1,2024-01-0\g<2>", line.replace(",0,", ",4,", 1)) for line in WIDE[1:]),
    ]
    train = table(tmp_path, people([*dated, "5,2024-01-07,1,,b"], AGES, SEXES))
    lines = train.read_text().splitlines()
    empty = [f"{number},2024-01-01,,,a,,f" for number in (20, 21)]
    table(tmp_path, [*lines, *empty])
    keys = ["--data.train", train, "--data.static", "age,sex", "--folder", tmp_path / "run"]
    code, _, errors = contmax("train", "series", *keys, "--training.epochs=2", "--model.functions=6")
    assert (code, errors) == (0, [])
    code, _, errors = contmax("report", tmp_path / "run", "--output", tmp_path / "r" / "report.html", "--examples", 1)
    assert (code, errors) == (0, [])
    assert contmax("export", tmp_path / "run", "--into", tmp_path / "model")[0] == 0
    new = table(
        tmp_path,
        ["id,time,x,y,age", *(f"n,2024-02-0{day},{day},{'' if day > 2 else 3}," for day in (1, 2, 3))],
        "n.csv",
    )
    nothing = table(tmp_path, ["id,time,x,y,sex,age", "n,2024-02-01,,NaN,m,61"], "o.csv")
    for path, says in (
        (new, r"\nattended: [1-3] of 3 observations, between the times 2024-02-0\d \d\d:.*\nnot known: age, sex\n"),
        (nothing, r"\nattended: 0 of 0 observations\n$"),
    ):
        for model in ([tmp_path / "run"], ["--model", tmp_path / "model"]):
            code, out, errors = contmax("predict", *model, path)
            assert (code, errors) == (0, [])
            assert re.search(says, out.partition("drawn")[0]), out
        assert contmax("predict", tmp_path / "run", path, "--figure", tmp_path / "a.png")[0] == 0
    code, _, (complaint,) = contmax("predict", tmp_path / "run", table(tmp_path, ["id,time,x,y", "n,5,1,1"], "p.csv"))
    assert code == 1
    assert "p.csv, line 2: the times of series n are numbers, those of the training series dates" in complaint
