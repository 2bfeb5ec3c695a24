"""Two hidden layers, a location and a scale."""

import dataclasses

import torch
from torch import Tensor, nn
from torch.distributions import Distribution
from torch.nn import functional as F

from contmax_lab.contract import Batch
from contmax_lab.tasks.intervals._families import FAMILIES, Family
from contmax_lab.tasks.intervals._settings import IntervalsModel

# A scale of exactly 0, where softplus underflows, is no density.
_SMALLEST_SCALE = 1e-6


@dataclasses.dataclass(frozen=True)
class Forecast:
    """What the network says of each example: where the middle lies, how wide the interval is, and by what density.

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
        # Of the data, not of what is learned; a buffer, so that networks of several splits can be stacked.
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
