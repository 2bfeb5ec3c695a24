"""What is to be predicted: a class or a number, as the training examples have it."""

import dataclasses
import math
import statistics
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from contmax_lab.data import Place, finite_number
from contmax_lab.errors import LabError, nearest
from contmax_lab.settings import Target


@dataclasses.dataclass(frozen=True)
class Label:
    """The label of an example.

    Args:
        text: as the file has it.
        place: where.
    """

    text: str
    place: Place


@dataclasses.dataclass(frozen=True)
class Targets:
    """The classes, or the scale of the numbers, of the training examples.

    Args:
        classes: their names in order; empty for numbers.
        mean, deviation: of the numbers.
    """

    classes: tuple[str, ...] = ()
    mean: float = 0.0
    deviation: float = 1.0

    @classmethod
    def of(cls, labels: Sequence[Label], kind: Target) -> "Targets":
        """Of the labels of the training examples.

        Raises:
            LabError: if there is nothing to learn: one class, or one number.
        """
        found = sorted({label.text for label in labels}, key=_order)
        file = labels[0].place.file
        if len(found) == 1:
            raise LabError(f"{file}: every label is {found[0]!r}; there must be at least two different ones")
        if kind == "class":
            return cls(tuple(found))
        numbers = [_number(label) for label in labels]
        deviation = statistics.pstdev(numbers)
        # The scale of the last differences that float32 can tell apart.
        if not deviation > 1e-6 * max(map(abs, numbers)):
            raise LabError(f"{file}: all labels are nearly {numbers[0]:g}; they must differ")
        if not math.isfinite(deviation) or deviation > 1e30:
            raise LabError(f"{file}: the labels reach {max(map(abs, numbers)):.3g}; rescale them")
        return cls((), statistics.fmean(numbers), deviation)

    def plain(self) -> dict[str, Any]:
        """As JSON; ``Targets.of_plain`` is the opposite."""
        return {"classes": list(self.classes), "mean": self.mean, "deviation": self.deviation}

    @classmethod
    def of_plain(cls, stored: dict[str, Any]) -> "Targets":
        """Of what `plain` has made.

        Example:
            >>> Targets.of_plain(Targets(("no", "yes")).plain())
            Targets(classes=('no', 'yes'), mean=0.0, deviation=1.0)
        """
        return cls(tuple(map(str, stored["classes"])), float(stored["mean"]), float(stored["deviation"]))

    def encoded(self, labels: Sequence[Label]) -> Tensor:
        """Numbers of classes, or numbers, (B,).

        Raises:
            LabError: at a class that no training example has, or what is not a number.
        """
        if not self.classes:
            return torch.tensor([_number(label) for label in labels], dtype=torch.float32)
        known = {name: index for index, name in enumerate(self.classes)}
        for label in labels:
            if label.text not in known:
                choice = nearest(label.text, self.classes) or f"; there are {_listed(self.classes)}"
                raise label.place.problem(f"no training example has the label {label.text!r}{choice}")
        return torch.tensor([known[label.text] for label in labels], dtype=torch.long)


def _number(label: Label) -> float:
    return finite_number(label.text, "the label", label.place)


def _order(text: str) -> tuple[float, str]:
    """Numbers by their value, then all others by the alphabet."""
    try:
        value = float(text)
    except ValueError:
        value = math.inf
    return (math.inf if value != value else value, text)


def _listed(names: Sequence[str]) -> str:
    return ", ".join(names[:10]) + (f" and {len(names) - 10} more" if len(names) > 10 else "")
