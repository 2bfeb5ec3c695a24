"""Digits: which one is written in 8 × 8 pixels.

The task images, on real images that come with scikit-learn: the digits of Alpaydin & Kaynak (1998).
"""

import dataclasses

from jsonargparse.typing import PositiveInt

from contmax_lab.contract import Settings
from contmax_lab.tasks.images import ImagesModel


@dataclasses.dataclass(frozen=True)
class DigitsData:
    """Which images count.

    Args:
        valid: number of validation images.
        test: number of test images.
        split: random seed of the split; the data has no published one.
    """

    valid: PositiveInt = 200
    test: PositiveInt = 400
    split: int = 0


SETTINGS = Settings.of_package(__file__, DigitsData, ImagesModel)
