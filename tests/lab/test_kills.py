"""A training that is killed again and again, without a warning, ends with the same bits as one that is left alone."""

import random
import signal

import pytest
import safetensors.torch
from killing import MOMENTS, deaths, killed_at, trained
from noisy import assert_same_end, recipe

from forked import process_server

# Dropout, noise in batches that other processes make, a schedule that remembers, and the best weights so far.
OPTIONS = {"epochs": 9, "workers": 1, "schedule": "plateau", "decay": 0.3, "evaluate_every": 2, "accumulate": 2}
STEPS = 45  # five to the epoch
KILLS = 12  # three at each moment of a step


@pytest.mark.parametrize("world", [1, 2])
def test_killed_at_twelve_steps_it_ends_with_the_same_bits(tmp_path, world):
    server, chosen = process_server(), recipe(**OPTIONS)
    # The first and the last step, and others in between; each later than the one before, as progress is kept.
    asked = [0, *sorted(random.Random(world).sample(range(1, STEPS - 1), KILLS - 2)), STEPS - 1]
    for place, step in enumerate(asked):
        code = killed_at(server, chosen, tmp_path / "killed", step, MOMENTS[place % len(MOMENTS)], world)
        assert code == -signal.SIGKILL
    assert deaths(tmp_path / "killed") == asked
    assert len(set(asked)) == KILLS
    whole, expected = trained(server, chosen, tmp_path / "whole", world)
    run, end = trained(server, chosen, tmp_path / "killed", world)
    assert run.results()["steps"] == STEPS
    assert run.results()["processes"] == world
    assert_same_end(end, expected)
    assert weights(run) == weights(whole)
    assert metrics(run) == metrics(whole)
    assert len(metrics(run)) == 5
    assert not list(run.checkpoints.glob("step-*"))


def metrics(run):
    return [{key: value for key, value in record.items() if key != "seconds"} for record in run.history()]


def weights(run):
    return {name: tensor.tolist() for name, tensor in safetensors.torch.load_file(run.weights).items()}
