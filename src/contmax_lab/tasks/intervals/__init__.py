"""Interval regression: tomorrow's lowest and highest temperature from those of the days before.

Martins et al. 2020, section on interval regression: a small network predicts a density, trained by the Fenchel–Young
loss against a density that stands for the observed interval. On the authors' own data, daily temperatures of Ithaca
(``--data.path``), or on those of Seattle that come with vega_datasets.
"""

import dataclasses
from pathlib import Path
from typing import Literal

from jsonargparse.typing import ClosedUnitInterval, PositiveInt

from contmax_lab.contract import Settings


@dataclasses.dataclass(frozen=True)
class IntervalsData:
    """Where the temperatures are and which days count.

    Args:
        path: csv file with a header; by default the temperatures of Seattle that come with vega_datasets.
        date: name of the column of dates, YYYY-MM-DD.
        minimum: name of the column of the day's lowest temperature, °C.
        maximum: name of the column of the day's highest temperature, °C.
        hours: name of a column of hours observed, of which a day needs 24 to count; empty = every day counts.
        first: first day, YYYY-MM-DD.
        last: last day, YYYY-MM-DD.
        lags: days before the target whose temperatures are features.
        valid: validation examples.
        test: test examples.
        choice: how days are held out: at random; "regular", at equal distances; or "last", the last days, first those
            for validation and then those for the test.
        split: which of the splits of that kind: seed of the random choice; where regular windows begin; how many
            stretches before the last.
        apart: leave training examples out whose window shares a day with a held-out one.
    """

    path: Path | None = None
    date: str = "date"
    minimum: str = "tmin_c"
    maximum: str = "tmax_c"
    hours: str = ""
    first: str = "2015-01-01"
    last: str = "2019-12-31"
    lags: PositiveInt = 2
    valid: PositiveInt = 99
    test: PositiveInt = 99
    choice: Literal["random", "regular", "last"] = "random"
    split: int = 0
    apart: bool = True


@dataclasses.dataclass(frozen=True)
class IntervalsModel:
    """The network.

    Args:
        family: what stands for an interval; or without a density: "midpoint", the paper's baseline, squared error and
            a constant width; "two-networks", one for the mid-point and one for the range, by squared error; and what
            needs no training: "persistence", as yesterday, "linear", least squares from the features, and
            "linear-season", from the features and the time of the year.
        hidden_dim: width of the two hidden layers.
        dropout: share set to 0 in training after each of them.
    """

    family: Literal[
        "midpoint",
        "two-networks",
        "gaussian-sigma",
        "gaussian-95",
        "parabola",
        "triangular",
        "persistence",
        "linear",
        "linear-season",
    ] = "parabola"
    hidden_dim: PositiveInt = 256
    dropout: ClosedUnitInterval = 0.1


SETTINGS = Settings.of_package(__file__, IntervalsData, IntervalsModel)
