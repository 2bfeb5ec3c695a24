"""Gaussians and polynomial β-Gaussians against Gaussian bases on the line by Triton's kernels.

One launch computes r; one more the gradients, from the parameters again: nothing is kept of the size of r. Higher
derivatives are those of the torch rules in `_line_normal` and `_line_window`.
"""

import math
from functools import partial
from typing import Any

import torch
from torch import Tensor

from contmax import kernels
from contmax._autograd import apply
from contmax._by_reference import gradients_by_reference, needs_reference, tangent_by_reference
from contmax.densities import BetaGaussian
from contmax.expectations._line_normal import normal_expectation
from contmax.expectations._line_window import windowed_expectation


def compiled_line_expectation(
    loc: Tensor, scale: Tensor, centre: Tensor, width: Tensor, k: float, raised: bool
) -> Tensor | None:
    """r from (μ, σ, μ_j, σ_j): (*batch), (*batch), (K,), (K,) → (*batch, K), or None where no kernel fits.

    Args:
        loc: μ.
        scale: σ if `raised` or k = ∞, else the half-width of the support.
        centre: μ_j.
        width: σ_j.
        k: 1/(α−1), one of 0, …, 4 and ∞.
        raised: whether the kernel is to find the half-width, a power of σ.
    """
    if centre.dim() != 1 or not kernels.means_are_compiled(loc, scale, centre, width):
        return None
    result: Tensor = apply(LineExpectation, loc, scale, centre, width, k, raised)
    return result


class LineExpectation(torch.autograd.Function):
    """The same."""

    generate_vmap_rule = True

    @staticmethod
    def forward(loc: Tensor, scale: Tensor, centre: Tensor, width: Tensor, k: float, raised: bool) -> Tensor:
        return kernels.line_values(loc, scale, centre, width, k, raised)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        *tensors, ctx.k, ctx.raised = inputs
        ctx.save_for_backward(*tensors)
        ctx.save_for_forward(*tensors)

    @staticmethod
    def backward(ctx: Any, cotangent: Tensor) -> tuple[Tensor | None, ...]:
        needed = ctx.needs_input_grad[:4]
        if needs_reference(cotangent):
            reference = partial(_reference, k=ctx.k, raised=ctx.raised)
            return *gradients_by_reference(reference, ctx.saved_tensors, needed, cotangent), None, None
        loc, scale, centre, width = ctx.saved_tensors
        gradients = kernels.line_gradients(
            cotangent, loc, scale, centre, width, ctx.k, ctx.raised, needs_basis=any(needed[2:])
        )
        return *(g if need else None for g, need in zip(gradients, needed, strict=True)), None, None

    @staticmethod
    def tangent(ctx: Any, *tangents: Any) -> Tensor:
        reference = partial(_reference, k=ctx.k, raised=ctx.raised)
        return tangent_by_reference(reference, ctx.saved_tensors, tangents[:4])


def _reference(loc: Tensor, scale: Tensor, centre: Tensor, width: Tensor, k: float, raised: bool) -> Tensor:
    if math.isinf(k):
        return normal_expectation(loc.unsqueeze(-1), scale.unsqueeze(-1), centre, width)
    half = scale
    if raised:
        half = BetaGaussian(loc, scale, 1 + 1 / k if k else math.inf, validate_args=False).half_width
    return windowed_expectation(loc.unsqueeze(-1), half.unsqueeze(-1), k, centre, width)
