"""Tables in long format, a line for each observation, as series."""

import dataclasses
import datetime
import math
from collections.abc import Iterator, Sequence
from pathlib import Path

import torch
from torch import Tensor

from contmax_lab.data import Place, TableRow, finite_number, read_table
from contmax_lab.errors import LabError
from contmax_lab.labelled import Label


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
        """Those that the user has named; of the others the first are series and time, the last is the label.

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

    Args:
        path: the table.
        columns: which is what.
        labelled: whether it has labels; without, those of the series are empty.

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
    return list(_ordered(lines, labels))


def _ordered(lines: dict[str, dict[float, list[float]]], labels: dict[str, Label]) -> Iterator[OneSeries]:
    for name, observed in lines.items():
        times = sorted(observed)
        if not math.isfinite(times[-1] - times[0]):
            raise labels[name].place.problem(
                f"the times of series {name} reach from {times[0]:g} to {times[-1]:g}, which is too far; rescale them"
            )
        values = [observed[time] for time in times]
        yield OneSeries(
            name, torch.tensor(times, dtype=torch.float64), torch.tensor(values, dtype=torch.float64), labels[name]
        )


def _time(row: TableRow, column: str) -> float:
    """A number, or a date with or without time of day as ISO 8601 has it, in seconds; without a zone in UTC."""
    text = row.text(column)
    try:
        moment = datetime.datetime.fromisoformat(text)
    except ValueError:
        return finite_number(text, column, row.place)
    if text.isdecimal():  # 20240131 is a date, and any count of seconds
        return finite_number(text, column, row.place)
    if moment.tzinfo is None:
        moment = moment.replace(tzinfo=datetime.UTC)
    return moment.timestamp()


def only(series: Sequence[OneSeries], path: Path) -> OneSeries:
    """The one series of a table.

    Raises:
        LabError: if there are several.
    """
    if len(series) > 1:
        raise LabError(f"{path} has {len(series)} series ({series[0].name}, {series[1].name} …); pass one of them")
    return series[0]
