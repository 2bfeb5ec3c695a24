"""Splits that are a function of a seed."""

from collections.abc import Callable, Sequence

import torch


def shuffled(count: int, seed: int) -> list[int]:
    """0 … count−1 in an order that depends on the seed alone.

    Example:
        >>> sorted(shuffled(4, seed=0))
        [0, 1, 2, 3]
    """
    order: list[int] = torch.randperm(count, generator=torch.Generator().manual_seed(seed % 2**64)).tolist()
    return order


def limited(count: int, limit: int, seed: int) -> list[int]:
    """The places of `limit` of `count` examples, rising: a random choice; all places if the limit is 0 or too large.

    Example:
        >>> limited(3, 0, seed=0), len(limited(9, 4, seed=0))
        ([0, 1, 2], 4)
    """
    return sorted(shuffled(count, seed)[:limit]) if 0 < limit < count else list(range(count))


def non_overlapping_holdout(
    windows: Sequence[int], sizes: Sequence[int], seed: int, overlap: Callable[[int, int], bool]
) -> list[list[int]]:
    """Hold examples out whose windows overlap with no other example that is held out.

    Args:
        windows: where the window of each example lies, sorted.
        sizes: how many examples each part takes, e.g. validation and test.
        seed: decides which.
        overlap: whether two windows have something in common; only windows near each other are asked.

    Returns:
        Indices of each part, sorted. A part is shorter than asked where no more examples fit.

    Example:
        >>> non_overlapping_holdout(range(100), [2, 1], seed=0, overlap=lambda a, b: abs(a - b) < 3)
        [[19, 44], [93]]
    """
    parts: list[list[int]] = [[] for _ in sizes]
    taken: list[int] = []
    for index in shuffled(len(windows), seed):
        part = next((p for p, size in zip(parts, sizes, strict=True) if len(p) < size), None)
        if part is None:
            break
        if not any(overlap(windows[index], windows[other]) for other in taken):
            part.append(index)
            taken.append(index)
    return [sorted(part) for part in parts]


def held_out_share(labels: Sequence[str], share: float, seed: int) -> list[int]:
    """Indices of a share of every label, sorted; at least one in all, and never all examples of a label.

    Args:
        labels: of the examples; all the same = the share is of all.
        share: between 0 and 1.
        seed: decides which.

    Returns:
        An empty list where no label has two examples.

    Example:
        >>> held_out_share(["a", "b"] * 5 + ["c"], 0.4, seed=0)
        [0, 3, 4, 5]
    """
    by_label: dict[str, list[int]] = {}
    for index in shuffled(len(labels), seed):
        by_label.setdefault(labels[index], []).append(index)
    held_out = [
        index for group in by_label.values() for index in group[: min(round(share * len(group)), len(group) - 1)]
    ]
    if not held_out:
        held_out = max(by_label.values(), key=len)[1:2]
    return sorted(held_out)
