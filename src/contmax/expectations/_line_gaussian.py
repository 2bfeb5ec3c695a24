"""Gaussian bases on the line under the densities that have a rule of their own."""

import math
from typing import Any

import torch
from torch import Tensor
from torch.distributions import Normal, Uniform

from contmax._autograd import apply
from contmax.basis import GaussianBasis
from contmax.densities import BetaGaussian
from contmax.expectations._expectation import register_expectation, working_dtype
from contmax.expectations._line_window import windowed_expectation

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
    dtype = working_dtype(loc, scale, basis.loc)
    result: Tensor = apply(GaussianExpectation, *(x.to(dtype) for x in (loc, scale, basis.loc, basis.scale)))
    return result


class GaussianExpectation(torch.autograd.Function):
    """r = N(μ; μ_j, σ² + σ_j²) from (μ, σ, μ_j, σ_j): (*batch, 1), (*batch, 1), (K,), (K,) → (*batch, K).

    By hand because it is the cheapest of the rules: its derivatives share what autograd would compute one by one.
    """

    generate_vmap_rule = True

    @staticmethod
    def forward(loc: Tensor, scale: Tensor, centre: Tensor, width: Tensor) -> Tensor:
        z, inverse = _standardised(loc, scale, centre, width)
        return torch.exp(-0.5 * z * z) * (inverse / math.sqrt(2 * math.pi))

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor, ...], output: Tensor) -> None:
        ctx.save_for_backward(*inputs, output)
        ctx.save_for_forward(*inputs, output)

    @staticmethod
    def backward(ctx: Any, cotangent: Tensor) -> tuple[Tensor | None, ...]:
        loc, scale, centre, width, r = ctx.saved_tensors
        z, inverse = _standardised(loc, scale, centre, width)
        share = cotangent * r * inverse
        by_loc = -share * z
        by_variance = share * (z * z - 1) * inverse
        needs = ctx.needs_input_grad
        return (
            by_loc.sum_to_size(loc.shape) if needs[0] else None,
            scale * by_variance.sum_to_size(scale.shape) if needs[1] else None,
            -by_loc.sum_to_size(centre.shape) if needs[2] else None,
            width * by_variance.sum_to_size(width.shape) if needs[3] else None,
        )

    @staticmethod
    def tangent(ctx: Any, *tangents: Tensor | None) -> Tensor:
        loc, scale, centre, width, r = ctx.saved_tensors
        z, inverse = _standardised(loc, scale, centre, width)
        moves = [
            torch.zeros_like(x) if move is None else move
            for x, move in zip((loc, scale, centre, width), tangents, strict=True)
        ]
        by_variance = (z * z - 1) * inverse
        total: Tensor = r * inverse * (by_variance * (scale * moves[1] + width * moves[3]) - z * (moves[0] - moves[2]))
        return total


def _standardised(loc: Tensor, scale: Tensor, centre: Tensor, width: Tensor) -> tuple[Tensor, Tensor]:
    """(μ − μ_j)/s and 1/s, s² = σ² + σ_j²."""
    inverse = (scale * scale + width * width).rsqrt()
    return (loc - centre) * inverse, inverse


def _windowed(loc: Tensor, half: Tensor, k: float | Tensor, basis: GaussianBasis) -> Tensor:
    centre, width = basis.loc, basis.scale
    dtype = working_dtype(loc, half, centre, width)
    # A k that is not a small integer leaves only forms that cancel for wide densities: float64 has digits to spare.
    inner = torch.float64 if isinstance(k, Tensor) or k != round(k) else dtype
    order = k.to(inner) if isinstance(k, Tensor) else k
    parts = (loc.to(inner), half.to(inner), order, centre.to(inner), width.to(inner))
    return windowed_expectation(*parts).to(dtype)


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
