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
from contmax.expectations._line_scales import scale_mean_expectation
from contmax.expectations._line_window import windowed_expectation

# k for which windows are accurate in float32 too: (1 − y²)ᵏ is a polynomial, and of a low degree.
_WINDOWED = (0.0, 1.0, 2.0, 3.0, 4.0)


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
    """Closed form at α = 1, windows for the common α = 1 + 1/k and ∞, the mean over scales for every other α."""
    alpha = density.alpha
    if isinstance(alpha, Tensor):
        return _over_scales(density, basis)
    if alpha == 1:
        return _gaussian(density.loc[..., None], density.scale[..., None], basis)
    # 4/3 is not a float, and its k is an integer all the same.
    k = round(1 / (alpha - 1), 12)
    if k in _WINDOWED:
        return _windowed(density.loc[..., None], density.half_width[..., None], k, basis)
    return _over_scales(density, basis)


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


def _windowed(loc: Tensor, half: Tensor, k: float, basis: GaussianBasis) -> Tensor:
    dtype = working_dtype(loc, half, basis.loc, basis.scale)
    return windowed_expectation(loc.to(dtype), half.to(dtype), k, basis.loc.to(dtype), basis.scale.to(dtype))


def _over_scales(density: BetaGaussian, basis: GaussianBasis) -> Tensor:
    dtype = working_dtype(density.loc, density.scale, basis.loc, basis.scale)
    return scale_mean_expectation(density.loc, density.scale, density.alpha, basis.loc, basis.scale, dtype)
