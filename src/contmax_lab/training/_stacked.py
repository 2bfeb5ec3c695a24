"""Examples of several replicas as one batch, and the curves of all of them in their files."""

import dataclasses
from collections.abc import Sequence, Sized
from typing import Any, Self

import torch
from torch import Tensor

from contmax_lab.contract import Batch, Task
from contmax_lab.runs import Run


@dataclasses.dataclass(frozen=True)
class StackedExamples:
    """One part of the data of all replicas.

    Args:
        batch: (R, L, …), padded to the longest with copies of examples.
        counts: of each replica, (R,).
    """

    batch: Batch
    counts: Tensor

    @classmethod
    def of(cls, task: Task, wholes: Sequence[Sized], device: torch.device) -> Self:
        """All examples.

        Args:
            task: makes batches.
            wholes: the examples of each replica.
            device: where they are put.
        """
        batches = [task.batch(whole, range(len(whole))) for whole in wholes]
        longest = max(map(len, wholes))
        rows = [torch.arange(longest) % len(whole) for whole in wholes]
        batch = {
            name: torch.stack([b[name][r] for b, r in zip(batches, rows, strict=True)]).to(device)
            for name in batches[0]
        }
        return cls(batch, torch.tensor([len(whole) for whole in wholes], device=device))

    @property
    def mask(self) -> Tensor:
        """Which examples are no padding, (R, L)."""
        longest = int(next(iter(self.batch.values())).shape[1])
        return torch.arange(longest, device=self.counts.device) < self.counts.unsqueeze(-1)


def replica_means(totals: Tensor, weights: Tensor, mask: Tensor) -> Tensor:
    """The mean of each replica, (R,), from the sum and the weight of each of its examples, (R, L).

    Example:
        >>> mask = torch.tensor([[True, True], [True, False]])
        >>> replica_means(torch.tensor([[1.0, 3.0], [5.0, 9.0]]), torch.ones(2, 2), mask)
        tensor([2., 5.])
    """
    return (totals * mask).sum(-1) / (weights * mask).sum(-1)


class StackedCurves:
    """Learning curves of all replicas, written when a checkpoint is: they are many files, and evaluations are quick.

    Args:
        runs: the folder of each replica.
    """

    def __init__(self, runs: Sequence[Run]) -> None:
        self._runs = runs
        self._waiting: list[list[dict[str, Any]]] = [[] for _ in runs]

    def add(self, records: Sequence[dict[str, Any]]) -> None:
        """One evaluation, a record for each replica."""
        for waiting, record in zip(self._waiting, records, strict=True):
            waiting.append(record)

    def write(self) -> list[int]:
        """Append what was added to the files, and return their sizes, for a checkpoint."""
        for run, waiting in zip(self._runs, self._waiting, strict=True):
            run.append_metrics(*waiting)
            run.sync_metrics()
            waiting.clear()
        return [run.metrics_size() for run in self._runs]

    def truncate(self, sizes: Sequence[int]) -> None:
        """Forget what was written after a checkpoint."""
        for run, size in zip(self._runs, sizes, strict=True):
            run.truncate_metrics(size)
