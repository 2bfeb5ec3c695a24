"""The sets that supports are compared with: unions of intervals, ellipsoids and boxes, all in float64."""

import math
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.distributions import Distribution, Independent, Uniform

from contmax._typing import Bool, Float
from contmax.numerics import principal_axes


@dataclass(frozen=True)
class Intervals:
    """A union of intervals on the line; one that does not end after it begins is empty.

    Attributes:
        low: where they begin, ``(*batch, M)``.
        high: where they end, ``(*batch, M)``; +∞ of an unbounded one.
    """

    low: Float[Tensor, "*batch M"]
    high: Float[Tensor, "*batch M"]

    @property
    def bounded(self) -> Bool[Tensor, "*batch"]:
        """Where the union is bounded."""
        return (self.low.isfinite() & self.high.isfinite()).all(-1)

    def volume(self) -> Float[Tensor, "*batch"]:
        """The length of the union; +∞ where it is unbounded."""
        bounded = self.bounded
        finite = self.finite()
        points = torch.cat([finite.low, finite.high], -1).sort(-1).values
        length = (points.diff(dim=-1) * finite.holds(points)).sum(-1)
        return torch.where(bounded, length, math.inf)

    def holds(self, points: Float[Tensor, "... P"]) -> Bool[Tensor, "... P-1"]:
        """Which gaps between sorted points, all ends of the intervals among them, belong to the union."""
        middle = (0.5 * (points[..., 1:] + points[..., :-1])).unsqueeze(-2)
        inside: Tensor = (self.low.unsqueeze(-1) <= middle) & (middle <= self.high.unsqueeze(-1))
        return inside.any(-2)

    def finite(self) -> "Intervals":
        """The same with empty intervals in place of unbounded ones, whose infinite ends have no difference."""
        bounded = self.low.isfinite() & self.high.isfinite() & (self.high > self.low)
        return Intervals(torch.where(bounded, self.low, 0.0), torch.where(bounded, self.high, 0.0))


@dataclass(frozen=True)
class EllipsoidRegion:
    """The ellipsoid {c + Fu : ‖u‖ ≤ 1}.

    Attributes:
        center: c, ``(*batch, N)``.
        factor: F, lower triangular, ``(*batch, N, N)``; any where unbounded.
        bounded: where it is one, ``(*batch)``; elsewhere it is all of space.
    """

    center: Float[Tensor, "*batch N"]
    factor: Float[Tensor, "*batch N N"]
    bounded: Bool[Tensor, "*batch"]

    def volume(self) -> Float[Tensor, "*batch"]:
        """Length, area or volume; +∞ where unbounded."""
        half = self.factor.shape[-1] / 2
        log_ball = half * math.log(math.pi) - math.lgamma(half + 1)
        log_volume = self.factor.diagonal(dim1=-2, dim2=-1).log().sum(-1) + log_ball
        return torch.where(self.bounded, log_volume.exp(), math.inf)

    def semi_axes(self) -> Float[Tensor, "*batch N"]:
        """Lengths of the semi-axes, the longest first; +∞ where unbounded."""
        lengths = torch.linalg.vector_norm(self.factor @ principal_axes(self.factor), dim=-2)
        return torch.where(self.bounded.unsqueeze(-1), lengths, math.inf)

    def extent(self) -> tuple[Float[Tensor, "*batch"], Float[Tensor, "*batch"]]:
        """Where it begins and ends along the first coordinate."""
        reach = self.factor[..., 0, 0]
        return self.center[..., 0] - reach, self.center[..., 0] + reach

    def section(self, level: Float[Tensor, "*batch"]) -> "EllipsoidRegion":
        """The ellipsoid of one dimension less in which the first coordinate is fixed, inside of the extent."""
        height = ((level - self.center[..., 0]) / self.factor[..., 0, 0]).clamp(-1, 1)
        radius = ((1 - height) * (1 + height)).sqrt()
        center = self.center[..., 1:] + self.factor[..., 1:, 0] * height.unsqueeze(-1)
        return EllipsoidRegion(center, self.factor[..., 1:, 1:] * radius[..., None, None], self.bounded)

    def shifted(self, offset: Float[Tensor, "*batch N"]) -> "EllipsoidRegion":
        """The same, moved by an offset."""
        return EllipsoidRegion(self.center + offset, self.factor, self.bounded)

    def unsqueeze(self) -> "EllipsoidRegion":
        """The same with a last batch dimension of length one."""
        return EllipsoidRegion(self.center.unsqueeze(-2), self.factor.unsqueeze(-3), self.bounded.unsqueeze(-1))

    def expand(self, batch: torch.Size) -> "EllipsoidRegion":
        """The same for a larger batch."""
        dims = self.center.shape[-1:]
        return EllipsoidRegion(
            self.center.expand(batch + dims), self.factor.expand(batch + dims + dims), self.bounded.expand(batch)
        )


@dataclass(frozen=True)
class BoxRegion:
    """The box [l₁, h₁] × … × [l_N, h_N], empty unless l ≤ h.

    Attributes:
        low: l, ``(*batch, N)``.
        high: h, ``(*batch, N)``.
    """

    low: Float[Tensor, "*batch N"]
    high: Float[Tensor, "*batch N"]

    @property
    def bounded(self) -> Bool[Tensor, "*batch"]:
        """Where it is bounded."""
        return (self.low.isfinite() & self.high.isfinite()).all(-1)

    def volume(self) -> Float[Tensor, "*batch"]:
        """Length, area or volume."""
        return (self.high - self.low).clamp(min=0).prod(-1)

    def extent(self) -> tuple[Float[Tensor, "*batch"], Float[Tensor, "*batch"]]:
        """Where it begins and ends along the first coordinate."""
        return self.low[..., 0], self.high[..., 0]

    def section(self, level: Float[Tensor, "*batch"]) -> "BoxRegion":
        """The box of one dimension less; the same at every level inside of the extent."""
        return BoxRegion(self.low[..., 1:], self.high[..., 1:])

    def shifted(self, offset: Float[Tensor, "*batch N"]) -> "BoxRegion":
        """The same, moved by an offset."""
        return BoxRegion(self.low + offset, self.high + offset)

    def unsqueeze(self) -> "BoxRegion":
        """The same with a last batch dimension of length one."""
        return BoxRegion(self.low.unsqueeze(-2), self.high.unsqueeze(-2))

    def expand(self, batch: torch.Size) -> "BoxRegion":
        """The same for a larger batch."""
        shape = batch + self.low.shape[-1:]
        return BoxRegion(self.low.expand(shape), self.high.expand(shape))


Region = Intervals | EllipsoidRegion | BoxRegion


def given_region(other: object) -> Region | None:
    """The set that is meant by torch's ``Uniform``, ``Independent(Uniform, 1)``, or by a domain with two corners."""
    event_dims = 0
    if isinstance(other, Independent) and other.reinterpreted_batch_ndims == 1:
        other, event_dims = other.base_dist, 1
    if isinstance(other, Distribution) and not isinstance(other, Uniform):
        return None
    low, high = (_corner(other, name) for name in ("low", "high"))
    if low is None or high is None:
        return None
    low, high = torch.broadcast_tensors(low, high)
    # A domain holds no batch: one dimension is that of the coordinates.
    if event_dims or not isinstance(other, Distribution):
        return BoxRegion(low, high) if low.dim() else Intervals(low.unsqueeze(-1), high.unsqueeze(-1))
    return Intervals(low.unsqueeze(-1), high.unsqueeze(-1))


def _corner(other: Any, name: str) -> Tensor | None:
    value = getattr(other, name, None)
    return value.double() if isinstance(value, Tensor) else None
