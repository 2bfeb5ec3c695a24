"""From the numbers of examples to batches in memory: here or in processes beside, with the same bits."""

import signal
from collections.abc import Iterable, Iterator, Sequence, Sized
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset

from contmax_lab.contract import Batch, Task
from contmax_lab.training._batches import share
from contmax_lab.training._randomness import seed_everything, seed_for

_HOST = torch.device("cpu")


class Order(NamedTuple):
    """What a step needs: its number, from 0, and the examples of its batch over all processes."""

    number: int
    indices: Sequence[int]


class Loaded(NamedTuple):
    """The share of one process of a batch.

    `parts` go through the model one after the other. A process without examples has one that is not `counted`. `chance`
    is the state in which drawing the batch has left torch's generator, from which the model goes on drawing.
    """

    parts: list[Batch]
    counted: bool
    chance: Tensor


class Loader(Dataset[Loaded]):
    """Makes batches.

    Args:
        task: that knows how.
        split: the examples.
        seed: of the run.
        accumulate: parts of a batch.
        rank, world: which process of how many.
    """

    def __init__(self, task: Task, split: Sized, seed: int, accumulate: int = 1, rank: int = 0, world: int = 1) -> None:
        self.task, self.split, self.seed = task, split, seed
        self.accumulate, self.rank, self.world = accumulate, rank, world

    def __getitem__(self, order: Order) -> Loaded:
        mine = share(order.indices, self.rank, self.world)
        parts = [part for i in range(self.accumulate) if (part := share(mine, i, self.accumulate))]
        seed_everything(seed_for(self.seed, "step", order.number, self.rank), _HOST)
        # Every process takes part in every step, or the others wait for ever: one without examples counts for nothing.
        batches = [self.task.batch(self.split, part) for part in parts or [list(order.indices[:1])]]
        return Loaded(batches, bool(mine), torch.default_generator.get_state())

    def stream(self, orders: Iterable[Order], workers: int, *, pin: bool) -> Iterator[Loaded]:
        """All batches, some of them made ahead of time by processes beside this one.

        Args:
            orders: the steps.
            workers: processes; 0 = batches are made here, when they are asked for.
            pin: whether the batches go on to a GPU, which takes them quicker from pinned memory.
        """
        if not workers:
            return (self[order] for order in orders)
        loader = DataLoader(
            self,
            batch_size=None,
            sampler=orders,
            num_workers=workers,
            collate_fn=_as_it_is,
            pin_memory=pin,
            worker_init_fn=_leave_signals_to_the_parent,
        )
        return iter(loader)


def _as_it_is(loaded: Any) -> Any:
    return loaded


def _leave_signals_to_the_parent(worker: int) -> None:
    """Ctrl-C and a shutdown reach all processes; the one that trains decides what they mean, and ends the others."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
