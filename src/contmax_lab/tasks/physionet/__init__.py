"""Intensive care: does a patient die in hospital, from 48 hours of 37 variables, each measured at times of its own?

PhysioNet/CinC Challenge 2012, sets a and b (``--data.path``). Nothing is moved to a grid: each variable is a signal
over the time before its own last observation, and attention looks at learned intervals of it.
"""

import dataclasses
from pathlib import Path
from typing import Literal

from jsonargparse.typing import NonNegativeInt, OpenUnitInterval, PositiveFloat

from contmax_lab.contract import Settings
from contmax_lab.settings import ChannelsModel, UpTo10000

Layout = Literal["summary", "signals", "observations"]


@dataclasses.dataclass(frozen=True)
class PhysionetData:
    """Which stays are learned from, and which test.

    Args:
        path: folder with set-a, Outcomes-a.txt and perhaps set-b, Outcomes-b.txt; or a small folder that contmax data
            features physionet has prepared.
        cache: folder for the prepared file; by default .contmax in the folder of the sets.
        sets: a = 4,000 stays, ab = all 8,000.
        split: mtan = the split of Shukla & Marlin 2021, of set a; folds = one of five parts of the stays tests, each
            with its share of deaths.
        fold: which of the parts tests, from 0.
        valid: share of the other stays that is held out for validation, for folds.
        limit: use only this many stays; 0 = all.
        layout: what a network takes beside the summary of a stay: summary = nothing, signals = coefficients of the
            signals, computed in advance, observations = all of them.
        functions: number of Gaussian basis functions of a signal.
        penalty: of the ridge fit of a signal.
    """

    path: Path | None = None
    cache: Path | None = None
    sets: Literal["a", "ab"] = "ab"
    split: Literal["mtan", "folds"] = "folds"
    fold: NonNegativeInt = 0
    valid: OpenUnitInterval = 0.2
    limit: NonNegativeInt = 0
    layout: Layout = "signals"
    functions: UpTo10000 = 8
    penalty: PositiveFloat = 0.3


SETTINGS = Settings.of_package(__file__, PhysionetData, ChannelsModel)
