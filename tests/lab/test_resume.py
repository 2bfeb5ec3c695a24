"""Every option of the loop goes on after an interruption to the same bits: weights, optimizer, schedule, metrics."""

import functools
import json
import os

import pytest
import torch
from noisy import Adder, Noisy, assert_same_end, interrupt, recipe
from torch import nn
from words import learner, take_step

from contmax_lab.errors import LabError, UsageError
from contmax_lab.runs import Run
from contmax_lab.training import train
from contmax_lab.training._optimizer import _UNSUITABLE, load_optimizer_state, optimizer_state

TASK = Noisy()
OPTIONS = {
    "plateau": {"schedule": "plateau", "decay": 0.3, "goal": "max", "optimizer": "RAdam"},
    "epochs": {"schedule": "epochs", "decay_every": 2, "optimizer": "adafactor", "accumulate": 3},
    "tokens": {"batch_tokens": 16, "evaluation_batch_size": 2, "schedule": "linear", "optimizer": "nadam"},
    "milestones": {"schedule": "milestones", "decay_at": [1, 2], "optimizer": "adamw"},
    "momentum": {"optimizer": "sgd", "optimizer_options": {"momentum": 0.7, "nesterov": True}, "clip_norm": 0.5},
}


@pytest.fixture
def last_states(monkeypatch):
    """Folder → what the training was when it ended."""
    states, finish = {}, Run.finish

    def remembered(self, *results, **options):
        states[self.folder] = self.last_checkpoint()
        finish(self, *results, **options)

    monkeypatch.setattr(Run, "finish", remembered)
    return states


def interrupted_run(folder, options, monkeypatch, stops=(3, 11)):
    run = Run(folder)
    for stop in stops:
        with monkeypatch.context() as patch:
            interrupt(patch, stop)
            with pytest.raises(LabError, match="enough"):
                train(recipe(**options), run, resume=True)
        assert max(path.name for path in run.checkpoints.iterdir()) == f"step-{stop:09d}.safetensors"
    train(recipe(**options), run, resume=True)
    return run


@pytest.mark.parametrize("name", OPTIONS)
def test_it_goes_on_to_the_same_bits(tmp_path, monkeypatch, last_states, name):
    whole = Run(tmp_path / "whole")
    train(recipe(**OPTIONS[name]), whole)
    run = interrupted_run(tmp_path / "run", OPTIONS[name], monkeypatch)
    assert_same_end(last_states[run.folder], last_states[whole.folder])
    factor = last_states[whole.folder].state["schedule"]["factor"]
    assert factor < 1 if name in ("plateau", "epochs", "milestones") else factor == 1
    assert [record["valid"] for record in run.history()] == [record["valid"] for record in whole.history()]


def suitable():
    kinds = {name.lower(): kind for name, kind in vars(torch.optim).items() if isinstance(kind, type)}
    return sorted(name for name in kinds if name not in _UNSUITABLE and name != "muon")


@pytest.mark.parametrize("name", suitable())
def test_the_state_of_every_optimizer_survives(name):
    config = {"optimizer": name, "learning_rate": 0.01, "checkpoint_seconds": 0.0}
    straight, resumed = learner(TASK, **config), learner(TASK, **config)
    for number in range(3):
        take_step(straight, [0, 1, 2], number, 5)
    tensors, rest = optimizer_state(straight.optimizer)
    resumed.load_weights(straight.weights())
    load_optimizer_state(resumed.optimizer, tensors, json.loads(json.dumps(rest)))
    before = straight.weights()
    for one in (straight, resumed):
        for number in (3, 4):
            take_step(one, [4, 5, 6], number, 5)
    after = straight.weights()
    assert all(torch.equal(tensor, after[key]) for key, tensor in resumed.weights().items())
    assert not torch.equal(before["into.weight"], after["into.weight"])


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"optimizer": "adan"}, "is 'adan'; did you mean adam"),
        ({"optimizer": "lbfgs"}, "known are adadelta"),
        ({"optimizer": "rprop", "weight_decay": 0.1}, "rprop has no weight decay"),
        ({"optimizer": "adam", "optimizer_options": {"beta": 1}}, "unexpected keyword argument 'beta'"),
        ({"optimizer": "adam", "optimizer_options": {"weight_decay": 1}}, "pass training.weight_decay"),
        ({"optimizer": "muon"}, "Muon only supports 2D"),
    ],
)
def test_an_optimizer_that_cannot_be_is_one_line(options, says):
    with pytest.raises(UsageError, match=says):
        learner(TASK, **options)


class Quiet(Noisy):
    """Without chance; the examples have weights."""

    def build(self, model, splits):
        adder = Adder()
        adder.dropout = nn.Identity()
        return adder

    def batch(self, split, indices):
        words = torch.tensor([[0.1 * index, 1.0] for index in indices])
        return {"words": words, "sum": 1.0 + words[:, 0]}

    def loss(self, output, batch):
        return (output - 1).square() * batch["sum"], batch["sum"]


def test_parts_of_a_batch_make_the_same_step():
    def taught(accumulate):
        one = learner(Quiet(), accumulate=accumulate)
        for number, indices in enumerate([[0, 1, 2, 3, 4], [5, 6]]):
            take_step(one, indices, number, 2)
        return one.weights(), one.sums()

    weights, sums = taught(1)
    for accumulate in (2, 3, 9):
        others, others_sums = taught(accumulate)
        assert others_sums == pytest.approx(sums, rel=1e-5)
        torch.testing.assert_close(others, weights, rtol=1e-5, atol=1e-6)


def test_tokens_need_lengths(tmp_path, monkeypatch):
    monkeypatch.setattr(Noisy, "lengths", lambda self, split: None)
    with pytest.raises(UsageError, match="needs the lengths of examples"):
        train(recipe(batch_tokens=9), Run(tmp_path / "run"))


def test_workers_change_no_bit_and_it_goes_on_with_any_number_of_them(tmp_path, monkeypatch, last_states):
    whole = Run(tmp_path / "whole")
    train(recipe(accumulate=2), whole)
    run = interrupted_run(tmp_path / "run", {"accumulate": 2, "workers": 2}, monkeypatch, stops=(7,))
    assert_same_end(last_states[run.folder], last_states[whole.folder])
    (run.folder / "results.json").unlink()
    assert run.differences(recipe(accumulate=2, workers=1)) == []


def test_a_worker_does_not_keep_the_claim_of_a_process_that_was_killed(tmp_path):
    run, (ends, end), (starts, start) = Run(tmp_path / "run"), os.pipe(), os.pipe()
    with run.claimed():
        child = os.fork()
        if not child:
            os.close(end)
            os.write(start, b"!")  # by now it has let go of what it was born with
            os.read(ends, 1)  # lives until the parent lets it go
            os._exit(0)
        os.read(starts, 1)
    try:
        with run.claimed():
            pass
    finally:
        os.close(end)
        os.waitpid(child, 0)
        for pipe in (ends, starts, start):
            os.close(pipe)


@pytest.mark.graph
def test_a_compiled_model_goes_on_to_the_same_bits(tmp_path, monkeypatch, last_states):
    # The default backend calls a C++ compiler; how steps are repeated does not depend on it.
    monkeypatch.setattr(
        nn.Module, "compile", functools.partialmethod(nn.Module.compile, backend="aot_eager_default_partitioner")
    )
    options = {"compile": True, "batch_size": 23}
    whole = Run(tmp_path / "whole")
    train(recipe(**options), whole)
    run = interrupted_run(tmp_path / "run", options, monkeypatch, stops=(2,))
    assert_same_end(last_states[run.folder], last_states[whole.folder])
    plain = Run(tmp_path / "plain")
    train(recipe(batch_size=23), plain)
    keys = {name for name in last_states[plain.folder].tensors if name.startswith("model.")}
    assert keys == {name for name in last_states[run.folder].tensors if name.startswith("model.")}
