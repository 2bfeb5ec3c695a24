"""Gaussian bases on the line under the densities that have a rule of their own."""

import math

import torch
from torch import Tensor
from torch.distributions import Normal, Uniform

from contmax._autograd import apply
from contmax.basis import GaussianBasis
from contmax.densities import BetaGaussian
from contmax.expectations._expectation import register_expectation, working_dtype
from contmax.expectations._line_window import WindowedExpectation

# Closer to α = 1 than this, r is interpolated between the Gaussian and this distance: the terms of ∂r/∂α cancel like
# 1/(α−1)², and r is smooth. The error is of the order of its square.
_NEAREST = 1e-5


@register_expectation(Normal, GaussianBasis)
def gaussian(density: Normal, basis: GaussianBasis) -> Tensor:
    """r_j = N(μ; μ_j, σ² + σ_j²)."""
    return _gaussian(density.loc[..., None], density.scale[..., None], basis)


@register_expectation(Uniform, GaussianBasis)
def uniform(density: Uniform, basis: GaussianBasis) -> Tensor:
    """The windowed rule at k = 0."""
    low, high = density.low[..., None], density.high[..., None]
    return _windowed((low + high) / 2, (high - low) / 2, 0.0, basis)


@register_expectation(BetaGaussian, GaussianBasis)
def beta_gaussian(density: BetaGaussian, basis: GaussianBasis) -> Tensor:
    """Closed form at α = 1, windows for α > 1, a scale mixture of Gaussians for α < 1."""
    alpha = density.alpha
    if isinstance(alpha, Tensor):
        return _mixed_branches(density, alpha, basis)
    if alpha == 1:
        return _gaussian(density.loc[..., None], density.scale[..., None], basis)
    if alpha < 1:
        return _student(density, alpha, basis)
    k = 1 / (alpha - 1)
    # 4/3 is not a float, and its k is an integer all the same.
    k = float(round(k)) if abs(k - round(k)) < 1e-12 * k else k
    return _windowed(density.loc[..., None], density.half_width[..., None], k, basis)


def _gaussian(loc: Tensor, scale: Tensor, basis: GaussianBasis) -> Tensor:
    width = basis.scale
    total = torch.hypot(scale, width)
    z = (loc - basis.loc) / total
    return torch.exp(-0.5 * z * z) / (math.sqrt(2 * math.pi) * total)


def _windowed(loc: Tensor, half: Tensor, k: float | Tensor, basis: GaussianBasis) -> Tensor:
    centre, width = basis.loc, basis.scale
    dtype = working_dtype(loc, half, centre, width)
    # A k that is not a small integer leaves only forms that cancel for wide densities: float64 has digits to spare.
    inner = torch.float64 if isinstance(k, Tensor) or k != round(k) else dtype
    order = k.to(inner) if isinstance(k, Tensor) else k
    parts = (loc.to(inner), half.to(inner), order, centre.to(inner), width.to(inner))
    result: Tensor = apply(WindowedExpectation, *parts)
    return result.to(dtype)


def _student(density: BetaGaussian, alpha: float | Tensor, basis: GaussianBasis) -> Tensor:
    r"""α < 1 is a Student-t density with ν = 2/(1−α) − 1 degrees of freedom, a mixture of Gaussians N(μ, τ²/g) over g.

    g ~ Gamma(ν/2, ν/2); the trapezoidal rule in ln g converges exponentially: 1e-12 with the nodes below.
    """
    freedom = 2 / (1 - alpha) - 1
    if isinstance(freedom, Tensor):
        freedom = freedom[..., None, None].double()
    loc = density.loc[..., None, None].double()
    squared = density.variance[..., None, None].double() * (freedom - 2) / freedom
    step = 0.2
    grid = torch.arange(-28.0, 5.6, step, dtype=torch.float64, device=loc.device)
    spread = (1 + freedom / 8) ** -0.5
    log_g = spread * grid
    # A full tensor is filled on its device; one made of a number would be copied to it, and waited for.
    half = freedom / 2 if isinstance(freedom, Tensor) else torch.full_like(loc[..., :1, :1], freedom / 2)
    log_weight = half * (log_g - log_g.exp() + half.log()) - torch.lgamma(half)
    total = basis.scale.double()[:, None] ** 2 + squared * (-log_g).exp()
    offset = loc - basis.loc.double()[:, None]
    log_value = -0.5 * (offset * offset / total + total.log() + math.log(2 * math.pi))
    result = (log_weight + log_value).exp().sum(-1) * step * (spread[..., 0] if isinstance(spread, Tensor) else spread)
    return result.to(working_dtype(density.loc, density.scale, basis.loc))


def _mixed_branches(density: BetaGaussian, alpha: Tensor, basis: GaussianBasis) -> Tensor:
    """Each branch on indices it can take, chosen entry by entry; at α = 1 it is the Gaussian's, exactly."""
    alpha = alpha.double()
    near = (alpha - 1).abs() < _NEAREST
    side = torch.where(alpha < 1, -1.0, 1.0).double()
    index = torch.where(near, 1 + side * _NEAREST, alpha)
    above, below = torch.where(index > 1, index, 2), torch.where(index < 1, index, 0.9)
    sparse = BetaGaussian(density.loc, density.scale, above, validate_args=False)
    k = 1 / (above - 1)
    windows = _windowed(density.loc[..., None], sparse.half_width[..., None], k[..., None], basis)
    heavy = BetaGaussian(density.loc, density.scale, below, validate_args=False)
    result = torch.where((index > 1)[..., None], windows, _student(heavy, below, basis))
    exact = _gaussian(density.loc[..., None], density.scale[..., None], basis)
    share = (side * (alpha - 1) / _NEAREST)[..., None].to(result.dtype)
    return torch.where(near[..., None], exact + share * (result - exact), result)
