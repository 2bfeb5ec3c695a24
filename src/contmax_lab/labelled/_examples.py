"""Examples and their labels, from files to training, validation and test parts."""

import dataclasses
import math
import statistics
from collections.abc import Callable, Sequence, Sized
from pathlib import Path
from typing import Any, Generic, Protocol, TypeVar

import torch
from torch import Tensor

from contmax_lab.contract import Splits
from contmax_lab.data import Place, finite_number, held_out_share, limited
from contmax_lab.errors import LabError, UsageError, nearest
from contmax_lab.settings import LabelledData, Target

T = TypeVar("T")
# Classes are imbalanced where the most frequent one has this many times the examples of the rarest.
_MUCH_RARER = 4


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
        counts: training examples of each class; empty where they are not known.
        weights: of each class in the loss; empty = all 1.
    """

    classes: tuple[str, ...] = ()
    mean: float = 0.0
    deviation: float = 1.0
    counts: tuple[int, ...] = ()
    weights: tuple[float, ...] = ()

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
        # float32 resolves relative differences of about 1e-7.
        if not deviation > 1e-6 * max(map(abs, numbers)):
            raise LabError(f"{file}: all labels are nearly {numbers[0]:g}; they must differ")
        if not math.isfinite(deviation) or deviation > 1e30:
            raise LabError(f"{file}: the labels reach {max(map(abs, numbers)):.3g}; rescale them")
        return cls((), statistics.fmean(numbers), deviation)

    @property
    def rarest(self) -> int:
        """The class with the fewest training examples; of equally rare ones, or where nobody has counted, the last."""
        counts = self.counts or [0] * len(self.classes)
        return max(range(len(counts)), key=lambda index: (-counts[index], index), default=0)

    def counted(self, target: Tensor) -> "Targets":
        """With the numbers of training examples of each class, from the encoded labels (B,).

        Example:
            >>> Targets(("no", "yes")).counted(torch.tensor([0, 0, 1])).counts
            (2, 1)
        """
        if not self.classes:
            return self
        return dataclasses.replace(self, counts=tuple(torch.bincount(target, minlength=len(self.classes)).tolist()))

    def weighed(self, wanted: str | Sequence[float]) -> "Targets":
        """With weights of the classes in the loss.

        Args:
            wanted: ``"balanced"``, that all classes weigh alike however rare they are; or the weight of each class.

        Raises:
            UsageError: if there are no classes, or another number of them.

        Example:
            >>> Targets(("no", "yes"), counts=(6, 2)).weighed("balanced").weights
            (0.666..., 2.0)
        """
        if not self.classes:
            raise UsageError("training.class_weights weighs classes, but the labels are numbers; leave it out")
        if wanted == "balanced":
            share = sum(self.counts) / len(self.counts)
            # A class that validation alone has is never learned from.
            return dataclasses.replace(self, weights=tuple(share / max(count, 1) for count in self.counts))
        weights = tuple(map(float, wanted))
        if len(weights) != len(self.classes):
            known = f"{', '.join(self.classes[:10])}{' …' if len(self.classes) > 10 else ''}"
            raise UsageError(
                f"training.class_weights has {len(weights)} numbers for {len(self.classes)} classes; pass one for each "
                f"of {known}, in this order, or balanced"
            )
        return dataclasses.replace(self, weights=weights)

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
                more = f" and {len(self.classes) - 10} more" if len(self.classes) > 10 else ""
                choice = nearest(label.text, self.classes) or f"; there are {', '.join(self.classes[:10])}{more}"
                raise label.place.problem(f"no training example has the label {label.text!r}{choice}")
        return torch.tensor([known[label.text] for label in labels], dtype=torch.long)


def imbalance(targets: Targets) -> list[str]:
    """A line on classes that are much rarer than others, with advice; none where they are not.

    Example:
        >>> imbalance(Targets(("ill", "well"), counts=(10, 20)))
        []
        >>> print(*imbalance(Targets(("ill", "well"), counts=(4, 96))))
        classes are imbalanced: ill has 4 of 100 training examples, well has 96; who always answers well is right in
        96 %. Monitor a metric that does not forget rare classes, --training.monitor auprc --training.goal max, and
        try --training.class_weights balanced
    """
    counts = targets.counts
    if not counts or max(counts) < _MUCH_RARER * min(counts):
        return []
    (rare, few), (frequent, many) = (
        (targets.classes[counts.index(count)], count) for count in (min(counts), max(counts))
    )
    return [
        f"classes are imbalanced: {rare} has {few} of {sum(counts)} training examples, {frequent} has {many}; who "
        f"always answers {frequent} is right in {100 * many / sum(counts):.0f} %. Monitor a metric that does not "
        "forget rare classes, --training.monitor auprc --training.goal max, and try --training.class_weights balanced"
    ]


def _number(label: Label) -> float:
    return finite_number(label.text, "the label", label.place)


def _order(text: str) -> tuple[float, str]:
    """Numbers by their value, then all others by the alphabet."""
    try:
        value = float(text)
    except ValueError:
        value = math.inf
    return (math.inf if value != value else value, text)


class Example(Protocol):
    """Anything with a label."""

    @property
    def label(self) -> Label:
        """Its label."""


class WithTarget(Sized, Protocol):
    """Examples as a task takes them, with their encoded labels."""

    @property
    def target(self) -> Tensor:
        """Classes or numbers, (B,)."""


E = TypeVar("E", bound=Example)


@dataclasses.dataclass(frozen=True)
class Parts(Generic[E]):
    """Examples, and what their labels mean.

    Args:
        train, valid, test: examples; the last may be none.
        targets: of the training examples.
    """

    train: list[E]
    valid: list[E]
    test: list[E]
    targets: Targets

    def splits(self, part: Callable[[list[E], Tensor], WithTarget], **info: Any) -> Splits:
        """The parts as a task takes them.

        Args:
            part: examples, their encoded labels → what `Task.batch` understands.
            info: what models must know beside classes and targets.
        """
        train, valid, test = (
            part(examples, self.targets.encoded([example.label for example in examples]))
            for examples in (self.train, self.valid, self.test)
        )
        targets = self.targets.counted(train.target)
        info = {**info, "remarks": [*info.get("remarks", ()), *imbalance(targets)]}
        return Splits(train, valid, test, {"classes": targets.classes, "targets": targets, **info})


def read_parts(read: Callable[[Path], Sequence[E]], data: LabelledData, what: str) -> Parts[E]:
    """Read the files that the user has named.

    Args:
        read: path → examples; complains with file and line.
        data: which files.
        what: what --data.train should be, for the message where it is missing.

    Raises:
        LabError: if something is wrong with a file.
    """
    if data.train is None:
        raise UsageError(f"no training data was given; pass --data.train {what}")
    found = read(data.train)
    train = some(found, data)
    try:
        targets = Targets.of([example.label for example in train], data.target)
    except LabError as error:
        if len(train) == len(found):
            raise
        raise LabError(f"{error}. {_left(train, found)}") from None
    if data.validation is None:
        # Classes are held out in proportion; numbers count as one class.
        labels = [example.label.text if targets.classes else "" for example in train]
        held_out = set(held_out_share(labels, data.held_out, data.split))
        if not held_out:
            once = f"{data.train}: every label occurs once, so nothing can be held out for validation"
            if len(train) < len(found):
                raise UsageError(f"{once}. {_left(train, found)}")
            raise UsageError(f"{once}; if labels are numbers pass --data.target number, or else --data.validation")
        valid = [example for index, example in enumerate(train) if index in held_out]
        train = [example for index, example in enumerate(train) if index not in held_out]
    else:
        valid = some(read(data.validation), data)
    test = [] if data.test is None else some(read(data.test), data)
    if not targets.classes:
        targets = Targets.of([example.label for example in train], data.target)
    for part in (valid, test):
        targets.encoded([example.label for example in part])
    return Parts(train, valid, test, targets)


def _left(train: Sequence[E], found: Sequence[E]) -> str:
    return f"--limit has left {len(train)} of {len(found)} examples; pass a larger one"


def some(examples: Sequence[T], data: Any) -> list[T]:
    """The examples, or as many as the user wants, at random: a file may be sorted by label."""
    return [examples[index] for index in limited(len(examples), data.limit, data.split)]
