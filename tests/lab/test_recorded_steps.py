"""Steps that are recorded and played back, and losses that are compiled: the numbers of steps one by one."""

import contextlib
import functools

import pytest
import torch
from weather import tiny_recipe

from contmax_lab.contract import TrainingConfig
from contmax_lab.recorded import RecordedStep
from contmax_lab.training import _ensemble, _optimizer

FULL = ("--training.batch_size=0", "--training.epochs=24", "--training.evaluate_every=8")


def trained(folder, *overrides):
    """The weights of two replicas."""
    recipes = [tiny_recipe(folder, *FULL, *overrides, f"--data.split={place}") for place in range(2)]
    ensemble = _ensemble._Ensemble(recipes)
    while ensemble.step < ensemble.training.epochs:
        ensemble.advance()
    return {name: tensor.detach() for name, tensor in ensemble.parameters.items()}


@pytest.fixture
def events(monkeypatch):
    """What a device would be asked for, where there is none."""
    asked = []

    class Graph:
        def replay(self):
            asked.append("play")

    class Stream:
        def wait_stream(self, other):
            asked.append("wait")

    @contextlib.contextmanager
    def recording(graph, pool, capture_error_mode):
        asked.append("record")
        yield
        asked.append("recorded")

    for name, stand_in in {
        "CUDAGraph": Graph,
        "graph": recording,
        "Stream": Stream,
        "current_stream": Stream,
        "stream": lambda stream: contextlib.nullcontext(),
    }.items():
        monkeypatch.setattr(torch.cuda, name, stand_in)
    return asked


def test_a_step_is_rehearsed_then_recorded_once_and_played_every_time(events):
    step = RecordedStep(lambda: events.append("step"))
    for _ in range(3):
        step()
    assert events == ["wait", "step", "wait"] * 3
    del events[:]
    for _ in range(3):
        step()
    # Recording takes no step: so what is recorded is played at once.
    assert events == ["record", "step", "recorded", "play", "play", "play"]


def test_one_rehearsal_may_be_enough(events):
    step = RecordedStep(lambda: events.append("step"), rehearsals=1)
    step()
    step()
    assert events == ["wait", "step", "wait", "record", "step", "recorded", "play"]


@pytest.mark.parametrize(
    ("device", "optimizer", "can"),
    [("cuda", "adam", True), ("cuda", "AdamW", True), ("cuda", "sgd", False), ("cpu", "adam", False)],
)
def test_what_can_be_recorded(device, optimizer, can):
    assert _optimizer.can_be_recorded(TrainingConfig(optimizer=optimizer), torch.device(device)) == can


def test_a_learning_rate_on_the_device_changes_in_place():
    recorded, plain = {"lr": (rate := torch.tensor(1.0))}, {"lr": 1.0}
    for group in (recorded, plain):
        _optimizer.set_rate(group, 0.5)
    assert recorded["lr"] is rate
    assert float(rate) == plain["lr"] == 0.5


@pytest.mark.graph
def test_compiled_losses_teach_the_same(tmp_path, monkeypatch):
    without = trained(tmp_path, "--model.dropout=0", "--model.family=midpoint")
    used = []
    compiled = functools.partial(torch.compile, backend="aot_eager_default_partitioner")
    monkeypatch.setattr(torch, "compile", lambda *args, **options: used.append(options) or compiled(*args, **options))
    found = trained(tmp_path, "--model.dropout=0", "--model.family=midpoint", "--training.compile=true")
    assert used == [{"dynamic": False}]
    torch.testing.assert_close(found, without, rtol=1e-4, atol=1e-5)


@pytest.mark.graph
def test_compiled_dropout_differs_between_replicas_and_steps(tmp_path, monkeypatch):
    monkeypatch.setattr(torch, "compile", functools.partial(torch.compile, backend="aot_eager_default_partitioner"))
    overrides = (*FULL, "--model.dropout=0.5", "--model.family=midpoint", "--training.compile=true")
    ensemble = _ensemble._Ensemble([tiny_recipe(tmp_path, *overrides)] * 2)
    assert all(torch.equal(one, other) for one, other in ensemble.parameters.values())
    losses = [
        ensemble._training_losses(ensemble.parameters, ensemble.examples["train"].batch, ensemble.mask)
        for _ in range(2)
    ]
    assert len(set(torch.cat(losses).tolist())) == 4
