"""Bands of predicted temperatures."""

import datetime
import itertools
from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from contmax_lab.report import Figure, new_axes
from contmax_lab.runs import TrainedRun
from contmax_lab.tasks.intervals._data import Days

_DAYS = 60
_Edges = tuple[Tensor, Tensor]


def day_ahead_bands(runs: Sequence[TrainedRun]) -> Figure:
    """Intervals predicted for the next day from observed ones.

    Args:
        runs: trained on the same data; one panel each.
    """
    caption = "Lowest to highest temperature of each day, predicted from the days before (blue) and observed (grey)."
    return _bands("Temperature intervals, one day ahead", caption, runs, _day_ahead)


def auto_regressive_bands(runs: Sequence[TrainedRun]) -> Figure:
    """Intervals predicted day after day from earlier predictions.

    Args:
        runs: trained on the same data; one panel each.
    """
    caption = (
        f"Each panel starts from observed days and goes on for up to {_DAYS} days from its own predictions (blue); "
        "observed lowest to highest temperature in grey."
    )
    return _bands("Auto-regressive temperature intervals", caption, runs, _rolled_out)


def _bands(
    title: str, caption: str, runs: Sequence[TrainedRun], predict: Callable[[TrainedRun, Days], _Edges]
) -> Figure:
    figure, axes = new_axes(rows=len(runs), width=9.0, height=1.8)
    for axis, trained in zip(axes, runs, strict=True):
        days = _longest_stretch(trained.splits.info["days"])
        center, half_range = trained.splits.info["center"], trained.splits.info["half_range"]
        dates = [datetime.date.fromordinal(int(day)) for day in days.ordinal]
        low, high = (edge * half_range + center for edge in predict(trained, days))
        observed = (days.low * half_range + center, days.high * half_range + center)
        axis.fill_between(dates, *observed, color="0.75", linewidth=0, label="observed")
        axis.fill_between(dates, low, high, color="C0", alpha=0.25, linewidth=0, label="predicted")
        for edge in (low, high):
            axis.plot(dates, edge, color="C0", linewidth=1.1)
        axis.set_title(trained.label, loc="left", fontsize=9)
        axis.set_ylabel("°C")
        axis.tick_params(labelsize=8)
        if axis is not axes[0]:
            axis.sharey(axes[0])
    axes[0].legend(fontsize=7, frameon=False, loc="upper left", ncols=2)
    return Figure.of(title, figure, caption)


def _longest_stretch(days: Days) -> Days:
    """Consecutive days, as many as there are up to `_DAYS`."""
    gaps = (days.ordinal[1:] - days.ordinal[:-1] != 1).nonzero().flatten().tolist()
    edges = [0, *(gap + 1 for gap in gaps), len(days)]
    start, end = max(itertools.pairwise(edges), key=lambda pair: pair[1] - pair[0])
    return days[slice(start, min(end, start + _DAYS))]


@torch.no_grad()
def _day_ahead(trained: TrainedRun, days: Days) -> _Edges:
    forecast = trained.model({"features": days.features})
    return forecast.loc - forecast.half_width, forecast.loc + forecast.half_width


@torch.no_grad()
def _rolled_out(trained: TrainedRun, days: Days) -> _Edges:
    window = days.features[0, :-1]
    edges = []
    for index in days.features[:, -1]:
        forecast = trained.model({"features": torch.cat([window, index[None]])[None]})
        edges.append(torch.cat([forecast.loc - forecast.half_width, forecast.loc + forecast.half_width]))
        window = torch.cat([window[2:], edges[-1]])
    low, high = torch.stack(edges).unbind(-1)
    return low, high
