"""The task digits: the images, the table of the demo, a trained model."""

from pathlib import Path

import torch
from torch import nn

from contmax_lab.contract import Splits, attention_table, seedless
from contmax_lab.data import DIGIT_CLASSES, DIGIT_SIDE, Images, handwritten_digits
from contmax_lab.labelled import OnInstalledData, Targets
from contmax_lab.tasks.images._data import Pictures
from contmax_lab.tasks.images._task import ImagesTask
from contmax_lab.tasks.images.digits import SETTINGS, DigitsData

# Every pixel becomes a square of pixels: after two pairs of convolutions, each pixel is a cell to attend to.
_TIMES = 4
DIGITS = attention_table(
    "digits",
    "Which digit? Attention over the plane",
    domain="image",
    about=(
        "1,797 handwritten digits of 8 × 8 pixels: 1,197 to train, 200 for validation, 400 to test, at random. The "
        "task images: convolutions, one attention over the 64 pixels or over the plane that they tile, a linear "
        "classifier; only the attention differs between the rows. (Alpaydin & Kaynak 1998; data inside the package "
        "scikit-learn.)"
    ),
)
_SHIPPED = Path(__file__).with_name("pretrained")


def load(data: DigitsData) -> Splits:
    """All images, split at random."""
    train, valid, test = (_pictures(part) for part in handwritten_digits(data.valid, data.test, data.split))
    targets = Targets(tuple(map(str, range(DIGIT_CLASSES)))).counted(train.target)
    info = {"classes": targets.classes, "targets": targets, "size": DIGIT_SIDE * _TIMES}
    return Splits(train, valid, test, info)


def _pictures(images: Images) -> Pictures:
    """The images as pictures: enlarged, and inverted to black on white."""
    grey = (255 * (1 - images.pixels)).round().to(torch.uint8)
    large = grey.repeat_interleave(_TIMES, 1).repeat_interleave(_TIMES, 2)
    names = [f"no. {number}" for number in range(1, len(images) + 1)]
    return Pictures(large.unsqueeze(1).repeat(1, 3, 1, 1), images.digit, names)


class Digits(OnInstalledData, ImagesTask, settings=SETTINGS):
    """Read digits."""

    summary = "which digit is written in 8 × 8 pixels: the task images on data that is installed"
    reproduces = (DIGITS,)
    load = seedless(load)

    def packaged(self) -> tuple[nn.Module, Splits]:
        """A small trained reader, made by ``contmax train digits`` and ``contmax export``, and the digits."""
        return self.read_exported(_SHIPPED)[0], load(DigitsData())


TASK = Digits()
