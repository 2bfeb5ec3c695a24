"""A task whose words count alike, not its sentences."""

import torch
from torch import nn

from contmax_lab.contract import ParameterGroup, Recipe, Splits, Task, TrainingConfig
from contmax_lab.training import evaluate
from contmax_lab.training._batches import Order
from contmax_lab.training._learner import Learner


class Words(Task):
    """Sentences of different lengths; a weight and a bias guess their words."""

    name, summary, data_config, model_config = "words", "means of words", object, object
    texts = ([1.0, 2.0, 3.0], [5.0], [], [4.0, 4.0])

    def load(self, data, seed):
        return Splits(range(4), range(4), range(2), {"mark": "!"})

    def build(self, model, splits):
        return Guess()

    def batch(self, split, indices):
        chosen = [self.texts[index] for index in indices]
        longest = max(map(len, chosen))
        padded = [text + [0.0] * (longest - len(text)) for text in chosen]
        mask = [[place < len(text) for place in range(longest)] for text in chosen]
        shape = len(chosen), longest
        return {"words": torch.tensor(padded).reshape(shape), "mask": torch.tensor(mask).reshape(shape)}

    def loss(self, output, batch):
        return ((output - batch["words"]).square() * batch["mask"]).sum(-1), batch["mask"].sum(-1)

    def parameter_groups(self, network):
        return ParameterGroup([network.weight], learning_rate=0.5), ParameterGroup([network.bias], weight_decay=0.0)

    def measures(self, output, batch):
        return {"length": batch["mask"].sum(-1).float()}


class Guess(nn.Module):
    def __init__(self):
        super().__init__()
        self.weight, self.bias = nn.Parameter(torch.tensor(0.5)), nn.Parameter(torch.tensor(1.0))

    def forward(self, batch):
        return self.weight + self.bias + torch.zeros_like(batch["words"])


def learner(task, **training):
    from accelerate import Accelerator

    config = TrainingConfig(**{"learning_rate": 0.1, "optimizer": "sgd", "device": "cpu", **training})
    recipe = Recipe(task, None, None, config)
    return Learner(recipe, task.load(None, 0), Accelerator(cpu=True))


def take_step(taught, indices, number, total):
    """One step on these examples, over all processes."""
    taught.step(taught.loader[Order(number, indices)], number, total)


def taught_and_measured():
    """The weights after two steps, and the metrics of a split."""
    task = Words()
    one = learner(task)
    for number, batch in enumerate([[0, 1, 2, 3], [1]]):
        take_step(one, batch, number, 2)
    metrics = evaluate(one.bare_model, task, range(4), {}, 3, one.accelerator)
    return {name: float(tensor) for name, tensor in one.weights().items()}, metrics, one.sums()
