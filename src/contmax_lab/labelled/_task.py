"""Losses, measures and answers in words, for classes and for numbers; model folders."""

import abc
import dataclasses
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from contmax_lab.contract import Batch, Prediction, Splits, Task, TrainedRun
from contmax_lab.errors import LabError
from contmax_lab.files import plain, unplain
from contmax_lab.labelled._answer import Answer
from contmax_lab.labelled._classifier import Classifier, class_measures
from contmax_lab.labelled._examples import Targets, imbalance
from contmax_lab.labelled._exported import model_settings, read_card, read_weights, write_model

_SHOWN = 3


class LabelledTask(Classifier):
    """A task whose batches have a ``target``, integers for classes and floats for numbers, and whose models `Answer`.

    ``info["classes"]`` of its splits names the classes; it is empty for numbers. A model is built from ``info`` alone.
    """

    curves = ("loss", "accuracy", "f1", "auroc", "auprc", "absolute_error", "attended")
    # What `build` and `ask` need of ``info`` beside ``targets``: its name → how it is made from JSON.
    knows: ClassVar[Mapping[str, Callable[[Any], Any]]]

    @abc.abstractmethod
    def ask(self, model: nn.Module, info: dict[str, Any], words: Sequence[str]) -> Prediction:
        """What a model says of a new input.

        Args:
            model: in evaluation mode.
            info: of the data that it was trained on.
            words: of the command line.

        Raises:
            UsageError: if the input is not understood.
        """

    def loss(self, output: Answer, batch: Batch) -> tuple[Tensor, Tensor]:
        """Cross-entropy, by the weights of the classes; or the squared error, in units of the training variance."""
        target = batch["target"]
        if target.is_floating_point():
            losses = ((output.scores - target) / output.unit).square()
        else:
            losses = F.cross_entropy(output.scores, target, reduction="none")
            if output.targets.weights:
                weights = losses.new_tensor(output.targets.weights)[target]
                return losses * weights, weights
        return losses, torch.ones_like(losses)

    def weigh_classes(self, splits: Splits, wanted: str | Sequence[float]) -> Splits:
        """The splits, with weights of the classes in what `build` makes a model of, and without the advice to weigh."""
        targets: Targets = splits.info["targets"]
        remarks = [line for line in splits.info.get("remarks", ()) if line not in imbalance(targets)]
        info = {**splits.info, "targets": targets.weighed(wanted), "remarks": remarks}
        return dataclasses.replace(splits, info=info)

    def measures(self, output: Answer, batch: Batch) -> dict[str, Tensor]:
        """Whether the class is right, or how far the number is off; and the share of observations that are attended."""
        target = batch["target"]
        # A series may have no observation.
        share = output.inside.sum(-1) / output.mask.sum(-1).clamp(min=1)
        if target.is_floating_point():
            return {"absolute_error": (output.scores - target).abs(), "attended": share}
        return {**class_measures(output.scores, target, output.targets.rarest), "attended": share}

    def answer(self, output: Answer, batch: Batch, info: dict[str, Any]) -> str:
        """The likeliest classes, or the number; what is right; how much was attended."""
        share = float(output.inside.sum() / output.mask.sum().clamp(min=1))
        return f"{said(output, info)}; the label is {truth(batch['target'], info)}\nattended: {share:.0%}"

    def predict(self, trained: TrainedRun, words: Sequence[str]) -> Prediction:
        """The label of a new input, and where the model looked."""
        with torch.no_grad():
            return self.ask(trained.model, trained.splits.info, words)

    def export(self, trained: TrainedRun, folder: Path, measure: Callable[[nn.Module, str], dict[str, float]]) -> int:
        """Weights, settings and what the model has to know of its data."""
        made = {key: trained.results[key] for key in ("examples", "epochs", "best_epoch", "seed")}
        known = {name: plain(trained.splits.info[name]) for name in ("targets", *self.knows)}
        if column := trained.splits.info.get("of_table"):
            known["of_table"] = column
        card = {"model": plain(trained.recipe.model), "known": known, "trained": made}
        return write_model(trained, card, folder, measure)

    def predict_exported(self, folder: Path | None, words: Sequence[str]) -> Prediction:
        """The answer of `predict`, from an exported model, which has no training data."""
        if folder is None:
            raise LabError(f"no model of the task {self.name} comes with the package; pass --model FOLDER")
        model, info = self.read_exported(folder)
        with torch.no_grad():
            return self.ask(model, info, words)

    def read_exported(self, folder: Path) -> tuple[nn.Module, dict[str, Any]]:
        """The network, and what it knows of its data."""
        values, known = read_card(folder, lambda card: ({**card["model"]}, {**card["known"]}))
        try:
            targets = unplain(Targets, known["targets"])
            info = {name: read(known[name]) for name, read in self.knows.items()}
            info |= {"targets": targets, "classes": targets.classes, "of_table": {**known.get("of_table", {})}}
        except (KeyError, TypeError, ValueError) as error:
            raise LabError(f"{folder} holds no model of the task {self.name}: {' '.join(str(error).split())}") from None
        config: Any = model_settings(folder, self.model_config, values)
        return read_weights(folder, lambda: self.build(config, Splits((), (), (), info))), info


def said(output: Answer, info: dict[str, Any]) -> str:
    """What a network says of the one example of a batch."""
    classes = info["classes"]
    if not classes:
        return f"{float(output.scores):.4g}"
    probabilities = output.scores[0].softmax(-1)
    order = probabilities.argsort(descending=True, stable=True)[:_SHOWN].tolist()
    return ", ".join(f"{classes[index]} ({float(probabilities[index]):.0%})" for index in order)


def truth(target: Tensor, info: dict[str, Any]) -> str:
    """The label of an example, in words.

    Example:
        >>> truth(torch.tensor(1), {"classes": ("cat", "dog")}), truth(torch.tensor(2.5), {"classes": ()})
        ('dog', '2.5')
    """
    return str(info["classes"][int(target)]) if info["classes"] else f"{float(target):.4g}"


def first_of_classes(target: Tensor, count: int) -> list[int]:
    """Places of the first example of each class, or of each number, `count` at most.

    Example:
        >>> first_of_classes(torch.tensor([1, 1, 0, 2]), 2)
        [0, 2]
    """
    firsts = {label: place for place, label in reversed([*enumerate(target.tolist())])}
    return sorted(firsts.values())[:count]


class OnInstalledData(LabelledTask):
    """A labelled task whose data is installed: examples are asked for by their numbers.

    A subclass names it before the task that it is like: ``class Digits(OnInstalledData, ImagesTask)``.
    """

    def predict(self, trained: TrainedRun, words: Sequence[str]) -> Prediction:
        """The label of a validation example, by its number, because users have no files of this kind."""
        return Task.predict(self, trained, words)
