"""β-Gaussians of every α against Gaussian bases on the line, by the mean over the law of the scale.

In float64 inside: 12 to 32 nodes for float32 arguments, 40 to 80 for float64. On the CPU a compiled kernel computes
value and first derivatives in one pass, one node of what torch.compile traces; torch is the reference, and takes over
elsewhere and for higher derivatives.
"""

from functools import partial
from typing import Any

import torch
from torch import Tensor

from contmax import kernels
from contmax._autograd import apply
from contmax._by_reference import gradients_by_reference, may_be_differentiated, tangent_by_reference
from contmax.expectations._chunks import Fewest, in_chunks
from contmax.expectations._line_scales_compiled import compiled_scale_mean
from contmax.expectations._line_scales_operator import line_scale_means_op
from contmax.expectations._line_scales_reference import scale_mean_reference
from contmax.expectations._scale_law import path_rule

# A pair takes about 12 kB while gradients are computed.
_FEWEST_PAIRS = Fewest(on_cpu=2**12, elsewhere=2**15, kept=2**7)
_FEWEST_PAIRS_OF_INDEX = _FEWEST_PAIRS._replace(kept=2**12)


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
    index, number = (alpha, None) if isinstance(alpha, Tensor) else (None, alpha)
    compiled = compiled_scale_mean(loc, scale, centre, width, index, number)
    if compiled is not None:
        return compiled
    if kernels.line_scales_are_one_node(loc, centre) and (number is None or number >= 1):
        known = line_scale_means_op(*(x.detach() for x in (loc, scale, centre, width)), _detached(index), number)
    else:
        rule = path_rule(isinstance(alpha, Tensor), single)
        known = kernels.line_scale_means(loc, scale, alpha, centre, width, rule)
    if known is None:
        reference = partial(_by_torch, number=number)
        fewest = _FEWEST_PAIRS if index is None else _FEWEST_PAIRS_OF_INDEX
        return in_chunks(reference, (loc, scale, index), (centre, width), loc.dim(), fewest)
    result: Tensor = apply(ScaleMeanExpectation, loc, scale, centre, width, alpha, known)
    return result


def _detached(index: Tensor | None) -> Tensor | None:
    return None if index is None else index.detach()


def _by_torch(
    loc: Tensor, scale: Tensor, index: Tensor | None, centre: Tensor, width: Tensor, number: float | None
) -> Tensor:
    return scale_mean_reference(loc, scale, centre, width, index, number)


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
        saved = (*tensors, alpha if isinstance(alpha, Tensor) else None, known[1])
        ctx.save_for_backward(*saved)
        ctx.save_for_forward(*saved)

    @staticmethod
    def backward(ctx: Any, cotangent: Tensor) -> tuple[Tensor | None, ...]:
        *inputs, slopes = ctx.saved_tensors
        needed = ctx.needs_input_grad[:5]
        # A compiled backward pass is not differentiated again: there the computed slopes are enough.
        if may_be_differentiated() and not torch.compiler.is_compiling():
            reference = partial(scale_mean_reference, number=ctx.number)
            return *gradients_by_reference(reference, inputs, needed, cotangent), None
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
        return tangent_by_reference(
            partial(scale_mean_reference, number=ctx.number), ctx.saved_tensors[:5], tangents[:5]
        )
