"""What is trained: the problems with their sizes, the rows, and a cell, which is one training."""

import dataclasses
from typing import Literal, NamedTuple

# The length of the longest sequences in training; test lengths are multiples of it.
LONGEST, SHORTEST = 64, 32
FIRST_SEED = 0
SEEDS = (0, 1, 2)


@dataclasses.dataclass(frozen=True)
class Problem:
    """A problem, and the model that the authors train on it.

    Args:
        name: what to do with the sequence.
        layers, heads, width: of the model.
        rate: learning rate of the authors.
        steps: of the authors.
        factors: multiples of the training length on which the model is tested.
        longer: the length by whose validation examples the authors choose a checkpoint.
        words: different symbols of the sequences.
        warm_up: steps of the authors over which the learning rate rises.
        batch: examples per step.
        inner: width of the feed-forward layers.
        shortest, longest: lengths in training.
    """

    name: Literal["sort", "reverse", "copy", "recall"]
    layers: int
    heads: int
    width: int
    rate: float
    steps: int
    factors: tuple[float, ...]
    longer: int
    words: int = 32
    warm_up: int = 20_000
    batch: int = 128
    inner: int = 1024
    shortest: int = SHORTEST
    longest: int = LONGEST

    def length(self, factor: float) -> int:
        """The length that is `factor` times that of the training."""
        return int(self.longest * factor)


# Two letters of 256 make a word; beside the letters there are a space and two separators.
LETTERS = 256
PROBLEMS: dict[str, Problem] = {
    problem.name: problem
    for problem in (
        Problem("sort", 2, 8, 256, 4e-4, 312_500, (1, 2, 4, 8), 256),
        Problem("reverse", 6, 8, 256, 4e-4, 234_375, (1, 1.5, 2, 4, 8), 256),
        Problem("copy", 2, 16, 256, 1e-3, 156_250, (1, 2, 4, 8, 16, 32, 64), 512),
        Problem("recall", 4, 16, 512, 2e-4, 390_625, (1, 2, 4, 16, 64, 256, 1024), 1024, words=LETTERS + 3),
    )
}
# Multiples from this one on are tested with the first seed only, because one example has 65,536 tokens or more.
ONCE = 1024


class Kind(NamedTuple):
    """A row: its attention.

    Args:
        label: as printed.
        alpha: at the end of the training; for a learned one, at its beginning.
        scale: of the queries: by the logarithm of the length, or that of ASEntmax.
        learned: whether each head learns its α.
        rise: share of the training over which α rises from 1.05; None = over the warm-up.
    """

    label: str
    alpha: float
    scale: Literal["logarithm", "adaptive"] | None = None
    learned: bool = False
    rise: float | None = None


MAIN = {
    "softmax": Kind("Softmax", 1.0),
    "ssmax": Kind("Softmax, scaled by log n", 1.0, "logarithm"),
    "entmax": Kind("Entmax 1.5", 1.5),
    "asentmax": Kind("ASEntmax", 1.5, "adaptive"),
}
MORE = {
    "learned": Kind("ASEntmax, α learned per head", 1.25, "adaptive", learned=True),
    "annealed": Kind("ASEntmax, α rises over half", 1.5, "adaptive", rise=0.5),
}
KINDS = MAIN | MORE
# The learning rates that every row tries, as multiples of the learning rate of the authors.
RATES = (1.0, 2.5)


class Cell(NamedTuple):
    """One training: a problem, a row, a seed, a multiple of the learning rate, and the number of steps."""

    problem: str
    kind: str
    seed: int
    rate: float
    steps: int
