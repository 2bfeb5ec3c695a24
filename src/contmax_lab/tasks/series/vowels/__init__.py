"""Speakers: who of nine men says two Japanese vowels, from 7 to 29 frames of 12 cepstral coefficients.

The task series, on real speech that comes with aeon: the JapaneseVowels data of Kudo, Toyama & Shimbo (1999) with its
published split.
"""

import dataclasses
from pathlib import Path

from jsonargparse.typing import PositiveInt

from contmax_lab.contract import Settings
from contmax_lab.tasks.series import SeriesModel


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


SETTINGS = Settings.of_package(__file__, VowelsData, SeriesModel)
