"""The task minilm: losses and measures of reviews that are judged, and of vectors that are learned again."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, cast

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from contmax_lab.contract import Batch, ParameterGroup, Splits, Table, Task
from contmax_lab.packages import require
from contmax_lab.tasks.minilm import SETTINGS, MinilmData, MinilmModel
from contmax_lab.tasks.minilm._data import load, prepared
from contmax_lab.tasks.minilm._measures import Judged, Matched, spearman
from contmax_lab.tasks.minilm._table import MINILM

if TYPE_CHECKING:
    from contmax_lab.tasks.minilm._model import Converted

# α of a head is one number, of which a sigmoid is taken: at the pace of weights it would stay where it begins.
_PACE_OF_ALPHA = 100.0


class Minilm(Task, settings=SETTINGS):
    """A pretrained BERT gets exact zeros."""

    summary = "a pretrained BERT is converted from softmax to entmax, on film reviews"
    curves = ("loss", "accuracy", "cosine")
    load = staticmethod(load)

    def prepare(self, data: MinilmData) -> str:
        """Weights in half precision and reviews as tokens, in a folder that is enough to train from."""
        folder = prepared(data)
        size = sum(path.stat().st_size for path in folder.iterdir())
        return f"{folder} has all that a training needs, {size / 1e6:.1f} MB; pass it as --data.path, on any machine"

    def build(self, model: MinilmModel, splits: Splits) -> nn.Module:
        """The pretrained model with entmax attention; what judges is fresh."""
        require("transformers", "Converting a pretrained model")
        # transformers takes seconds to import, and other tasks are listed without it.
        from contmax_lab.tasks.minilm._model import Judge, Student

        kind = Judge if model.learn == "labels" else Student
        return kind(splits.info["pretrained"], model, len(splits.train))

    def loss(self, output: Judged | Matched, batch: Batch) -> tuple[Tensor, Tensor]:
        """Cross-entropy; or 1 − cosine, which is half of the squared distance of vectors of length 1."""
        if isinstance(output, Matched):
            losses = 1 - output.cosines(output.student)
        else:
            labels = batch["labels"].float()
            losses = F.binary_cross_entropy_with_logits(output.logits.float(), labels, reduction="none")
        return losses, torch.ones_like(losses)

    def parameter_groups(self, network: nn.Module) -> Sequence[ParameterGroup]:
        """Matrices; biases and scales, which do not decay; and what α is made of, which learns faster."""
        alpha = {id(parameter) for parameter in cast("Converted", network).alpha.parameters()}
        learning = [parameter for parameter in network.parameters() if parameter.requires_grad]
        of_heads = [parameter for parameter in learning if id(parameter) in alpha]
        rest = [parameter for parameter in learning if id(parameter) not in alpha]
        return (
            ParameterGroup([parameter for parameter in rest if parameter.dim() > 1]),
            ParameterGroup([parameter for parameter in rest if parameter.dim() <= 1], weight_decay=0.0),
            ParameterGroup(of_heads, learning_rate=_PACE_OF_ALPHA, weight_decay=0.0),
        )

    def measures(self, output: Judged | Matched, batch: Batch) -> dict[str, Tensor]:
        """Whether the label is right, or how near the vectors are; of test reviews zeros and shortened reviews too."""
        if isinstance(output, Matched):
            return _of_vectors(output)
        right = _right(output.logits, batch["labels"])
        if output.weights is None:
            return {"accuracy": right}
        measures = {"accuracy": right, **output.weights.per_text()}
        side = output.logits.sign()
        for name, logits in output.without.items():
            measures[f"accuracy_without_{name}"] = _right(logits, batch["labels"])
            # Of the label that the whole review was given, the probability that it loses.
            measures[f"fall_without_{name}"] = (side * output.logits).sigmoid() - (side * logits).sigmoid()
        return measures

    def summarise(self, measures: dict[str, Tensor]) -> dict[str, float]:
        """Means; shares of zeros are over all weights of a layer, each alike; ranks are over all pairs."""
        counted = {name: measures.pop(name) for name in ("zeros", "pairs", "alpha") if name in measures}
        vectors = {name: measures.pop(name) for name in ("student", "teacher", "before") if name in measures}
        metrics = super().summarise(measures)
        if counted:
            shares = counted["zeros"].double().sum(0) / counted["pairs"].double().sum()
            metrics |= {"zeros": float(shares.mean()), "alpha": float(counted["alpha"].double().mean())}
            metrics |= {f"zeros_{layer}": float(share) for layer, share in enumerate(shares, start=1)}
        if vectors:
            metrics["spearman"] = spearman(vectors["student"], vectors["teacher"])
            metrics["spearman_before"] = spearman(vectors["before"], vectors["teacher"])
        return metrics

    def tables(self) -> Sequence[Table]:
        """Softmax, entmax at once, risen, learned; and vectors."""
        return (MINILM,)


def _of_vectors(output: Matched) -> dict[str, Tensor]:
    measures = {"cosine": output.cosines(output.student)}
    if output.weights is None or output.before is None:
        return measures
    # Both halves of a review are texts of their own, and one example.
    counted = {
        name: values.unflatten(0, (-1, 2)).float().mean(1) if name == "alpha" else values.unflatten(0, (-1, 2)).sum(1)
        for name, values in output.weights.per_text().items()
    }
    vectors = {"student": output.student, "teacher": output.teacher, "before": output.before}
    return {**measures, "cosine_before": output.cosines(output.before), **counted, **vectors}


def _right(logits: Tensor, labels: Tensor) -> Tensor:
    return ((logits > 0) == (labels > 0.5)).float()


TASK = Minilm()
