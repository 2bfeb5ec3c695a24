"""Irregular series: each channel is a signal of its own, with times of its own, and attention looks at intervals of it.

The task series, whose tables it reads, with the networks of the task physionet. Without a table it takes series of
aeon of which most observations are dropped, of each channel by itself.
"""

import dataclasses
from pathlib import Path
from typing import Literal

from jsonargparse.typing import ClosedUnitInterval, PositiveFloat

from contmax_lab.contract import Settings
from contmax_lab.settings import ChannelsModel, UpTo10000
from contmax_lab.tasks.series import SeriesData, SeriesModel


@dataclasses.dataclass(frozen=True)
class IrregularData(SeriesData):
    """Your series, or those of aeon.

    Args:
        name: without --data.train, which series of aeon: vowels = JapaneseVowels, motions = BasicMotions.
        dropped: share of their observations that is dropped, of each channel by itself.
        path: folder with their files NAME_TRAIN.ts and NAME_TEST.ts; by default the one inside aeon.
    """

    name: Literal["vowels", "motions"] = "vowels"
    dropped: ClosedUnitInterval = 0.5
    path: Path | None = None


@dataclasses.dataclass(frozen=True)
class IrregularModel(ChannelsModel, SeriesModel):
    """The network.

    Args:
        reads: channels = each channel by itself, with the networks of kind; frames = all channels of a time together,
            with the network of the task series, its convolutions and its attention.
        time: whole = a position in the series is a share of it; last = it is the time before the last observation of
            its channel, and what came shortly before takes most room.
        penalty: of the ridge fit of a signal.
    """

    reads: Literal["channels", "frames"] = "channels"
    time: Literal["whole", "last"] = "whole"
    functions: UpTo10000 = 8
    penalty: PositiveFloat = 0.3


SETTINGS = Settings.of_package(__file__, IrregularData, IrregularModel)
