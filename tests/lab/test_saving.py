"""Checkpoints are written beside the training: it does not wait for them, and hears of every failure."""

import threading
import time

import pytest
import torch
from weather import tiny_recipe

from contmax_lab.errors import CannotWrite, LabError
from contmax_lab.files import Checkpoint, read_checkpoint
from contmax_lab.runs import Run
from contmax_lab.training import _learner, train
from contmax_lab.training._saving import Saver

EMPTY = Checkpoint({}, {})


class Slow:
    """A run whose disk waits for a signal, or is full."""

    def __init__(self, *failing):
        self.go, self.failing, self.saved = threading.Event(), failing, []

    def save(self, step, checkpoint):
        assert self.go.wait(timeout=30)
        if step in self.failing:
            raise CannotWrite(f"cannot write step {step}.")
        self.saved.append((step, threading.current_thread() is threading.main_thread()))


def test_saving_returns_at_once_and_leaving_waits_for_the_last():
    disk = Slow()
    with Saver(disk) as saver:
        saver.save(1, EMPTY)
        assert saver.is_busy
        assert disk.saved == []
        saver.check()  # does not wait
        disk.go.set()
        saver.save(2, EMPTY)
        assert disk.saved[0] == (1, False)
    assert disk.saved == [(1, False), (2, False)]


@pytest.mark.parametrize("asked", ["save", "check", "wait", "leave"])
def test_a_failed_write_is_told_wherever_one_looks_next(asked):
    disk = Slow(1)
    disk.go.set()

    def use():
        with Saver(disk) as saver:
            saver.save(1, EMPTY)
            while saver.is_busy:
                time.sleep(0.001)
            if asked == "save":
                saver.save(2, EMPTY)
            elif asked != "leave":
                getattr(saver, asked)()

    with pytest.raises(CannotWrite, match=r"cannot write step 1\."):
        use()
    assert disk.saved == []


def test_a_failed_write_does_not_hide_what_went_wrong_before():
    disk = Slow(1)
    disk.go.set()

    def diverge():
        with Saver(disk) as saver:
            saver.save(1, EMPTY)
            raise LabError("diverged")

    with pytest.raises(CannotWrite, match=r"cannot write step 1\. Before that: diverged"):
        diverge()


def test_the_training_goes_on_while_a_checkpoint_is_written_and_it_is_of_its_own_step(tmp_path, monkeypatch):
    recipe = tiny_recipe(tmp_path, "--training.checkpoint_seconds=0.001", "--training.learning_rate=0.05")
    run, save, step = Run(tmp_path / "run"), Run.save, _learner.Learner.step
    fifth, weights, written = threading.Event(), [], []

    def watched(self, loaded, number, total):
        step(self, loaded, number, total)
        weights.append(self.weights())
        if number == 5:
            fifth.set()
        time.sleep(0.002)

    def slow(self, number, checkpoint):
        # The first write ends only after five more steps: were it in front of them, they would not come.
        assert fifth.wait(timeout=30)
        save(self, number, checkpoint)
        path = self.checkpoints / f"step-{number:09d}.safetensors"
        written.append((number, read_checkpoint(path).tensors))

    monkeypatch.setattr(_learner.Learner, "step", watched)
    monkeypatch.setattr(Run, "save", slow)
    train(recipe, run)
    assert written[0][0] == 1
    assert len(written) > 1
    for number, tensors in written:
        for name, tensor in weights[number - 1].items():
            assert torch.equal(tensors[f"model.{name}"], tensor)
