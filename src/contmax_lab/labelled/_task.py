"""Losses, measures and answers in words, for classes and for numbers."""

from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from contmax_lab.contract import Batch, Task
from contmax_lab.labelled._answer import Answer

_SHOWN = 3


class LabelledTask(Task):
    """A task whose batches have a ``target``, integers for classes and floats for numbers, and whose models `Answer`.

    ``info["classes"]`` of its splits names the classes; it is empty for numbers.
    """

    curves = ("loss", "accuracy", "absolute_error", "attended")

    def loss(self, output: Answer, batch: Batch) -> tuple[Tensor, Tensor]:
        """Cross-entropy; or the squared error, in units of the variance of the training examples."""
        target = batch["target"]
        if target.is_floating_point():
            losses = ((output.scores - target) / output.unit).square()
        else:
            losses = F.cross_entropy(output.scores, target, reduction="none")
        return losses, torch.ones_like(losses)

    def measures(self, output: Answer, batch: Batch) -> dict[str, Tensor]:
        """Whether the class is right, or how far the number is off; and the share of observations that are attended."""
        target = batch["target"]
        share = output.inside.sum(-1) / output.mask.sum(-1)
        if target.is_floating_point():
            return {"absolute_error": (output.scores - target).abs(), "attended": share}
        return {"accuracy": (output.scores.argmax(-1) == target).float(), "attended": share}

    def answer(self, output: Answer, batch: Batch, info: dict[str, Any]) -> str:
        """The likeliest classes, or the number."""
        return said(output, info)


def said(output: Answer, info: dict[str, Any]) -> str:
    """What a network says of the one example of a batch."""
    classes = info["classes"]
    if not classes:
        return f"{float(output.scores):.4g}"
    probabilities = output.scores[0].softmax(-1)
    order = probabilities.argsort(descending=True, stable=True)[:_SHOWN].tolist()
    return ", ".join(f"{classes[index]} ({float(probabilities[index]):.0%})" for index in order)
