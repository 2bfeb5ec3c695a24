"""Daily temperatures: a csv file, windows of consecutive days, a split without overlap."""

import dataclasses
import datetime
from collections.abc import Sequence

import torch
from torch import Tensor

from contmax_lab.contract import Splits
from contmax_lab.data import existing_file, non_overlapping_holdout, read_table
from contmax_lab.errors import LabError
from contmax_lab.packages import require_folder
from contmax_lab.tasks.intervals import IntervalsData

_ORIGINAL = "US Climate Reference Network, Ithaca NY, https://www.ncei.noaa.gov/access/crn/"
_DAYS_PER_YEAR = 365.2425


@dataclasses.dataclass(frozen=True)
class Days:
    """Examples, one per target day, normalised.

    Args:
        features: shape (L, 2·lags + 1): lowest and highest of each day before, nearest last; then the day's index.
        low: lowest temperature of the target day, shape (L,).
        high: highest temperature of the target day, shape (L,).
        ordinal: proleptic Gregorian number of the target day, shape (L,).
    """

    features: Tensor
    low: Tensor
    high: Tensor
    ordinal: Tensor

    def __len__(self) -> int:
        return len(self.low)

    def __getitem__(self, indices: Sequence[int] | slice) -> "Days":
        # Convert once, not once per field.
        chosen = indices if isinstance(indices, slice) else torch.as_tensor(indices, dtype=torch.long)
        return Days(**{field.name: getattr(self, field.name)[chosen] for field in dataclasses.fields(self)})


def load(data: IntervalsData) -> Splits:
    """Read, window, split and normalise.

    Temperatures are mapped linearly so that those of all days, whatever the split, span [−1, 1]: squared errors on
    different splits are in one unit. The day's index is 0 on the first and 1 on the last day.
    """
    first, last = _day(data.first, "--data.first"), _day(data.last, "--data.last")
    ranges = _read(data, first, last)
    days = _windows(ranges, data.lags, first, last)
    if len(days) < data.valid + data.test + 1:
        raise LabError(f"{len(days)} windows of {data.lags + 1} days cannot be split into train, valid and test")
    ordinal: list[int] = days.ordinal.tolist()
    valid, test = _held_out(data, ordinal)
    held_out = {*valid, *test}
    reach = data.lags if data.apart else 0
    blocked = {ordinal[i] + shift for i in held_out for shift in range(-reach, reach + 1)}
    train = [i for i in range(len(days)) if ordinal[i] not in blocked]
    if not train:
        raise LabError("every training example shares a day with a held-out one; pass smaller --data.valid, .test")
    years = (last - first) / _DAYS_PER_YEAR
    return _normalised(days, years, train, valid, test)


def _held_out(data: IntervalsData, ordinal: list[int]) -> tuple[list[int], list[int]]:
    """Places of the validation and of the test windows."""
    count, wanted = len(ordinal), data.valid + data.test
    if data.choice == "last":
        end = count - data.split * wanted
        if data.split < 0 or end <= wanted:
            raise LabError(f"--data.split={data.split} is too large: there are {count // wanted} stretches of days")
        places = list(range(end - wanted, end))
        return places[: data.valid], places[data.valid :]
    if data.choice == "regular":
        # Validation and test days take turns at equal distances.
        places = [(data.split + place * count // wanted) % count for place in range(wanted)]
        halves = places[::2], places[1::2]
        if data.valid != data.test or count < wanted * (data.lags + 1):
            raise LabError("--data.choice=regular needs --data.valid equal to --data.test, and windows enough for both")
        return sorted(halves[0]), sorted(halves[1])

    def overlap(one: int, other: int) -> bool:
        return bool(abs(one - other) <= data.lags)

    valid, test = non_overlapping_holdout(ordinal, [data.valid, data.test], data.split, overlap)
    if len(test) < data.test:
        raise LabError(
            f"only {len(valid)} + {len(test)} windows that do not overlap fit; pass smaller --data.valid, .test"
        )
    return valid, test


def _normalised(days: Days, years: float, *parts: list[int]) -> Splits:
    low, high = float(days.low.min()), float(days.high.max())
    center, half_range = (low + high) / 2, (high - low) / 2

    def normalise(part: Days) -> Days:
        features = part.features.clone()
        features[:, :-1] = (features[:, :-1] - center) / half_range
        return Days(features, (part.low - center) / half_range, (part.high - center) / half_range, part.ordinal)

    train, valid, test = (normalise(days[part]) for part in parts)
    info = {
        "center": center,
        "half_range": half_range,
        "num_features": days.features.shape[1],
        "years": years,
        "mean_length": float((train.high - train.low).mean()),
        "days": normalise(days),
    }
    return Splits(train, valid, test, info)


def _windows(ranges: dict[int, tuple[float, float]], lags: int, first: int, last: int) -> Days:
    """Every day that follows `lags` days without a gap."""
    targets = [day for day in sorted(ranges) if all(day - lag in ranges for lag in range(1, lags + 1))]
    span = max(last - first, 1)
    rows = [
        [value for lag in range(lags, 0, -1) for value in ranges[day - lag]] + [(day - first) / span] for day in targets
    ]
    return Days(
        features=torch.tensor(rows).reshape(len(rows), 2 * lags + 1),
        low=torch.tensor([ranges[day][0] for day in targets]),
        high=torch.tensor([ranges[day][1] for day in targets]),
        ordinal=torch.tensor(targets, dtype=torch.long),
    )


def _read(data: IntervalsData, first: int, last: int) -> dict[int, tuple[float, float]]:
    """Day → lowest and highest temperature, of the days that count."""
    path = data.path or require_folder("vega_datasets", "The demo's temperature data") / "_data" / "seattle-weather.csv"
    existing_file(path, "a csv file of daily temperatures", _ORIGINAL)
    columns = [data.date, data.minimum, data.maximum, *([data.hours] if data.hours else [])]
    ranges: dict[int, tuple[float, float]] = {}
    for row in read_table(path, columns, ".csv"):
        day = _day(row.fields[data.date], f"{path}, line {row.place.line}")
        if not first <= day <= last or not row.fields[data.minimum] or not row.fields[data.maximum]:
            continue
        if data.hours and row.number(data.hours) < 24:
            continue
        low, high = row.number(data.minimum), row.number(data.maximum)
        if low > high:
            raise row.place.problem(f"the lowest temperature, {low}, is above the highest, {high}")
        # A day without variation has no width to learn from.
        if low < high:
            ranges[day] = (low, high)
    if not ranges:
        raise LabError(
            f"{path} has no complete day from {data.first} to {data.last}; pass --data.first and --data.last"
        )
    return ranges


def _day(text: str, place: str) -> int:
    try:
        return datetime.date.fromisoformat(text.strip().replace("/", "-")).toordinal()
    except ValueError:
        raise LabError(f"{place}: {text!r} is not a date YYYY-MM-DD") from None
