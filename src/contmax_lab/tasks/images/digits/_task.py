"""The task images on digits that are installed: it needs no files, and is asked about images by their number."""

from pathlib import Path
from typing import Any

from torch import nn

from contmax_lab.contract import Splits
from contmax_lab.labelled import OnInstalledData
from contmax_lab.tasks.images._task import ImagesTask
from contmax_lab.tasks.images.digits._data import load
from contmax_lab.tasks.images.digits._settings import DigitsData
from contmax_lab.tasks.images.digits._table import DIGITS

_SHIPPED = Path(__file__).with_name("pretrained")


class Digits(OnInstalledData, ImagesTask):
    """Read digits."""

    name = "digits"
    summary = "which digit is written in 8 × 8 pixels: the task images on data that is installed"
    data_config = DigitsData
    recipe_file = Path(__file__).with_name("recipe.yaml")
    table = DIGITS

    def load(self, data: Any, seed: int) -> Splits:
        """The split has a seed of its own, so that seeds of the training share it."""
        return load(data)

    def packaged(self) -> tuple[nn.Module, Splits]:
        """A small trained reader, made by ``contmax train digits`` and ``contmax export``, and the digits."""
        return self.read_exported(_SHIPPED)[0], load(DigitsData())


TASK = Digits()
