"""The map where one kernel takes scores as they come: half precision, a mask, a dtype of the result."""

from typing import Any

import torch
from torch import Tensor

from contmax import kernels
from contmax._autograd import apply
from contmax._by_reference import needs_reference
from contmax.maps._jacobian import pull_back_reference, push_forward_reference
from contmax.maps._operators import one_along


def fused_entmax(scores: Tensor, alpha: float | Tensor, dim: int, mask: Tensor | None, dtype: torch.dtype) -> Tensor:
    """p in a dtype, from checked arguments."""
    if isinstance(alpha, Tensor):
        alpha = alpha.expand(one_along(scores, dim))
    if mask is not None:
        mask = mask.expand(scores.shape)
    if dim in (-1, scores.dim() - 1):  # nothing to move, and nothing for the backward to move back
        return apply(_FusedEntmax, scores, alpha, mask, dtype)  # type: ignore[no-any-return]
    alpha = alpha.movedim(dim, -1) if isinstance(alpha, Tensor) else alpha
    p = apply(_FusedEntmax, scores.movedim(dim, -1), alpha, None if mask is None else mask.movedim(dim, -1), dtype)
    return p.movedim(-1, dim)  # type: ignore[no-any-return]


class _FusedEntmax(torch.autograd.Function):
    """p̂ along the last axis; its backward is a kernel too, unless it may be differentiated again."""

    generate_vmap_rule = True

    @staticmethod
    def forward(scores: Tensor, alpha: float | Tensor, mask: Tensor | None, dtype: torch.dtype) -> Tensor:
        return kernels.entmax_fused(scores, alpha, mask, dtype)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        scores, alpha, _, _ = inputs
        ctx.fixed_alpha, ctx.dtype = None if isinstance(alpha, Tensor) else alpha, scores.dtype
        saved = (output, alpha if isinstance(alpha, Tensor) else None)
        ctx.save_for_backward(*saved)
        ctx.save_for_forward(*saved)

    @staticmethod
    def backward(ctx: Any, cotangent: Tensor) -> tuple[Tensor | None, ...]:
        p, alpha = ctx.saved_tensors
        index, needs_alpha = ctx.fixed_alpha if alpha is None else alpha, ctx.needs_input_grad[1]
        if needs_reference(cotangent):
            grad, grad_alpha = pull_back_reference(p.float(), cotangent.float(), index, -1, None, needs_alpha)
            largest = torch.finfo(ctx.dtype).max
            return grad.clamp(-largest, largest).to(ctx.dtype), grad_alpha, None, None
        return *kernels.entmax_fused_backward(p, cotangent, index, ctx.dtype, needs_alpha), None, None

    @staticmethod
    def tangent(ctx: Any, *tangents: Any) -> Tensor:
        p, alpha = ctx.saved_tensors
        index = ctx.fixed_alpha if alpha is None else alpha
        moved = None if tangents[0] is None else tangents[0].float()
        return push_forward_reference(p.float(), moved, index, tangents[1], -1, None).to(p.dtype)
