"""Which examples make a batch, and how batches are made: here, or ahead of time in other processes."""

import dataclasses
import functools
import signal
from collections.abc import Iterable, Iterator, Sequence, Sized
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset

from contmax_lab.contract import Batch, Task, TrainingConfig
from contmax_lab.errors import UsageError
from contmax_lab.training._processes import seed_everything, seed_for

# Examples are sorted by length within pools of this many batches: little padding, and the order is still mostly random.
_POOL = 50


def epoch_batches(
    count: int, batch_size: int, seed: int, epoch: int, lengths: Sequence[int] | None = None
) -> list[list[int]]:
    """The batches of an epoch, over all processes together; every example is in exactly one.

    Args:
        count: examples.
        batch_size: of every batch but one; 0 = all examples in one batch.
        seed: of the run.
        epoch: from 0.
        lengths: of the examples; with them, the examples of a batch have similar lengths.

    Returns:
        Batches of indices, ⌈count / batch_size⌉ of them.

    Example:
        >>> sorted(sum(epoch_batches(5, 2, seed=0, epoch=0), []))
        [0, 1, 2, 3, 4]
    """
    if batch_size == 0 or batch_size >= count:
        return [list(range(count))] if count else []
    generator = torch.Generator().manual_seed(seed_for(seed, "epoch", epoch))
    order: list[int] = torch.randperm(count, generator=generator).tolist()
    if lengths is None:
        return _cut(order, batch_size)
    pools = _cut(order, _POOL * batch_size)
    batches = [batch for pool in pools for batch in _cut(sorted(pool, key=lengths.__getitem__), batch_size)]
    return [batches[i] for i in torch.randperm(len(batches), generator=generator).tolist()]


def token_batches(lengths: Sequence[int], tokens: int, seed: int, epoch: int) -> list[list[int]]:
    """The batches of an epoch, each of at most `tokens` tokens with padding; every example is in exactly one.

    The examples are shuffled, sorted by length and cut, and the batches are shuffled. The number of batches is that of
    any other epoch, which schedules rely on.

    Args:
        lengths: of the examples.
        tokens: largest product of the count and the longest length of a batch; an example that is longer is alone.
        seed: of the run.
        epoch: from 0.

    Example:
        >>> sorted(map(sorted, token_batches([3, 1, 1, 9], 4, seed=0, epoch=0)))
        [[0], [1, 2], [3]]
    """
    generator = torch.Generator().manual_seed(seed_for(seed, "epoch", epoch))
    order: list[int] = torch.randperm(len(lengths), generator=generator).tolist()
    batches: list[list[int]] = []
    for index in sorted(order, key=lengths.__getitem__):
        if not batches or (len(batches[-1]) + 1) * max(lengths[index], 1) > tokens:
            batches.append([])
        batches[-1].append(index)
    return [batches[i] for i in torch.randperm(len(batches), generator=generator).tolist()]


@dataclasses.dataclass(frozen=True)
class Plan:
    """Which examples every step has: `count` of them, perhaps with lengths.

    Raises a UsageError if batches are to be made by tokens, but the task does not know the lengths of examples.
    """

    config: TrainingConfig
    seed: int
    count: int
    lengths: Sequence[int] | None = None

    def __post_init__(self) -> None:
        if self.config.batch_tokens and self.lengths is None:
            raise UsageError("training.batch_tokens needs the lengths of examples; this task has none: set batch_size")

    def epoch(self, epoch: int) -> list[list[int]]:
        """The batches of an epoch, from 0, over all processes together."""
        if self.config.batch_tokens and self.lengths is not None:
            return token_batches(self.lengths, self.config.batch_tokens, self.seed, epoch)
        return epoch_batches(self.count, self.config.batch_size, self.seed, epoch, self.lengths)

    @functools.cached_property
    def steps_per_epoch(self) -> int:
        """The number of batches, which is equal in all epochs."""
        return len(self.epoch(0))


def evaluation_batches(count: int, batch_size: int, lengths: Sequence[int] | None = None) -> list[list[int]]:
    """All examples once, the longest first: if memory does not suffice, the first batch shows it."""
    order = list(range(count))
    if lengths is not None:
        order.sort(key=lengths.__getitem__, reverse=True)
    return _cut(order, batch_size or max(count, 1))


def share(batch: Sequence[int], rank: int, world: int) -> list[int]:
    """The examples of a batch that fall to one of several processes.

    Example:
        >>> share([7, 8, 9], rank=1, world=2)
        [8]
    """
    return list(batch[rank::world])


def _cut(order: list[int], size: int) -> list[list[int]]:
    return [order[start : start + size] for start in range(0, len(order), size)]


_HOST = torch.device("cpu")


class Order(NamedTuple):
    """A step: its number, from 0, and the examples of its batch over all processes."""

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
    """Makes the batches of one process, `rank` of `world`, each in `accumulate` parts."""

    def __init__(self, task: Task, split: Sized, seed: int, accumulate: int = 1, rank: int = 0, world: int = 1) -> None:
        self.task, self.split, self.seed = task, split, seed
        self.accumulate, self.rank, self.world = accumulate, rank, world

    def __getitem__(self, order: Order) -> Loaded:
        mine = share(order.indices, self.rank, self.world)
        parts = [part for i in range(self.accumulate) if (part := share(mine, i, self.accumulate))]
        seed_everything(seed_for(self.seed, "step", order.number, self.rank), _HOST)
        # Every process takes part in every step, since the others wait for it; without examples its weight is 0.
        batches = [self.task.batch(self.split, part) for part in parts or [list(order.indices[:1])]]
        return Loaded(batches, bool(mine), torch.default_generator.get_state())

    def stream(self, orders: Iterable[Order], workers: int, *, pin: bool) -> Iterator[Loaded]:
        """The batches of all steps, made ahead of time by some processes, or here where there are none.

        Args:
            orders: the steps.
            workers: number of processes.
            pin: whether the batches go on to a GPU, which takes them quicker from pinned memory.
        """
        if not workers:
            return map(self.__getitem__, orders)
        options: dict[str, Any] = {"batch_size": None, "collate_fn": _identity, "pin_memory": pin}
        return iter(DataLoader(self, sampler=orders, num_workers=workers, worker_init_fn=_ignore_signals, **options))


def _identity(loaded: Any) -> Any:
    return loaded


def _ignore_signals(worker: int) -> None:
    """Signals reach all processes; the one that trains handles them and ends the others."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
