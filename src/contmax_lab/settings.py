"""Settings that several tasks share. Without torch: ``contmax train TASK --help`` reads settings and nothing else."""

import dataclasses
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from jsonargparse.typing import (
    ClosedUnitInterval,
    NonNegativeInt,
    OpenUnitInterval,
    PositiveFloat,
    PositiveInt,
    restricted_number_type,
)

AttentionKind = Literal["discrete", "continuous", "combined"]
Target = Literal["class", "number"]
Kind = Literal["logistic", "boosting", "gru-d", "mtan", "intervals"]
Weighing = Literal["continuous", "kernel", "kernel-dt", "scores"]
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


@dataclasses.dataclass(frozen=True)
class ChannelsModel:
    """A network for series whose channels are observed at times of their own.

    Args:
        kind: logistic and boosting see the last value of each channel, its count and the time since; gru-d and mtan
            are recurrent and attending baselines; intervals = attention to learned intervals of each channel.
        weighing: of intervals: continuous = the mean of a signal under a density; kernel = weights of single
            observations by a Gaussian of their time; kernel-dt = these times the span that each stands for; scores =
            weights by a small network of value and time.
        alpha: of the densities: 1 = Gaussian, 2 = truncated parabola; of the weights by scores 1 = softmax.
        learn_alpha: learn alpha, between 1 and 2, for each channel and interval; it begins at the value of alpha.
        heads: intervals of each channel.
        hidden_dim: channels of the recurrent or hidden layers.
        dropout: share of the inputs of the decision that is set to 0 in training.
        ridge: L2 penalty of the logistic regression that is solved first, per series.
        rate: of boosting: how much of each tree is added.
        leaves: of boosting: leaves of a tree.
        least_in_leaf: of boosting: training series in a leaf, at least.
    """

    kind: Kind = "intervals"
    weighing: Weighing = "continuous"
    alpha: PositiveFloat = 2.0
    learn_alpha: bool = False
    heads: UpTo100 = 3
    hidden_dim: PositiveInt = 64
    dropout: ClosedUnitInterval = 0.4
    ridge: PositiveFloat = 0.02
    rate: PositiveFloat = 0.05
    leaves: PositiveInt = 8
    least_in_leaf: PositiveInt = 20
