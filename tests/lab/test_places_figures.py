"""Pictures of places: the truth, what is attended to, and how well they agree."""

import dataclasses
from pathlib import Path

import pytest
import torch

from contmax_lab.contract import TrainedRun
from contmax_lab.drawing import LIGHT, rendered_twice
from contmax_lab.registry import find_task, load_recipe
from contmax_lab.report import sections
from contmax_lab.tasks.places import _task
from contmax_lab.tasks.places._attention import Looked
from contmax_lab.tasks.places._task import _first_of_classes, _stretches

TASK = find_task("places")
PNG = b"\x89PNG"


def untrained(name, *overrides, label="Fresh weights"):
    recipe = load_recipe(name, ["--model.hidden_dim=8", "--model.functions=4", "--data.valid_places=1", *overrides])
    splits = TASK.load(recipe.data, 0)
    network = TASK.build(recipe.model, splits).eval()
    return TrainedRun(Path("nowhere"), recipe, splits, network, {}, label)


@pytest.mark.parametrize(
    ("name", "kinds"),
    [
        ("places/utterance", ["combined"]),
        ("places/pair", ["discrete"]),
        ("places/turns", ["multihead"]),
        ("places/digit", ["combined", "multihead"]),
    ],
)
def test_every_kind_of_attention_is_drawn_in_light_and_dark(name, kinds):
    runs = [untrained(name, f"--model.attention={kind}", label=f"Kind {kind}") for kind in kinds]
    (figure,) = TASK.figures(runs, [0])
    light, dark = rendered_twice(figure.draw)
    assert light.startswith(PNG)
    assert dark.startswith(PNG)
    assert light != dark


def test_series_and_canvases_together_are_two_pictures():
    runs = [untrained("places/digit-sized"), untrained("places/utterance"), untrained("places/pair")]
    figures = TASK.figures(runs)
    assert [figure.title.rpartition(": ")[2] for figure in figures] == ["digit", "utterance", "pair"]
    assert len({figure.filename for figure in figures}) == 3
    for figure in figures:
        assert len(figure.draw(LIGHT).axes) > 1


def test_a_report_of_series_and_canvases_has_a_dash_for_what_only_some_measure():
    timing = {"parameters": 1, "timing": {"seconds_per_epoch": 1.0}}
    measured = {"places/digit-sized": {"accuracy": 0.5}, "places/pair": {"accuracy": 1.0, "chosen": 0.25}}
    runs = [
        dataclasses.replace(untrained(name, label=name), results={"test": metrics, **timing})
        for name, metrics in measured.items()
    ]
    (section,) = sections(runs)
    assert [line[1:3] for line in section.table] == [
        ["test accuracy", "test chosen"],
        ["0.5000", "–"],
        ["1.0000", "0.2500"],
    ]
    assert len(section.figures) == 3


def test_what_looks_at_nothing_is_not_drawn():
    assert TASK.figures([untrained("places/pair", "--model.attention=query")]) == []


@pytest.mark.parametrize("name", ["places/utterance", "places/digit"])
def test_titles_tell_the_measured_iou(monkeypatch, name):
    drawn = []
    real = _task.new_axes

    def remembered(*sizes, **more):
        canvas, axes = real(*sizes, **more)
        drawn.append(axes)
        return canvas, axes

    monkeypatch.setattr(_task, "new_axes", remembered)
    trained = untrained(name)
    (figure,) = TASK.figures([trained], [3])
    figure.draw(LIGHT)
    batch = TASK.batch(trained.splits.valid, [3])
    with torch.no_grad():
        iou = float(TASK.measures(trained.model(batch), batch)["iou"])
    assert drawn[0][0].get_title(loc="right") == f"IoU {iou:.2f}"


def test_examples_are_the_first_of_classes_from_the_first_to_the_last():
    label = torch.tensor([4, 0, 1, 1, 2, 0, 3])
    assert _first_of_classes(label, 3) == [1, 4, 0]
    assert _first_of_classes(label, 9) == [1, 2, 4, 6, 0]
    assert _first_of_classes(torch.tensor([7, 7]), 3) == [0]


def test_stretches_are_where_the_set_is():
    seen = torch.tensor([[True, True, False, False, False, True, True, True, False, True]])
    found = Looked(torch.zeros(10, 1), seen.float(), seen)
    assert _stretches(found) == [pytest.approx(pair) for pair in ((0.0, 0.2), (0.5, 0.3), (0.9, 0.1))]
