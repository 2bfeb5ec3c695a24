"""Gaussians against Gaussian bases on the line: r_j = N(μ; μ_j, σ² + σ_j²)."""

import math
from typing import Any

import torch
from torch import Tensor

from contmax._autograd import apply


def normal_expectation(loc: Tensor, scale: Tensor, centre: Tensor, width: Tensor) -> Tensor:
    """r from (μ, σ, μ_j, σ_j): (*batch, 1), (*batch, 1), (K,), (K,) → (*batch, K)."""
    result: Tensor = apply(GaussianExpectation, loc, scale, centre, width)
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
