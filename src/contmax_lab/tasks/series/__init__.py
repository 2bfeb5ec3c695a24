"""Series of the user's own, with classes or numbers as labels: sensors and faults, patients and outcomes.

Observations at any times, a convolution over them, an attention over time, a linear decision.
"""

import dataclasses

from jsonargparse.typing import ClosedUnitInterval, PositiveInt

from contmax_lab.contract import Settings
from contmax_lab.settings import AttentionModel, LabelledData, UpTo10000


@dataclasses.dataclass(frozen=True)
class SeriesData(LabelledData):
    """Your series.

    Args:
        train: table with a line for each observation: .csv, .tsv or .jsonl (JSON lines); .gz is read too.
        series: name of the column that says which series a line belongs to; by default the first column.
        time: name of the column with the times, numbers or ISO dates, not necessarily regular; by default the next.
        label: name of the column with the labels, the same in all lines of a series; by default the last. All
            other columns are channels.
    """

    series: str = ""
    time: str = ""
    label: str = ""


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
