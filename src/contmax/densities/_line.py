"""Symmetric densities on the line, defined by the law of (t−μ)/unit and the index α."""

import math
from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any, ClassVar, Self, cast

import torch
from torch import Tensor
from torch.distributions import constraints
from torch.types import _size

from contmax._typing import Float
from contmax.deformed import log_beta
from contmax.densities._density import Density, unchecked
from contmax.densities._line_rule import Landmarks, line_expectation, stepped
from contmax.densities._profile import extent
from contmax.densities._region import Intervals
from contmax.densities._validation import (
    Number,
    as_parameters,
    broadcast_batch,
    expanded,
    require_finite,
    require_positive,
)
from contmax.numerics import implicit_root, monotone_root

# Doublings of the upper end of a quantile's bracket: enough for tails as heavy as those of a Cauchy density.
_DOUBLINGS = 64
# The tail probability of a Gaussian at one standard deviation.
_ONE_DEVIATION = 0.15865525393145705


class LineLaw(ABC):
    """The law of a standard variable on the line, symmetric about 0.

    By symmetry everything follows from the tail P(T < −d) ∈ [0, ½] for d ≥ 0, which keeps small probabilities accurate.
    A law must define :meth:`tail`; closed forms of the other methods make it faster.
    """

    reach: float | Tensor = math.inf
    """Half the length of the support; ∞ if it is the whole line."""

    @property
    def is_unbounded(self) -> bool:
        """Whether the support is known to be the whole line without reading the values of tensors."""
        return not isinstance(self.reach, Tensor) and self.reach == math.inf

    @abstractmethod
    def tail(self, depth: Float[Tensor, "..."]) -> Float[Tensor, "..."]:
        """P(T < −d) for d ≥ 0; differentiable by torch."""

    def log_density(self, depth: Float[Tensor, "..."]) -> Float[Tensor, "..."]:
        """ln p at distance d ≥ 0, −inf with zero gradient beyond the reach; by default from the tail."""
        inside = depth < self.reach
        density: Tensor = torch.func.grad(lambda d: -self.tail(d).sum())(torch.where(inside, depth, 0.0))
        alive = inside & (density > 0)
        return torch.where(alive, torch.where(alive, density, 1.0).log(), -math.inf)

    def depth(self, tail: Float[Tensor, "..."]) -> Float[Tensor, "..."]:
        """The distance d at which the tail has a given value in (0, ½]; by default found by a search."""
        target = tail.detach()
        high = torch.ones_like(target) if self.is_unbounded else torch.ones_like(target) * self.reach
        with torch.no_grad():
            for _ in range(_DOUBLINGS if self.is_unbounded else 0):
                high = torch.where(self.tail(high) > target, 2 * high, high)

        def residual(depth: Tensor) -> tuple[Tensor, Tensor]:
            return tail - self.tail(depth), self.log_density(depth).exp()

        return implicit_root(monotone_root(residual, torch.zeros_like(target), high, tolerance=1e-10), residual)


class LineDensity(Density):
    r"""A density on the line, symmetric about ``loc``: p(t) = p₀((t−μ)/u)/u with p₀ the density of a law.

    To define your own family, give a law, an index α and, where needed, a score. Everything else (draws, quantiles,
    moments, entropies, expectations of a basis, Fenchel–Young losses, Kullback–Leibler divergences) follows, by
    quadrature where there is no closed form.

    Args:
        loc: location μ, shape broadcastable to ``(*batch)``.
        scale: scale > 0, shape broadcastable to ``(*batch)``; the unit u of the law unless :meth:`unit` says otherwise.
        validate_args: check values; by default on eager CPU tensors only.

    Raises:
        ValueError: if a value is NaN, ``scale`` is not positive, or shapes do not broadcast.

    Example:
        >>> import math, torch
        >>> from contmax.densities import LineDensity, LineLaw
        >>> class RaisedCosineLaw(LineLaw):
        ...     reach = 1.0
        ...     def tail(self, depth):
        ...         inner = depth.clamp(max=1.0)
        ...         return 0.5 * (1 - inner) - torch.sin(math.pi * inner) / (2 * math.pi)
        >>> class RaisedCosine(LineDensity):
        ...     alpha = 2.0
        ...     def law(self):
        ...         return RaisedCosineLaw()
        >>> p = RaisedCosine(0.0, 2.0)
        >>> p.density(torch.tensor([0.0, 1.0, 3.0])), p.half_width, p.variance
        (tensor([0.5000, 0.2500, 0.0000]), tensor(2.), tensor(0.5228))
    """

    arg_constraints: ClassVar[dict[str, constraints.Constraint]] = {
        "loc": constraints.real,
        "scale": constraints.positive,
    }
    _batched: ClassVar[dict[str, int]] = {"loc": 0, "scale": 0}

    #: Number of points at which law or score may have a kink: 1 (the centre) or 0.
    _kinks: ClassVar[int] = 1

    scale: Tensor

    def __init__(self, loc: Number, scale: Number, *, validate_args: bool | None = None) -> None:
        loc, scale = as_parameters(loc=loc, scale=scale)
        require_finite("loc", loc, validate_args)
        require_positive("scale", scale, "Pass softplus(x) or a standard deviation.", validate_args)
        batch = broadcast_batch(loc=loc.shape, scale=scale.shape)
        self.loc, self.scale = expanded(loc, batch), expanded(scale, batch)
        Density.__init__(self, batch)

    @classmethod
    def _middle_and_half_width(cls, low: Number, high: Number, validate_args: bool | None) -> tuple[Tensor, Tensor]:
        """The middle of an interval, in the dtype of its ends, and half its length in the working dtype."""
        low, high = as_parameters(low=low, high=high)
        half_width = 0.5 * (cls._wide(high) - cls._wide(low))
        require_positive("high - low", half_width, "Pass low < high.", validate_args)
        return (cls._wide(low) + half_width).to(low.dtype), half_width

    @abstractmethod
    def law(self) -> LineLaw:
        """The law of (t−μ)/unit."""

    def unit(self) -> Float[Tensor, "*batch"]:
        """The unit of the law, at least in float32: ``scale`` itself unless a family defines another."""
        return self._wide(self.scale)

    def _half_width(self) -> Tensor:
        """Half the length of the support, +∞ if it is unbounded, in the working dtype."""
        return extent(self.unit(), self.law().reach)

    def _log_density(self, points: Tensor) -> Tensor:
        return self.law().log_density(self._side_and_depth(points)[1]) - self.unit().log()

    def _side_and_depth(self, points: Tensor) -> tuple[Tensor, Tensor]:
        """Whether points lie below μ, and their distances from μ in units of the law."""
        offset = offset_in(self.unit(), points - self._wide(self.loc))
        below = offset < 0
        # Avoid abs, whose derivative at 0 is 0: the derivative of the cdf would vanish at μ, where the cdf is steepest.
        return below, torch.where(below, -offset, offset)

    @property
    def mean(self) -> Float[Tensor, "*batch"]:
        """μ, the mode too."""
        return self.loc

    mode = mean

    @property
    def variance(self) -> Float[Tensor, "*batch"]:
        """E_p[(t−μ)²], by quadrature."""
        return self._round(self._expectation(lambda offset, _: offset.square()))

    def entropy(self) -> Float[Tensor, "*batch"]:
        """Shannon entropy in nats, by quadrature."""
        return self._round(self._expectation(lambda _, log_p: -log_p))

    def tsallis_negentropy(self) -> Float[Tensor, "*batch"]:
        """Ω_α(p) = E_p[log_{2−α} p]/α for the density's α, by quadrature."""
        alpha = self._index()
        return self._round(self._expectation(lambda _, log_p: log_beta(log_p.exp(), 2 - alpha)) / alpha)

    @property
    def normalizer(self) -> Float[Tensor, "*batch"]:
        """A with p = exp_{2−α}(f − A), from score and density at the centre."""
        peak, log_density = self._peak()
        return self._round(peak - log_beta(log_density.exp(), 2 - self._index()))

    def _peak(self) -> tuple[Tensor, Tensor]:
        """Score and logarithm of the density at the centre, in float64."""
        wide = self._in_float64()
        return wide.score(wide.loc), wide.log_prob(wide.loc)

    @property
    def threshold(self) -> Float[Tensor, "*batch"]:
        """λ = f − p^{α−1}/(α−1), from the centre: for α > 1 the support is where f > λ; −∞ at α = 1."""
        gap = self._index() - 1
        gaussian, (peak, log_density) = gap == 0, self._peak()
        threshold = peak - (gap * log_density).exp() / torch.where(gaussian, 1.0, gap)
        return self._round(torch.where(gaussian, -math.inf, threshold))

    def conjugate(self) -> Float[Tensor, "*batch"]:
        """Ω_α*(f) of the score, (α−1)Ω_α(p) + A."""
        wide = self._in_float64()
        return self._round((self._index() - 1) * wide.tsallis_negentropy() + wide.normalizer)

    def _in_float64(self) -> Self:
        return cast(Self, unchecked(self, torch.float64))

    def _index(self) -> Tensor:
        """α in float64."""
        alpha: Any = self.alpha
        return alpha.double() if isinstance(alpha, Tensor) else torch.full_like(self.loc, alpha, dtype=torch.float64)

    def _expectation(self, function: Callable[[Tensor, Tensor], Tensor]) -> Tensor:
        """E_p of a function of t − μ and ln p(t), in float64; computed for μ = 0, because t − μ would lose digits."""
        centred = self._in_float64()
        centred.loc = torch.zeros_like(centred.loc)
        return line_expectation(centred, function)

    def landmarks(self) -> Landmarks:
        """The centre and the ends of the support; if the support may be unbounded, also steps from the centre."""
        loc, half = self.loc.double(), self._half_width().double()
        low, high = loc - half, loc + half
        # If α is a tensor, the support counts as unbounded, because some entries of α may be ≤ 1.
        if not isinstance(self.alpha, Tensor) and not self.law().is_unbounded:
            cuts = torch.stack([low, loc, high])
            return Landmarks(low, high, loc, half.detach(), loc[None][: self._kinks], cuts, bounded=True)
        with torch.no_grad():
            deviation = self.law().depth(torch.full_like(self.unit(), _ONE_DEVIATION)) * self.unit()
        ends = [torch.where(torch.isfinite(end), end, loc) for end in (low, high)]
        return stepped(low, high, loc, deviation.double(), [loc][: self._kinks], ends)

    def _region(self) -> Intervals:
        loc, half = self._wide(self.loc).double().unsqueeze(-1), self._half_width().double().unsqueeze(-1)
        return Intervals(loc - half, loc + half)

    @property
    def half_width(self) -> Float[Tensor, "*batch"]:
        """a, the only semi-axis: the support is μ ± a; +∞ if it is the whole line."""
        return self._round(self._half_width())

    semi_axes = half_width

    @property
    def radius(self) -> Float[Tensor, "*batch"]:
        """R = half-width / scale."""
        return self._round(extent(self.unit() / self._wide(self.scale), self.law().reach))

    @constraints.dependent_property(is_discrete=False, event_dim=0)
    def support(self) -> constraints.Constraint:
        """The interval μ ± a, or the real line."""
        if self.law().is_unbounded:
            return constraints.real
        loc, half_width = self._wide(self.loc), self._half_width()
        return constraints.interval(loc - half_width, loc + half_width)

    def _cdf(self, points: Tensor) -> Tensor:
        below, depth = self._side_and_depth(points)
        tail = self.law().tail(depth)
        return torch.where(below, tail, 1 - tail)

    def _icdf(self, share: Tensor) -> Tensor:
        below = share <= 0.5
        edge = (share <= 0) | (share >= 1)
        tail = torch.where(edge, 0.25, torch.where(below, share, 1 - share))
        depth = torch.where(edge, self._half_width(), self.law().depth(tail) * self.unit())
        return self._wide(self.loc) + torch.where(below, -depth, depth)

    def rsample(self, sample_shape: _size = torch.Size()) -> Tensor:  # noqa: B008
        """Exact draws with gradients to all parameters; shape ``(*sample_shape, *batch)``."""
        loc, unit = self._wide(self.loc), self.unit()
        draws = loc + unit * self._standard_draws(torch.Size(sample_shape) + self.batch_shape, unit)
        with torch.no_grad():
            # Move draws that round onto or across an end of the support, where the density is zero, back inside.
            distance = (self._wide(self._round(draws)) - loc).abs()
            across = distance >= self._half_width() * (1 - 8 * torch.finfo(loc.dtype).eps)
            step = torch.minimum(0.75 * torch.finfo(self.dtype).eps * draws.abs(), (draws - loc).abs())
            step = torch.where(across, torch.where(draws > loc, -step, step), 0.0)
        return self._round(draws + step)

    def _standard_draws(self, shape: torch.Size, like: Tensor) -> Tensor:
        """Draws from the law, by inverting the distribution function; all lie strictly inside the support."""
        q = torch.rand(shape, dtype=like.dtype, device=like.device)
        below = q < 0.5
        depth = self.law().depth(torch.where(below, 0.5 - q, 1 - q)) * (1 - 8 * torch.finfo(like.dtype).eps)
        return torch.where(below, -depth, depth)


def offset_in(unit: Tensor, distance: Tensor) -> Tensor:
    """distance/unit, without a gradient at points so far out that the derivative in the unit overflows."""
    value = (distance / unit).detach()
    far = torch.isinf(value / unit.detach())
    return torch.where(far, value, torch.where(far, 0.0, distance) / torch.where(far, 1.0, unit))
