"""Units of channels, times and static columns; series as the network takes them, with a mask per channel and time."""

import dataclasses
import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from contmax_lab.data import Place
from contmax_lab.tasks.series._columns import Columns
from contmax_lab.tasks.series._reading import Clock, OneSeries
from contmax_lab.tasks.series._static import Static


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

    @classmethod
    def of_plain(cls, stored: dict[str, Any]) -> "Scale":
        """From JSON."""
        return cls(
            Columns.of_plain(stored["columns"]),
            tuple(stored["centres"]),
            tuple(stored["deviations"]),
            float(stored["duration"]),
            tuple(stored["gaps"]),
            tuple(map(Static.of_plain, stored["static"])),
            stored["clock"],
        )

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
