"""What symmetric densities on the line share: the distribution function and its inverse, from one tail."""

import math
from abc import ABC, abstractmethod

import torch
from torch import Tensor
from torch.distributions import constraints

from contmax._typing import Float

from ._density import Density


class LineLaw(ABC):
    """The law of (t−μ)/unit, symmetric about 0.

    By symmetry everything follows from the tail P(less than −d) ∈ [0, ½] for d ≥ 0, and only the tail keeps the digits
    of small probabilities.
    """

    @abstractmethod
    def tail(self, depth: Float[Tensor, "..."]) -> Float[Tensor, "..."]:
        """P(less than −d), for d ≥ 0."""

    @abstractmethod
    def depth(self, tail: Float[Tensor, "..."]) -> Float[Tensor, "..."]:
        """The inverse, for 0 < tail ≤ ½."""


class LineDensity(Density):
    """A density on the line, symmetric about ``loc``."""

    scale: Tensor
    alpha: float | Tensor

    @abstractmethod
    def _law(self) -> LineLaw:
        """The law of (t−μ)/unit."""

    @abstractmethod
    def _unit(self) -> Tensor:
        """The unit of the law, in the working dtype."""

    @abstractmethod
    def _half_width(self) -> Tensor:
        """Half the length of the support, +∞ if it is unbounded, in the working dtype."""

    @property
    def mean(self) -> Float[Tensor, "*batch"]:
        """μ."""
        return self.loc

    @property
    def mode(self) -> Float[Tensor, "*batch"]:
        """μ, also for the uniform member, whose density is constant."""
        return self.loc

    @property
    def half_width(self) -> Float[Tensor, "*batch"]:
        """a: the support is μ ± a; +∞ if it is the whole line."""
        return self._round(self._half_width())

    @property
    def radius(self) -> Float[Tensor, "*batch"]:
        """R = half-width / scale."""
        half_width = self._half_width()
        unbounded = half_width == math.inf
        # A zero gradient times an infinite width would be NaN.
        ratio = torch.where(unbounded, 1.0, half_width) / self._wide(self.scale)
        return self._round(torch.where(unbounded, math.inf, ratio))

    @constraints.dependent_property(is_discrete=False, event_dim=0)
    def support(self) -> constraints.Constraint:
        """The interval μ ± a, or the real line."""
        if not isinstance(self.alpha, Tensor) and self.alpha <= 1:
            return constraints.real
        loc, half_width = self._wide(self.loc), self._half_width()
        return constraints.interval(loc - half_width, loc + half_width)

    def cdf(self, value: Float[Tensor, "..."]) -> Float[Tensor, "..."]:
        """P(T ≤ t): 0 or 1 with zero gradient outside the support; relative accuracy in the lower tail.

        Args:
            value: points t, ``(*sample, *batch)``.

        Returns:
            Shape ``(*sample, *batch)``; differentiable in t and in all parameters.
        """
        points = self._points(value)
        endless = torch.isinf(points)
        offset = offset_in(self._unit(), torch.where(endless, 0.0, points) - self._wide(self.loc))
        below = offset < 0
        # Not abs: its derivative at 0 is 0, and there the distribution function is steepest.
        tail = self._law().tail(torch.where(below, -offset, offset))
        share = torch.where(below, tail, 1 - tail)
        return torch.where(endless, (points > 0).to(share.dtype), share).to(self._result_dtype(value))

    def icdf(self, value: Float[Tensor, "..."]) -> Float[Tensor, "..."]:
        """The quantile t with P(T ≤ t) = q; NaN for q outside [0, 1].

        Args:
            value: probabilities q, ``(*sample, *batch)``.

        Returns:
            Shape ``(*sample, *batch)``; at q = 0 and 1 the ends of the support, which do not depend on q.
        """
        q = self._points(value)
        below = q <= 0.5
        edge = (q <= 0) | (q >= 1)
        tail = torch.where(edge, 0.25, torch.where(below, q, 1 - q))
        depth = torch.where(edge, self._half_width(), self._law().depth(tail) * self._unit())
        depth = torch.where((q < 0) | (q > 1), math.nan, depth)
        return (self._wide(self.loc) + torch.where(below, -depth, depth)).to(self._result_dtype(value))

    def _draws(self, offset: Tensor) -> Tensor:
        """μ + offset in the dtype of the parameters, for offsets inside the support; its gradient is that of the sum.

        A sum that rounds across an end of the support, where the density is zero, goes to the next number inside.
        """
        loc = self._wide(self.loc)
        draws = loc + offset
        with torch.no_grad():
            distance = (self._wide(self._round(draws)) - loc).abs()
            across = distance >= self._half_width() * (1 - 8 * torch.finfo(loc.dtype).eps)
            step = torch.minimum(0.75 * torch.finfo(self.dtype).eps * draws.abs(), (draws - loc).abs())
            step = torch.where(across, torch.where(draws > loc, -step, step), 0.0)
        return self._round(draws + step)


def offset_in(unit: Tensor, distance: Tensor) -> Tensor:
    """distance/unit. A point so far out that the derivative in the unit overflows keeps its value and has none."""
    value = (distance / unit).detach()
    far = torch.isinf(value / unit.detach())
    return torch.where(far, value, torch.where(far, 0.0, distance) / torch.where(far, 1.0, unit))
