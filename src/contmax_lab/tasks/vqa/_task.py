"""The task: losses and measures of answers, and what a model says of a new question."""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from contmax_lab.contract import Batch, Batches, Splits, Table, Task, seedless
from contmax_lab.errors import UsageError
from contmax_lab.tasks.vqa import SETTINGS, VqaModel
from contmax_lab.tasks.vqa._answers import wups
from contmax_lab.tasks.vqa._data import KINDS, load, prepare
from contmax_lab.tasks.vqa._figures import predict, seen_images
from contmax_lab.tasks.vqa._model import Answered, CoAttentionNetwork
from contmax_lab.tasks.vqa._reduction import where_measures
from contmax_lab.tasks.vqa._table import PASTED, VQA

_NOT_MEANS = ("kind", "given", "truth")


class VisualQuestionAnswering(Task, settings=SETTINGS):
    """Which answer?"""

    summary = "questions about images, by attention over cells, an ellipse or several ellipses of the image"
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

    def tables(self) -> Sequence[Table]:
        """The paper's rows and more on DAQUAR; and where they look, on images with objects pasted in."""
        return (VQA, PASTED)


TASK = VisualQuestionAnswering()
