"""Launchers that start several processes for one training."""

import os
import subprocess
import sys

import pytest
from launched import quick_interpreter
from processes import say_on_a_machine_of_its_own, together
from weather import tiny_recipe

from contmax_lab import launchers, recipes
from contmax_lab.errors import UsageError
from contmax_lab.runs import Run
from contmax_lab.training import train
from forked import process_server

# It starts one process, which lets torchrun start two in its place.
ACCELERATE = ["accelerate.commands.launch", "--cpu", "--num_processes=2"]


def test_two_processes_train_one_run_and_one_of_them_talks(tmp_path):
    recipe = tiny_recipe(tmp_path, "--model.dropout=0")
    config, run = tmp_path / "tiny.yaml", Run(tmp_path / "run")
    config.write_text(recipes.as_yaml(recipe))
    command = [sys.executable, "-m", *ACCELERATE, "-m", "contmax_lab", "train", config, "--folder", run.folder]
    # The launcher, the process that it starts and torchrun are as they come; torchrun's two need not import anything.
    with quick_interpreter(tmp_path / "python", count=2) as python:
        environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHON_EXEC": str(python)}
        done = subprocess.run(command, capture_output=True, text=True, check=False, env=environment)
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("stored in") == 1
    assert len(run.history()) == recipe.training.epochs
    results = run.results()
    assert results["processes"] == 2
    alone = train(recipe, Run(tmp_path / "alone"))
    assert alone["processes"] == 1
    assert results["valid"] == pytest.approx(alone["valid"], abs=1e-4)


def test_two_machines_train_one_run(tmp_path):
    recipe, config, run = tiny_recipe(tmp_path, "--model.dropout=0"), tmp_path / "tiny.yaml", Run(tmp_path / "run")
    config.write_text(recipes.as_yaml(recipe))
    # What torchrun tells them, as docs/many-machines.md has it: each is the first process of its machine.
    command = ["train", str(config), "--folder", str(run.folder)]
    said = together(process_server(), say_on_a_machine_of_its_own, 2, *command)
    assert sorted(printed.count("stored in") for printed in said) == [0, 1]
    assert run.results()["processes"] == 2


@pytest.fixture
def one_of_several(monkeypatch):
    """What accelerate launch --cpu --num_processes 2 leaves to the one process that it starts."""
    monkeypatch.setenv("ACCELERATE_USE_CPU", "True")
    monkeypatch.setenv("MASTER_ADDR", "127.0.0.1")
    monkeypatch.delenv("WORLD_SIZE", raising=False)


def test_a_launcher_that_starts_one_process_instead_of_several_is_noticed(tmp_path, one_of_several):
    with pytest.raises(UsageError, match="has started one process instead of several; use torchrun"):
        train(tiny_recipe(tmp_path), Run(tmp_path / "run"))


@pytest.mark.parametrize(
    ("command", "count"),
    [
        ("python /bin/accelerate launch --cpu --num_processes 3 -m contmax_lab train texts", 3),
        ("python -m accelerate.commands.launch --num-processes=2 --cpu script.py --num_of 7", 2),
        ("/bin/accelerate-launch --cpu --num_processes=1 -m contmax_lab", 1),
        # On several machines, or where accelerate has read it from its configuration, it cannot be known.
        ("python /bin/accelerate launch --cpu --num_machines 2 --num_processes 4 -m contmax_lab", 0),
        ("python /bin/accelerate launch --cpu -m contmax_lab", 0),
        ("bash -c it", 0),
    ],
)
def test_how_many_processes_a_launcher_was_asked_for(command, count):
    assert launchers._processes_wanted(command.split()) == count


def test_the_missing_processes_take_the_place_of_the_one(one_of_several, monkeypatch, contmax):
    became = []
    monkeypatch.setattr(launchers, "_command_of_launcher", lambda: ["accelerate", "launch", "--num_processes", "2"])
    monkeypatch.setattr(launchers, "_become_several", lambda *given: became.append(given))
    # As nothing has taken its place, the training complains, as it does where the number is not known.
    assert contmax("train", "digits", "--seed", 3)[0] == 2
    assert became == [(2, ["train", "digits", "--seed=3"])]
    monkeypatch.setattr(launchers, "_command_of_launcher", list)
    code, _, (complaint,) = contmax("train", "digits")
    assert code == 2
    assert "one process instead of several" in complaint
    assert len(became) == 1
