"""A task with chance in the batch and in the model, which a resumed training has to draw again."""

import dataclasses

import torch
from torch import nn

from contmax_lab.contract import Recipe, Splits, Task, TrainingConfig
from contmax_lab.errors import LabError
from contmax_lab.training import _learner


@dataclasses.dataclass(frozen=True)
class Nothing:
    """Nothing to choose."""


class Noisy(Task):
    """Sums of sequences of different lengths, with noise in the batch and dropout in the model."""

    name, summary, data_config, model_config = "noisy", "sums", Nothing, Nothing

    def load(self, data, seed):
        return Splits(range(2, 25), range(30, 37), range(40, 43))

    def build(self, model, splits):
        return Adder()

    def batch(self, split, indices):
        lengths = [self.lengths(split)[index] for index in indices]
        words = torch.zeros(len(indices), max(lengths))
        for row, (index, length) in enumerate(zip(indices, lengths, strict=True)):
            words[row, :length] = torch.sin(torch.arange(1.0, length + 1) * split[index])
        return {"words": words + 0.01 * torch.randn(words.shape), "sum": words.sum(-1)}

    def lengths(self, split):
        return [1 + 5 * index % 7 for index in split]

    def loss(self, output, batch):
        losses = (output - batch["sum"]).square()
        return losses, torch.ones_like(losses)


class Adder(nn.Module):
    def __init__(self):
        super().__init__()
        self.into, self.out, self.dropout = nn.Linear(1, 4), nn.Linear(4, 1), nn.Dropout(0.3)

    def forward(self, batch):
        return self.out(self.dropout(torch.tanh(self.into(batch["words"].unsqueeze(-1))).sum(-2))).squeeze(-1)


BASE = {"epochs": 4, "batch_size": 5, "learning_rate": 0.02, "checkpoint_seconds": 0.0, "device": "cpu"}


def recipe(**changes):
    """Five steps to the epoch, each of which is saved."""
    return Recipe(Noisy(), Nothing(), Nothing(), TrainingConfig(**{**BASE, **changes}))


def interrupt(patch, after):
    """Let the step with this number, from 1, be the last."""
    step = _learner.Learner.step

    def limited(self, loaded, number, total):
        if number == after:
            raise LabError("enough")
        step(self, loaded, number, total)

    patch.setattr(_learner.Learner, "step", limited)


def assert_same_end(one, other):
    """Two checkpoints are the same bit for bit, but for times."""
    assert one.tensors.keys() == other.tensors.keys()
    assert all(torch.equal(one.tensors[name], other.tensors[name]) for name in one.tensors)
    states = [{**end.state, "position": dict(end.state["position"])} for end in (one, other)]
    for state in states:
        del state["position"]["seconds"], state["position"]["metrics_bytes"]
    assert states[0] == states[1]
