r"""Location–scale families of index two: the Ω₂-map of a score given by any convex function g.

The density :math:`[g'(a) - g'(|x|)]_+` integrates to one iff :math:`a\,g'(a) - g(a) + g(0) = \tfrac12`, which defines
the half-width a of the standard member.
"""

import math
from collections.abc import Callable
from typing import Self

import torch
from torch import Tensor

from contmax._typing import Float
from contmax.densities._line import LineDensity, LineLaw
from contmax.densities._validation import as_parameters, checks_values, require_positive
from contmax.numerics import implicit_root, monotone_root

Function = Callable[[Tensor], Tensor]
_FIRST_POWER, _LAST_POWER = -64, 64


#: g, g' and a of the built-in families.
_NAMED: dict[str, tuple[Function, Function, float]] = {
    "cube": (lambda x: x**3 / 6, lambda x: x**2 / 2, 1.5 ** (1 / 3)),
    "square": (lambda x: x**2 / 2, lambda x: x, 1.0),
    "cosh": (torch.cosh, torch.sinh, 0.90710329357628993426),
    "quartic": (lambda x: x**4 / 12 + x**2, lambda x: x**3 / 3 + 2 * x, math.sqrt(math.sqrt(6) - 2)),
    "exp": (torch.exp, torch.exp, 0.76803904701346556526),
}


class NamedGenerator:
    """One of the built-in g with its derivative; its a is a constant."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.value, self.slope, self._reach = _NAMED[name]

    def reach(self, device: torch.device) -> Tensor:
        """a, a float64 scalar."""
        return torch.full((), self._reach, dtype=torch.float64, device=device)

    def __reduce__(self) -> tuple[type["NamedGenerator"], tuple[str]]:
        # The functions of the table have no name by which pickle could find them.
        return NamedGenerator, (self.name,)


class CallableGenerator:
    """A user's g: a function of tensors, element by element, that torch can differentiate twice.

    Args:
        function: g.
        device: where to evaluate it.
        validate: refuse a g for which no a exists, or that is not convex up to it.
    """

    def __init__(self, function: Function, device: torch.device, validate: bool) -> None:
        self.value = function
        self.name = getattr(function, "__name__", type(function).__name__)
        with torch.no_grad():
            self._root = self._search(device)
        if validate:
            self._check()

    def slope(self, x: Tensor) -> Tensor:
        """g'(x)."""
        slope: Tensor = torch.func.grad(lambda t: self.value(t).sum())(x)
        return slope

    def reach(self, device: torch.device) -> Tensor:
        """a, a float64 scalar, differentiable in whatever g depends on."""
        return implicit_root(self._root.to(device), self._residual)

    def _residual(self, a: Tensor) -> tuple[Tensor, Tensor]:
        """a g'(a) − g(a) + g(0) − ½, and its derivative a g''(a)."""
        bend = torch.func.grad(lambda t: self.slope(t).sum())(a)
        return a * self.slope(a) - self.value(a) + self.value(torch.zeros_like(a)) - 0.5, a * bend

    def _search(self, device: torch.device) -> Tensor:
        # All powers of two at once: values beyond the first that is too large, even infinite ones, are not used.
        powers = 2.0 ** torch.arange(_FIRST_POWER, _LAST_POWER, dtype=torch.float64, device=device)
        value = self._residual(powers)[0]
        short = (value < 0).to(torch.int64).cumprod(0).sum()
        high = powers[0] * 2.0 ** short.double()
        return monotone_root(self._residual, 0.5 * high, high, tolerance=1e-12)

    def _check(self) -> None:
        a = self._root
        gap = self._residual(a)[0].abs()
        if not bool(gap < 1e-6):
            raise ValueError(
                f"g must make a·g'(a) − g(a) + g(0) reach 1/2; got g = {self.name}, for which it does not. "
                "Pass a convex g that grows faster than linearly, e.g. 'cosh'."
            )
        slopes = self.slope(a * torch.linspace(0, 1, 65, dtype=a.dtype, device=a.device))
        if bool((slopes.diff() < -1e-9 * slopes.abs().amax()).any()):
            raise ValueError(
                f"g must be convex; got g = {self.name}, whose derivative decreases before {float(a):.4g}."
            )


Generator = NamedGenerator | CallableGenerator


def as_generator(g: str | Function, device: torch.device, validate: bool) -> Generator:
    """A name or a callable as a generator."""
    if callable(g):
        return CallableGenerator(g, device, validate)
    if not isinstance(g, str):
        raise TypeError(f"g must be a name or a callable; got {type(g).__name__}.")
    if g not in _NAMED:
        raise ValueError(f"g must be one of {', '.join(_NAMED)} or a callable; got {g!r}.")
    return NamedGenerator(g)


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

    def _score(self, points: Tensor) -> Tensor:
        scale = self.unit()
        return -self._g.slope((points - self._wide(self.loc)).abs() / scale) / scale

    @property
    def threshold(self) -> Float[Tensor, "*batch"]:
        """λ = −g'(a)/σ, with p = [f − λ]₊."""
        return self._round(-self._g.slope(self._g.reach(self.loc.device)) / self.unit())

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
        require_positive("variance", variance, "Pass the square of a standard deviation.", validate_args)
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
        require_positive("high - low", half_width, "Pass low < high.", validate_args)
        unit = cls(torch.zeros_like(half_width), torch.ones_like(half_width), g, validate_args=validate_args)
        return cls(low + half_width, half_width / unit.half_width, g, validate_args=validate_args)

    def _extra_repr(self) -> list[str]:
        return [f"g: {self._g.name}"]
