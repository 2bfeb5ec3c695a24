"""How a task goes over all examples of a split, on any number of processes."""

from __future__ import annotations

import abc
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from torch import Tensor

Batch = dict[str, "Tensor"]


class Batches(abc.ABC):
    """The examples of a split in batches on the device. Of several processes each sees its own share.

    `final` says whether the weights are those that a training keeps. What takes long, such as generating texts, need
    not be done in the evaluations on the way there: of these only the monitored metric matters.
    """

    final: bool = True

    @abc.abstractmethod
    def __iter__(self) -> Iterator[Batch]:
        """The batches of this process; there may be none."""

    @abc.abstractmethod
    def in_order(self, pieces: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
        """What was found out on all processes, each example once and in the order of the split.

        Every process has to call it, once for each time it has gone over the batches.

        Args:
            pieces: for each batch, in the order of the iteration: name → one entry per example, as a tensor (B, …) or
                a list of B objects.

        Returns:
            Name → one entry per example of the split, on the CPU, the same on every process.
        """

    def keep(self, name: str, text: str) -> None:  # noqa: B027, there may be no place to keep it
        """Store a text with the run, beside its metrics, if this is a final evaluation of a training.

        Args:
            name: of its file.
            text: what was generated, say.
        """
