"""The task bags: a small network whose pooling varies; accuracy, AUC, and how many instances are ruled out."""

import dataclasses
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from contmax.nn import BagPooling
from contmax_lab.contract import Batch, Splits, Table, Task, seedless
from contmax_lab.labelled import rank_areas
from contmax_lab.tasks.bags import SETTINGS, BagsModel
from contmax_lab.tasks.bags._data import load
from contmax_lab.tasks.bags._table import BAGS


@dataclasses.dataclass(frozen=True)
class Judged:
    """What a network says of bags.

    Args:
        logits: of the label 1, shape (B,).
        weights: of the instances, shape (B, L); None = the pooling has none.
        alpha: of the weights; None = the pooling has none.
    """

    logits: Tensor
    weights: Tensor | None = None
    alpha: float | Tensor | None = None


class Network(nn.Module):
    """Instances → hidden channels → one vector of the bag → logit.

    Args:
        model: its configuration.
        num_features: of an instance.

    Example:
        >>> network = Network(BagsModel(hidden_dim=8), num_features=5)
        >>> mask = torch.tensor([[True, True], [True, False]])
        >>> network({"features": torch.randn(2, 2, 5), "mask": mask}).logits.shape
        torch.Size([2])
    """

    def __init__(self, model: BagsModel, num_features: int) -> None:
        super().__init__()
        self.kind = model.pooling
        self.embed = nn.Linear(num_features, model.hidden_dim)
        attends = model.pooling == "attention"
        pool = BagPooling(model.hidden_dim, alpha=model.alpha, learnable=model.learn_alpha) if attends else None
        self.pool = pool
        self.judge = nn.Linear(model.hidden_dim, 1)

    def forward(self, batch: Batch) -> Judged:
        """The verdict on bags ``batch["features"]``, (B, L, F), whose instances are where ``batch["mask"]`` is True."""
        hidden, exists = torch.relu(self.embed(batch["features"])), batch["mask"]
        if self.pool is not None:
            pooled, weights = self.pool(hidden, mask=exists)
            return Judged(self.judge(pooled).squeeze(-1), weights, self.pool.alpha)
        if self.kind == "max":
            # Hidden channels are not negative, so that the 0 of padding is never above an instance.
            return Judged(self.judge((hidden * exists.unsqueeze(-1)).amax(-2)).squeeze(-1))
        weights = exists / exists.sum(-1, keepdim=True)
        return Judged(self.judge((weights.unsqueeze(-2) @ hidden).squeeze(-2)).squeeze(-1), weights)


class BagsTask(Task, settings=SETTINGS):
    """Judge bags whose instances have no labels."""

    summary = "does an image, a bag of segments without order, show an elephant, a fox, a tiger?"
    curves = ("loss", "accuracy", "auc")
    load = seedless(load)

    def build(self, model: BagsModel, splits: Splits) -> nn.Module:
        """A network with fresh weights."""
        return Network(model, splits.info["num_features"])

    def loss(self, output: Judged, batch: Batch) -> tuple[Tensor, Tensor]:
        """Cross-entropy; every bag counts alike."""
        losses = F.binary_cross_entropy_with_logits(output.logits, batch["labels"].float(), reduction="none")
        return losses, torch.ones_like(losses)

    def measures(self, output: Judged, batch: Batch) -> dict[str, Tensor]:
        """Whether the label is right; for `summarise` logits, labels, and counts of instances."""
        labels = batch["labels"]
        found = {"accuracy": ((output.logits > 0) == (labels > 0)).float(), "logits": output.logits, "labels": labels}
        if output.weights is not None:
            found["excluded"] = ((output.weights == 0) & batch["mask"]).sum(-1)
            found["instances"] = batch["mask"].sum(-1)
        if output.alpha is not None:
            found["alpha"] = torch.as_tensor(output.alpha).expand(labels.shape)
        return found

    def summarise(self, measures: dict[str, Tensor]) -> dict[str, float]:
        """Means; the area under the ROC curve; the share of all instances whose weight is exactly 0."""
        special = ("logits", "labels", "excluded", "instances")
        metrics = super().summarise({name: values for name, values in measures.items() if name not in special})
        metrics["auc"], _ = rank_areas(measures["logits"], measures["labels"] > 0)
        if "excluded" in measures:
            metrics["excluded"] = float(measures["excluded"].sum() / measures["instances"].sum())
        return metrics

    def answer(self, output: Judged, batch: Batch, info: dict[str, Any]) -> str:
        """The probability, and how many instances have any weight."""
        probability = float(output.logits.sigmoid())
        text = f"{info['name']}: {probability:.0%}; label: {'yes' if int(batch['labels']) else 'no'}"
        if output.weights is None:
            return text
        return f"{text}; {int((output.weights > 0).sum())} of {int(batch['mask'].sum())} instances have weight"

    def tables(self) -> Sequence[Table]:
        """Six poolings on three sets of bags."""
        return (BAGS,)


TASK = BagsTask()
