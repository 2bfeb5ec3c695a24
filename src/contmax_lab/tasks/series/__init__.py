"""Series of the user's own, with classes or numbers as labels: sensors and faults, patients and outcomes.

Observations at any times, a convolution over them, an attention over time, a linear decision.
"""

import dataclasses
from pathlib import Path

from jsonargparse.typing import ClosedUnitInterval, PositiveInt

from contmax_lab.contract import Settings
from contmax_lab.settings import AttentionModel, LabelledData, UpTo10000


@dataclasses.dataclass(frozen=True)
class SeriesData(LabelledData):
    """Your series.

    Args:
        train: table of observations: .csv, .tsv or .jsonl (JSON lines); .gz is read too. Wide, with a line for each
            time and a column for each channel; or long, with a line for each value: id, time, variable, value. An
            empty cell, NaN or NA was not observed.
        series: name of the column that says which series a line belongs to; by default one with a usual name, such as
            id or patient_id, or else the first column.
        time: name of the column with the times, not necessarily regular: numbers, ISO dates or durations such as 36:05;
            by default one with a usual name, such as time or timestamp, or else the next column.
        label: name of the column with the labels, the same in all lines of a series; by default one with a usual name,
            such as label or outcome, or else the last column.
        variable: in a long table, name of the column that says what was observed; by default one with a usual name,
            such as variable or parameter.
        value: in a long table, name of the column with what was observed; by default one with a usual name, such as
            value.
        static: what has one value in a series, numbers or names, e.g. age,sex: columns, or variables of a long table.
            The classifier sees it beside what was attended. All other columns of a wide table are channels.
        labels: table with a line for each series, its id, its label and perhaps static columns, where these are not in
            the tables of observations.
    """

    series: str = ""
    time: str = ""
    label: str = ""
    variable: str = ""
    value: str = ""
    static: list[str] | str = ""
    labels: Path | None = None

    @property
    def static_names(self) -> tuple[str, ...]:
        """The static columns: a list in a recipe, or names with commas between them on the command line.

        Example:
            >>> SeriesData(static="age, sex").static_names, SeriesData(static=["age"]).static_names
            (('age', 'sex'), ('age',))
        """
        names = self.static.split(",") if isinstance(self.static, str) else self.static
        return tuple(name.strip() for name in names if name.strip())


@dataclasses.dataclass(frozen=True)
class SeriesModel(AttentionModel):
    """The network.

    Args:
        hidden_dim: channels of the convolutions.
        kernel_size: how many neighbouring observations a convolution sees; odd.
        dropout: share of the channels, and of the attended vector, that is set to 0 in training.
        functions: number of Gaussian basis functions of the continuous attention.
    """

    hidden_dim: PositiveInt = 48
    kernel_size: PositiveInt = 5
    dropout: ClosedUnitInterval = 0.1
    functions: UpTo10000 = 24


SETTINGS = Settings.of_package(__file__, SeriesData, SeriesModel)
