"""Two hidden layers, a location and a scale."""

import dataclasses
from typing import Literal

from jsonargparse.typing import ClosedUnitInterval, PositiveInt
from torch import Tensor, nn
from torch.distributions import Distribution
from torch.nn import functional as F

from contmax_lab.contract import Batch
from contmax_lab.tasks.intervals._families import FAMILIES, Family

# A scale of exactly 0, where softplus underflows, is no density.
_SMALLEST_SCALE = 1e-6


@dataclasses.dataclass(frozen=True)
class IntervalsModel:
    """The network.

    Args:
        family: what stands for an interval; "midpoint" is the baseline, squared error and a constant width.
        hidden_dim: width of the two hidden layers.
        dropout: after each of them.
    """

    family: Literal["midpoint", "gaussian-sigma", "gaussian-95", "parabola", "triangular"] = "parabola"
    hidden_dim: PositiveInt = 256
    dropout: ClosedUnitInterval = 0.1


@dataclasses.dataclass(frozen=True)
class Forecast:
    """What the network says of each example: where the middle lies, how wide the interval is, and by what density.

    Args:
        loc: mid-point, shape (B,).
        half_width: shape (B,).
        family, density: None for the baseline.
    """

    loc: Tensor
    half_width: Tensor
    family: Family | None = None
    density: Distribution | None = None


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

    def __init__(self, model: IntervalsModel, num_features: int, mean_length: float) -> None:
        super().__init__()
        self.family = FAMILIES.get(model.family)
        self.mean_length = mean_length
        layers = []
        for width in (num_features, model.hidden_dim):
            layers += [nn.Linear(width, model.hidden_dim), nn.ReLU(), nn.Dropout(model.dropout)]
        self.body = nn.Sequential(*layers)
        self.loc = nn.Linear(model.hidden_dim, 1)
        self.scale = nn.Linear(model.hidden_dim, 1) if self.family else None

    def forward(self, batch: Batch) -> Forecast:
        """Forecast of the days in ``batch["features"]``, shape (B, 2·lags + 1)."""
        hidden = self.body(batch["features"])
        loc = self.loc(hidden).squeeze(-1)
        if self.family is None or self.scale is None:
            return Forecast(loc, loc.new_full(loc.shape, self.mean_length / 2))
        scale = F.softplus(self.scale(hidden).squeeze(-1)) + _SMALLEST_SCALE
        density = self.family.predicted(loc, scale)
        return Forecast(loc, self.family.half_width(density), self.family, density)
