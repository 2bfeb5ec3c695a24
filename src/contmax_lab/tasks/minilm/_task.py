"""The task minilm and its table: reviews that are judged, and vectors that are learned again."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, cast

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from contmax_lab.contract import Batch, Metric, ParameterGroup, Row, Splits, Table, Task, seeds
from contmax_lab.packages import require
from contmax_lab.tasks.minilm import SETTINGS, MinilmData, MinilmModel
from contmax_lab.tasks.minilm._data import load, prepared
from contmax_lab.tasks.minilm._measures import Judged, Matched, spearman

if TYPE_CHECKING:
    from contmax_lab.tasks.minilm._model import Converted

# α of a head is one number, of which a sigmoid is taken: at the pace of weights it would stay where it begins.
_PACE_OF_ALPHA = 100.0


_LAYERS = 6

MINILM = Table(
    name="minilm",
    title="A pretrained BERT converted from softmax to entmax, IMDB",
    rows=(
        Row("Softmax", "softmax"),
        Row("Entmax, switched at once", "at-once"),
        Row("Entmax, α rises to 1.5", "rising"),
        Row("Entmax, α learned per head", "per-head"),
        Row("Entmax, α rises to 2", "sparsemax"),
        Row("Its own vectors, α rises to 1.5", "vectors"),
    ),
    repetitions=seeds(3),
    metrics=(
        Metric("test.accuracy", "accuracy, %", scale=100, digits=2, compared=True),
        Metric("test.zeros", "zeros, %", scale=100, digits=1),
        *(
            Metric(f"test.zeros_{layer}", f"layer {layer}", scale=100, digits=0, spread=False)
            for layer in range(1, _LAYERS + 1)
        ),
        Metric("test.alpha", "α", digits=2, spread=False),
        Metric("test.fall_without_attended", "fall, attended deleted", scale=100, digits=1),
        Metric("test.fall_without_random", "fall, random deleted", scale=100, digits=1),
        Metric("test.cosine_before", "cosine before", digits=3, spread=False),
        Metric("test.cosine", "cosine", digits=3),
        Metric("test.spearman_before", "Spearman before", digits=3, spread=False),
        Metric("test.spearman", "Spearman", digits=3),
    ),
    notes=(
        "all-MiniLM-L6-v2, six layers of twelve heads, 384 wide, and the IMDB reviews of Maas et al. 2011, official "
        "split, cut to 192 tokens. 10 % of the training half, the same share of both labels, are validation, by which "
        "the weights of the best epoch are chosen; the test half is measured once. Means and sample deviations are "
        "over seeds of the training. All rows that learn labels share one recipe: three epochs, AdamW, a learning rate "
        "of 0.0001 that falls to 0, no dropout of weights. A linear layer judges the mean of the last states.",
        "α rises from 1 over the first epoch. Learned: it rises to 1.5 in the same way, and from then on each head "
        "learns its own between 1 and 2; α is the mean over the heads of all layers.",
        "zeros: share of the attention weights that are exactly zero, in each test review from every token to every "
        "token, padding left out; every weight of a layer counts alike, and every layer.",
        "fall: a fifth of the tokens of each test review is deleted, and what is left is read by the same model as if "
        "it were the whole review; the mean fall, in points of per cent, of the probability of the label that the "
        "whole review was given. attended: those tokens that receive most of the weight of the last layer, in the mean "
        "over heads and over the tokens that attend; random: as many, drawn by the seed of the training. The accuracy "
        "on what is left stands in the file of results.",
        "Its own vectors: no labels. The model with entmax learns, in three epochs, the vectors that the pretrained "
        "model with softmax makes of the two halves of each training review (the mean of the last states, brought to "
        "length 1); the loss is 1 − cosine. Measured on the halves of the test reviews: the cosine to the vector of "
        "the pretrained model, and Spearman's correlation of the similarities of pairs of halves, of one review and of "
        "two. before: the pretrained model, switched to entmax at once and not trained.",
    ),
    baseline="Softmax",
)


class Minilm(Task, settings=SETTINGS):
    """A pretrained BERT gets exact zeros."""

    summary = "a pretrained BERT is converted from softmax to entmax, on film reviews"
    reproduces = (MINILM,)
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
