"""The task intervals: losses and measures of forecasts; pictures of a year, forecasts that feed on themselves."""

import datetime
import functools
from collections.abc import Sequence, Sized
from typing import Any, cast

import torch
from torch import Tensor, nn

from contmax_lab.contract import Batch, Figure, Splits, Task, TrainedRun, seedless
from contmax_lab.drawing import Theme, new_axes
from contmax_lab.tasks.intervals import SETTINGS, IntervalsModel
from contmax_lab.tasks.intervals._data import Days, load
from contmax_lab.tasks.intervals._model import Forecast, LeastSquares, Network, Persistence, TwoNetworks
from contmax_lab.tasks.intervals._table import PAPER, SEATTLE, TEMPERATURES

_YEAR = 365
_FORTNIGHT = 14
_WHICH_YEAR = (
    "The last year of the data, without its test days (where these are the last days of all, the year before them)."
)


def auto_regressive_bands(runs: Sequence[TrainedRun]) -> list[Figure]:
    """A year in fortnights: each is predicted day by day from its own predictions, and drawn over what was observed.

    Test days are neither shown, nor given to the models, nor counted. Where every window of days has one in it, there
    is no picture.

    Args:
        runs: trained on the same data; one panel each.
    """
    days = [_year_to_begin_in(trained) for trained in runs]
    if not all(map(len, days)):
        return []
    starts = [_starts(trained, year) for trained, year in zip(runs, days, strict=True)]
    edges = [_rolled_out(*given) for given in zip(runs, days, starts, strict=True)]

    caption = (
        f"{_WHICH_YEAR} Each fortnight (ticks; later where a day is missing or is a test day) a model is given the "
        "observed days that it needs, and from then on predicts from its own predictions. Left alone it drifts to a "
        "temperature of its own. Coloured: predicted lowest to highest temperature and mid-point; grey: observed. "
        "Error: root mean squared difference of the mid-points; overlap: mean Jaccard similarity; both over the days "
        "shown in grey. Most of these were for training, so that this shows how a model behaves, not how well it "
        "forecasts."
    )
    draw = functools.partial(_bands, runs, days, edges, starts)
    return [Figure("Auto-regressive temperature intervals", draw, caption)]


def day_ahead_bands(runs: Sequence[TrainedRun]) -> Figure:
    """The interval predicted for each day of a year from the days before it, over the observed one.

    Args:
        runs: trained on the same data; one panel each.
    """
    days = [_last_year(trained) for trained in runs]
    edges = [_predicted(trained, year) for trained, year in zip(runs, days, strict=True)]
    valid = [cast(Days, trained.splits.valid).ordinal.tolist() for trained in runs]
    held_out = [sorted({*own} & {*year.ordinal.tolist()}) for own, year in zip(valid, days, strict=True)]
    caption = (
        f"{_WHICH_YEAR} The interval that each model predicts for a day from the days before it (between the coloured "
        "lines), over the observed lowest to highest temperature (grey, darker where it was predicted). Error: root "
        "mean squared difference of the mid-points; overlap: mean Jaccard similarity; both over the days shown. Ticks "
        "at the bottom mark validation days; most others were for training, so that errors on new days are larger."
    )
    draw = functools.partial(_bands, runs, days, edges, held_out)
    return Figure("A year of temperatures, predicted one day ahead", draw, caption)


def _bands(
    runs: Sequence[TrainedRun],
    days: Sequence[Days],
    edges: Sequence[tuple[Tensor, Tensor]],
    marked: Sequence[Sequence[int]],
    theme: Theme,
) -> Any:
    """One panel per run: observed in grey, predicted in the run's colour, marked days as ticks at the bottom."""
    from matplotlib.dates import ConciseDateFormatter

    figure, axes = new_axes(rows=len(runs), width=9.3, height=1.6)
    for index, (axis, trained, observed, band) in enumerate(zip(axes, runs, days, edges, strict=True)):
        _panel(axis, trained, observed, band, theme, theme.colour(index))
        dates = [datetime.date.fromordinal(day) for day in marked[index]]
        axis.plot(dates, [0.02] * len(dates), "|", color=theme.ink, transform=axis.get_xaxis_transform())
        axis.xaxis.set_major_formatter(ConciseDateFormatter(axis.xaxis.get_major_locator()))
        if index:
            axis.sharey(axes[0])
        if index + 1 < len(runs):
            axis.tick_params(labelbottom=False)
            axis.xaxis.get_offset_text().set_visible(False)
    axes[0].legend(loc="upper right", bbox_to_anchor=(1, 1.3), ncols=3, frameon=False, borderaxespad=0)
    return figure


def _panel(
    axis: Any, trained: TrainedRun, observed: Days, band: tuple[Tensor, Tensor], theme: Theme, colour: str
) -> None:
    center, unit = trained.splits.info["center"], trained.splits.info["half_range"]
    first = int(observed.ordinal[0])
    dates = [datetime.date.fromordinal(first + day) for day in range(len(band[0]))]
    seen = [_on_calendar(edge, observed) * unit + center for edge in (observed.low, observed.high)]
    low, high = (edge * unit + center for edge in band)
    axis.fill_between(dates, *seen, color=theme.observed, linewidth=0, label="observed")
    axis.fill_between(dates, low, high, color=colour, alpha=0.3, linewidth=0, label="predicted")
    for edge in (low, high):
        axis.plot(dates, edge, color=colour, linewidth=0.9)
    axis.plot(dates, (low + high) / 2, color=theme.ink, linewidth=0.7, linestyle=(0, (4, 2)), label="its mid-point")
    error = ((low + high) / 2 - (seen[0] + seen[1]) / 2).square().nanmean().sqrt()
    common = (torch.minimum(high, seen[1]) - torch.maximum(low, seen[0])).clamp(min=0)
    overlap = (common / (high - low + seen[1] - seen[0] - common)).nanmean()
    axis.set_title(f"{trained.label}: error {error:.1f} °C, overlap {overlap:.2f}", loc="left")
    axis.set_ylabel("°C")
    axis.set_xlim(dates[0], dates[-1])


def _last_year(trained: TrainedRun) -> Days:
    """The examples of the last 365 days that are no test examples."""
    days, test = cast(Days, trained.splits.info["days"]), _test_days(trained)
    others = [(place, day) for place, day in enumerate(days.ordinal.tolist()) if day not in test]
    _, last = others[-1]
    return days[[place for place, day in others if day > last - _YEAR]]


def _test_days(trained: TrainedRun) -> set[int]:
    return set(cast(Days, trained.splits.test).ordinal.tolist())


def _on_calendar(values: Tensor, days: Days) -> Tensor:
    """A value for each day from the first to the last, NaN where there is no example."""
    offsets = days.ordinal - days.ordinal[0]
    calendar = values.new_full((int(offsets[-1]) + 1, *values.shape[1:]), torch.nan)
    calendar[offsets] = values
    return calendar


@torch.no_grad()
def _predicted(trained: TrainedRun, days: Days) -> tuple[Tensor, Tensor]:
    """Predicted edges from the observed days before each day; NaN where these are missing."""
    low, high = trained.model({"features": days.features}).edges
    return _on_calendar(low, days), _on_calendar(high, days)


def _may_begin(trained: TrainedRun, days: Days) -> list[int]:
    """Days whose features contain no test day."""
    lags, test = (trained.splits.info["num_features"] - 1) // 2, _test_days(trained)
    return [day for day in days.ordinal.tolist() if test.isdisjoint(range(day - lags, day))]


def _year_to_begin_in(trained: TrainedRun) -> Days:
    """The last year, from the first day on which a forecast may begin; empty if there is none."""
    year = _last_year(trained)
    first = min(_may_begin(trained, year), default=int(year.ordinal[-1]) + 1)
    return year[(year.ordinal >= first).nonzero().flatten().tolist()]


def _starts(trained: TrainedRun, days: Days) -> list[int]:
    """Days on which forecasts begin, at least a fortnight between them."""
    starts: list[int] = []
    for day in _may_begin(trained, days):
        if not starts or day >= starts[-1] + _FORTNIGHT:
            starts.append(day)
    return starts


@torch.no_grad()
def _rolled_out(trained: TrainedRun, days: Days, starts: Sequence[int]) -> tuple[Tensor, Tensor]:
    """Forecasts from the observed days before each start, then from their own predictions; the first day is a start.

    The forecasts from all starts are made side by side, each until the next one begins.
    """
    first, last = int(days.ordinal[0]), int(days.ordinal[-1])
    observed = dict(zip(days.ordinal.tolist(), days.features[:, :-1], strict=True))
    indices = torch.linspace(float(days.features[0, -1]), float(days.features[-1, -1]), last - first + 1)
    window = torch.stack([observed[start] for start in starts])
    day, end = torch.tensor(starts) - first, torch.tensor([*starts[1:], last + 1]) - first
    edges = torch.empty(last - first + 1, 2)
    while len(day):
        forecast = trained.model({"features": torch.cat([window, indices[day].unsqueeze(-1)], -1)})
        edge = torch.stack(forecast.edges, -1)
        edges[day] = edge
        going = day + 1 < end
        window = torch.cat([window[:, 2:], edge], -1)[going]
        day, end = day[going] + 1, end[going]
    low, high = edges.unbind(-1)
    return low, high


class Intervals(Task, settings=SETTINGS):
    """Predict an interval of temperatures."""

    summary = "tomorrow's lowest and highest temperature, by Fenchel–Young losses of densities"
    reproduces = (PAPER, TEMPERATURES, SEATTLE)
    # The losses of different families are not on one scale.
    curves = ("mse", "jaccard", "coverage")
    load = seedless(load)

    def build(self, model: IntervalsModel, splits: Splits) -> nn.Module:
        """A network with fresh weights; or a forecast that needs no training, fitted to the training days."""
        if model.family == "persistence":
            return Persistence()
        if model.family in ("linear", "linear-season"):
            train, season = cast(Days, splits.train), model.family == "linear-season"
            return LeastSquares(train, splits.info["years"], season=season)
        if model.family == "two-networks":
            return TwoNetworks(model, splits.info["num_features"])
        return Network(model, splits.info["num_features"], splits.info["mean_length"])

    def batch(self, split: Sized, indices: Sequence[int]) -> Batch:
        """Features and the observed interval."""
        days = cast(Days, split)[indices]
        return {"features": days.features, "low": days.low, "high": days.high}

    def loss(self, output: Forecast, batch: Batch) -> tuple[Tensor, Tensor]:
        """Fenchel–Young loss; without a density squared error of the mid-point, and of the half-width if learned."""
        low, high = batch["low"], batch["high"]
        if output.family is None or output.density is None:
            losses = (output.loc - (low + high) / 2).square()
            if output.learns_width:
                losses = losses + (output.half_width - (high - low) / 2).square()
        else:
            losses = output.family.losses(output.density, low, high)
        return losses, torch.ones_like(losses)

    def measures(self, output: Forecast, batch: Batch) -> dict[str, Tensor]:
        r"""Squared error of the mid-point, overlap, and how much of the observed interval is covered.

        .. math:: J = \frac{|y \cap \hat y|}{|y \cup \hat y|}, \qquad C = \frac{|y \cap \hat y|}{|y|}

        Beside J also both of its lengths, of which `summarise` makes the ratio of their sums.
        """
        low, high = batch["low"], batch["high"]
        predicted_low, predicted_high = output.edges
        common = (torch.minimum(high, predicted_high) - torch.maximum(low, predicted_low)).clamp(min=0)
        length, predicted_length = high - low, 2 * output.half_width
        union = length + predicted_length - common
        return {
            "mse": (output.loc - (low + high) / 2).square(),
            "jaccard": common / union,
            "coverage": common / length,
            "length": predicted_length,
            "common": common,
            "union": union,
        }

    def summarise(self, measures: dict[str, Tensor]) -> dict[str, float]:
        """Means over the days; the Jaccard index also as one ratio, of all common lengths to all joint ones."""
        common, union = (measures[name].double().sum() for name in ("common", "union"))
        kept = {name: values for name, values in measures.items() if name not in ("common", "union")}
        return {**super().summarise(kept), "jaccard_of_sums": float(common / union)}

    def answer(self, output: Forecast, batch: Batch, info: dict[str, Any]) -> str:
        """The forecast and what was observed, in °C."""
        low, high, seen_low, seen_high = (
            float(edge) * info["half_range"] + info["center"] for edge in (*output.edges, batch["low"], batch["high"])
        )
        return f"{low:.1f} to {high:.1f} °C; observed: {seen_low:.1f} to {seen_high:.1f} °C"

    def figures(self, runs: Any, examples: Sequence[int] = ()) -> Any:
        """Forecasts of the next day over a year, and forecasts that feed on themselves."""
        return [day_ahead_bands(runs), *auto_regressive_bands(runs)]


TASK = Intervals()
