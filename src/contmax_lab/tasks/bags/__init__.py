"""Multiple-instance learning: an image is a bag of segments without order, and only the bag has a label.

Elephant, fox and tiger of Andrews, Tsochantaridis & Hofmann 2002 (``--data.path``): does an image show the animal? One
small network with different poolings, among them gated attention with α-entmax, which rules segments out exactly.
"""

import dataclasses
from pathlib import Path
from typing import Literal

from jsonargparse.typing import NonNegativeInt, OpenUnitInterval, PositiveFloat, PositiveInt

from contmax_lab.contract import Settings
from contmax_lab.settings import UpTo100


@dataclasses.dataclass(frozen=True)
class BagsData:
    """Which bags are learned from, and which test.

    Args:
        path: folder of MATLAB files with features, bag_ids and labels of instances: elephant.mat, fox.mat, tiger.mat.
        name: of the file, without .mat.
        folds: parts of the bags, each with its share of both labels.
        repetition: which of the divisions into folds.
        fold: which of them tests, from 0; the others train.
        valid: share of the bags of the other folds that is held out for validation.
    """

    path: Path | None = None
    name: str = "elephant"
    folds: UpTo100 = 10
    repetition: NonNegativeInt = 0
    fold: NonNegativeInt = 0
    valid: OpenUnitInterval = 0.2


@dataclasses.dataclass(frozen=True)
class BagsModel:
    """The network.

    Args:
        pooling: of the instances of a bag: mean; max, of each channel by itself; or gated attention.
        alpha: of the attention: 1 = softmax, 2 = sparsemax.
        learn_alpha: learn alpha, between 1 and 2; training begins with the value of alpha.
        hidden_dim: channels of an instance that are pooled.
    """

    pooling: Literal["mean", "max", "attention"] = "attention"
    alpha: PositiveFloat = 1.5
    learn_alpha: bool = False
    hidden_dim: PositiveInt = 32


SETTINGS = Settings.of_package(__file__, BagsData, BagsModel)
