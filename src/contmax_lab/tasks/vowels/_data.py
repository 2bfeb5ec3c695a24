"""Utterances of nine speakers."""

import dataclasses
from pathlib import Path

import torch
from jsonargparse.typing import PositiveInt

from contmax_lab.contract import Splits
from contmax_lab.data import japanese_vowels


@dataclasses.dataclass(frozen=True)
class VowelsData:
    """Which utterances count.

    Args:
        path: folder with JapaneseVowels_TRAIN.ts and JapaneseVowels_TEST.ts; by default the one inside aeon.
        valid: validation utterances of each speaker, taken from the training part.
        split: seed of that choice.
    """

    path: Path | None = None
    valid: PositiveInt = 6
    split: int = 0


def load(data: VowelsData) -> Splits:
    """The published split."""
    parts = japanese_vowels(data.path, data.valid, data.split)
    classes = int(torch.cat([part.speaker for part in parts]).max()) + 1
    return Splits(*parts, {"classes": classes, "channels": parts[0].series[0].shape[-1]})
