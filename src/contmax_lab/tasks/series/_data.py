"""Series of the user's own: from tables to training, validation and test series."""

from contmax_lab.contract import Splits
from contmax_lab.errors import LabError, UsageError
from contmax_lab.labelled import Parts, read_parts
from contmax_lab.tasks.series import SeriesData
from contmax_lab.tasks.series._columns import Columns
from contmax_lab.tasks.series._reading import OneSeries, read_labels, read_series
from contmax_lab.tasks.series._remarks import series_remarks
from contmax_lab.tasks.series._scale import Scale

_WHAT = "sensors.csv, a table of observations: series id, time, channels …, label; or id, time, variable, value, label"


def load(data: SeriesData) -> Splits:
    """Read the tables; channels are scaled as the training series tell."""
    if data.train is None:
        raise UsageError(f"no training data was given; pass --data.train {_WHAT}")
    columns, labels = Columns.of(data.train, data), None
    if data.labels is not None:
        columns, labels = read_labels(data.labels, columns, data)
    parts = read_parts(lambda path: read_series(path, columns, labels), data, _WHAT)
    if not any(len(each.time) for each in parts.train):
        raise LabError(f"{data.train}: no training series has any observation; every value is empty or NaN")
    return splits_of(parts, columns)


def splits_of(parts: Parts[OneSeries], columns: Columns) -> Splits:
    """Series as tensors, scaled as the training series tell."""
    scale = Scale.of(columns, parts.train)
    channels, remarks = ", ".join(columns.channels), series_remarks(parts, scale)
    return parts.splits(scale.part, scale=scale, columns=str(columns), channels=channels, remarks=remarks)
