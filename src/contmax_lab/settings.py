"""Settings that several tasks share. Without torch: ``contmax train TASK --help`` reads settings and nothing else."""

import dataclasses
from pathlib import Path
from typing import Literal

from jsonargparse.typing import NonNegativeInt, OpenUnitInterval, PositiveFloat, PositiveInt

AttentionKind = Literal["discrete", "continuous", "combined"]
Target = Literal["class", "number"]


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
    heads: PositiveInt = 1
