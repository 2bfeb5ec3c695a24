"""Forecasts over a year, and forecasts that feed on themselves."""

import datetime
import itertools
from collections.abc import Sequence
from typing import Any, cast

import torch
from torch import Tensor

from contmax_lab.report import Figure, Theme, new_axes
from contmax_lab.runs import TrainedRun
from contmax_lab.tasks.intervals._data import Days

_DAYS = 60
_YEAR = 365


def auto_regressive_bands(runs: Sequence[TrainedRun]) -> Figure:
    """Intervals predicted day after day from earlier predictions, over the observed ones.

    Args:
        runs: trained on the same data; one panel each.
    """
    days = [_longest_stretch(trained.splits.info["days"]) for trained in runs]
    edges = [_rolled_out(trained, stretch) for trained, stretch in zip(runs, days, strict=True)]
    caption = (
        f"Each panel starts from observed days and goes on for up to {_DAYS} days from its own predictions (colour); "
        "observed lowest to highest temperature in grey."
    )
    return Figure.drawn(
        "Auto-regressive temperature intervals", lambda theme: _bands(runs, days, edges, theme), caption
    )


def day_ahead_bands(runs: Sequence[TrainedRun]) -> Figure:
    """The interval predicted for each day of a year from the days before it, over the observed one.

    Args:
        runs: trained on the same data; one panel each.
    """
    days = [_last_year(trained.splits.info["days"]) for trained in runs]
    edges = [_predicted(trained, year) for trained, year in zip(runs, days, strict=True)]
    held_out = [set(cast(Days, trained.splits.test).ordinal.tolist()) for trained in runs]

    def draw(theme: Theme) -> Any:
        figure = _bands(runs, days, edges, theme)
        for axis, year, test in zip(figure.axes, days, held_out, strict=True):
            dates = [datetime.date.fromordinal(day) for day in year.ordinal.tolist() if day in test]
            axis.plot(dates, [0.02] * len(dates), "|", color=theme.ink, transform=axis.get_xaxis_transform())
        return figure

    caption = (
        "The last year of the data: the interval that each model predicts for a day from the two days before it "
        "(between the coloured lines) over the observed lowest to highest temperature (grey, "
        "darker where it was predicted). Ticks at the bottom mark test days; all "
        "others were for training or validation, or left out."
    )
    return Figure.drawn("A year of temperatures, predicted one day ahead", draw, caption)


def _bands(
    runs: Sequence[TrainedRun], days: Sequence[Days], edges: Sequence[tuple[Tensor, Tensor]], theme: Theme
) -> Any:
    """One panel per run: observed in grey, predicted in the run's colour."""
    from matplotlib.dates import ConciseDateFormatter

    figure, axes = new_axes(rows=len(runs), width=9.3, height=1.45)
    for index, (axis, trained, observed, band) in enumerate(zip(axes, runs, days, edges, strict=True)):
        center, half_range = trained.splits.info["center"], trained.splits.info["half_range"]
        dates = [datetime.date.fromordinal(int(day)) for day in observed.ordinal]
        degrees = [(edge * half_range + center).numpy() for edge in (observed.low, observed.high, *band)]
        colour = theme.colour(index)
        axis.fill_between(dates, degrees[0], degrees[1], color=theme.observed, linewidth=0, label="observed")
        axis.fill_between(dates, degrees[2], degrees[3], color=colour, alpha=0.3, linewidth=0)
        for edge in degrees[2:]:
            axis.plot(dates, edge, color=colour, linewidth=1)
        axis.set_title(trained.label)
        axis.set_ylabel("°C")
        axis.set_xlim(dates[0], dates[-1])
        axis.xaxis.set_major_formatter(ConciseDateFormatter(axis.xaxis.get_major_locator()))
        if index:
            axis.sharey(axes[0])
        if index + 1 < len(runs):
            axis.tick_params(labelbottom=False)
            axis.xaxis.get_offset_text().set_visible(False)
    return figure


def _last_year(days: Days) -> Days:
    """The examples of the last 365 days."""
    return days[(days.ordinal > days.ordinal[-1] - _YEAR).nonzero().flatten().tolist()]


@torch.no_grad()
def _predicted(trained: TrainedRun, days: Days) -> tuple[Tensor, Tensor]:
    forecast = trained.model({"features": days.features})
    return forecast.loc - forecast.half_width, forecast.loc + forecast.half_width


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
