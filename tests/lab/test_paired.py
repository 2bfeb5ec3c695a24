"""Differences between rows of a table, and the recipes that are stored beside them."""

import copy
import dataclasses
import json
import math
import random
import statistics

import pytest
from here import Here
from scipy import stats
from weather import tiny_recipe

from contmax_lab import publish, recipes
from contmax_lab.contract import Metric, Repetition, Row, Table, seeds
from contmax_lab.registry import find_task
from contmax_lab.tables import (
    Reproduction,
    distances_from_paper,
    findings,
    paired_differences,
    reproduce,
    student_quantile,
    summarised_again,
    write_results,
)

METRICS = (Metric("test.mse", "MSE", compared=True), Metric("test.jaccard", "Jaccard"))


def table(repetitions, rows=("Baseline", "Ours"), baseline="Baseline"):
    return Table("t", "", tuple(Row(label) for label in rows), tuple(repetitions), METRICS, baseline=baseline)


def outcomes(made, draw):
    return [(cell, {"test": {"mse": draw.random(), "jaccard": draw.random()}}) for cell in made.cells()]


@pytest.mark.parametrize("count", [2, 3, 5, 10])
def test_intervals_are_those_of_a_paired_t_test(count):
    made = table(Repetition(f"seed-{seed}", ()) for seed in range(count))
    found = outcomes(made, random.Random(count))
    (entry,) = paired_differences(made, found)
    by_row = {
        label: [results["test"]["mse"] for cell, results in found if cell.row.label == label]
        for label in ("Baseline", "Ours")
    }
    expected = stats.ttest_rel(by_row["Ours"], by_row["Baseline"]).confidence_interval(0.95)
    difference = entry["groups"]["seeds"]["test.mse"]
    assert (difference["low"], difference["high"]) == pytest.approx((expected.low, expected.high), rel=1e-9)
    assert difference["count"] == count
    assert list(entry["groups"]["seeds"]) == ["test.mse"]


def test_intervals_of_folds_are_corrected_as_nadeau_and_bengio_do():
    made = dataclasses.replace(table(Repetition(f"fold-{fold}", ()) for fold in range(10)), overlap=1 / 9)
    found = outcomes(made, random.Random(0))
    (entry,) = paired_differences(made, found)
    of_row = [[r["test"]["mse"] for c, r in found if c.row.label == label] for label in ("Baseline", "Ours")]
    differences = [ours - other for other, ours in zip(*of_row, strict=True)]
    difference = entry["groups"]["seeds"]["test.mse"]
    reach = stats.t.ppf(0.975, 9) * statistics.stdev(differences) * math.sqrt(1 / 10 + 1 / 9)
    assert difference["mean"] == pytest.approx(statistics.fmean(differences))
    assert difference["high"] - difference["mean"] == pytest.approx(reach, rel=1e-9)
    assert difference["mean"] - difference["low"] == pytest.approx(reach, rel=1e-9)


@pytest.mark.parametrize("degrees", [1, 2, 3, 4, 7, 30, 101])
@pytest.mark.parametrize("probability", [0.6, 0.95, 0.975, 0.9995])
def test_quantiles_are_those_of_students_t(degrees, probability):
    assert student_quantile(probability, degrees) == pytest.approx(stats.t.ppf(probability, degrees), rel=1e-9)


def test_pairs_are_made_by_name_within_their_group_and_without_what_is_missing():
    repetitions = (
        Repetition("a", (), ("seeds", "splits")),
        Repetition("b", (), ("seeds",)),
        Repetition("c", (), ("splits",)),
    )
    made = table(repetitions)
    figures = {
        ("Baseline", "a"): 1.0,
        ("Baseline", "b"): 10.0,
        ("Baseline", "c"): 5.0,
        ("Ours", "b"): 12.0,
        ("Ours", "a"): 4.0,
    }
    found = [
        (cell, {"test": {"mse": figures[cell.row.label, cell.repetition.name]}})
        for cell in reversed(list(made.cells()))
        if (cell.row.label, cell.repetition.name) in figures
    ]
    (entry,) = paired_differences(made, found)
    groups = {group: entry["groups"][group]["test.mse"] for group in ("seeds", "splits")}
    assert (groups["seeds"]["mean"], groups["seeds"]["count"]) == (2.5, 2)
    assert groups["splits"] == {"mean": 3.0, "low": None, "high": None, "count": 1}
    assert paired_differences(table(repetitions, baseline=""), found) == []
    other = Table("t", "", (Row("Baseline"), Row("Ours", against=("Baseline",))), repetitions, METRICS)
    assert paired_differences(other, found) == [entry]
    with pytest.raises(TypeError, match=r"pass \('Baseline',\)"):
        Row("Ours", against="Baseline")
    (nothing,) = paired_differences(made, [])
    assert nothing["groups"]["seeds"]["test.mse"]["mean"] is None


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """A table of two rows and two seeds, with its file of results."""
    folder = tmp_path_factory.mktemp("table")
    (folder / "tiny.yaml").write_text(recipes.as_yaml(tiny_recipe(folder)))
    task = copy.copy(find_task("intervals"))
    task.recipe_file = folder / "tiny.yaml"
    rows = tuple(Row(name.capitalize(), "", (f"--model.family={name}",)) for name in ("midpoint", "parabola"))
    repetitions = tuple(Repetition(f"seed-{seed}", (f"--seed={seed}",)) for seed in range(2))
    made = Table("small", "A small table", rows, repetitions, METRICS, baseline="Midpoint")
    text = reproduce(Reproduction(task, made, folder / "runs", folder / "small.json", workers=Here()))
    return made, text, json.loads((folder / "small.json").read_text())


def test_a_file_of_results_holds_the_recipe_of_every_cell(trained):
    _, _, stored = trained
    shared = stored["recipe"]
    assert (shared["task"], shared["model.hidden_dim"], shared["data.path"]) == ("intervals", 8, "weather.csv")
    assert [cell["recipe"] for cell in stored["cells"]] == [
        {"seed": seed, "model.family": family} for seed in (0, 1) for family in ("midpoint", "parabola")
    ]


def test_each_training_has_a_line_of_its_own(trained, tmp_path):
    _, _, stored = trained
    file = tmp_path / "results.json"
    write_results(file, stored)
    assert json.loads(file.read_text()) == stored
    assert [line for line in file.read_text().splitlines() if line.startswith('  {"row": ')] == [
        f"  {json.dumps(cell, ensure_ascii=False)}{'' if cell is stored['cells'][-1] else ','}"
        for cell in stored["cells"]
    ]
    write_results(file, {"table": "empty", "cells": []})
    assert json.loads(file.read_text()) == {"table": "empty", "cells": []}


def test_differences_are_stored_printed_and_published(trained, tmp_path, monkeypatch):
    _, text, stored = trained
    below = text.split("\n\n")[1]
    assert below.splitlines()[0].startswith("| minus Midpoint | MSE ")
    assert below == stored["differences"]["text"]
    assert below.count("Parabola") == 1
    (tmp_path / "results").mkdir()
    (tmp_path / "results" / "small.json").write_text(json.dumps(stored))
    monkeypatch.setattr(publish, "_ROOT", tmp_path)
    page = publish.published("<!-- results/small.json -->\n<!-- end of table -->")
    assert f"{stored['text']}\n\n{below}\n\n<sub>Differences are paired" in page


def test_figures_in_per_cent_are_so_in_means_differences_and_distances():
    """As stored they are shares; every text, and the paper, has a hundred times as much."""
    metrics = (Metric("test.jaccard", "Jaccard, %", scale=100, digits=1, compared=True),)
    rows = (Row("Baseline", paper={"test.jaccard": 50.0}), Row("Ours"))
    repetitions = tuple(Repetition(f"seed-{seed}", ()) for seed in range(2))
    readings = {"best": {"test.jaccard": "test.jaccard"}}
    made = Table("t", "", rows, repetitions, metrics, baseline="Baseline", readings=readings)
    shares = {
        ("Baseline", "seed-0"): 0.2,
        ("Baseline", "seed-1"): 0.3,
        ("Ours", "seed-0"): 0.4,
        ("Ours", "seed-1"): 0.6,
    }
    found = [(cell, {"test": {"jaccard": shares[cell.row.label, cell.repetition.name]}}) for cell in made.cells()]
    content = summarised_again(made, {"cells": [
        {"row": cell.row.label, "variant": cell.repetition.name, "results": results} for cell, results in found
    ]})  # fmt: skip
    assert content["complete"]
    assert "25.0 ± 7.1" in content["text"]
    assert "+25.0 [-38.5, +88.5]" in content["differences"]["text"]
    (distance,) = distances_from_paper(made, found)
    assert distance["distance"] == pytest.approx(math.log(2))
    assert distance["ratios"] == pytest.approx({"test.jaccard": 0.5})
    # What is zero has no distance on a logarithmic scale.
    assert distances_from_paper(made, [(cell, {"test": {"jaccard": 0.0}}) for cell, _ in found]) == []
    assert not summarised_again(made, {"cells": content["cells"][:3]})["complete"]


def test_results_are_summarised_again_from_their_cells(trained):
    made, _, stored = trained
    assert summarised_again(made, stored) == stored
    wrong = {**stored, "rows": [], "text": "", "differences": {}}
    assert summarised_again(made, wrong) == stored
    without = Table("small", "", made.rows, made.repetitions, METRICS)
    assert "differences" not in summarised_again(without, stored)
    fewer = Table("small", "", made.rows[:1], made.repetitions, METRICS)
    with pytest.raises(ValueError, match="a cell Parabola, seed-0, which the table does not have"):
        summarised_again(fewer, stored)


def test_committed_results_are_what_their_cells_say():
    for path in (publish._ROOT / "results").glob("*.json"):
        content = json.loads(path.read_text(encoding="utf-8"))
        assert publish.resummarised(content) == content, f"{path.name}: run python -m contmax_lab.publish"


# -- distance from the paper -------------------------------------------------------------------------------------------


def test_distances_from_the_paper_are_those_of_all_its_figures():
    rows = (
        Row("A", paper={"test.mse": 2.0, "test.jaccard": 1.0}),
        Row("B", paper={"test.mse": 4.0}),
        Row("C"),
    )
    repetitions = tuple(Repetition(f"{group}-{k}", (), (group,)) for group in ("far", "near") for k in range(2))
    readings = {"best": {"test.mse": "test.mse", "test.jaccard": "test.jaccard"}, "last": {"test.mse": "last.mse"}}
    made = Table("t", "", rows, repetitions, METRICS, readings=readings)
    figures = {  # group → row → mse; the two repetitions lie around it
        "far": {"A": 4.0, "B": 2.0, "C": 7.0},
        "near": {"A": 2.0, "B": 8.0, "C": 7.0},
    }
    found = []
    for cell in made.cells():
        (group,) = cell.repetition.groups
        mse = figures[group][cell.row.label] + (0.5 if cell.repetition.name.endswith("0") else -0.5)
        found.append((cell, {"test": {"mse": mse, "jaccard": math.e}}))
    near, far = distances_from_paper(made, found)
    assert (near["group"], far["group"]) == ("near", "far")
    # log 2 for one of two, and 1 for the Jaccard index; log 2, −log 2 and 1.
    assert near["distance"] == pytest.approx(((math.log(2) ** 2 + 1) / 3) ** 0.5)
    assert far["distance"] == pytest.approx(((2 * math.log(2) ** 2 + 1) / 3) ** 0.5)
    assert far["ratios"] == pytest.approx({"test.mse": 1.0, "test.jaccard": math.e})
    # Where nothing was measured there is no distance: that of the last weights is not listed.
    assert {entry["reading"] for entry in (near, far)} == {"best"}


def test_the_order_of_the_rows_is_spearmans_with_ties():
    paper, ours = [90.8, 90.6, 90.5, 90.5, 89.6, 91.1], [89.3, 89.0, 88.8, 88.8, 88.9, 89.4]
    rows = tuple(Row(f"row {n}", paper={"test.mse": figure}) for n, figure in enumerate(paper))
    made = dataclasses.replace(table(seeds(2)), rows=(*rows, Row("not in the paper")), ranked="test.mse", baseline="")
    found = [
        (cell, {"test": {"mse": 50.0 if not cell.row.paper else ours[made.rows.index(cell.row)] + 3 * seed}})
        for cell in made.cells()
        for seed in [int(cell.repetition.name[-1])]
    ]
    (entry,) = findings(made, found)
    assert entry["correlation"] == pytest.approx(stats.spearmanr(paper, ours).statistic)
    assert "the paper's 6 figures" in entry["text"]
    assert findings(made, found[1:2]) == []


def test_pairs_of_a_family_are_counted_together():
    made = table(seeds(3), rows=("a, sparse", "a, dense", "b, sparse", "b, dense"), baseline="")
    made = dataclasses.replace(made, families={"sparse minus dense": (made_pair("a"), made_pair("b"))})
    values = {
        "a, sparse": [3.0, 2.0, 1.0],
        "a, dense": [1.0, 2.5, 0.0],
        "b, sparse": [4.0, 4.0],
        "b, dense": [3.0, 5.0],
    }
    found = [
        (cell, {"test": {"mse": of_row[seed]}})
        for cell in made.cells()
        for seed, of_row in [(int(cell.repetition.name[-1]), values[cell.row.label])]
        if seed < len(of_row)
    ]
    (entry,) = findings(made, found)
    assert (entry["count"], entry["above"]) == (5, 3)
    assert entry["mean"] == pytest.approx((2 - 0.5 + 1 + 1 - 1) / 5)


def made_pair(letter):
    return f"{letter}, sparse", f"{letter}, dense"


def test_values_far_apart_are_printed_one_by_one():
    each = dataclasses.replace(METRICS[0], digits=1, each=True)
    made = dataclasses.replace(table(seeds(3)), metrics=(each,), baseline="")
    found = [
        (cell, {"test": {"mse": 1.0 if cell.row.label == "Ours" else float(cell.repetition.name[-1])}})
        for cell in made.cells()
    ]
    lines = summarised_again(made, {"cells": [stored(cell, results) for cell, results in found]})["text"].split("\n")
    assert "0.0 · 1.0 · 2.0" in lines[2]
    assert lines[3].split("|")[2].strip() == "1.0"


def stored(cell, results):
    return {"row": cell.row.label, "variant": cell.repetition.name, "results": results}
