"""Forecasts that feed on themselves."""

import datetime
import itertools
from collections.abc import Sequence

import torch
from torch import Tensor

from contmax_lab.report import Figure, new_axes
from contmax_lab.runs import TrainedRun
from contmax_lab.tasks.intervals._data import Days

_DAYS = 60


def forecast_bands(runs: Sequence[TrainedRun]) -> Figure:
    """Intervals predicted day after day from earlier predictions, over the observed ones.

    Args:
        runs: trained on the same data; one panel each.
    """
    figure, axes = new_axes(rows=len(runs), width=9.0, height=2.0)
    for axis, trained in zip(axes, runs, strict=True):
        days = _longest_stretch(trained.splits.info["days"])
        predicted_low, predicted_high = _rolled_out(trained, days)
        center, half_range = trained.splits.info["center"], trained.splits.info["half_range"]
        dates = [datetime.date.fromordinal(int(day)) for day in days.ordinal]
        axis.fill_between(
            dates, days.low * half_range + center, days.high * half_range + center, color="0.8", label="observed"
        )
        for edge in (predicted_low, predicted_high):
            axis.plot(dates, edge * half_range + center, color="C0", linewidth=1.2)
        axis.fill_between(
            dates, predicted_low * half_range + center, predicted_high * half_range + center, color="C0", alpha=0.25
        )
        axis.set_title(trained.label, loc="left", fontsize=9)
        axis.set_ylabel("°C")
        if axis is not axes[0]:
            axis.sharey(axes[0])
    axes[0].legend(fontsize=7, frameon=False, loc="upper left")
    caption = (
        f"Each panel starts from observed days and goes on for up to {_DAYS} days from its own predictions (blue); "
        "observed lowest to highest temperature in grey."
    )
    return Figure.of("Auto-regressive temperature intervals", figure, caption)


def _longest_stretch(days: Days) -> Days:
    """Consecutive days, as many as there are up to `_DAYS`."""
    gaps = (days.ordinal[1:] - days.ordinal[:-1] != 1).nonzero().flatten().tolist()
    edges = [0, *(gap + 1 for gap in gaps), len(days)]
    start, end = max(itertools.pairwise(edges), key=lambda pair: pair[1] - pair[0])
    return days[slice(start, min(end, start + _DAYS))]


@torch.no_grad()
def _rolled_out(trained: TrainedRun, days: Days) -> tuple[Tensor, Tensor]:
    window = days.features[0, :-1]
    edges = []
    for index in days.features[:, -1]:
        forecast = trained.model({"features": torch.cat([window, index[None]])[None]})
        edge = torch.cat([forecast.loc - forecast.half_width, forecast.loc + forecast.half_width])
        edges.append(edge)
        window = torch.cat([window[2:], edge])
    low, high = torch.stack(edges).unbind(-1)
    return low, high
