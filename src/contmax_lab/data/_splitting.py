"""Splits that are a function of a seed."""

from collections.abc import Callable, Sequence

import torch

from contmax_lab.errors import LabError


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


def stratified_fold(
    labels: Sequence[int], folds: int, fold: int, valid: float, seeds: tuple[int, int], what: str
) -> tuple[list[int], list[int], list[int]]:
    """Places of the training, validation and test examples, each part with its share of both labels.

    Every example is in one fold, and folds differ by at most one example of each label.

    Args:
        labels: 0 or 1.
        folds: number of folds.
        fold: which of them tests, from 0.
        valid: share of the others that is held out for validation.
        seeds: of the folds, and of the choice of validation examples.
        what: what the examples are, for messages.

    Raises:
        LabError: if there is no such fold, or there are too few examples of a label.
    """
    if fold >= folds:
        raise LabError(f"--data.fold={fold}, but there are {folds} folds, numbered from 0; pass a smaller one")
    fold_of: dict[int, int] = {}
    for label in (0, 1):
        own = [place for place in shuffled(len(labels), seeds[0]) if labels[place] == label]
        if len(own) < folds:
            raise LabError(
                f"{len(own)} {what} have the label {label}, too few for {folds} folds; take more {what} or fewer folds"
            )
        fold_of |= {place: turn % folds for turn, place in enumerate(own)}
    test = [place for place in range(len(labels)) if fold_of[place] == fold]
    rest = [place for place in range(len(labels)) if fold_of[place] != fold]
    held_out = [rest[turn] for turn in held_out_share([str(labels[place]) for place in rest], valid, seeds[1])]
    return sorted({*rest} - {*held_out}), held_out, test
