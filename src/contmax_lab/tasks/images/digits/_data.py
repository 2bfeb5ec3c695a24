"""Handwritten digits as images."""

import torch

from contmax_lab.contract import Splits
from contmax_lab.data import DIGIT_CLASSES, DIGIT_SIDE, Images, handwritten_digits
from contmax_lab.labelled import Targets
from contmax_lab.tasks.images._data import Pictures
from contmax_lab.tasks.images.digits._settings import DigitsData

# Every pixel becomes a square of pixels: after two pairs of convolutions, each pixel is a cell to attend to.
_TIMES = 4


def load(data: DigitsData) -> Splits:
    """All images, split at random."""
    train, valid, test = (_pictures(part) for part in handwritten_digits(data.valid, data.test, data.split))
    targets = Targets(tuple(map(str, range(DIGIT_CLASSES))))
    info = {"classes": targets.classes, "targets": targets, "size": DIGIT_SIDE * _TIMES}
    return Splits(train, valid, test, info)


def _pictures(images: Images) -> Pictures:
    """Black on white."""
    grey = (255 * (1 - images.pixels)).round().to(torch.uint8)
    large = grey.repeat_interleave(_TIMES, 1).repeat_interleave(_TIMES, 2)
    names = [f"no. {number}" for number in range(1, len(images) + 1)]
    return Pictures(large.unsqueeze(1).repeat(1, 3, 1, 1), images.digit, names)
