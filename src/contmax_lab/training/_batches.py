"""Which examples make a batch: a function of seed and epoch, so that nothing about it needs to be stored."""

from collections.abc import Sequence

import torch

from contmax_lab.training._randomness import generator_for

# Examples are sorted by length within pools of so many batches: little padding, much chance.
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
