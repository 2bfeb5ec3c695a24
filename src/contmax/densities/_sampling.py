r"""Exact draws from β-Gaussians without inverting a distribution function.

With z standard normal in N dimensions and g an independent gamma variable,

.. math:: t = \mu + \frac{R\,Lz}{\sqrt{\|z\|^2 + 2g}}, \quad g \sim \Gamma(k+1) \quad (\alpha > 1); \qquad
          t = \mu + \frac{c\,Lz}{\sqrt{2g}}, \quad g \sim \Gamma(\tfrac\nu2) \quad (\alpha < 1)

and t = μ + Lz at α = 1. In units of √ρ all three are z/√(m + ε₊‖z‖²/2) with m = |ε|g → 1 as ε → 0.
"""

import math

import torch
from torch import Tensor

from contmax._torch_private import standard_gamma
from contmax.densities._profile import Profile, UniformProfile
from contmax.numerics import implicit_root, log_gamma_ratio, radial_density, radial_shares

# Up to here a gamma variable is the sum of a few exponentials, five times faster than the rejection sampler.
_ERLANG_MAX = 6.0


def draw_offsets(profile: Profile, half_log_det: Tensor, shape: torch.Size) -> tuple[Tensor, Tensor]:
    """Standard offsets and their scale: t = μ + scale·L·offset.

    Args:
        profile: the profile, which knows α and N.
        half_log_det: ½ ln|Σ|, ``(*batch)``.
        shape: shape of the draws, ``(*sample, *batch)``.

    Returns:
        Offsets ``(*shape, N)`` and a scale that broadcasts to ``(*shape)``. For a number α > 1 the offsets are points
        of the open unit ball and the scale is R, else draws from the standard β-Gaussian and the scale is √ρ.
    """
    like = half_log_det
    if isinstance(profile, UniformProfile):
        return _ball(profile.dim, 0.0, shape, like), profile.radius(half_log_det)
    if isinstance(profile.alpha, Tensor):
        offsets = _mixed(profile.alpha, profile.dim, shape, like)
        return offsets, (0.5 * profile.log_rho(half_log_det)).exp()
    gap = profile.alpha - 1
    if gap > 0:
        return _ball(profile.dim, 1 / gap, shape, like), profile.radius(half_log_det)
    normal = _normal((*shape, profile.dim), like)
    if gap < 0:
        normal = normal * (-gap * _gamma(-1 / gap - profile.half, shape, like)).rsqrt().unsqueeze(-1)
    return normal, (0.5 * profile.log_rho(half_log_det)).exp()


def draw_indices(weights: Tensor, shape: torch.Size) -> Tensor:
    """Numbers k drawn with probability wₖ; weights ``(*batch, K)``, numbers ``(*shape, *batch)``."""
    if 0 in (*shape, *weights.shape[:-1]):
        # Torch refuses to draw nothing.
        return torch.zeros(shape + weights.shape[:-1], dtype=torch.int64, device=weights.device)
    index: Tensor = torch.distributions.Categorical(weights, validate_args=False).sample(shape)
    return index


def _mixed(alpha: Tensor, dim: int, shape: torch.Size, like: Tensor) -> Tensor:
    """Draws from the standard β-Gaussian for a tensor α, whose entries may lie on both sides of 1."""
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
    """One, with the relative derivative of the radius in α at a fixed share of the law inside it.

    A derivative through the gamma variable would be right on average, but its variance grows without bound as α → 1.
    """
    fixed = radius.double()
    log_gamma = log_gamma_ratio(gap, dim)
    with torch.no_grad():
        inner, outer = radial_shares(fixed, gap, dim, log_gamma=log_gamma)
        nearer_centre = inner < outer

    def residual(at: Tensor) -> tuple[Tensor, Tensor]:
        below, beyond = radial_shares(at, gap, dim, log_gamma=log_gamma)
        slope = radial_density(at, gap, dim, log_gamma=log_gamma)
        # The smaller of the two shares keeps its digits.
        return torch.where(nearer_centre, below - inner, outer - beyond), torch.where(slope > 0, slope, math.inf)

    return (implicit_root(fixed, residual) / fixed).to(radius.dtype)


def _ball(dim: int, k: float, shape: torch.Size, like: Tensor) -> Tensor:
    """Points of the unit ball with density ∝ (1−‖u‖²)^k."""
    if dim == 2:
        # The distribution function of ‖u‖² is 1 − (1−x)^{k+1}; the angle is uniform.
        square = -torch.expm1(torch.log1p(-_uniform(shape, like)) / (k + 1))
        angle = (2 * math.pi) * _uniform(shape, like)
        radius = _inside(like) * square.sqrt()
        return torch.stack((radius * angle.cos(), radius * angle.sin()), -1)
    normal = _normal((*shape, dim), like)
    norm_sq = normal.square().sum(-1)
    return normal * (_inside(like) * (norm_sq + 2 * _gamma(k + 1, shape, like)).rsqrt()).unsqueeze(-1)


def _inside(like: Tensor) -> float:
    """Rounding must not carry a point across the edge, where the density is zero."""
    return 1 - 8 * torch.finfo(like.dtype).eps


def _gamma(concentration: float, shape: torch.Size, like: Tensor) -> Tensor:
    """Γ(c): exponentials and half a squared normal if 2c is a small whole number, else torch's sampler."""
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
