"""Series from tables, long or wide: cells may be empty, and a channel may have several values at one time."""

import collections
import dataclasses
import datetime
import math
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Literal

import torch
from torch import Tensor

from contmax_lab.data import BrokenRow, Place, TableRow, finite_number, read_rows, read_table
from contmax_lab.errors import LabError
from contmax_lab.labelled import Label
from contmax_lab.tasks.series import SeriesData
from contmax_lab.tasks.series._columns import Columns, label_columns

Clock = Literal["number", "date", "duration"]
# What pandas, R, SQL and spreadsheets write for a value that was not observed, in small letters.
_ABSENT = {"", "nan", "na", "n/a", "#n/a", "<na>", "null", "none"}
_SHOWN = 10  # variables that a message names
_DURATION = re.compile(
    r"(?P<sign>-?)(?:(?P<days>\d+) days? )?\+?(?P<hours>\d+):(?P<minutes>\d\d)(?::(?P<rest>\d\d(?:\.\d+)?))?"
)


@dataclasses.dataclass(frozen=True)
class OneSeries:
    """A series as it was read.

    Args:
        name: its id.
        time: of the observations, rising, (L,) in float64. At each of them something was observed.
        values: (L, C) in float64, NaN where a channel was not observed.
        label: of all its lines.
        static: of each static column, its text; empty = not known.
        clock: how its times are written; dates and durations are in seconds.
        repeated: times at which a channel had several values, of which `values` has the mean.
    """

    name: str
    time: Tensor
    values: Tensor
    label: Label
    static: tuple[str, ...] = ()
    clock: Clock = "number"
    repeated: int = 0


class _Gathered:
    """What the lines of one series say."""

    def __init__(self, place: Place) -> None:
        self.place = place
        # Column or variable → text and where it was first read.
        self.once: dict[str, Label] = {}
        # Time → channel → its values.
        self.cells: dict[float, dict[int, list[float]]] = {}

    def constant(self, name: str, text: str, what: str, place: Place) -> None:
        """Note what has one value in a series; an empty cell says nothing.

        Raises:
            LabError: if an earlier line says something else.
        """
        if not text:
            return
        first = self.once.setdefault(name, Label(text, place))
        if first.text != text:
            raise place.problem(f"{what} is {text!r} here and {first.text!r} in line {first.place.line}")

    def text(self, name: str) -> str:
        """What `constant` has noted, or nothing."""
        return self.once[name].text if name in self.once else ""


def read_series(
    path: Path, columns: Columns, labels: Mapping[str, TableRow] | None = None, *, labelled: bool = True
) -> list[OneSeries]:
    """The series of a table, in the order in which they begin; their lines may stand in any order.

    A line in which nothing was observed is as good as none. Several values of a channel at one time become their mean.

    Args:
        path: of the table.
        columns: of the training table.
        labels: series id → line with label and static columns, where these are in a table of their own.
        labelled: whether labels are needed; without, those of the series are empty, and static columns may be missing.

    Raises:
        LabError: with the line, if a time or a number cannot be read, or a label or static column changes in a series.
    """
    here = labelled and labels is None
    index = {channel: place for place, channel in enumerate(columns.channels)}
    series: dict[str, _Gathered] = {}
    clocks: dict[Clock, int] = {}
    for row in read_table(path, columns.needed(labelled=here)):
        name = row.text(columns.series)
        gathered = series.setdefault(name, _Gathered(row.place))
        if here:
            label = row.fields[columns.label].strip()
            gathered.constant("", label, f"the label of series {name}", row.place)
        _gather(gathered, name, row, columns, index, clocks)
    clock: Clock = next(iter(clocks), "number")
    return [_series(name, gathered, columns, labels, clock, labelled) for name, gathered in series.items()]


def each_series(path: Path, columns: Columns) -> Iterator[OneSeries | tuple[str, LabError]]:
    """The series of a table without labels, each as soon as its last line was read; one that cannot be read with why.

    The table is read twice: only series whose lines are not all read yet are in memory, and how many lines each has. A
    line that belongs to no series has an empty name.

    Args:
        path: of the table.
        columns: of the training table.

    Raises:
        LabError: if the table as a whole cannot be read, or a long one has none of the variables of the training.
    """
    needed = columns.needed(labelled=False)
    left, variables = collections.Counter[str](), set[str]()
    for row in read_rows(path, needed):
        if isinstance(row, TableRow):
            left[row.fields[columns.series].strip()] += 1
            variables.add(row.fields.get(columns.variable, "").strip())
    unknown = sorted(variables.difference(columns.channels, columns.static, {""}))
    if unknown and variables.isdisjoint(columns.channels):
        raise LabError(
            f"{path} has no value of {', '.join(columns.channels[:_SHOWN])}; the column {columns.variable} has "
            f"{', '.join(unknown[:_SHOWN])}. Write variables as in the training table"
        )
    index = {channel: place for place, channel in enumerate(columns.channels)}
    under_way: dict[str, tuple[_Gathered, dict[Clock, int]]] = {}
    broken: dict[str, LabError] = {}
    for row in read_rows(path, needed):
        if isinstance(row, BrokenRow):
            yield "", row.place.problem(row.text)
            continue
        name = row.fields[columns.series].strip()
        if not name:
            yield "", row.place.problem(f"nothing in the column {columns.series}")
            continue
        gathered, clocks = under_way.setdefault(name, (_Gathered(row.place), {}))
        if name not in broken:
            try:
                _gather(gathered, name, row, columns, index, clocks)
            except LabError as error:
                broken[name] = error
                under_way[name] = (_Gathered(row.place), {})
        left[name] -= 1
        if left[name]:
            continue
        del under_way[name]
        try:
            if name in broken:
                raise broken.pop(name)
            found = _series(name, gathered, columns, None, next(iter(clocks), "number"), labelled=False)
        except LabError as error:
            yield name, error
        else:
            yield found


def _gather(
    gathered: _Gathered, name: str, row: TableRow, columns: Columns, index: Mapping[str, int], clocks: dict[Clock, int]
) -> None:
    """Note what a line says of its series; `clocks`, how times are written → the first line, is that of the file."""
    for column in columns.static:
        _note(gathered, name, column, row.fields.get(column, ""), row.place)
    found = _observed(row, columns, index)
    if columns.variable and (variable := row.text(columns.variable)) in columns.static:
        _note(gathered, name, variable, row.fields[columns.value], row.place)
        return
    time, clock = _moment(row, columns.time)
    line = clocks.setdefault(clock, row.place.line)
    if len(clocks) > 1:
        other, first = next((other, first) for other, first in clocks.items() if other != clock)
        raise row.place.problem(
            f"{columns.time} is {row.text(columns.time)!r}, a {clock}, but line {min(first, line)} has a {other}; "
            "write all times alike"
        )
    if found:
        cells = gathered.cells.setdefault(time, {})
        for place, number in found:
            cells.setdefault(place, []).append(number)


def _note(gathered: _Gathered, name: str, column: str, text: str, place: Place) -> None:
    told = "" if is_absent(text) else text.strip()
    gathered.constant(column, told, f"the static column {column} of series {name}", place)


def _observed(row: TableRow, columns: Columns, index: Mapping[str, int]) -> list[tuple[int, float]]:
    """The channels that a line has a value of, and these values.

    Raises:
        LabError: at what is neither a number nor a sign of absence.
    """
    if columns.variable:
        variable, text = row.text(columns.variable), row.fields[columns.value]
        # A variable that no training series has means nothing to a model.
        if variable not in index or is_absent(text):
            return []
        return [(index[variable], finite_number(text.strip(), f"{variable} ({columns.value})", row.place))]
    numbers = []
    for place, channel in enumerate(columns.channels):
        text = row.fields[channel].strip()
        if is_absent(text):
            continue
        try:
            numbers.append((place, finite_number(text, channel, row.place)))
        except LabError as error:
            if "," in text or "finite" in str(error):
                raise
            raise LabError(
                f"{error}. A channel has numbers, and empty cells where nothing was observed. If {channel} says what "
                f"was observed, the table is long: pass --data.variable {channel}. If {channel} has one value in a "
                f"series, pass --data.static {channel}"
            ) from None
    return numbers


def is_absent(text: str) -> bool:
    """Whether a cell says that nothing was observed.

    Example:
        >>> is_absent(" NaN "), is_absent("0")
        (True, False)
    """
    return text.strip().lower() in _ABSENT


def _series(
    name: str,
    gathered: _Gathered,
    columns: Columns,
    labels: Mapping[str, TableRow] | None,
    clock: Clock,
    labelled: bool,
) -> OneSeries:
    times = sorted(gathered.cells)
    if times and not math.isfinite(times[-1] - times[0]):
        raise gathered.place.problem(
            f"the times of series {name} reach from {times[0]:g} to {times[-1]:g}, which is too far; rescale them"
        )
    values = torch.full((len(times), len(columns.channels)), math.nan, dtype=torch.float64)
    repeated = 0
    for row, time in enumerate(times):
        cells = gathered.cells[time]
        # Divide first: the sum of two large numbers may overflow. Exact sums do not depend on the order of lines.
        means = [math.fsum(number / len(own) for number in own) for own in cells.values()]
        values[row, list(cells)] = torch.tensor(means, dtype=torch.float64)
        repeated += any(len(own) > 1 for own in cells.values())
    label = Label(gathered.text(""), gathered.once.get("", Label("", gathered.place)).place)
    static = {column: gathered.text(column) for column in columns.static}
    if labels is not None and labelled:
        if name not in labels:
            raise gathered.place.problem(f"series {name} is not in the table of labels, --data.labels")
        row_of_labels = labels[name]
        label = Label(row_of_labels.text(columns.label), row_of_labels.place)
        told = {column: row_of_labels.fields.get(column, "").strip() for column in columns.static}
        static = {column: text or ("" if is_absent(told[column]) else told[column]) for column, text in static.items()}
    elif labelled and not label.text:
        raise gathered.place.problem(f"series {name} has no label: nothing in the column {columns.label} of its lines")
    moments = torch.tensor(times, dtype=torch.float64)
    return OneSeries(name, moments, values, label, tuple(static.values()), clock, repeated)


def read_labels(path: Path, columns: Columns, data: SeriesData) -> tuple[Columns, dict[str, TableRow]]:
    """A table with a line for each series: the columns, now with that of the labels in it, and the line of each series.

    Raises:
        LabError: if a column is missing, or a series has two lines.
    """
    series, label = label_columns(path, columns, data)
    labels: dict[str, TableRow] = {}
    for row in read_table(path, [series, label]):
        first = labels.setdefault(row.text(series), row)
        if first is not row:
            raise row.place.problem(f"series {row.text(series)} is also in line {first.place.line}")
    return dataclasses.replace(columns, label=label), labels


def _moment(row: TableRow, column: str) -> tuple[float, Clock]:
    """A number; or an ISO 8601 date, UTC where no zone is given, or a duration, both in seconds; and which it was."""
    text = row.text(column)
    if found := _DURATION.fullmatch(text):
        if found["sign"]:
            raise row.place.problem(f"{column} is {text!r}, a duration below 0; count from an earlier moment")
        days, hours, minutes, rest = (float(found[name] or 0) for name in ("days", "hours", "minutes", "rest"))
        return 86400 * days + 3600 * hours + 60 * minutes + rest, "duration"
    try:
        moment = datetime.datetime.fromisoformat(text)
    except ValueError:
        moment = None
    if moment is None or text.isdecimal():  # 20240131 could be a date; a count of seconds is meant
        try:
            return finite_number(text, column, row.place), "number"
        except LabError as error:
            way = (
                ""
                if "finite" in str(error)
                else ", nor an ISO date such as 2024-01-31T08:00, nor a duration like 36:05"
            )
            raise LabError(f"{error}{way}") from None
    if moment.tzinfo is None:
        moment = moment.replace(tzinfo=datetime.UTC)
    return moment.timestamp(), "date"
