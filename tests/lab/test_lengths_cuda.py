"""Longer than in training on a GPU: recorded steps are the steps, and long sequences give what they give on a CPU."""

import dataclasses

import pytest
import torch

from contmax_lab.tasks.lengths import _training
from contmax_lab.tasks.lengths._model import Network
from contmax_lab.tasks.lengths._problems import KINDS, PROBLEMS, Cell
from contmax_lab.tasks.lengths._slices import read_cells, train_slice
from cuda_checks import DEVICE, ON_GPU

pytestmark = pytest.mark.gpu

SMALL = dataclasses.replace(
    PROBLEMS["sort"], width=64, heads=4, inner=64, batch=16, shortest=17, longest=20, longer=40, factors=(1, 4)
)


@pytest.mark.parametrize("kind", KINDS)
def test_recorded_steps_are_the_steps(kind, monkeypatch):
    def trained():
        training = _training.Training(Cell("sort", kind, 0, 1.0, 40), SMALL, torch.device(DEVICE))
        for _ in range(40):
            training.advance()
        training.validate()
        return training

    recorded = trained()
    if ON_GPU:
        assert recorded._take._graph is not None
    monkeypatch.setattr(_training, "RecordedStep", lambda step: step)
    plain = trained()
    assert recorded.curve[-1]["skipped"] == plain.curve[-1]["skipped"] == 0
    assert recorded.curve[-1]["loss"] == pytest.approx(plain.curve[-1]["loss"], rel=0.02)
    assert recorded.curve[-1]["loss"] < 3.2


@pytest.mark.parametrize("kind", ["ssmax", "entmax", "asentmax"])
def test_long_sequences_are_those_of_the_cpu(kind, monkeypatch):
    monkeypatch.setattr("contmax_lab.tasks.lengths._model._MOST_KEYS", 300)
    torch.manual_seed(0)
    network = Network(SMALL, KINDS[kind])
    tokens = torch.randint(0, 32, (2, 700))
    with torch.no_grad():
        expected = network(tokens, last=300)
        found = network.to(DEVICE)(tokens.to(DEVICE), last=300).cpu()
    assert (found - expected).abs().max() < 0.1 * expected.abs().max()


def test_cells_learn_side_by_side(tmp_path, monkeypatch):
    monkeypatch.setattr(_training, "_MOST", 4)
    monkeypatch.setattr(_training, "VALIDATION_EXAMPLES", 2)
    options = {"share": SMALL.steps // 6, "problems": ["sort"], "sizes": {"sort": SMALL}}
    train_slice(tmp_path, device=torch.device(DEVICE), side_by_side=8, **options)
    done = read_cells(tmp_path)
    assert len(done) == 6 * 4
    assert all(results["skipped"] == 0 for results in done.values())
