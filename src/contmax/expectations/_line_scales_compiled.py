"""β-Gaussians of every α against Gaussian bases on the line by Triton's kernels.

One launch computes r; one more the gradients, α's among them, from the parameters again: nothing is kept of the size of
r. Higher derivatives are those of the torch reference.
"""

from functools import partial
from typing import Any

import torch
from torch import Tensor

from contmax import kernels
from contmax._autograd import apply
from contmax._by_reference import gradients_by_reference, needs_reference, tangent_by_reference
from contmax.expectations._line_scales_reference import scale_mean_reference


def compiled_scale_mean(
    loc: Tensor, scale: Tensor, centre: Tensor, width: Tensor, index: Tensor | None, number: float | None
) -> Tensor | None:
    """r from (μ, σ, μ_j, σ_j, α): (*batch), (*batch), (K,), (K,), (*batch) → (*batch, K), or None if no kernel fits.

    Args:
        loc: μ.
        scale: σ.
        centre: μ_j.
        width: σ_j.
        index: α as a tensor, or None.
        number: α as a number, where `index` is None.
    """
    if centre.dim() != 1 or not kernels.means_are_compiled(loc, scale, centre, width):
        return None
    result: Tensor = apply(CompiledScaleMean, loc, scale, centre, width, index, number)
    return result


class CompiledScaleMean(torch.autograd.Function):
    """The same."""

    generate_vmap_rule = True

    @staticmethod
    def forward(
        loc: Tensor, scale: Tensor, centre: Tensor, width: Tensor, index: Tensor | None, number: float | None
    ) -> Tensor:
        return kernels.any_line_values(loc, scale, index, number, centre, width)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        *tensors, ctx.number = inputs
        ctx.save_for_backward(*tensors)
        ctx.save_for_forward(*tensors)

    @staticmethod
    def backward(ctx: Any, cotangent: Tensor) -> tuple[Tensor | None, ...]:
        needed = ctx.needs_input_grad[:5]
        if needs_reference(cotangent):
            reference = partial(scale_mean_reference, number=ctx.number)
            return *gradients_by_reference(reference, ctx.saved_tensors, needed, cotangent), None
        loc, scale, centre, width, index = ctx.saved_tensors
        by_loc, by_scale, by_alpha, by_centre, by_width = kernels.any_line_gradients(
            cotangent, loc, scale, index, ctx.number, centre, width, needs_basis=any(needed[2:4])
        )
        by_index = None if index is None else by_alpha.to(index.dtype)
        gradients = (by_loc, by_scale, by_centre, by_width, by_index)
        return *(g if need else None for g, need in zip(gradients, needed, strict=True)), None

    @staticmethod
    def tangent(ctx: Any, *tangents: Any) -> Tensor:
        reference = partial(scale_mean_reference, number=ctx.number)
        return tangent_by_reference(reference, ctx.saved_tensors, tangents[:5])
