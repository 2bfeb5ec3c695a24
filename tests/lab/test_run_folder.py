"""Folders of runs: what is in them is named when it is damaged, and kept only while it is worth something."""

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
