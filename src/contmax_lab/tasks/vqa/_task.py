"""The task: losses and measures of answers, and what a model says of a new question."""

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from contmax_lab.contract import Batch, Batches, Metric, Row, Splits, Table, Task, seedless, seeds
from contmax_lab.errors import UsageError
from contmax_lab.tasks.vqa import SETTINGS, VqaModel
from contmax_lab.tasks.vqa._answers import wups
from contmax_lab.tasks.vqa._data import KINDS, load, prepare
from contmax_lab.tasks.vqa._figures import predict, seen_images
from contmax_lab.tasks.vqa._model import Answered, CoAttentionNetwork
from contmax_lab.tasks.vqa._reduction import where_measures

_NOT_MEANS = ("kind", "given", "truth")


# Label → attention, α, that of the weights behind it.
_ROWS = {
    "Discrete softmax": ("discrete", 1, 1),
    "Discrete entmax-1.5": ("discrete", 1.5, 1),
    "Discrete sparsemax": ("discrete", 2, 1),
    "2D continuous softmax": ("continuous", 1, 1),
    "2D continuous sparsemax": ("continuous", 2, 1),
    "2D continuous softmax, windows": ("windows", 1, 1),
    "2D continuous sparsemax, windows": ("windows", 2, 1.5),
    "Mixture of 3, sparsemax": ("mixture", 2, 1),
    "Disc. + cont. sparsemax": ("combined", 2, 1),
}
# The paper's accuracies on test-dev of VQA-v2.
_KEYS = ("test.accuracy", "test.number", "test.other")
_PAPER = {
    "Discrete softmax": (65.83, 43.59, 55.91),
    "2D continuous softmax": (65.96, 44.80, 55.88),
    "2D continuous sparsemax": (65.79, 44.12, 55.95),
}


def _rows(variant: str, *, reference: bool) -> tuple[Row, ...]:
    return tuple(
        Row(
            label,
            variant,
            (f"--model.attention={attention}", f"--model.alpha={alpha}", f"--model.weights_alpha={weights}"),
            paper=dict(zip(_KEYS, _PAPER[label], strict=True)) if reference and label in _PAPER else {},
        )
        for label, (attention, alpha, weights) in _ROWS.items()
    )


_REGION = (
    "area: share of the image that is attended to: where a weight or the density is positive; of softmax and the "
    "Gaussian, which are so everywhere, the smallest region with 95 % of the attention."
)
_WINDOWS = (
    "windows: not one ellipse with the moments of all weights of cells but one in each of 4 × 4 overlapping windows, "
    "with the moments of the weights there; so two places can be attended to without what lies between them. The "
    "weights are softmax's, and for sparsemax entmax-1.5's, which can leave windows out. This head is ours."
)
_CHOICE = (
    "One choice for all rows, on the 698 validation questions: of seven settings (learning rate, dropout, dropout of "
    "the features, layers, epochs, weight decay) the one with the best mean accuracy of discrete and of continuous "
    "softmax, one training each with a seed that is not in the table: a learning rate of 0.0002, 26.07 %; the others "
    "had 25.21 % to 26.00 %."
)

VQA = Table(
    name="vqa",
    title="Visual question answering, DAQUAR (rows of Martins et al. 2020, Table 3)",
    rows=(
        Row("Most frequent answer", "daquar", ("--model.attention=frequent", "--training.epochs=1")),
        Row("Question only", "daquar", ("--model.attention=question",)),
        *_rows("daquar", reference=True),
    ),
    repetitions=seeds(3),
    metrics=(
        Metric("test.accuracy", "accuracy, %", scale=100, digits=2, compared=True),
        Metric("test.number", "number, %", scale=100, digits=2),
        Metric("test.other", "other, %", scale=100, digits=2),
        Metric("test.wups_90", "WUPS@0.9, %", scale=100, digits=2, compared=True),
        Metric("test.wups_0", "WUPS@0, %", scale=100, digits=2),
        Metric("test.area", "area, %", scale=100, digits=1),
        Metric("timing.seconds_per_epoch", "seconds per epoch", digits=2),
    ),
    notes=(
        "DAQUAR, all classes: 6,795 questions about 795 images for training, 5,673 about 654 others for the test; "
        "the questions about a tenth of the training images are validation. The test questions are measured once, with "
        "the weights that are best on validation. Mean ± standard deviation over seeds of the training; differences "
        "are paired by the seed, which decides weights and order of the examples alike.",
        "An answer is right if it is the true one, all its parts where there are several. WUPS: likeness of answers "
        "by WordNet (Malinowski and Fritz 2014).",
        "The paper's columns are of another data set and another network, VQA-v2 test-dev: features of a ResNet, 6 "
        "layers, 512 channels. There, yes/no – number – other – all: discrete softmax 83.40, 43.59, 55.91, 65.83; 2D "
        "continuous softmax 83.40, 44.80, 55.88, 65.96; 2D continuous sparsemax 83.10, 44.12, 55.95, 65.79; on "
        "test-standard 83.47, 42.99, 56.33, 66.13; 83.79, 44.33, 56.04, 66.27; 83.38, 43.91, 56.14, 66.10. Images of "
        "VQA-v2 are not part of this table.",
        "Features: EfficientNet-Lite0, frozen, 448 × 448 pixels, 14 × 14 cells of 1,280 channels. Recipe vqa/daquar: "
        "modular co-attention of a small size; all rows share it, and only the reduction over the image differs.",
        _WINDOWS,
        _CHOICE,
        _REGION,
    ),
    baseline="Discrete softmax",
)

PASTED = Table(
    name="vqa-pasted",
    title="Visual question answering: is the object that is asked for attended to?",
    rows=(Row("Question only", "pasted", ("--model.attention=question",)), *_rows("pasted", reference=False)),
    repetitions=seeds(3),
    metrics=(
        Metric("test.accuracy", "accuracy, %", scale=100, digits=1, compared=True),
        Metric("test.iou", "IoU", digits=3, compared=True),
        Metric("test.inside", "inside", digits=3),
        Metric("test.inside_other", "in the other", digits=3),
        Metric("test.chosen", "right one, %", scale=100, digits=1),
        Metric("test.area", "area, %", scale=100, digits=1),
    ),
    notes=(
        "Photos of DAQUAR, in each of which we have pasted two objects, of eight shapes in eight colours, 16 % to 30 % "
        "of the image wide; the question names the shape of one of them and asks for its colour, or the reverse. "
        "Training and test photos differ. Models learn from the answers alone; where objects are is only measured.",
        "IoU: the region that is attended to against the box of the object that is asked for (a disk that touches all "
        "sides of a square has 0.785). inside, in the other: share of the attention in the box of the object that is "
        "asked for, and of the other. right one: more in the former than in the latter.",
        _WINDOWS,
        "The settings of DAQUAR, with 40 epochs; nothing was chosen on these images.",
        _REGION,
    ),
    baseline="Discrete softmax",
)


class VisualQuestionAnswering(Task, settings=SETTINGS):
    """Which answer?"""

    summary = "questions about images, by attention over cells, an ellipse or several ellipses of the image"
    reproduces = (VQA, PASTED)
    curves = ("loss", "accuracy", "area", "iou")
    load = seedless(load)
    prepare = staticmethod(prepare)
    predict = staticmethod(predict)
    figures = staticmethod(seen_images)

    def build(self, model: VqaModel, splits: Splits) -> nn.Module:
        """A network with fresh weights."""
        info = splits.info
        if model.hidden_dim % model.heads:
            raise UsageError(f"{model.heads} heads cannot share {model.hidden_dim} channels evenly; change model.heads")
        counts = torch.tensor(info["answers"].counts)
        return CoAttentionNetwork(
            model, info["words"], counts, info["features"], info["vectors"], resident=info["resident"]
        )

    def loss(self, output: Answered, batch: Batch) -> tuple[Tensor, Tensor]:
        """Cross-entropy, of each answer by itself or over all of them."""
        worth = batch["worth"]
        if output.loss == "binary":
            losses = F.binary_cross_entropy_with_logits(output.logits, worth, reduction="none").sum(-1)
        else:
            # A question without any answer of the vocabulary has loss 0.
            total = worth.sum(-1)
            losses = -(worth * output.logits.log_softmax(-1)).sum(-1) / total.clamp(min=1e-6)
        return losses, torch.ones_like(losses)

    def measures(self, output: Answered, batch: Batch) -> dict[str, Tensor]:
        """The score of the answer, the attended share of the image, and whether the right object is attended to."""
        given = output.logits.argmax(-1)
        measured = {
            "accuracy": batch["worth"].gather(-1, given.unsqueeze(-1)).squeeze(-1),
            "kind": batch["kind"],
            "given": given,
            "truth": batch["truth"],
        }
        if output.place is not None and output.grid is not None:
            boxes = {"box": batch.get("box"), "other_box": batch.get("other_box")}
            measured |= where_measures(output.place, output.grid, sparse=output.sparse, **boxes)
        return measured

    def summarise(self, measures: dict[str, Tensor]) -> dict[str, float]:
        """The means; accuracy also for each kind of question."""
        metrics = super().summarise({name: found for name, found in measures.items() if name not in _NOT_MEANS})
        for index, kind in enumerate(KINDS):
            own = measures["accuracy"][measures["kind"] == index]
            if len(own):
                metrics[kind.replace("/", "_")] = float(own.double().mean())
        return metrics

    def evaluate(self, model: nn.Module, batches: Batches, info: dict[str, Any]) -> dict[str, float]:
        """Loss and means; where WordNet is at hand, also the similarity of answers to the true ones (WUPS)."""
        loss, found = self.measured(model, batches)
        metrics = {"loss": loss, **self.summarise(found)}
        if info["nouns"] is not None:
            answers, every, nouns = info["answers"].answers, info["every_answer"], info["nouns"]
            pairs = [(answers[g], every[t]) for g, t in zip(found["given"], found["truth"], strict=True)]
            for name, threshold in (("wups_90", 0.9), ("wups_0", 0.0)):
                metrics[name] = sum(wups(given, truth, threshold, nouns) for given, truth in pairs) / len(pairs)
        return metrics


TASK = VisualQuestionAnswering()
