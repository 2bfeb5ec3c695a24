"""Units of channels, times and static columns; series as the network takes them, with a mask per channel and time."""

import dataclasses
import math
from collections.abc import Sequence

import torch
from torch import Tensor

from contmax_lab.data import Place
from contmax_lab.errors import LabError
from contmax_lab.tasks.series._columns import Columns
from contmax_lab.tasks.series._reading import Clock, OneSeries

_MOST_NAMES = 100


@dataclasses.dataclass(frozen=True)
class Static:
    """A static column, which holds numbers or names, with its scale from the training series.

    A number becomes its standardised value, a name becomes one input for each name of the training series. Where
    nothing is known all inputs are 0; where that happens in training too, one more input says so.

    Args:
        name: of the column.
        names: that the training series have; empty for numbers.
        centre, deviation: of the numbers.
        gaps: whether a training series has no value.

    Example:
        >>> from pathlib import Path
        >>> place = Place(Path("patients.csv"))
        >>> Static.of("age", [("60", place), ("80", place)]).inputs([("80", place), ("", place)])
        tensor([[1.],
                [0.]], dtype=torch.float64)
        >>> Static.of("sex", [("m", place), ("f", place), ("", place)]).inputs([("m", place), ("", place)])
        tensor([[0., 1., 0.],
                [0., 0., 1.]], dtype=torch.float64)
    """

    name: str
    names: tuple[str, ...] = ()
    centre: float = 0.0
    deviation: float = 1.0
    gaps: bool = False

    @classmethod
    def of(cls, name: str, cells: Sequence[tuple[str, Place]]) -> "Static":
        """From the cells of the training series, empty where nothing is known.

        Raises:
            LabError: if no cell has a value, or numbers and names are mixed, or there are too many names.
        """
        known = [(text, place) for text, place in cells if text]
        file = cells[0][1].file
        if not known:
            raise LabError(
                f"{file}: no training series has a value of the static column {name}; look for it under another name, "
                "or leave it out of --data.static"
            )
        numbers = [(_number(text), text, place) for text, place in known]
        words = [(text, place) for number, text, place in numbers if number is None]
        gaps = len(known) < len(cells)
        if not words:
            found = torch.tensor([number for number, _, _ in numbers], dtype=torch.float64)
            # Divide by the greatest number, so that squares cannot overflow.
            greatest = float(found.abs().max()) or 1.0
            shares = found / greatest
            centre, deviation = float(shares.mean()), float(shares.std(correction=0))
            # A column that never changes has a deviation of rounding errors.
            return cls(name, (), centre * greatest, deviation * greatest if deviation > 1e-12 else 1.0, gaps)
        if len(words) < len(known):
            number = next(text for value, text, _ in numbers if value is not None)
            raise words[0][1].problem(
                f"the static column {name} is {words[0][0]!r} here and {number!r} elsewhere; write numbers or names, "
                "not both"
            )
        names = tuple(sorted({text for text, _ in known}))
        if len(names) > _MOST_NAMES:
            raise LabError(
                f"{file}: the static column {name} has {len(names)} different names, each of which would be an input; "
                f"group them into {_MOST_NAMES} or fewer, or leave the column out of --data.static"
            )
        return cls(name, names, gaps=gaps)

    @property
    def width(self) -> int:
        """The number of inputs."""
        return (len(self.names) or 1) + self.gaps

    def inputs(self, cells: Sequence[tuple[str, Place]]) -> Tensor:
        """Inputs of series, (B, width) in float64.

        Raises:
            LabError: if the training series have numbers, and a cell holds something else.
        """
        inputs = torch.zeros(len(cells), self.width, dtype=torch.float64)
        for row, (text, place) in enumerate(cells):
            if not text:
                inputs[row, -1] = float(self.gaps)
            elif self.names:
                # A name that no training series has means nothing to the model.
                inputs[row, : len(self.names)] = torch.tensor([text == name for name in self.names])
            elif (number := _number(text)) is None:
                raise place.problem(f"the static column {self.name} is {text!r}, which is not a number as in training")
            else:
                # Clamp: values far outside of the training data must not overflow.
                inputs[row, 0] = max(-100.0, min((number - self.centre) / self.deviation, 100.0))
        return inputs


def _number(text: str) -> float | None:
    try:
        value = float("no number" if "_" in text else text)
    except ValueError:
        return None
    return value if math.isfinite(value) else None


@dataclasses.dataclass(frozen=True)
class Scale:
    """Units of channels, times and static columns, from the training series.

    Args:
        columns: of the table.
        centres, deviations: of each channel, over its observed values; a channel without any has the deviation 0, and
            later values of it mean nothing.
        duration: of the longest series.
        gaps: of each channel, whether a training series lacks a value of it; the network is told of these gaps.
        static: of each static column.
        clock: how the times are written.
    """

    columns: Columns
    centres: tuple[float, ...]
    deviations: tuple[float, ...]
    duration: float
    gaps: tuple[bool, ...] = ()
    static: tuple[Static, ...] = ()
    clock: Clock = "number"

    @classmethod
    def of(cls, columns: Columns, series: Sequence[OneSeries]) -> "Scale":
        """From the training series; exact sums give one result on every machine."""
        centres, deviations, gaps = [], [], []
        for channel in torch.cat([each.values for each in series]).unbind(1):
            gaps.append(bool(channel.isnan().any()))
            numbers: list[float] = channel[~channel.isnan()].tolist()
            if not numbers:
                centres.append(0.0)
                deviations.append(0.0)
                continue
            # Divide by the greatest number, so that squares cannot overflow.
            greatest = max(map(abs, numbers)) or 1.0
            shares = [number / greatest for number in numbers]
            centre = math.fsum(shares) / len(shares)
            variance = math.fsum((share - centre) ** 2 for share in shares) / len(shares)
            centres.append(centre * greatest)
            deviations.append(math.sqrt(variance) * greatest or 1.0)
        duration = max(map(duration_of, series)) or 1.0
        static = tuple(Static.of(name, static_cells(series, place)) for place, name in enumerate(columns.static))
        return cls(columns, tuple(centres), tuple(deviations), duration, tuple(gaps), static, series[0].clock)

    def part(self, series: Sequence[OneSeries], target: Tensor) -> "Series":
        """Series as the network takes them.

        Raises:
            LabError: if their times or static columns are of another kind than those of the training series.
        """
        for each in series:
            if len(each.time) and each.clock != self.clock:
                raise each.label.place.problem(
                    f"the times of series {each.name} are {each.clock}s, those of the training series {self.clock}s; "
                    "write them alike"
                )
        values, observed, positions = self._inputs(series)
        columns = [own.inputs(static_cells(series, place)) for place, own in enumerate(self.static)]
        static = torch.cat([torch.zeros(len(series), 0, dtype=torch.float64), *columns], -1).float()
        return Series(values, observed, positions, static, target, [each.name for each in series])

    def _inputs(self, series: Sequence[OneSeries]) -> tuple[list[Tensor], list[Tensor], list[Tensor]]:
        """Channels and the time since the first observation, (L, C + 1); which were observed, (L, C); positions, (L,).

        Every series spans the unit interval; the last channel holds how long that took.
        """
        lengths = [len(each.time) for each in series]
        if not sum(lengths):
            count = len(self.centres)
            empty = torch.zeros(0, count + 1), torch.zeros(0, count, dtype=torch.bool), torch.zeros(0)
            return tuple([each] * len(series) for each in empty)  # type: ignore[return-value]
        # One operation over all series: many small ones would take as long each.
        values, times = torch.cat([each.values for each in series]), torch.cat([each.time for each in series])
        counts = torch.tensor(lengths)
        ends = counts.cumsum(0)
        # A series without any observation has no beginning; that of another one is taken, and repeated zero times.
        begins = times[(ends - counts).clamp(max=len(times) - 1)]
        since = times - begins.repeat_interleave(counts)
        spans = since[(ends - 1).clamp(min=0)].repeat_interleave(counts)
        positions = torch.where(spans > 0, since / spans, 0.5)
        centres, deviations = values.new_tensor(self.centres), values.new_tensor(self.deviations)
        observed = ~values.isnan() & (deviations > 0)
        # Clamp: values far outside of the training data must not overflow.
        channels = torch.where(observed, ((values - centres) / deviations).clamp(-100, 100), 0.0)
        elapsed = (since / self.duration).clamp(max=100).unsqueeze(-1)
        inputs = torch.cat([channels, elapsed], -1).float()
        return list(inputs.split(lengths)), list(observed.split(lengths)), list(positions.float().split(lengths))


def duration_of(series: OneSeries) -> float:
    """The time from the first observation to the last; 0 where there is none, or one."""
    return float(series.time[-1] - series.time[0]) if len(series.time) else 0.0


def static_cells(series: Sequence[OneSeries], place: int) -> list[tuple[str, Place]]:
    """The cells of the static column with this number, and where each series stands."""
    return [(each.static[place], each.label.place) for each in series]


@dataclasses.dataclass(frozen=True)
class Series:
    """Series of one part.

    Args:
        values: channels, 0 where they were not observed, and elapsed time of each, (L, C + 1).
        observed: which channels were, (L, C).
        positions: of its observations in the unit interval, (L,).
        static: inputs from static columns, (B, S).
        target: classes or numbers, (B,).
        names: ids.
    """

    values: list[Tensor]
    observed: list[Tensor]
    positions: list[Tensor]
    static: Tensor
    target: Tensor
    names: list[str]

    def __len__(self) -> int:
        return len(self.values)
