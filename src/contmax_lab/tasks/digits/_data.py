"""Handwritten digits."""

import dataclasses

from jsonargparse.typing import PositiveInt

from contmax_lab.contract import Splits
from contmax_lab.data import handwritten_digits


@dataclasses.dataclass(frozen=True)
class DigitsData:
    """Which images count.

    Args:
        valid: validation images.
        test: test images.
        split: seed of the split, which is random: the data has no published one.
    """

    valid: PositiveInt = 200
    test: PositiveInt = 400
    split: int = 0


def load(data: DigitsData) -> Splits:
    """All images, split at random."""
    return Splits(*handwritten_digits(data.valid, data.test, data.split))
