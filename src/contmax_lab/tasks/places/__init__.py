"""Places: is what is attended to where the answer is?

Utterances at random places in noise, alone, in pairs or with gaps, and digits at random places in clutter: where the
answer is, is known, but models learn from the answers alone. The data is that of the tasks vowels and digits, and
what a watch recorded of people in motion.
"""

import dataclasses
from pathlib import Path
from typing import Literal

from jsonargparse.typing import ClosedUnitInterval, NonNegativeFloat, NonNegativeInt, PositiveFloat, PositiveInt

from contmax_lab.contract import Settings


@dataclasses.dataclass(frozen=True)
class PlacesData:
    """What is to be found, and in what.

    Args:
        kind: utterance = one in noise, who speaks?; motion = what a watch records, in noise, standing or walking?;
            rows = the scan of a digit, read row by row, in noise, which?; pair = two utterances of different speakers,
            is the one that the query names played backwards?; turns = two in turn, only some of it observed, who
            speaks longer?; digit = one on a canvas with clutter, which?
        path: folder with the files of the kind, such as JapaneseVowels_TRAIN.ts and JapaneseVowels_TEST.ts, or
            digits.csv.gz; by default those inside aeon and scikit-learn.
        shortest: least ratio of the length of a series to that of what is in it; for one in noise.
        longest: greatest ratio of these lengths.
        dropped: share of a series of turns that was not observed.
        rate: frames per time, 1 = as recorded.
        labelled: share of the training examples whose true span may be learned from.
        valid_places: number of places in which every validation example is shown.
        test_places: likewise for test examples.
        split: seed of the validation examples, and of the places of validation and test examples.
    """

    kind: Literal["utterance", "motion", "rows", "pair", "turns", "digit"] = "utterance"
    path: Path | None = None
    shortest: PositiveFloat = 4.0
    longest: PositiveFloat = 4.0
    dropped: ClosedUnitInterval = 0.5
    rate: PositiveFloat = 1.0
    labelled: ClosedUnitInterval = 0.0
    valid_places: PositiveInt = 4
    test_places: PositiveInt = 1
    split: int = 0


@dataclasses.dataclass(frozen=True)
class PlacesModel:
    """The network.

    Args:
        attention: query = looks at nothing but the query; mean = at everything alike; discrete, over the observations;
            continuous, over the interval or the plane, with a density from gates; combined = the gates' weights and
            their density; multihead = several densities.
        alpha: 1 = softmax and Gaussian, 2 = sparsemax and truncated parabola.
        learn_alpha: whether α is learned, starting at alpha.
        encoder: convolution, or on the line bigru: gates and scores from the states of a bidirectional recurrent
            network, over the convolutional values.
        grid: cells of a regular grid to which observations are first interpolated, 0 = none; on the line.
        by_time: whether discrete weights are multiplied by the time that each observation stands for.
        time_channel: whether the position of an observation is one of its channels; on the line.
        hidden_dim: channels of the values.
        dropout: share set to 0 in training, of the input channels, between convolutions and of what is attended to.
        hide: largest share of the values that an attention with gates does without in training; below 1.
        least_half_width: smallest half-width of a density; the domain has sides of length 1.
        functions: Gaussian basis functions along each axis.
        penalty: penalty of the ridge fit; where observations have long gaps, a small one lets the signal oscillate in
            them.
        heads: number of heads of the multihead attention.
        span_weight: weight of the Fenchel–Young loss to the true span, where it is known.
    """

    attention: Literal["query", "mean", "discrete", "continuous", "combined", "multihead"] = "continuous"
    alpha: PositiveFloat = 2.0
    learn_alpha: bool = False
    encoder: Literal["convolution", "bigru"] = "convolution"
    grid: NonNegativeInt = 0
    by_time: bool = False
    time_channel: bool = False
    hidden_dim: PositiveInt = 32
    dropout: ClosedUnitInterval = 0.3
    hide: ClosedUnitInterval = 0.9
    least_half_width: NonNegativeFloat = 0.0
    functions: PositiveInt = 32
    penalty: PositiveFloat = 0.01
    heads: PositiveInt = 4
    span_weight: NonNegativeFloat = 0.1


SETTINGS = Settings.of_package(__file__, PlacesData, PlacesModel)
