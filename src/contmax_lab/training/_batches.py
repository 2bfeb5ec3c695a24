"""Which examples make a batch: a function of seed and epoch, so that nothing about it needs to be stored."""

import dataclasses
import functools
from collections.abc import Sequence

import torch

from contmax_lab.contract import TrainingConfig
from contmax_lab.errors import UsageError
from contmax_lab.training._randomness import generator_for

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
    generator = generator_for(seed, "epoch", epoch)
    order: list[int] = torch.randperm(count, generator=generator).tolist()
    if lengths is None:
        return _cut(order, batch_size)
    pools = _cut(order, _POOL * batch_size)
    batches = [batch for pool in pools for batch in _cut(sorted(pool, key=lengths.__getitem__), batch_size)]
    return [batches[i] for i in torch.randperm(len(batches), generator=generator).tolist()]


def token_batches(lengths: Sequence[int], tokens: int, seed: int, epoch: int) -> list[list[int]]:
    """The batches of an epoch, each of at most `tokens` tokens with padding; every example is in exactly one.

    Examples of one length are shuffled, all are sorted by length and cut. So every epoch has as many batches as any
    other, which schedules rely on, and their order is shuffled too.

    Args:
        lengths: of the examples.
        tokens: largest product of the count and the longest length of a batch; an example that is longer is alone.
        seed: of the run.
        epoch: from 0.

    Example:
        >>> sorted(map(sorted, token_batches([3, 1, 1, 9], 4, seed=0, epoch=0)))
        [[0], [1, 2], [3]]
    """
    generator = generator_for(seed, "epoch", epoch)
    order: list[int] = torch.randperm(len(lengths), generator=generator).tolist()
    batches: list[list[int]] = []
    for index in sorted(order, key=lengths.__getitem__):
        if not batches or (len(batches[-1]) + 1) * max(lengths[index], 1) > tokens:
            batches.append([])
        batches[-1].append(index)
    return [batches[i] for i in torch.randperm(len(batches), generator=generator).tolist()]


@dataclasses.dataclass(frozen=True)
class Plan:
    """Which examples every step has.

    Args:
        config: of the training.
        seed: of the run.
        count: training examples.
        lengths: of these, if their task says so.

    Raises:
        UsageError: if batches are to be made by tokens, but the task does not say how many an example has.
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
        """The same for every epoch."""
        return len(self.epoch(0))


def evaluation_batches(count: int, batch_size: int, lengths: Sequence[int] | None = None) -> list[list[int]]:
    """All examples once, the longest first, so that memory runs out at once or never."""
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
