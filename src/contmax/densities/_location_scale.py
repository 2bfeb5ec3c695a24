"""Location–scale families of index two: the Ω₂-map of a score given by any convex function."""

import math
from collections.abc import Callable
from typing import Self

import torch
from torch import Tensor

from contmax._typing import Float
from contmax.densities._generator import Generator, as_generator
from contmax.densities._line import LineDensity, LineLaw
from contmax.densities._validation import as_parameters, checks_values, require_positive
from contmax.numerics import graded_rule, implicit_root, monotone_root

_NODES = 64


class _GeneratedLaw(LineLaw):
    """In units of σ: density g'(a) − g'(d), tail g'(a)(a−d) − g(a) + g(d)."""

    reach: Tensor

    def __init__(self, generator: Generator, device: torch.device) -> None:
        self._g = generator
        self.reach = generator.reach(device)

    def log_density(self, depth: Tensor) -> Tensor:
        a = self.reach.to(depth.dtype)
        outside = depth >= a
        height = self._g.slope(a) - self._g.slope(torch.where(outside, 0.0, depth))
        outside = outside | (height <= 0)
        return torch.where(outside, -math.inf, torch.log(torch.where(outside, 1.0, height)))

    def tail(self, depth: Tensor) -> Tensor:
        a = self.reach.to(depth.dtype)
        inner = torch.minimum(depth, a)
        return (self._g.slope(a) * (a - inner) - (self._g.value(a) - self._g.value(inner))).clamp(0, 0.5)

    def depth(self, tail: Tensor) -> Tensor:
        a = self.reach.to(tail.dtype)
        top, end = self._g.slope(a), self._g.value(a)

        def residual(depth: Tensor) -> tuple[Tensor, Tensor]:
            value = top * (a - depth) - (end - self._g.value(depth))
            slope = top - self._g.slope(depth)
            return tail - value, torch.where(slope > 0, slope, math.inf)

        start = monotone_root(residual, torch.zeros_like(tail), a.detach().expand(tail.shape), tolerance=1e-10)
        return implicit_root(start, residual)


class LocationScale(LineDensity):
    r"""Location–scale density of a convex g; its half-width is aσ, where a depends on g alone.

    .. math:: p(t) = \Big[-\lambda - \frac1\sigma g'\Big(\frac{|t-\mu|}\sigma\Big)\Big]_+, \qquad
              \lambda = -\frac{g'(a)}\sigma, \qquad a\,g'(a) - g(a) + g(0) = \tfrac12

    the maximiser of :math:`E_p[f] - \Omega_2(p)` for the score :math:`f(t) = -g'(|t-\mu|/\sigma)/\sigma`. The truncated
    parabola is ``"cube"`` with σ = σ_TP^{2/3}, the triangular density ``"square"`` with σ = √b.

    Args:
        loc: location μ, shape broadcastable to ``(*batch)``.
        scale: scale σ > 0, shape broadcastable to ``(*batch)``.
        g: ``"cube"`` t³/6, ``"square"`` t²/2, ``"cosh"``, ``"quartic"`` t⁴/12 + t², ``"exp"``, or a convex function of
            tensors, element by element on [0, ∞), which torch can differentiate twice. Parameters of the function
            receive gradients, also through a.
        validate_args: check values; by default on eager CPU tensors only.

    Raises:
        ValueError: if a value is NaN, ``scale`` is not positive, shapes do not broadcast, or ``g`` is not convex or
            grows too slowly for a to exist.

    Example:
        >>> LocationScale(0.0, 2.0, "square").half_width
        tensor(2.)
        >>> round(LocationScale(0.0, 1.0, lambda t: t**3 / 6).half_width.item(), 4)
        1.1447

    References:
        Martins et al. 2020, Sec. 2.4, location–scale families.
    """

    alpha = 2.0

    def __init__(
        self,
        loc: float | Tensor,
        scale: float | Tensor,
        g: str | Callable[[Tensor], Tensor],
        *,
        validate_args: bool | None = None,
    ) -> None:
        super().__init__(loc, scale, validate_args=validate_args)
        self._g = as_generator(g, self.loc.device, checks_values(validate_args, self.loc, self.scale))

    def law(self) -> LineLaw:
        """The law of (t−μ)/σ."""
        return _GeneratedLaw(self._g, self.loc.device)

    def _reach(self) -> Tensor:
        """a, in the working dtype."""
        return self._g.reach(self.loc.device).to(self.unit().dtype)

    def _half_width(self) -> Tensor:
        return self._reach() * self.unit()

    def _score(self, points: Tensor) -> Tensor:
        scale = self.unit()
        return -self._g.slope((points - self._wide(self.loc)).abs() / scale) / scale

    @property
    def threshold(self) -> Float[Tensor, "*batch"]:
        """λ = −g'(a)/σ, with p = [f − λ]₊."""
        return self._round(-self._g.slope(self._reach()) / self.unit())

    @property
    def normalizer(self) -> Float[Tensor, "*batch"]:
        """A₂ = λ + 1."""
        return self._round(1 - self._g.slope(self._reach()) / self.unit())

    @property
    def variance(self) -> Float[Tensor, "*batch"]:
        """σ² times a constant of g, found by quadrature."""
        return self._round(self.unit().square() * self._integral(lambda x, p: x.square() * p))

    def entropy(self) -> Float[Tensor, "*batch"]:
        """Shannon entropy in nats: ln σ plus a constant of g, found by quadrature."""
        return self._round(self.unit().log() - self._integral(lambda _, p: torch.xlogy(p, p)))

    def tsallis_negentropy(self) -> Float[Tensor, "*batch"]:
        """Ω₂(p) = ½(∫p² − 1), by quadrature."""
        return self._round(0.5 * (self._integral(lambda _, p: p.square()) / self.unit() - 1))

    def conjugate(self) -> Float[Tensor, "*batch"]:
        """Ω₂* of the score, Ω₂(p) + A₂."""
        energy = self._integral(lambda _, p: p.square())
        return self._round(0.5 + (0.5 * energy - self._g.slope(self._reach())) / self.unit())

    def _integral(self, function: Callable[[Tensor, Tensor], Tensor]) -> Tensor:
        """∫ of a function of x and of the standard density over the line, in the working dtype."""
        a = self._g.reach(self.loc.device)
        nodes, weights = graded_rule(_NODES, self.loc.device)
        x = a * nodes
        height = (self._g.slope(a) - self._g.slope(x)).clamp(min=0)
        return (2 * a * (weights * function(x, height)).sum()).to(self.unit().dtype)

    @classmethod
    def from_moments(
        cls,
        mean: float | Tensor,
        variance: float | Tensor,
        g: str | Callable[[Tensor], Tensor],
        *,
        validate_args: bool | None = None,
    ) -> Self:
        """The member with this mean and variance.

        Args:
            mean: mean, shape broadcastable to ``(*batch)``.
            variance: variance > 0, shape broadcastable to ``(*batch)``.
            g: as for the class.
            validate_args: as for the class.

        Example:
            >>> LocationScale.from_moments(0.0, 1.5, "square").half_width
            tensor(3.)
        """
        mean, variance = as_parameters(mean=mean, variance=variance)
        if checks_values(validate_args, variance):
            require_positive("variance", variance, "Pass the square of a standard deviation.")
        unit = cls(torch.zeros_like(variance), torch.ones_like(variance), g, validate_args=validate_args)
        return cls(mean, (variance / unit.variance).sqrt(), g, validate_args=validate_args)

    @classmethod
    def from_support(
        cls,
        low: float | Tensor,
        high: float | Tensor,
        g: str | Callable[[Tensor], Tensor],
        *,
        validate_args: bool | None = None,
    ) -> Self:
        """The member whose support is the interval [low, high].

        Args:
            low: lower end, shape broadcastable to ``(*batch)``.
            high: upper end, greater than ``low``.
            g: as for the class.
            validate_args: as for the class.

        Example:
            >>> LocationScale.from_support(-1.0, 3.0, "square").scale
            tensor(2.)
        """
        low, high = as_parameters(low=low, high=high)
        half_width = 0.5 * (high - low)
        if checks_values(validate_args, low, high):
            require_positive("high - low", half_width, "Pass low < high.")
        unit = cls(torch.zeros_like(half_width), torch.ones_like(half_width), g, validate_args=validate_args)
        return cls(low + half_width, half_width / unit.half_width, g, validate_args=validate_args)

    def _extra_repr(self) -> list[str]:
        return [f"g: {self._g.name}"]
