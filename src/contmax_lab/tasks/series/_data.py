"""Series of the user's own as training, validation and test parts, and what is unusual about them, in lines."""

import statistics
from collections.abc import Iterator, Sequence

import torch
from torch import Tensor

from contmax_lab.contract import Splits
from contmax_lab.errors import LabError, UsageError
from contmax_lab.labelled import Parts, read_parts
from contmax_lab.tasks.series import SeriesData
from contmax_lab.tasks.series._columns import Columns
from contmax_lab.tasks.series._reading import OneSeries, read_labels, read_series
from contmax_lab.tasks.series._scale import Scale, duration_of, static_cells

_SHOWN = 10
# A mean this many training deviations away, or a spread or a duration by this factor wider or narrower, is no accident.
_FAR, _WIDER = 5.0, 20.0
# Fewer values may be close together by accident.
_ENOUGH = 20


def series_remarks(parts: Parts[OneSeries], scale: Scale) -> list[str]:
    """What to tell of the series of all parts.

    Args:
        parts: the series.
        scale: of the training series.
    """
    lines = [*_of_observations([*parts.train, *parts.valid, *parts.test]), *_of_channels(parts.train, scale)]
    for name, part in (("validation", parts.valid), ("test", parts.test)):
        if part:
            lines += [*_of_units(name, part, parts.train, scale), *_of_static(name, part, scale)]
    return lines


def _of_observations(series: Sequence[OneSeries]) -> Iterator[str]:
    empty, single = ([each.name for each in series if len(each.time) == count] for count in (0, 1))
    if empty:
        yield f"without any observation: {_named(empty, len(series))}; static columns alone tell these apart"
    if single:
        yield f"with one observation: {_named(single, len(series))}; they have no course over time"
    if repeated := [each for each in series if each.repeated]:
        times = sum(each.repeated for each in repeated)
        told = "one time stamp has" if times == 1 else f"{times:,} time stamps have"
        named = _named([each.name for each in repeated], len(series))
        yield f"{told} several values of a channel, in {named}; their mean is taken"


def _named(names: Sequence[str], count: int) -> str:
    more = ", …" if len(names) > _SHOWN else ""
    return f"{len(names):,} of {count:,} series ({', '.join(names[:_SHOWN])}{more})"


def _of_channels(series: Sequence[OneSeries], scale: Scale) -> Iterator[str]:
    values = torch.cat([each.values for each in series])
    missing = values.isnan().sum(0).tolist()
    channels = list(zip(scale.columns.channels, missing, strict=True))
    if never := [name for name, count in channels if count == len(values)]:
        yield f"without any value in training: {', '.join(never)}; leave such channels out, or look for a misprint"
    gaps = sorted(((count, name) for name, count in channels if 0 < count < len(values)), key=lambda gap: -gap[0])
    if gaps:
        told = [f"{name} {count:,} ({100 * count / len(values):.0f} %)" for count, name in gaps[:_SHOWN]]
        more = f", and {len(gaps) - _SHOWN} more channels" if len(gaps) > _SHOWN else ""
        yield f"missing cells at the {len(values):,} training observations: {', '.join(told)}{more}"
    constant = [
        name for place, (name, _) in enumerate(channels) if _is_constant([own.values[:, place] for own in series])
    ]
    if constant:
        listed = ",".join((*scale.columns.static, *constant))
        what = f"with one value in each series: {', '.join(constant)}"
        yield f"{what}; if that is no channel but belongs to the series, pass --data.static {listed}"


def _is_constant(values: Sequence[Tensor]) -> bool:
    """Whether a channel differs between series, and never changes within one, though most have several values of it."""
    found = [own[~own.isnan()] for own in values]
    known = [own for own in found if len(own)]
    several = 2 * sum(len(own) > 1 for own in known) > len(known)
    return several and all(bool((own == own[0]).all()) for own in known) and len({float(own[0]) for own in known}) > 1


def _of_units(part: str, series: Sequence[OneSeries], train: Sequence[OneSeries], scale: Scale) -> Iterator[str]:
    values = torch.cat([each.values for each in series])
    for place, name in enumerate(scale.columns.channels):
        column = values[:, place]
        found = column[~column.isnan()]
        centre, deviation = scale.centres[place], scale.deviations[place]
        if not deviation:
            continue
        if not len(found):
            yield f"{name} has no value in {part}, but in training; is it called by another name?"
        elif is_elsewhere((found - centre) / deviation):
            usual = f"{centre:.4g} ± {deviation:.4g} in training"
            mean = float(found.mean())
            yield f"{name} is on another scale in {part}: mean {mean:.4g}, but {usual}; are the units alike?"
    durations = [[duration_of(each) for each in own if len(each.time) > 1] for own in (series, train)]
    if all(durations):
        here, trained = (statistics.median(found) for found in durations)
        if not trained / _WIDER < here < trained * _WIDER:
            told = f"series last {here:.4g} in {part}, but {trained:.4g} in training (medians)"
            yield f"{told}; are the times in one unit?"


def is_elsewhere(standardised: Tensor) -> bool:
    """Whether values are far from those that they were standardised by, or spread much wider or narrower.

    Example:
        >>> is_elsewhere(torch.tensor([-1.0, 1.5])), is_elsewhere(torch.tensor([60.0, 61.0]))
        (False, True)
    """
    spread = float(standardised.std(correction=0))
    # Other units do not make values equal: a device may be always on, an event too rare for this part.
    varies = bool(standardised.min() < standardised.max())
    narrow = len(standardised) >= _ENOUGH and varies and spread < 1 / _WIDER
    return abs(float(standardised.mean())) > _FAR or spread > _WIDER or narrow


def _of_static(part: str, series: Sequence[OneSeries], scale: Scale) -> Iterator[str]:
    for place, own in enumerate(scale.static):
        cells = [cell for cell in static_cells(series, place) if cell[0]]
        if not cells:
            yield f"the static column {own.name} has no value in {part}"
        elif own.names:
            if unknown := sorted({text for text, _ in cells}.difference(own.names)):
                shown = ", ".join(map(repr, unknown[:_SHOWN]))
                yield f"the static column {own.name} of {part} has {shown}, which no training series has"
        elif is_elsewhere(own.inputs(cells)[:, 0]):
            mean = statistics.fmean(float(text) for text, _ in cells)
            yield (
                f"the static column {own.name} is on another scale in {part}: mean {mean:.4g}, but {own.centre:.4g} ± "
                f"{own.deviation:.4g} in training; are the units alike?"
            )


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
