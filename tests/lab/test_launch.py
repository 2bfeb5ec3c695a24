"""Launchers that start several processes for one training."""

import os
import subprocess
import sys

import pytest
from processes import say_on_a_machine_of_its_own, together
from weather import tiny_recipe

from contmax_lab import recipes
from contmax_lab.errors import UsageError
from contmax_lab.runs import Run
from contmax_lab.training import train
from forked import process_server

# It starts them by torchrun, and tells them more than torchrun does.
ACCELERATE = ["accelerate.commands.launch", "--multi_gpu", "--num_processes=2", "--main_process_port=0"]


def test_two_processes_train_one_run_and_one_of_them_talks(tmp_path):
    recipe = tiny_recipe(tmp_path, "--model.dropout=0")
    config, run = tmp_path / "tiny.yaml", Run(tmp_path / "run")
    config.write_text(recipes.as_yaml(recipe))
    command = [sys.executable, "-m", *ACCELERATE, "-m", "contmax_lab", "train", config, "--folder", run.folder]
    done = subprocess.run(
        command, capture_output=True, text=True, check=False, env={**os.environ, "OMP_NUM_THREADS": "1"}
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("stored in") == 1
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


def test_a_launcher_that_starts_one_process_instead_of_several_is_noticed(tmp_path, monkeypatch):
    # What accelerate launch --cpu --num_processes 2 leaves to the one process that it starts.
    monkeypatch.setenv("ACCELERATE_USE_CPU", "True")
    monkeypatch.setenv("MASTER_ADDR", "127.0.0.1")
    with pytest.raises(UsageError, match="has started one process instead of several; use torchrun"):
        train(tiny_recipe(tmp_path), Run(tmp_path / "run"))
