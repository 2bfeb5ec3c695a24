"""Series of the user's own, as tensors."""

import dataclasses
import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from contmax_lab.contract import Splits
from contmax_lab.errors import UsageError
from contmax_lab.labelled import Parts, read_parts
from contmax_lab.tasks.series import SeriesData
from contmax_lab.tasks.series._reading import Columns, OneSeries, read_series

_WHAT = "sensors.csv, a table with a line for each observation: series id, time, channels …, label"


@dataclasses.dataclass(frozen=True)
class Scale:
    """What channels and times are measured by, from the training series.

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
        """Of the training series; sums are exact, so that it is the same on every machine."""
        centres, deviations = [], []
        for channel in torch.cat([each.values for each in series]).unbind(1):
            numbers: list[float] = channel.tolist()
            # In units of the greatest, whose squares cannot overflow.
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

        Every series spans the unit interval; how long that took is told by the last channel.
        """
        if not series:
            return [], []
        # All series at once, as operations on a few numbers take as long as on many.
        lengths = [len(each.time) for each in series]
        values, times = torch.cat([each.values for each in series]), torch.cat([each.time for each in series])
        counts = torch.tensor(lengths)
        ends = counts.cumsum(0)
        since = times - times[ends - counts].repeat_interleave(counts)
        spans = since[ends - 1].repeat_interleave(counts)
        positions = torch.where(spans > 0, since / spans, 0.5)
        # What lies far outside of the training data is as good as at its rim, and must not overflow.
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
    """Series as tensors.

    Args:
        parts: as they were read.
        columns: what they are of.
    """
    scale = Scale.of(columns, parts.train)

    def part(series: Sequence[OneSeries]) -> Series:
        target = parts.targets.encoded([each.label for each in series])
        return Series(*scale.inputs(series), target, [each.name for each in series])

    info = {"classes": parts.targets.classes, "targets": parts.targets, "scale": scale}
    info["channels"] = ", ".join(columns.channels)
    return Splits(part(parts.train), part(parts.valid), part(parts.test), info)
