"""Tasks that tell classes apart: metrics that do not forget rare ones, and a confusion matrix for the final weights."""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from contmax_lab.contract import Batches, Task
from contmax_lab.labelled._rates import RISING, class_metrics, confusion

# A larger matrix is neither read nor drawn.
_MOST_CLASSES = 100
_OF_CLASSES = ("scores", "target", "rarest")


def class_measures(scores: Tensor, target: Tensor, rarest: int) -> dict[str, Tensor]:
    """What a `Classifier` measures of each example.

    Args:
        scores: of the classes, log-odds up to a constant for each example, (B, C).
        target: classes, (B,).
        rarest: of two classes, the one that the auprc is about.
    """
    right = (scores.argmax(-1) == target).float()
    return {"accuracy": right, "scores": scores, "target": target, "rarest": torch.full_like(target, rarest)}


class Classifier(Task):
    """A task whose `measures` are those of `class_measures` and perhaps others, of which means are taken.

    Where it has no classes but numbers, it measures something else. Its splits name their classes, ``info["classes"]``.
    """

    rising = RISING

    def summarise(self, measures: dict[str, Tensor]) -> dict[str, float]:
        """Accuracy and all of `class_metrics`, then the means of what else is measured."""
        means = super().summarise({name: found for name, found in measures.items() if name not in _OF_CLASSES})
        if "scores" not in measures:
            return means
        scores, target, rarest = (measures[name] for name in _OF_CLASSES)
        return {"accuracy": means.pop("accuracy"), **class_metrics(scores, target, int(rarest[0])), **means}

    def evaluate(self, model: nn.Module, batches: Batches, info: dict[str, Any]) -> dict[str, float]:
        """The loss and all metrics; of final weights, results also get the confusion matrix."""
        loss, found = self.measured(model, batches)
        classes: Sequence[str] = info["classes"]
        if batches.final and 0 < len(classes) <= _MOST_CLASSES:
            counts = confusion(found["scores"], found["target"]).tolist()
            batches.tell("confusion", {"classes": [*classes], "counts": counts})
        return {"loss": loss, **self.summarise(found)}
