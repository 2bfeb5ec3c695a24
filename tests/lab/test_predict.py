"""What trained runs say when they are asked."""

import re
from pathlib import Path

import pytest

from contmax_lab.contract import TrainedRun
from contmax_lab.registry import load_recipe

ANSWERS = {
    "vowels/continuous-sparsemax": r"speaker \d \(\d+%\), .*; the label is speaker \d\nattended: \d+%",
    "digits/discrete-sparsemax": r"\d \(\d+%\), .*; the label is \d\nattended: \d+%",
    "intervals/seattle-triangular": r"-?\d+\.\d to -?\d+\.\d °C; observed: -?\d+\.\d to -?\d+\.\d °C",
    "places/utterance": r"accuracy [01]  iou 0\.\d+ .*",
}


@pytest.mark.parametrize("name", ANSWERS)
def test_every_task_answers_for_a_validation_example(name):
    recipe = load_recipe(name, ["--model.hidden_dim=4"])
    splits = recipe.task.load(recipe.data, 0)
    network = recipe.task.build(recipe.model, splits).eval()
    trained = TrainedRun(Path("run"), recipe, splits, network, {}, "fresh weights")
    prediction = recipe.task.predict(trained, ["2"])
    assert re.fullmatch(ANSWERS[name], prediction.text), prediction.text
    assert prediction.figure is not None
