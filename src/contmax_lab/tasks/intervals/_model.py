"""Networks that predict a density or an interval, and forecasts that any network should beat."""

import dataclasses
import functools
import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributions import Distribution, Normal
from torch.nn import functional as F

from contmax.densities import Triangular, TruncatedParabola
from contmax.losses import fenchel_young
from contmax_lab.contract import Batch
from contmax_lab.tasks.intervals import IntervalsModel
from contmax_lab.tasks.intervals._data import Days

# The central 95 % of a Gaussian lie within this many standard deviations.
_NORMAL_95 = 1.959963984540054
# Added to the scale: softplus can underflow to 0, which is no density.
_SMALLEST_SCALE = 1e-6


@dataclasses.dataclass(frozen=True)
class Family:
    r"""A family of densities: p_y stands for the interval y, and another member is predicted.

    Args:
        predicted: the density with location μ and scale s, as the network gives them.
        observed: the density that stands for the interval [low, high].
        half_width: of the interval that a density stands for.
    """

    predicted: Callable[[Tensor, Tensor], Distribution]
    observed: Callable[[Tensor, Tensor], Distribution]
    half_width: Callable[[Any], Tensor]

    def losses(self, prediction: Distribution, low: Tensor, high: Tensor) -> Tensor:
        r""":math:`L_{\Omega_\alpha}(f_\theta; p_y)` of each example, shape (B,)."""
        return fenchel_young(prediction, self.observed(low, high))


def _gaussian(deviations: float) -> Family:
    """Gaussians that stand for the interval μ ± `deviations`·σ."""
    # vmap over networks allows no check of values; scales are positive by construction.
    normal = functools.partial(Normal, validate_args=False)
    return Family(
        predicted=normal,
        observed=lambda low, high: normal((low + high) / 2, (high - low) / (2 * deviations)),
        half_width=lambda density: deviations * density.stddev,
    )


def _supported(density: type[TruncatedParabola] | type[Triangular]) -> Family:
    """Densities that stand for their support."""
    return Family(predicted=density, observed=density.from_support, half_width=lambda p: p.half_width)


FAMILIES: dict[str, Family] = {
    "gaussian-sigma": _gaussian(1.0),
    "gaussian-95": _gaussian(_NORMAL_95),
    "parabola": _supported(TruncatedParabola),
    "triangular": _supported(Triangular),
}


@dataclasses.dataclass(frozen=True)
class Forecast:
    """What the network predicts for each example.

    Args:
        loc: mid-point, shape (B,).
        half_width: shape (B,).
        family, density: None without a density.
        learns_width: whether the half-width is learned without a density, by squared error.
    """

    loc: Tensor
    half_width: Tensor
    family: Family | None = None
    density: Distribution | None = None
    learns_width: bool = False

    @property
    def edges(self) -> tuple[Tensor, Tensor]:
        """Low and high end of the interval, both of shape (B,)."""
        return self.loc - self.half_width, self.loc + self.half_width


class Network(nn.Module):
    """Features of a day → forecast.

    Args:
        model: its configuration.
        num_features: of a day.
        mean_length: of the training intervals, for the baseline.

    Example:
        >>> import torch
        >>> network = Network(IntervalsModel(hidden_dim=8), num_features=5, mean_length=0.3)
        >>> network({"features": torch.zeros(3, 5)}).loc.shape
        torch.Size([3])
    """

    mean_length: Tensor

    def __init__(self, model: IntervalsModel, num_features: int, mean_length: float) -> None:
        super().__init__()
        self.family = FAMILIES.get(model.family)
        # A buffer, so that networks of several splits can be stacked; not persistent, since it comes with the data.
        self.register_buffer("mean_length", torch.tensor(mean_length), persistent=False)
        self.body = _body(model, num_features)
        self.loc = nn.Linear(model.hidden_dim, 1)
        self.scale = nn.Linear(model.hidden_dim, 1) if self.family else None

    def forward(self, batch: Batch) -> Forecast:
        """Forecast of the days in ``batch["features"]``, shape (B, 2·lags + 1)."""
        hidden = self.body(batch["features"])
        loc = self.loc(hidden).squeeze(-1)
        if self.family is None or self.scale is None:
            return Forecast(loc, (self.mean_length / 2).expand(loc.shape))
        scale = F.softplus(self.scale(hidden).squeeze(-1)) + _SMALLEST_SCALE
        density = self.family.predicted(loc, scale)
        return Forecast(loc, self.family.half_width(density), self.family, density)


class TwoNetworks(nn.Module):
    """Features of a day → forecast, by one network for the mid-point and another for the range.

    Args:
        model: its configuration.
        num_features: of a day.
    """

    def __init__(self, model: IntervalsModel, num_features: int) -> None:
        super().__init__()
        self.loc, self.half_width = (
            nn.Sequential(*_body(model, num_features), nn.Linear(model.hidden_dim, 1)) for _ in range(2)
        )

    def forward(self, batch: Batch) -> Forecast:
        """Forecast of the days in ``batch["features"]``, shape (B, 2·lags + 1)."""
        loc, half_width = (network(batch["features"]).squeeze(-1) for network in (self.loc, self.half_width))
        return Forecast(loc, F.softplus(half_width), learns_width=True)


def _body(model: IntervalsModel, num_features: int) -> nn.Sequential:
    layers = []
    for width in (num_features, model.hidden_dim):
        layers += [nn.Linear(width, model.hidden_dim), nn.ReLU(), nn.Dropout(model.dropout)]
    return nn.Sequential(*layers)


class Persistence(nn.Module):
    """Predicts the interval of the day before.

    Example:
        >>> Persistence()({"features": torch.tensor([[0.0, 0.0, 0.2, 0.4, 0.5]])}).loc
        tensor([0.3000])
    """

    def forward(self, batch: Batch) -> Forecast:
        """Forecast of the days in ``batch["features"]``: the interval of the day before."""
        low, high = batch["features"][..., -3], batch["features"][..., -2]
        return Forecast((low + high) / 2, (high - low) / 2)


class LeastSquares(nn.Module):
    r"""Lowest and highest temperature as affine functions of the features, fitted to the training days.

    With the season the features are joined by :math:`\cos 2\pi k\tau, \sin 2\pi k\tau` for k = 1, 2, where τ is the
    time in years.

    Args:
        train: the days that it is fitted to.
        years: from index 0 to index 1 of the days.
        season: whether it knows the time of the year.
    """

    coefficients: Tensor
    years: Tensor

    def __init__(self, train: Days, years: float, *, season: bool) -> None:
        super().__init__()
        self.season = season
        self.register_buffer("years", torch.tensor(years), persistent=False)
        targets = torch.stack([train.low, train.high], -1).double()
        known = self._known(train.features).double()
        self.register_buffer("coefficients", torch.linalg.lstsq(known, targets).solution.float())

    def _known(self, features: Tensor) -> Tensor:
        parts = [features, torch.ones_like(features[..., :1])]
        if self.season:
            angle = 2 * math.pi * self.years * features[..., -1:]
            parts += [wave(k * angle) for k in (1, 2) for wave in (torch.cos, torch.sin)]
        return torch.cat(parts, -1)

    def forward(self, batch: Batch) -> Forecast:
        """Forecast of the days in ``batch["features"]``, shape (B, 2·lags + 1)."""
        low, high = (self._known(batch["features"]) @ self.coefficients).unbind(-1)
        return Forecast((low + high) / 2, ((high - low) / 2).clamp(min=0))
