"""The map where one kernel takes scores as they come: half precision, a mask, a dtype of the result."""

from typing import Any

import torch
from torch import Tensor
from torch.compiler import is_dynamo_compiling

from contmax import kernels
from contmax._autograd import apply, bare_apply
from contmax._by_reference import may_be_differentiated, needs_reference
from contmax._eager import REAL_TYPES, is_eager
from contmax._torch_private import forward_mode_is_on, number_of_modes, torchscript_is_tracing, transforms_are_active
from contmax.maps._arguments import output_dtype
from contmax.maps._jacobian import pull_back_reference, push_forward_reference
from contmax.maps._operators import one_along


def plain_entmax(scores: Tensor, alpha: object, dim: int, mask: Tensor | None, temperature: object) -> Tensor | None:
    """p of the commonest arguments, which need no other check: of rows of numbers, by one α. None for all others.

    On a GPU most of the time of a small map is Python's, so the fewest questions are asked here: a tensor that stands
    for others has no address to launch with.
    """
    if (
        type(alpha) is float
        and type(temperature) is float
        and temperature == 1
        and mask is None
        and type(dim) is int
        and dim == -1
        and type(scores) in REAL_TYPES
        and not is_dynamo_compiling()
        and not number_of_modes()  # other tracers, to which constants may be real
        and not transforms_are_active()
        and not torchscript_is_tracing()  # refused by the checks that follow
        and kernels.triton_runs_on(scores)
    ):
        rows = kernels.plain_rows_like(scores, alpha, output_dtype(scores))
        try:
            return None if rows is None else _plain_apply(scores, rows)
        except RuntimeError:
            if is_eager(scores):
                raise
    return None


def fused_entmax(scores: Tensor, alpha: float | Tensor, dim: int, mask: Tensor | None, dtype: torch.dtype) -> Tensor:
    """p in a dtype, from checked arguments."""
    if not isinstance(alpha, float):
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
        ctx.alpha, ctx.dtype = alpha if isinstance(alpha, float) else None, scores.dtype
        saved = (output,) if isinstance(alpha, float) else (output, alpha)
        ctx.save_for_backward(*saved)
        ctx.save_for_forward(*saved)

    @staticmethod
    def backward(ctx: Any, cotangent: Tensor) -> tuple[Tensor | None, ...]:
        return *_gradients(*_saved(ctx), cotangent, ctx.dtype, ctx.needs_input_grad[1]), None, None

    @staticmethod
    def tangent(ctx: Any, *tangents: Any) -> Tensor:
        p, index = _saved(ctx)
        moved = None if tangents[0] is None else tangents[0].float()
        return push_forward_reference(p.float(), moved, index, tangents[1], -1, None).to(p.dtype)


def _gradients(
    p: Tensor, alpha: float | Tensor, cotangent: Tensor, dtype: torch.dtype, needs_alpha: bool
) -> tuple[Tensor, Tensor | None]:
    """Those of scores and of α."""
    if not needs_reference(cotangent):
        return kernels.entmax_fused_backward(p, cotangent, alpha, dtype, needs_alpha)
    grad, grad_alpha = pull_back_reference(p.float(), cotangent.float(), alpha, -1, None, needs_alpha)
    largest = torch.finfo(dtype).max
    return grad.clamp(-largest, largest).to(dtype), grad_alpha


def _saved(ctx: Any) -> tuple[Tensor, float | Tensor]:
    """p and α."""
    p, *alpha = ctx.saved_tensors
    return p, alpha[0] if alpha else ctx.alpha


class _PlainEntmax(torch.autograd.Function):
    """The same for one α and without a mask, of scores that hold numbers now: all that it need not ask."""

    @staticmethod
    def forward(ctx: Any, scores: Tensor, rows: Any) -> Tensor:
        p: Tensor = rows.forward(scores)
        ctx.rows = rows
        ctx.save_for_backward(p)
        if forward_mode_is_on():
            ctx.save_for_forward(p)
        return p

    @staticmethod
    def backward(ctx: Any, cotangent: Tensor) -> tuple[Tensor | None, ...]:
        (p,) = ctx.saved_tensors
        if not may_be_differentiated() and type(cotangent) is Tensor:
            try:
                return ctx.rows.backward(p, cotangent), None
            except RuntimeError:
                # As above: to ask first takes longer.
                if is_eager(cotangent):
                    raise
        return _gradients(p, ctx.rows.alpha, cotangent, ctx.rows.dtype, False)

    @staticmethod
    def jvp(ctx: Any, *tangents: Any) -> Tensor:
        ctx.alpha = ctx.rows.alpha
        return _FusedEntmax.tangent(ctx, tangents[0], None)


_plain_apply = bare_apply(_PlainEntmax)
