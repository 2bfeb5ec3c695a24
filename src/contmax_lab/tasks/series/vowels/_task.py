"""The task series on speech that is installed: it needs no files, and is asked about utterances by their number."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from contmax_lab.contract import Prediction, Splits, Table, Task, TrainedRun
from contmax_lab.tasks.series._task import SeriesTask
from contmax_lab.tasks.series.vowels._data import load
from contmax_lab.tasks.series.vowels._settings import VowelsData
from contmax_lab.tasks.series.vowels._table import VOWELS


class Vowels(SeriesTask):
    """Tell speakers apart."""

    name = "vowels"
    summary = "which of nine speakers says two Japanese vowels: the task series on data that is installed"
    data_config = VowelsData
    recipe_file = Path(__file__).with_name("recipe.yaml")

    def load(self, data: Any, seed: int) -> Splits:
        """The split has a seed of its own, so that seeds of the training share it."""
        return load(data)

    def predict(self, trained: TrainedRun, words: Sequence[str]) -> Prediction:
        """Who says a validation utterance."""
        return Task.predict(self, trained, words)

    def tables(self) -> Sequence[Table]:
        """One for the demo."""
        return (VOWELS,)


TASK = Vowels()
