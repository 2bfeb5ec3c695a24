"""What can be set of vowels: the data; the network is that of series. Without torch, so that help is quick."""

import dataclasses
from pathlib import Path

from jsonargparse.typing import PositiveInt

from contmax_lab.tasks.series._settings import SeriesModel


@dataclasses.dataclass(frozen=True)
class VowelsData:
    """Which utterances count.

    Args:
        path: folder with JapaneseVowels_TRAIN.ts and JapaneseVowels_TEST.ts; by default the one inside aeon.
        valid: number of validation utterances of each speaker, taken from the training part.
        split: random seed of that choice.
    """

    path: Path | None = None
    valid: PositiveInt = 6
    split: int = 0


DATA, MODEL = VowelsData, SeriesModel
