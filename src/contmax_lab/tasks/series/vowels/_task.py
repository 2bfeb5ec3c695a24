"""The task series on speech that is installed: it needs no files, and is asked about utterances by their number."""

from pathlib import Path
from typing import Any

from contmax_lab.contract import Splits
from contmax_lab.labelled import OnInstalledData
from contmax_lab.tasks.series._task import SeriesTask
from contmax_lab.tasks.series.vowels._data import load
from contmax_lab.tasks.series.vowels._settings import VowelsData
from contmax_lab.tasks.series.vowels._table import VOWELS


class Vowels(OnInstalledData, SeriesTask):
    """Tell speakers apart."""

    name = "vowels"
    summary = "which of nine speakers says two Japanese vowels: the task series on data that is installed"
    data_config = VowelsData
    recipe_file = Path(__file__).with_name("recipe.yaml")
    table = VOWELS

    def load(self, data: Any, seed: int) -> Splits:
        """The split has a seed of its own, so that seeds of the training share it."""
        return load(data)


TASK = Vowels()
