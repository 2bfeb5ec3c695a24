"""The task: losses and measures of forecasts."""

from collections.abc import Sequence, Sized
from pathlib import Path
from typing import Any, cast

import torch
from torch import Tensor, nn

from contmax_lab.contract import Batch, Splits, Table, Task
from contmax_lab.tasks.intervals import IntervalsData, IntervalsModel
from contmax_lab.tasks.intervals._data import Days, load
from contmax_lab.tasks.intervals._figures import auto_regressive_bands, day_ahead_bands
from contmax_lab.tasks.intervals._model import Forecast, LeastSquares, Network, Persistence, TwoNetworks
from contmax_lab.tasks.intervals._table import PAPER, SEATTLE, TEMPERATURES


class Intervals(Task):
    """Predict an interval of temperatures."""

    name = "intervals"
    summary = "tomorrow's lowest and highest temperature, by Fenchel–Young losses of densities"
    data_config = IntervalsData
    model_config = IntervalsModel
    recipe_file = Path(__file__).with_name("recipe.yaml")
    # The losses of different families are not on one scale.
    curves = ("mse", "jaccard", "coverage")

    def load(self, data: IntervalsData, seed: int) -> Splits:
        """The split has a seed of its own, so that seeds of the training share it."""
        return load(data)

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
        predicted_low, predicted_high = output.loc - output.half_width, output.loc + output.half_width
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
        forecast = output.loc - output.half_width, output.loc + output.half_width
        low, high, seen_low, seen_high = (
            float(edge) * info["half_range"] + info["center"] for edge in (*forecast, batch["low"], batch["high"])
        )
        return f"{low:.1f} to {high:.1f} °C; observed: {seen_low:.1f} to {seen_high:.1f} °C"

    def tables(self) -> Sequence[Table]:
        """The paper's table, by its settings and by ours, and one for the demo."""
        return (PAPER, TEMPERATURES, SEATTLE)

    def figures(self, runs: Any, examples: Sequence[int] = ()) -> Any:
        """Forecasts of the next day over a year, and forecasts that feed on themselves."""
        return [day_ahead_bands(runs), *auto_regressive_bands(runs)]


TASK = Intervals()
