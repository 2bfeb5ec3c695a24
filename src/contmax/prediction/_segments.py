r"""Closed forms on segments where the score is linear, for every α > 0.

Where the score falls from u_t to u_b (both less A), the density falls from :math:`p_t` to :math:`p_b`. With
:math:`d = \ln(p_b/p_t) \le 0`, ε = α − 1 and :math:`E(y) = (e^y-1)/y`, the mean of a power of p over the segment is

.. math:: \frac1{u_t-u_b}\int_{u_b}^{u_t} \exp_{2-\alpha}(u)^c\,du = p_t^c\,\frac{E((c+\varepsilon)d)}{E(\varepsilon d)}

since :math:`du = p^{\varepsilon-1}dp`: c = 1 gives the mass, c = 2 − α its derivative in A, c = α the negentropy.
Nothing cancels on flat segments (d → 0), at α = 1 (ε → 0), or where the segment is cut by the level (d → −∞).
"""

from collections.abc import Callable
from dataclasses import dataclass, fields

import torch
from torch import Tensor

from contmax._typing import Bool, Float
from contmax.deformed import expm1_over, log1p_over
from contmax.prediction._prediction import log_exp


@dataclass(frozen=True)
class Segments:
    """Linear pieces of score, from their higher end down to their lower end or to the level, whichever comes first."""

    alpha: Tensor
    log_peak: Float[Tensor, "..."]
    """ln p_t, at the higher end."""
    drop: Float[Tensor, "..."]
    """d = ln(p_b/p_t), used where the ratio is near one."""
    ratio: Float[Tensor, "..."]
    """e^{εd} = (1 + ε u_b)/(1 + ε u_t), 0 where cut."""
    length: Float[Tensor, "..."]
    """Length of the live part."""
    falls: Bool[Tensor, "..."]
    """Whether the higher end comes first."""
    live: Bool[Tensor, "..."]
    infinite: Bool[Tensor, "..."]
    """Whether the density has a pole on the segment: α < 1 and A too small."""

    @classmethod
    def between(cls, start: Tensor, stop: Tensor, length: Tensor, alpha: Tensor) -> "Segments":
        """Segments with scores (less A) from start to stop; all arguments broadcast. −inf at an end: no mass."""
        known = (start > -torch.inf) & (stop > -torch.inf)
        start, stop = torch.where(known, start, 0), torch.where(known, stop, 0)
        falls = start >= stop
        high, low = torch.where(falls, start, stop), torch.where(falls, stop, start)
        epsilon = alpha - 1
        defined = 1 + epsilon * high > 0
        live, infinite = known & defined & (length > 0), known & ~defined & (epsilon < 0)
        high = torch.where(live, high, 0)
        low = torch.where(live, low, 0)
        cut = 1 + epsilon * low <= 0
        above = (1 + epsilon * high) / torch.where(cut, epsilon * (high - low), 1)
        ratio = torch.where(cut, 0, (1 + epsilon * torch.where(cut, 0, low)) / (1 + epsilon * high))
        log_peak = log_exp(high, alpha)
        near = (ratio > 0.5) & (ratio < 2)
        drop = torch.where(near, log_exp(torch.where(near, low, high), alpha) - log_peak, 0)
        reach = torch.where(live, length * torch.where(cut, above, 1), torch.where(infinite, length, 0))
        return cls(alpha, log_peak, drop, ratio, reach, falls, live, infinite)

    def map(self, function: Callable[[Tensor], Tensor]) -> "Segments":
        """The same segments after a change of the shape of all fields."""
        return Segments(*(function(getattr(self, field.name)) for field in fields(self)))

    @property
    def _near(self) -> Tensor:
        """Where E(εd) is taken from d; elsewhere from the ratio, whose powers are exact however deep the drop is."""
        return (self.ratio > 0.5) & (self.ratio < 2)

    def _far_power(self, exponent: Tensor) -> Tensor:
        """e^{(exponent)·d} = ratio^{exponent/ε} where the ratio is far from one, 0 elsewhere."""
        usable = ~self._near & (self.ratio > 0)
        base = torch.where(usable, self.ratio, 1).log()
        return torch.where(usable, (exponent / self._far_epsilon * base).exp(), 0)

    @property
    def _far_epsilon(self) -> Tensor:
        return torch.where(self._near, 1, self.alpha - 1)

    def mean_power(self, c: float | Tensor) -> Float[Tensor, "..."]:
        """Mean of p^c over the live part; 0 on dead segments. Needs c + α > 1."""
        order, epsilon = c + self.alpha - 1, self.alpha - 1
        near = expm1_over(order * self.drop) / expm1_over(epsilon * self.drop)
        far_ratio = torch.where(self._near, 0, self.ratio)
        far = (1 - self._far_power(order)) / (1 - far_ratio) * (self._far_epsilon / order)
        mean = (c * self.log_peak).exp() * torch.where(self._near, near, far)
        return torch.where(self.live, mean, torch.where(self.infinite, torch.inf, 0))

    @property
    def mass(self) -> Float[Tensor, "..."]:
        """∫p over the segment."""
        return self.length * self.mean_power(1.0)

    def descend(self, share: Float[Tensor, "..."], order: Float[Tensor, "..."]) -> tuple[Tensor, Tensor]:
        """How far down the live part p^order has covered a share of its way from the higher to the lower end.

        For order α this is where a share of the mass has been passed.

        Returns:
            The fraction of the live part, and ln(p/p_t) there.
        """
        epsilon = self.alpha - 1
        fall = share * torch.where(self._near, torch.expm1(order * self.drop), self._far_power(order) - 1)
        short = fall > -1
        log_ratio = torch.where(short, torch.log1p(torch.where(short, fall, 0)) / order, -torch.inf)
        near_log = torch.where(self._near & short, log_ratio, 0)
        portion = share * expm1_over(order * self.drop) * log1p_over(torch.where(self._near, fall, 0))
        near = portion * expm1_over(epsilon * near_log) / expm1_over(epsilon * self.drop)
        bottom = torch.where(self._near | ~short, 0, log_ratio)
        reached = torch.where(short, (self._far_epsilon * bottom).exp(), 0)
        far = (1 - reached) / (1 - torch.where(self._near, 0, self.ratio))
        return torch.where(self._near, near, far), log_ratio

    def position(self, depth: Float[Tensor, "..."], start: Tensor, stop: Tensor) -> Float[Tensor, "..."]:
        """The point at this fraction of the live part, for a segment of the line between start and stop."""
        return torch.where(self.falls, start + depth * self.length, stop - depth * self.length)
