"""Forecasts that any network should beat: as yesterday, and least squares."""

import math

import torch
from torch import Tensor, nn

from contmax_lab.contract import Batch
from contmax_lab.tasks.intervals._data import Days
from contmax_lab.tasks.intervals._model import Forecast


class Persistence(nn.Module):
    """Tomorrow is as today.

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
