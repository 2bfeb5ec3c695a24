"""Tasks on data that is installed with a package, so that they need no files."""

from collections.abc import Sequence
from typing import ClassVar

from contmax_lab.contract import Prediction, Table, Task, TrainedRun
from contmax_lab.labelled._task import LabelledTask


class OnInstalledData(LabelledTask):
    """What changes in a labelled task whose data is installed: it has a table for the demo, and numbered examples.

    A subclass names it before the task that it is like: ``class Digits(OnInstalledData, ImagesTask)``.
    """

    # For the demo.
    table: ClassVar[Table]

    def predict(self, trained: TrainedRun, words: Sequence[str]) -> Prediction:
        """The label of a validation example, by its number, because users have no files of this kind."""
        return Task.predict(self, trained, words)

    def tables(self) -> Sequence[Table]:
        """The one for the demo."""
        return (self.table,)
