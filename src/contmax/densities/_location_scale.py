r"""Densities of index two on the line: the triangular one, and location–scale families of any convex function g.

The standard density :math:`[g'(a) - g'(|x|)]_+` integrates to one iff :math:`a\,g'(a) - g(a) + g(0) = \tfrac12`,
which defines its half-width a.
"""

import math
from collections.abc import Callable
from typing import Self, cast

import torch
from torch import Tensor

from contmax._eager import in_dtype
from contmax._typing import Float
from contmax.densities._line import LineDensity, LineLaw
from contmax.densities._validation import (
    Number,
    Samples,
    as_parameters,
    as_samples,
    checks_values,
    require_positive,
    require_spread,
)
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


class _TriangularLaw(LineLaw):
    """The law with density (1 − d)₊ at distance d in units of the half-width."""

    reach = 1.0

    def log_density(self, depth: Tensor) -> Tensor:
        outside = depth >= 1
        return torch.where(outside, -math.inf, torch.log1p(-torch.where(outside, 0.0, depth)))

    def tail(self, depth: Tensor) -> Tensor:
        return 0.5 * (1 - depth).clamp(min=0).square()

    def depth(self, tail: Tensor) -> Tensor:
        return 1 - (2 * tail).sqrt()


class Triangular(LineDensity):
    r"""Triangular density; its half-width is √b, not ``scale``: see :meth:`from_support`, :meth:`from_moments`.

    .. math:: p(t) = \Big[-\lambda - \frac{|t-\mu|}{b}\Big]_+, \qquad \lambda = -\frac1{\sqrt b}, \qquad a = \sqrt b

    the maximiser of :math:`E_p[f] - \Omega_2(p)` for the score :math:`f(t) = -|t-\mu|/b` of the Laplace density.

    Args:
        loc: location μ, shape broadcastable to ``(*batch)``.
        scale: shape parameter b > 0, shape broadcastable to ``(*batch)``.
        validate_args: check values; by default on eager CPU tensors only.

    Raises:
        ValueError: if a value is NaN, ``scale`` is not positive, or shapes do not broadcast.

    Example:
        >>> Triangular(0.0, 4.0).density(torch.tensor([0.0, 1.0, 3.0]))
        tensor([0.5000, 0.2500, 0.0000])

    References:
        Martins et al. 2020, Eq. (triangular).
    """

    alpha = 2.0

    def law(self) -> LineLaw:
        """The law of (t−μ)/√b."""
        return _TriangularLaw()

    def unit(self) -> Tensor:
        """The half-width √b."""
        return self._wide(self.scale).sqrt()

    def _score(self, points: Tensor) -> Tensor:
        return -(points - self._wide(self.loc)).abs() / self._wide(self.scale)

    @property
    def variance(self) -> Float[Tensor, "*batch"]:
        """b/6."""
        return self._round(self._wide(self.scale) / 6)

    def entropy(self) -> Float[Tensor, "*batch"]:
        """Shannon entropy in nats, ½ + ½ ln b."""
        return self._round(0.5 + 0.5 * self._wide(self.scale).log())

    def tsallis_negentropy(self) -> Float[Tensor, "*batch"]:
        """Ω₂(p) = −½ + 1/(3√b)."""
        return self._round(1 / (3 * self._half_width()) - 0.5)

    def conjugate(self) -> Float[Tensor, "*batch"]:
        """Ω₂* of the score −|t−μ|/b, ½ − 2/(3√b)."""
        return self._round(0.5 - 2 / (3 * self._half_width()))

    @property
    def canonical(self) -> tuple[Float[Tensor, "*batch"], Float[Tensor, "*batch"]]:
        """(μ, θ) with θ = −1/b, the coefficient of |t−μ| in the score for a fixed μ."""
        return self.loc, self._round(-1 / self._wide(self.scale))

    @classmethod
    def from_canonical(cls, loc: Number, slope: Number, *, validate_args: bool | None = None) -> Self:
        """The density of the score θ·|t−μ|.

        Args:
            loc: μ.
            slope: θ < 0.
            validate_args: as for the class.

        Example:
            >>> Triangular.from_canonical(0.0, -0.25).scale
            tensor(4.)
        """
        loc, slope = as_parameters(loc=loc, slope=slope)
        require_positive("-slope", -slope, "Pass theta = -1/b < 0.", validate_args)
        return cls(loc, -1 / slope, validate_args=validate_args)

    @classmethod
    def from_moments(cls, mean: Number, variance: Number, *, validate_args: bool | None = None) -> Self:
        """The member with this mean and variance: b = 6·variance.

        Args:
            mean: mean, shape broadcastable to ``(*batch)``.
            variance: variance > 0, shape broadcastable to ``(*batch)``.
            validate_args: as for the class.

        Example:
            >>> Triangular.from_moments(0.0, 1.5).half_width
            tensor(3.)
        """
        mean, variance = as_parameters(mean=mean, variance=variance)
        return cls(mean, 6 * variance, validate_args=validate_args)

    @classmethod
    def from_support(cls, low: Number, high: Number, *, validate_args: bool | None = None) -> Self:
        """The member whose support is the interval [low, high].

        Args:
            low: lower end, shape broadcastable to ``(*batch)``.
            high: upper end, greater than ``low``.
            validate_args: as for the class.

        Raises:
            ValueError: if ``high`` is not above ``low``.

        Example:
            >>> Triangular.from_support(-1.0, 3.0).scale
            tensor(4.)
        """
        middle, half_width = cls._middle_and_half_width(low, high, validate_args)
        return cls(middle, in_dtype(half_width.square(), middle.dtype), validate_args=validate_args)

    @classmethod
    def fit(cls, samples: Samples) -> Self:
        r"""The minimiser of the Fenchel–Young loss: the median, and b = 9·(mean absolute deviation from it)².

        Samples may lie outside of its support, where their density is 0.

        Args:
            samples: observations along the first dimension, ``(n, *batch)``: a tensor, an array of numpy, or numbers.

        Returns:
            The density, with batch shape ``(*batch)``.

        Raises:
            ValueError: if the samples are all equal, or not finite.

        Example:
            >>> Triangular.fit(torch.tensor([-3.0, 0.0, 3.0])).scale
            tensor(36.)

        References:
            Martins et al. 2020, App. on Fenchel–Young losses: the derivative of
            :math:`\tfrac12 - 2/(3\sqrt b) + E|t-\mu|/b`.
        """
        samples = as_samples(samples)
        require_spread(samples)
        wide = cls._wide(samples)
        median = wide.median(dim=0).values
        deviation = (wide - median).abs().mean(0)
        return cls(median.to(samples.dtype), (9 * deviation.square()).to(samples.dtype))


class NamedGenerator:
    """A built-in convex function g, its derivative g', and the half-width a of its standard density, a constant."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.value, self.slope, self._reach = _NAMED[name]

    def reach(self, device: torch.device) -> Tensor:
        """a, a float64 scalar."""
        return torch.full((), self._reach, dtype=torch.float64, device=device)

    def __reduce__(self) -> tuple[type["NamedGenerator"], tuple[str]]:
        # Pickle the name of g only: pickle finds functions by name, and the lambdas in _NAMED have none.
        return NamedGenerator, (self.name,)


class CallableGenerator:
    """A user's g: a function of tensors, element by element, that torch can differentiate twice."""

    def __init__(self, function: Function, device: torch.device, validate: bool) -> None:
        self.value = function
        self.name = getattr(function, "__name__", type(function).__name__)
        # `high` is the first power of two ≥ a; g is evaluated at all powers at once, and may overflow beyond `high`.
        powers = 2.0 ** torch.arange(_FIRST_POWER, _LAST_POWER, dtype=torch.float64, device=device)
        with torch.no_grad():
            short = (self._residual(powers)[0] < 0).to(torch.int64).cumprod(0).sum()
            high = powers[0] * 2.0 ** short.double()
            self._root = monotone_root(self._residual, 0.5 * high, high, tolerance=1e-12)
        if validate:
            self._check()

    def slope(self, x: Tensor) -> Tensor:
        """g'(x)."""
        return cast(Tensor, torch.func.grad(lambda t: self.value(t).sum())(x))

    def reach(self, device: torch.device) -> Tensor:
        """a, a float64 scalar, differentiable in the parameters of g."""
        return implicit_root(self._root.to(device), self._residual)

    def _residual(self, a: Tensor) -> tuple[Tensor, Tensor]:
        """a g'(a) − g(a) + g(0) − ½, and its derivative a g''(a)."""
        bend = torch.func.grad(lambda t: self.slope(t).sum())(a)
        return a * self.slope(a) - self.value(a) + self.value(torch.zeros_like(a)) - 0.5, a * bend

    def _check(self) -> None:
        """Refuse a g that has no half-width a, or that is not convex on [0, a]."""
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


class _GeneratedLaw(LineLaw):
    """The law of (t−μ)/σ, with density g'(a) − g'(d) and tail g'(a)(a−d) − g(a) + g(d) at distances 0 ≤ d ≤ a."""

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

    def __init__(self, loc: Number, scale: Number, g: str | Function, *, validate_args: bool | None = None) -> None:
        super().__init__(loc, scale, validate_args=validate_args)
        if not isinstance(g, str) and not callable(g):
            raise TypeError(f"g must be a name or a callable; got {type(g).__name__}.")
        if isinstance(g, str) and g not in _NAMED:
            raise ValueError(f"g must be one of {', '.join(_NAMED)} or a callable; got {g!r}.")
        checked = checks_values(validate_args, self.loc, self.scale)
        self._g = NamedGenerator(g) if isinstance(g, str) else CallableGenerator(g, self.loc.device, checked)

    def law(self) -> LineLaw:
        """The law of (t−μ)/σ."""
        return _GeneratedLaw(self._g, self.loc.device)

    def _score(self, points: Tensor) -> Tensor:
        scale = self.unit()
        return -self._g.slope((points - self._wide(self.loc)).abs() / scale) / scale

    @classmethod
    def from_moments(
        cls, mean: Number, variance: Number, g: str | Function, *, validate_args: bool | None = None
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
        standard = cls(variance.new_zeros(()), variance.new_ones(()), g, validate_args=validate_args)
        return cls(mean, (variance / standard.variance).sqrt(), g, validate_args=validate_args)

    @classmethod
    def from_support(cls, low: Number, high: Number, g: str | Function, *, validate_args: bool | None = None) -> Self:
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
        middle, half_width = cls._middle_and_half_width(low, high, validate_args)
        standard = cls(middle.new_zeros(()), middle.new_ones(()), g, validate_args=validate_args)
        scale = in_dtype(half_width / standard._half_width(), middle.dtype)
        return cls(middle, scale, g, validate_args=validate_args)

    def _extra_repr(self) -> list[str]:
        return [f"g: {self._g.name}"]
