"""Series of the user's own: tables in long format, a line for each observation, as tensors."""

import dataclasses
import datetime
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from contmax_lab.contract import Splits
from contmax_lab.data import Place, TableRow, finite_number, read_table
from contmax_lab.errors import UsageError
from contmax_lab.labelled import Label, Parts, read_parts
from contmax_lab.tasks.series import SeriesData

_WHAT = "sensors.csv, a table with a line for each observation: series id, time, channels …, label"


@dataclasses.dataclass(frozen=True)
class Columns:
    """Which column is what.

    Args:
        series: the id of a series.
        time: of the observation.
        label: of the series.
        channels: what was observed.
    """

    series: str
    time: str
    label: str
    channels: tuple[str, ...]

    @classmethod
    def of(cls, path: Path, series: str, time: str, label: str) -> "Columns":
        """The columns that the user has named; of the others the first two are series and time, the last is the label.

        Raises:
            LabError: if one is missing, or none is left for the channels.
        """
        named = [name for name in (series, time, label) if name]
        header = next(iter(read_table(path, named)))
        rest = [name for name in header.fields if name not in named]
        if len(rest) < 4 - len(named) or len({*named}) < len(named):
            raise Place(path, 1).problem(
                f"got the columns {', '.join(header.fields)}; a series id, a time, one channel or more and a label are "
                "needed, in this order or named by --data.series, --data.time and --data.label"
            )
        series = series or rest.pop(0)
        time = time or rest.pop(0)
        label = label or rest.pop()
        return cls(series, time, label, tuple(rest))


@dataclasses.dataclass(frozen=True)
class OneSeries:
    """A series as it was read.

    Args:
        name: its id.
        time: of the observations, rising, (L,) in float64.
        values: (L, C) in float64.
        label: of all its lines.
    """

    name: str
    time: Tensor
    values: Tensor
    label: Label


def read_series(path: Path, columns: Columns, *, labelled: bool = True) -> list[OneSeries]:
    """The series of a table, in the order in which they begin; their lines may stand in any order.

    Without `labelled` the table needs no labels, and those of the series are empty.

    Raises:
        LabError: with the line, if a time or a number cannot be read, a time occurs twice in a series, or the label of
            a series changes.
    """
    needed = [columns.series, columns.time, *columns.channels, *([columns.label] if labelled else [])]
    lines: dict[str, dict[float, list[float]]] = {}
    labels: dict[str, Label] = {}
    for row in read_table(path, needed):
        name, label = row.text(columns.series), row.text(columns.label) if labelled else ""
        first = labels.setdefault(name, Label(label, row.place))
        if first.text != label:
            raise row.place.problem(
                f"the label of series {name} is {label!r} here and {first.text!r} in line {first.place.line}"
            )
        time, observed = _time(row, columns.time), lines.setdefault(name, {})
        if time in observed:
            raise row.place.problem(f"series {name} has two observations at the time {row.text(columns.time)}")
        observed[time] = [row.number(channel) for channel in columns.channels]
    series = []
    for name, observed in lines.items():
        times = sorted(observed)
        if not math.isfinite(times[-1] - times[0]):
            raise labels[name].place.problem(
                f"the times of series {name} reach from {times[0]:g} to {times[-1]:g}, which is too far; rescale them"
            )
        numbers = [[observed[time] for time in times], times]
        values, moments = (torch.tensor(each, dtype=torch.float64) for each in numbers)
        series.append(OneSeries(name, moments, values, labels[name]))
    return series


def _time(row: TableRow, column: str) -> float:
    """A number, or an ISO 8601 date or time in seconds; UTC where no zone is given."""
    text = row.text(column)
    try:
        moment = datetime.datetime.fromisoformat(text)
    except ValueError:
        return finite_number(text, column, row.place)
    if text.isdecimal():  # 20240131 could be a date; a count of seconds is meant
        return finite_number(text, column, row.place)
    if moment.tzinfo is None:
        moment = moment.replace(tzinfo=datetime.UTC)
    return moment.timestamp()


@dataclasses.dataclass(frozen=True)
class Scale:
    """Units of channels and times, from the training series.

    Args:
        columns: of the table.
        centres, deviations: of each channel.
        duration: of the longest series.
    """

    columns: Columns
    centres: tuple[float, ...]
    deviations: tuple[float, ...]
    duration: float

    @classmethod
    def of(cls, columns: Columns, series: Sequence[OneSeries]) -> "Scale":
        """From the training series; exact sums give one result on every machine."""
        centres, deviations = [], []
        for channel in torch.cat([each.values for each in series]).unbind(1):
            numbers: list[float] = channel.tolist()
            # Divide by the greatest number, so that squares cannot overflow.
            greatest = max(map(abs, numbers)) or 1.0
            shares = [number / greatest for number in numbers]
            centre = math.fsum(shares) / len(shares)
            variance = math.fsum((share - centre) ** 2 for share in shares) / len(shares)
            centres.append(centre * greatest)
            deviations.append(math.sqrt(variance) * greatest or 1.0)
        duration = max(float(each.time[-1] - each.time[0]) for each in series) or 1.0
        return cls(columns, tuple(centres), tuple(deviations), duration)

    @classmethod
    def of_plain(cls, stored: dict[str, Any]) -> "Scale":
        """From JSON."""
        columns = Columns(**{**stored["columns"], "channels": tuple(stored["columns"]["channels"])})
        return cls(columns, tuple(stored["centres"]), tuple(stored["deviations"]), float(stored["duration"]))

    def inputs(self, series: Sequence[OneSeries]) -> tuple[list[Tensor], list[Tensor]]:
        """Channels and the time since the first observation, (L, C + 1); and positions in the unit interval, (L,).

        Every series spans the unit interval; the last channel holds how long that took.
        """
        if not series:
            return [], []
        # One operation over all series: many small ones would take as long each.
        lengths = [len(each.time) for each in series]
        values, times = torch.cat([each.values for each in series]), torch.cat([each.time for each in series])
        counts = torch.tensor(lengths)
        ends = counts.cumsum(0)
        since = times - times[ends - counts].repeat_interleave(counts)
        spans = since[ends - 1].repeat_interleave(counts)
        positions = torch.where(spans > 0, since / spans, 0.5)
        # Clamp: values far outside of the training data must not overflow.
        centres, deviations = values.new_tensor(self.centres), values.new_tensor(self.deviations)
        channels = ((values - centres) / deviations).clamp(-100, 100)
        elapsed = (since / self.duration).clamp(max=100).unsqueeze(-1)
        inputs = torch.cat([channels, elapsed], -1).float()
        return list(inputs.split(lengths)), list(positions.float().split(lengths))


@dataclasses.dataclass(frozen=True)
class Series:
    """Series of one part.

    Args:
        values: channels and elapsed time of each, (L, C + 1).
        positions: of its observations in the unit interval, (L,).
        target: classes or numbers, (B,).
        names: ids.
    """

    values: list[Tensor]
    positions: list[Tensor]
    target: Tensor
    names: list[str]

    def __len__(self) -> int:
        return len(self.values)


def load(data: SeriesData) -> Splits:
    """Read the tables; channels are scaled as the training series tell."""
    if data.train is None:
        raise UsageError(f"no training data was given; pass --data.train {_WHAT}")
    columns = Columns.of(data.train, data.series, data.time, data.label)
    return splits_of(read_parts(lambda path: read_series(path, columns), data, _WHAT), columns)


def splits_of(parts: Parts[OneSeries], columns: Columns) -> Splits:
    """Series as tensors, scaled as the training series tell."""
    scale = Scale.of(columns, parts.train)

    def part(series: Sequence[OneSeries], target: Tensor) -> Series:
        return Series(*scale.inputs(series), target, [each.name for each in series])

    return parts.splits(part, scale=scale, channels=", ".join(columns.channels))
