"""Settings that several tasks share. Without torch: ``contmax train TASK --help`` reads settings and nothing else."""

import dataclasses
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from jsonargparse.typing import NonNegativeInt, OpenUnitInterval, PositiveFloat, restricted_number_type

AttentionKind = Literal["discrete", "continuous", "combined"]
Target = Literal["class", "number"]
if TYPE_CHECKING:
    UpTo100 = int
    UpTo10000 = int
else:
    # The number of layers, of heads, and of basis functions along a side of an image.
    UpTo100 = restricted_number_type("UpTo100", int, [(">", 0), ("<=", 100)])
    # The number K of basis functions: a ridge fit solves a system of K equations.
    UpTo10000 = restricted_number_type("UpTo10000", int, [(">", 0), ("<=", 10_000)])


@dataclasses.dataclass(frozen=True)
class LabelledData:
    """Which examples there are.

    Args:
        train: training examples.
        validation: validation examples; by default some of the training examples are held out for it.
        test: test examples, used only with --test.
        target: what the labels are, classes (any number of them) or numbers.
        held_out: share of every class to hold out for validation where no validation data is given.
        split: random seed for that choice, and for the choice by limit.
        limit: use only this many examples of each file, chosen at random; 0 = all.
    """

    train: Path | None = None
    validation: Path | None = None
    test: Path | None = None
    target: Target = "class"
    held_out: OpenUnitInterval = 0.2
    split: int = 0
    limit: NonNegativeInt = 0


@dataclasses.dataclass(frozen=True)
class AttentionModel:
    """The attention of a network.

    Args:
        attention: discrete = weights of single words, observations or cells; continuous = a density over the text, the
            time or the image; combined = both.
        alpha: 1 = softmax and Gaussian, 2 = sparsemax and truncated parabola; any other number above 0 works too.
        learn_alpha: learn alpha, between 1 and 2, separately for each head; training begins with the value of alpha.
        heads: number of attentions side by side.
    """

    attention: AttentionKind = "continuous"
    alpha: PositiveFloat = 2.0
    learn_alpha: bool = False
    heads: UpTo100 = 1
