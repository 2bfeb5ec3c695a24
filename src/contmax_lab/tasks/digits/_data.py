"""Handwritten digits, 8 × 8 pixels, from the file that comes with scikit-learn."""

import dataclasses
from collections.abc import Sequence

import torch
from jsonargparse.typing import PositiveInt
from torch import Tensor

from contmax_lab.data import shuffled
from contmax_lab.errors import LabError
from contmax_lab.packages import require
from contmax_lab.tasks import Splits

SIDE = 8
CLASSES = 10
_BRIGHTEST = 16.0


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


@dataclasses.dataclass(frozen=True)
class Images:
    """Examples, one per image.

    Args:
        pixels: from 0 to 1, shape (number of images, 8, 8).
        digit: what was written, shape (number of images,).
    """

    pixels: Tensor
    digit: Tensor

    def __len__(self) -> int:
        return len(self.digit)

    def __getitem__(self, indices: Sequence[int]) -> "Images":
        chosen = list(indices)
        return Images(self.pixels[chosen], self.digit[chosen])


def load(data: DigitsData) -> Splits:
    """All images, split at random."""
    images = _read()
    if data.valid + data.test >= len(images):
        raise LabError(
            f"{data.valid} validation and {data.test} test images leave none of {len(images)} to train; pass smaller "
            "--data.valid, .test"
        )
    order = shuffled(len(images), data.split)
    test, valid, train = order[: data.test], order[data.test :][: data.valid], order[data.test + data.valid :]
    return Splits(images[train], images[valid], images[test])


def _read() -> Images:
    datasets = require("sklearn.datasets", "The demo's image data")
    try:
        pixels, digit = datasets.load_digits(return_X_y=True)
    except (OSError, ValueError, EOFError) as error:
        reason = " ".join(str(error).split())
        raise LabError(
            f"the digits inside scikit-learn cannot be read ({reason}): pip install --force-reinstall scikit-learn"
        ) from None
    grey = torch.as_tensor(pixels, dtype=torch.float32).reshape(-1, SIDE, SIDE) / _BRIGHTEST
    return Images(grey, torch.as_tensor(digit, dtype=torch.long))
