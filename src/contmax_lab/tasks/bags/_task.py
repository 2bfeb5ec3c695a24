"""The task bags and its table: a small network whose pooling varies; AUC, and how many instances are ruled out."""

import dataclasses
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from contmax.nn import BagPooling
from contmax_lab.contract import Batch, Metric, Repetition, Row, Splits, Table, Task, seedless
from contmax_lab.labelled import rank_areas
from contmax_lab.tasks.bags import SETTINGS, BagsModel
from contmax_lab.tasks.bags._data import load

NAMES = ("elephant", "fox", "tiger")
_FOLDS, _REPETITIONS = 10, 5
# Every row tries all of these, in every fold; the epochs are those with the least validation loss.
_TRIES = tuple({"learning_rate": rate, "weight_decay": decay} for rate in (0.003, 0.01) for decay in (0.1, 3.0))
_TRIED = (f"--training.tries=[{', '.join(str(one) for one in _TRIES)}]",)


def _repetition(name: str, repetition: int, fold: int) -> Repetition:
    where = (f"--data.name={name}", f"--data.repetition={repetition}", f"--data.fold={fold}")
    return Repetition(f"{name}-{repetition}-{fold}", (*where, f"--seed={_FOLDS * repetition + fold}"), (name,))


BAGS = Table(
    name="bags",
    title="Multiple-instance learning: elephant, fox, tiger (Andrews et al. 2002)",
    rows=(
        Row("Mean", "mean", _TRIED),
        Row("Max", "max", _TRIED),
        Row("Gated attention, softmax", "softmax", _TRIED),
        Row("Gated attention, sparsemax", "sparsemax", _TRIED),
        Row("Gated attention, entmax 1.5", "entmax", _TRIED),
        Row("Gated attention, entmax, α learned", "learned-alpha", _TRIED),
    ),
    repetitions=tuple(
        _repetition(name, repetition, fold)
        for repetition in range(_REPETITIONS)
        for fold in range(_FOLDS)
        for name in NAMES
    ),
    metrics=(
        Metric("test.auc", "AUC, %", scale=100, digits=1, compared=True),
        Metric("test.accuracy", "accuracy, %", scale=100, digits=1, compared=True),
        Metric("test.excluded", "instances ruled out, %", scale=100, digits=1),
        Metric("test.alpha", "α", digits=2, spread=False),
    ),
    notes=(
        "A bag is an image, its instances are segments of it, and only the bag has a label: is the animal there? 200 "
        "bags in each set, half of them positive, 1,220 to 1,391 instances of 230 features. Bags have no order, so "
        "that continuous attention, which needs places, has no place here.",
        "Five times ten folds with the same share of both labels, the same folds for every row: mean ± standard "
        "deviation over the 50 test folds of 20 bags. A fifth of the other 180 bags is for validation. Features are "
        "normalised by the remaining 144 alone, and cut at three deviations.",
        "One network for all rows: a linear layer to 32 channels and a ReLU for each instance, the pooling, a linear "
        "layer to the logit. AdamW, full batches, 40 epochs. Every row tries the same grid in every fold: learning "
        "rates 0.003 and 0.01, weight decays 0.1 and 3, epochs 4, 8, … 40; the weights with the least loss on the "
        "validation bags are kept and are not trained again on all 180 bags. Test bags decide nothing.",
        "The width, the cut and the range of the grid were chosen by validation losses of gated attention with softmax "
        "in the ten folds of the first repetition of fox and elephant. Validation bags of one fold are test bags of "
        "others.",
        "Instances ruled out: share of the instances of the test bags whose weight is exactly 0, and which therefore "
        "do not matter to the result. Max, which chooses in each channel by itself, has no weights.",
        "Hopfield pooling: as published (Ramsauer et al. 2021), under another protocol, with another network and "
        "another search of hyper-parameters; it is there for orientation, not for comparison.",
    ),
    baseline="Gated attention, softmax",
    overlap=1 / (_FOLDS - 1),
    together=True,
    shown=NAMES,
    published={
        "Hopfield pooling, published": {
            name: {"test.auc": figure} for name, figure in zip(NAMES, (94.9, 64.1, 91.3), strict=True)
        }
    },
)


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
    reproduces = (BAGS,)
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


TASK = BagsTask()
