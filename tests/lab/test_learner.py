"""One step of a training: what it draws, what it clips, and that the optimizer is the one that was named."""

import pytest
import torch
from accelerate import Accelerator
from torch import nn
from words import take_step

from contmax_lab.contract import Recipe, Splits, Task, TrainingConfig
from contmax_lab.training._learner import Learner

INPUTS = torch.tensor([[1.0, -2.0, 0.5], [0.3, 1.0, -1.0], [2.0, 0.0, 1.0], [-1.0, 4.0, 3.0], [0.5, 0.5, -2.5]])
TARGETS = torch.tensor([3.0, -1.0, 2.0, 8.0, 0.0])


class Regression(Task):
    """Five points and a linear network behind dropout."""

    name = "regression"
    summary = "five points"

    def __init__(self, dropout=0.0):
        self.dropout = dropout

    def load(self, data, seed):
        return Splits(range(5), range(0), range(0))

    def build(self, model, splits):
        return Line(self.dropout)

    def batch(self, split, indices):
        return {"inputs": INPUTS[list(indices)], "targets": TARGETS[list(indices)]}

    def loss(self, output, batch):
        losses = (output - batch["targets"]).square()
        return losses, torch.ones_like(losses)

    def measures(self, output, batch):
        return {}


class Line(nn.Module):
    """Remembers what dropout let through."""

    def __init__(self, dropout):
        super().__init__()
        self.dropout, self.linear = nn.Dropout(dropout), nn.Linear(3, 1)
        self.kept = []

    def forward(self, batch):
        self.kept.append(self.dropout(torch.ones(40)) > 0)
        return self.linear(self.dropout(batch["inputs"])).squeeze(-1)


def learner(dropout=0.0, seed=0, **training):
    task = Regression(dropout)
    config = TrainingConfig(**{"learning_rate": 0.1, "device": "cpu", **training})
    recipe = Recipe(task, None, None, config, seed)
    return Learner(recipe, task.load(None, 0), Accelerator(cpu=True))


def test_every_step_drops_something_else_and_the_same_whenever_it_is_taken():
    straight = learner(dropout=0.5)
    for number in range(4):
        take_step(straight, [0, 1, 2], number, 4)
    kept = straight.bare_model.kept
    assert len({tuple(mask.tolist()) for mask in kept}) == 4
    late = learner(dropout=0.5)
    torch.rand(11)  # what others draw does not matter
    take_step(late, [0, 1, 2], 2, 4)
    assert torch.equal(late.bare_model.kept[0], kept[2])
    other = learner(dropout=0.5, seed=1)
    take_step(other, [0, 1, 2], 2, 4)
    assert not torch.equal(other.bare_model.kept[0], kept[2])


TORCH = {
    "adam": torch.optim.Adam,
    "adamw": torch.optim.AdamW,
    "sgd": lambda parameters, **options: torch.optim.SGD(parameters, momentum=0.9, **options),
}


@pytest.mark.parametrize("clip_norm", [0.0, 0.7])
@pytest.mark.parametrize("name", TORCH)
def test_steps_are_those_of_the_named_optimizer_on_the_clipped_gradient_of_the_mean(name, clip_norm):
    ours = learner(optimizer=name, weight_decay=0.3, clip_norm=clip_norm)
    model = nn.Linear(3, 1)
    model.load_state_dict(ours.bare_model.linear.state_dict())
    theirs = TORCH[name](model.parameters(), lr=0.1, weight_decay=0.3)
    norms = []
    for number, batch in enumerate([[0, 1], [2, 3, 4], [0, 4], [1]]):
        take_step(ours, batch, number, 4)
        theirs.zero_grad()
        (model(INPUTS[batch]).squeeze(-1) - TARGETS[batch]).square().mean().backward()
        gradient = torch.cat([parameter.grad.flatten() for parameter in model.parameters()])
        norms.append(float(gradient.norm()))
        for parameter in model.parameters():
            parameter.grad *= min(1.0, clip_norm / norms[-1]) if clip_norm else 1.0
        theirs.step()
    assert min(norms) > 0.7  # so that every step is clipped
    torch.testing.assert_close(ours.bare_model.linear.state_dict(), model.state_dict(), rtol=1e-5, atol=1e-6)
    sums = ours.sums()
    assert (sums["gradient_norm"], sums["steps"], sums["weight"]) == pytest.approx((sum(norms), 4, 8), rel=1e-5)


def test_what_does_not_learn_is_left_out_of_the_optimizer():
    class Frozen(Regression):
        def build(self, model, splits):
            line = Line(0.0)
            line.linear.bias.requires_grad_(False)
            return line

    task = Frozen()
    recipe = Recipe(task, None, None, TrainingConfig(weight_decay=0.5, device="cpu"))
    taught = Learner(recipe, task.load(None, 0), Accelerator(cpu=True))
    before = taught.weights()
    take_step(taught, [0, 1], 0, 1)
    after = taught.weights()
    assert torch.equal(before["linear.bias"], after["linear.bias"])
    assert not torch.equal(before["linear.weight"], after["linear.weight"])
    assert sum(len(group["params"]) for group in taught.optimizer.param_groups) == 1
