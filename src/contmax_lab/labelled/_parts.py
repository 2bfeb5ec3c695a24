"""From files to training, validation and test examples."""

import dataclasses
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Generic, Protocol, TypeVar

from contmax_lab.data import held_out_share, shuffled
from contmax_lab.errors import LabError, UsageError
from contmax_lab.labelled._targets import Label, Targets
from contmax_lab.settings import LabelledData


class Example(Protocol):
    """Anything with a label."""

    @property
    def label(self) -> Label:
        """Its label."""


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
    train = _some(found, data)
    try:
        targets = Targets.of([example.label for example in train], data.target)
    except LabError as error:
        if len(train) == len(found):
            raise
        raise LabError(f"{error}. {_left(train, found)}") from None
    if data.validation is None:
        # Of numbers, all are of one kind.
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
        valid = _some(read(data.validation), data)
    test = [] if data.test is None else _some(read(data.test), data)
    if not targets.classes:
        targets = Targets.of([example.label for example in train], data.target)
    for part in (valid, test):
        targets.encoded([example.label for example in part])
    return Parts(train, valid, test, targets)


def _left(train: Sequence[E], found: Sequence[E]) -> str:
    return f"--limit has left {len(train)} of {len(found)} examples; pass a larger one"


def _some(examples: Sequence[E], data: LabelledData) -> list[E]:
    """The examples, or as many as the user wants, at random: a file may be sorted by label."""
    if not 0 < data.limit < len(examples):
        return list(examples)
    return [examples[index] for index in sorted(shuffled(len(examples), data.split)[: data.limit])]
