"""Handwritten digits, 8 × 8 pixels, from the file that comes with scikit-learn."""

import dataclasses
from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from contmax_lab.data._splitting import shuffled
from contmax_lab.errors import LabError
from contmax_lab.packages import require_folder

DIGIT_SIDE = 8
DIGIT_CLASSES = 10
_BRIGHTEST = 16.0


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


def handwritten_digits(valid: int, test: int, split: int) -> tuple[Images, Images, Images]:
    """All images, split at random.

    Args:
        valid: validation images.
        test: test images.
        split: seed of the split.

    Returns:
        Training, validation and test images.

    Raises:
        LabError: if scikit-learn or its file is missing, or no images are left to train.
    """
    images = _read()
    if valid + test >= len(images):
        raise LabError(
            f"{valid} validation and {test} test images leave none of {len(images)} to train; pass smaller "
            "--data.valid, .test"
        )
    order = shuffled(len(images), split)
    return images[order[test + valid :]], images[order[test:][:valid]], images[order[:test]]


def _read() -> Images:
    # What sklearn.datasets.load_digits reads; to import that takes longer than to train on the digits for an epoch.
    path = require_folder("sklearn", "The demo's image data") / "datasets" / "data" / "digits.csv.gz"
    try:
        table = np.loadtxt(path, delimiter=",", dtype=np.float32)
    except (OSError, ValueError, EOFError) as error:
        reason = " ".join(str(error).split())
        raise LabError(
            f"the digits inside scikit-learn cannot be read ({reason}): pip install --force-reinstall scikit-learn"
        ) from None
    numbers = torch.from_numpy(table)
    grey = numbers[:, :-1].reshape(-1, DIGIT_SIDE, DIGIT_SIDE) / _BRIGHTEST
    return Images(grey, numbers[:, -1].long())
