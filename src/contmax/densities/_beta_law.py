r"""The law of a β-Gaussian: its distribution function by the cheapest exact formula for each α, and exact draws.

The unit of a law on the line is √ρ·σ, or the half-width for α = ∞. Here ε = α − 1, k = 1/ε and ρ = e^{εC} with C the
log-density at the mode (``_profile``). Draws do not invert the distribution function. With LLᵀ = Σ, R² = 2ρ/|ε|, z
standard normal in N dimensions and g a gamma variable,

.. math:: t = \mu + \frac{R\,Lz}{\sqrt{\|z\|^2 + 2g}}, \quad g \sim \Gamma(k+1) \quad (\alpha > 1); \qquad
          t = \mu + \frac{R\,Lz}{\sqrt{2g}}, \quad g \sim \Gamma(-k-\tfrac N2) \quad (\alpha < 1)

and t = μ + Lz at α = 1. In all three cases t = μ + √ρLz/√(m + max(ε, 0)‖z‖²/2) with m = |ε|g → 1 as ε → 0.
"""

import math

import torch
from torch import Tensor

from contmax._torch_private import standard_gamma
from contmax.densities._line import LineLaw
from contmax.densities._profile import Profile, UniformProfile
from contmax.numerics import float64_of, implicit_root, log_gamma_ratio, radial_density, radial_quantile, radial_shares

# Up to this degree n the sum of PolynomialLaw is cheaper than the integral of GeneralLaw.
_POLYNOMIAL_MAX = 16
_NEWTON_STEPS = 8
# Up to this concentration, sums of exponentials give a gamma variable five times faster than rejection does.
_ERLANG_MAX = 6.0


class NormalLaw(LineLaw):
    """The standard normal law, α = 1, in units of σ, since ρ = 1."""

    def tail(self, depth: Tensor) -> Tensor:
        # Use erfc: torch computes ndtr as (1 + erf)/2, which loses all digits in the tail, where erf rounds to −1.
        return 0.5 * torch.erfc(depth * math.sqrt(0.5))

    def depth(self, tail: Tensor) -> Tensor:
        return torch.neg(torch.special.ndtri(tail))


class PolynomialLaw(LineLaw):
    r"""The law for α = 1 + 1/n: at distance d the tail is :math:`\sum_{j>n} \binom{2n+1}{j} z^j (1-z)^{2n+1-j}`.

    Here z = (1 − d/``reach``)/2; all terms are positive, so no digits cancel. n = 0 is the uniform density, α = ∞.
    """

    reach: float

    def __init__(self, degree: int, reach: float) -> None:
        self._degree, self.reach = degree, reach

    def tail(self, depth: Tensor) -> Tensor:
        return self._value(0.5 * (1 - depth / self.reach).clamp(min=0))

    def depth(self, tail: Tensor) -> Tensor:
        n = self._degree
        if n == 0:
            return self.reach * (1 - 2 * tail)
        with torch.no_grad():
            # Newton's method in ln z for ln tail, which is concave in ln z: steps from left of the root never pass it.
            z = (tail / math.comb(2 * n + 1, n + 1)) ** (1 / (n + 1))
            for _ in range(_NEWTON_STEPS):
                value = self._value(z)
                z = (z * torch.exp(torch.log(tail / value) * value / (z * self._slope(z)))).clamp(max=0.5)
        root = implicit_root(z, lambda z: (self._value(z) - tail, self._slope(z)))
        return self.reach * (1 - 2 * root)

    def _value(self, z: Tensor) -> Tensor:
        n = self._degree
        rest = 1 - z
        total = torch.zeros_like(z)
        for i in range(n, -1, -1):
            total = total * z + math.comb(2 * n + 1, n + 1 + i) * rest ** (n - i)
        return total * z ** (n + 1)

    def _slope(self, z: Tensor) -> Tensor:
        n = self._degree
        return (2 * n + 1) * math.comb(2 * n, n) * (z * (1 - z)) ** n


class GeneralLaw(LineLaw):
    """The law for any α, a number or a tensor, from the law of the radius |t|."""

    def __init__(self, alpha: float | Tensor, reach: float | Tensor) -> None:
        self._alpha, self.reach = alpha, reach

    def tail(self, depth: Tensor) -> Tensor:
        gap = float64_of(self._alpha, depth) - 1
        return 0.5 * radial_shares(depth.double(), gap, 1)[1].to(depth.dtype)

    def depth(self, tail: Tensor) -> Tensor:
        return radial_quantile(2 * tail.double(), float64_of(self._alpha, tail) - 1).to(tail.dtype)


def line_law(profile: Profile) -> LineLaw:
    """The law of (t−μ)/unit for a one-dimensional profile, by the cheapest exact formula for its α."""
    alpha, reach = profile.alpha, profile.reach
    if not isinstance(alpha, Tensor) and not isinstance(reach, Tensor):
        if alpha == 1:
            return NormalLaw()
        degree = round(1 / (alpha - 1))
        if 0 <= degree <= _POLYNOMIAL_MAX and abs(degree - 1 / (alpha - 1)) <= 1e-14 * degree:
            return PolynomialLaw(degree, reach)
    return GeneralLaw(alpha, reach)


def radial_cdf(profile: Profile, radius: Tensor, half_log_det: Tensor) -> Tensor:
    """P(√Δ ≤ radius) in any dimension; Δ is the squared Mahalanobis distance from μ."""
    if isinstance(profile, UniformProfile):
        return (radius / profile.radius(half_log_det)).clamp(0, 1) ** profile.dim
    gap = float64_of(profile.alpha, radius) - 1
    standard = radius.clamp(min=0).double() * (-profile.log_unit(half_log_det.double())).exp()
    return radial_shares(standard, gap, profile.dim)[0].to(radius.dtype)


def draw_offsets(profile: Profile, shape: torch.Size, like: Tensor) -> Tensor:
    """Draws of L⁻¹(t−μ) in units of √ρ, or of R for α = ∞: ``(*shape, N)``, in the dtype of ``like``."""
    alpha, dim = profile.alpha, profile.dim
    if isinstance(alpha, Tensor):
        return _mixed(alpha, dim, shape, like)
    gap = alpha - 1
    if gap > 0:
        return profile.reach * _ball(dim, 1 / gap, shape, like)
    normal = _normal((*shape, dim), like)
    if gap < 0:
        normal = normal * (-gap * _gamma(-1 / gap - dim / 2, shape, like)).rsqrt().unsqueeze(-1)
    return normal


def _mixed(alpha: Tensor, dim: int, shape: torch.Size, like: Tensor) -> Tensor:
    """The draws of :func:`draw_offsets` for a tensor α with entries on any side of 1; gradients come from `_moving`."""
    gap = alpha.double() - 1
    with torch.no_grad():
        normal = _normal((*shape, dim), like)
        norm_sq = normal.square().sum(-1)
        size = torch.where(gap == 0, 1.0, gap.abs())
        concentration = torch.where(gap < 0, 1 / size - dim / 2, 1 / size + 1)
        mixing = torch.where(gap == 0, 1.0, size * standard_gamma(concentration.expand(shape))).to(like.dtype)
        shrink = _inside(like) * (mixing + 0.5 * gap.clamp(min=0).to(like.dtype) * norm_sq).rsqrt()
    offsets = normal * shrink.unsqueeze(-1)
    return offsets * _moving(shrink * norm_sq.sqrt(), gap, dim).unsqueeze(-1) if torch.is_grad_enabled() else offsets


def _moving(radius: Tensor, gap: Tensor, dim: int) -> Tensor:
    """Ones whose derivative in α is that of ln r, where r moves with α so that the ball of radius r keeps its mass.

    A derivative through the gamma variable would be unbiased, but its variance grows without bound as α → 1.
    """
    fixed = radius.double()
    log_gamma = log_gamma_ratio(gap, dim)
    with torch.no_grad():
        inner, outer = radial_shares(fixed, gap, dim, log_gamma=log_gamma)
        nearer_centre = inner < outer

    def residual(at: Tensor) -> tuple[Tensor, Tensor]:
        below, beyond = radial_shares(at, gap, dim, log_gamma=log_gamma)
        # Use the smaller of the two shares: only this one has full relative accuracy.
        excess = torch.where(nearer_centre, below - inner, outer - beyond)
        return excess, radial_density(at, gap, dim, log_gamma=log_gamma)

    return (implicit_root(fixed, residual) / fixed).to(radius.dtype)


def _ball(dim: int, k: float, shape: torch.Size, like: Tensor) -> Tensor:
    """Points of the unit ball with density ∝ (1−‖u‖²)^k."""
    if dim == 2:
        # Invert the distribution function of x = ‖u‖², which is 1 − (1−x)^{k+1}; the angle is uniform.
        square = -torch.expm1(torch.log1p(-_uniform(shape, like)) / (k + 1))
        angle = (2 * math.pi) * _uniform(shape, like)
        radius = _inside(like) * square.sqrt()
        return torch.stack((radius * angle.cos(), radius * angle.sin()), -1)
    normal = _normal((*shape, dim), like)
    norm_sq = normal.square().sum(-1)
    return normal * (_inside(like) * (norm_sq + 2 * _gamma(k + 1, shape, like)).rsqrt()).unsqueeze(-1)


def _inside(like: Tensor) -> float:
    """A factor just below one, which keeps draws inside the support after rounding."""
    return 1 - 8 * torch.finfo(like.dtype).eps


def _gamma(concentration: float, shape: torch.Size, like: Tensor) -> Tensor:
    """Gamma draws: if 2·concentration is a small integer, sums of exponentials and N(0, 1)²/2; else torch's sampler."""
    doubled = round(2 * concentration)
    if concentration > _ERLANG_MAX or abs(2 * concentration - doubled) > 1e-12 * doubled:
        full = torch.full(shape, concentration, dtype=like.dtype, device=like.device)
        return standard_gamma(full)
    terms = [-torch.log1p(-_uniform(shape, like)) for _ in range(doubled // 2)]
    if doubled % 2:
        terms.append(0.5 * _normal(shape, like).square())
    return sum(terms[1:], terms[0])


def _uniform(shape: tuple[int, ...], like: Tensor) -> Tensor:
    return torch.rand(shape, dtype=like.dtype, device=like.device)


def _normal(shape: tuple[int, ...], like: Tensor) -> Tensor:
    return torch.randn(shape, dtype=like.dtype, device=like.device)
