"""What can be set of digits: the data; the network is that of images. Without torch, so that help is quick."""

import dataclasses

from jsonargparse.typing import PositiveInt

from contmax_lab.tasks.images._settings import ImagesModel


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


DATA, MODEL = DigitsData, ImagesModel
