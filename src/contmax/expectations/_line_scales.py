"""β-Gaussians of every α against Gaussian bases on the line, by the mean over the law of the scale.

In float64 inside: 12 to 32 nodes for float32 arguments, 40 to 80 for float64. On the CPU a compiled kernel computes
value and first derivatives in one pass; torch is the reference, and takes over elsewhere and for higher derivatives.
"""

from typing import Any

import torch
from torch import Tensor

from contmax import kernels
from contmax._autograd import apply
from contmax.densities import BetaGaussian
from contmax.expectations._plane_form import line_form
from contmax.expectations._scale_law import path_rule
from contmax.expectations._scale_mean import mean_over_scales


def scale_mean_expectation(
    loc: Tensor, scale: Tensor, alpha: float | Tensor, centre: Tensor, width: Tensor, dtype: torch.dtype
) -> Tensor:
    """r from (μ, σ, α, μ_j, σ_j): (*batch), (*batch), a number or (*batch), (K,), (K,) → (*batch, K).

    Args:
        loc: μ.
        scale: σ.
        alpha: α.
        centre: μ_j.
        width: σ_j.
        dtype: float32 or float64, of the result.
    """
    single = dtype == torch.float32
    loc, scale, centre, width = (x.to(dtype) for x in (loc, scale, centre, width))
    known = kernels.line_scale_means(loc, scale, alpha, centre, width, path_rule(isinstance(alpha, Tensor), single))
    if known is None:
        return _reference(loc, scale, centre, width, alpha)
    result: Tensor = apply(ScaleMeanExpectation, loc, scale, centre, width, alpha, known)
    return result


class ScaleMeanExpectation(torch.autograd.Function):
    """Gives r its derivatives: `known` holds it and ∂r/∂(μ, σ, σ_j, α), (4, *batch, K), as a kernel computed them."""

    generate_vmap_rule = True

    @staticmethod
    def forward(
        loc: Tensor,
        scale: Tensor,
        centre: Tensor,
        width: Tensor,
        alpha: float | Tensor,
        known: tuple[Tensor, Tensor],
    ) -> Tensor:
        return known[0]

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        *tensors, alpha, known = inputs
        ctx.number = None if isinstance(alpha, Tensor) else alpha
        saved = (*tensors, alpha if isinstance(alpha, Tensor) else None)
        ctx.save_for_backward(*saved, known[1])
        ctx.save_for_forward(*saved)

    @staticmethod
    def backward(ctx: Any, cotangent: Tensor) -> tuple[Tensor | None, ...]:
        *inputs, slopes = ctx.saved_tensors
        needed = ctx.needs_input_grad[:5]
        if torch.is_grad_enabled():
            return *_differentiable_gradients(inputs, ctx.number, cotangent, needed), None
        by_loc, by_scale, by_width, by_alpha = slopes
        rows = [
            (cotangent * slope).sum(-1) if wanted else None
            for slope, wanted in zip((by_loc, by_scale, by_alpha), (needed[0], needed[1], needed[4]), strict=True)
        ]
        columns = [
            (cotangent * slope).sum_to_size(slope.shape[-1:]) if wanted else None
            for slope, wanted in zip((-by_loc, by_width), needed[2:4], strict=True)
        ]
        by_index = None if rows[2] is None else rows[2].to(inputs[4].dtype)
        return rows[0], rows[1], *columns, by_index, None

    @staticmethod
    def tangent(ctx: Any, *tangents: Any) -> Tensor:
        with torch.enable_grad():
            # What is not being differentiated in reverse becomes so here, for the gradient below.
            inputs = [x if x is None or x.requires_grad else x.detach().requires_grad_() for x in ctx.saved_tensors[:5]]
            moved = [(x, move) for x, move in zip(inputs, tangents[:5], strict=True) if move is not None]
            loc, scale, centre, width, alpha = inputs
            value = _reference(loc, scale, centre, width, ctx.number if alpha is None else alpha)
            # The derivative along the tangents is that, in a cotangent, of the gradient in the arguments.
            cotangent = torch.zeros_like(value, requires_grad=True)
            gradients = torch.autograd.grad(value, [x for x, _ in moved], cotangent, create_graph=True)
            (total,) = torch.autograd.grad(gradients, cotangent, [move for _, move in moved], create_graph=True)
        return total


def _differentiable_gradients(
    inputs: list[Tensor | None], number: float | None, cotangent: Tensor, needed: tuple[bool, ...]
) -> list[Tensor | None]:
    """The gradients of the reference, made of differentiable operations."""
    loc, scale, centre, width, alpha = inputs
    wanted = [x for x, need in zip(inputs, needed, strict=True) if need and x is not None]
    value = _reference(loc, scale, centre, width, number if alpha is None else alpha)
    gradients = iter(torch.autograd.grad(value, wanted, cotangent, create_graph=True))
    return [next(gradients) if need and x is not None else None for x, need in zip(inputs, needed, strict=True)]


def _reference(loc: Any, scale: Any, centre: Any, width: Any, alpha: Any) -> Tensor:
    """The same by torch, differentiable to every order."""
    wide = BetaGaussian(loc.double(), scale.double(), alpha, validate_args=False)
    form, size = line_form(wide.variance[..., None], wide.loc[..., None] - centre.double(), width.double())
    return (mean_over_scales(form, alpha, 1, loc.dtype == torch.float32) * size).to(loc.dtype)
