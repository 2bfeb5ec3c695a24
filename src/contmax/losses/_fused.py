"""The loss against one class per example, and Ω*, where one kernel takes logits as they come.

Nothing of the size of the logits is kept but the logits themselves: a few numbers per row, from which the backward
makes the gradient.
"""

from typing import Any

import torch
from torch import Tensor

from contmax import kernels
from contmax._autograd import apply
from contmax._by_reference import needs_reference
from contmax.losses._conjugate import less_target
from contmax.maps import entmax


def is_fused(z: Tensor, alpha: float | Tensor) -> bool:
    """Whether the kernels take these logits; for α > 2, and α that vary, the probabilities are needed."""
    return not isinstance(alpha, Tensor) and alpha <= 2 and kernels.rows_are_fused(z)


def fused_losses(
    z: Tensor, target: Tensor | None, alpha: float, mask: Tensor | None, smoothing: float, dim: int
) -> Tensor:
    """Ω*(z) − ⟨z, q⟩ for class ids of the shape of the logits without `dim`, or Ω*(z), in at least float32."""
    allowed = None if mask is None else mask.expand(z.shape)
    if dim not in (-1, z.dim() - 1):
        z, allowed = z.movedim(dim, -1), None if allowed is None else allowed.movedim(dim, -1)
    losses, _ = apply(_ClassLoss, z, target, allowed, alpha, smoothing)
    return losses  # type: ignore[no-any-return]


class RowLoss(torch.autograd.Function):
    """The losses and the cuts of rows along the last axis, from (logits, target, mask, α, smoothing)."""

    generate_vmap_rule = True

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor]) -> None:
        z, target, mask, ctx.alpha, ctx.smoothing = inputs
        ctx.mark_non_differentiable(output[1])
        saved = (z, target, mask, output[1])
        ctx.save_for_backward(*saved)
        ctx.save_for_forward(*saved)


class _ClassLoss(RowLoss):
    """Against one class of each row, or none."""

    @staticmethod
    def forward(
        z: Tensor, target: Tensor | None, mask: Tensor | None, alpha: float, smoothing: float
    ) -> tuple[Tensor, Tensor]:
        losses, cut = kernels.class_loss_fused(z, target, kernels.LossOptions(alpha, mask, smoothing))
        return losses.float(), cut

    @staticmethod
    def backward(ctx: Any, cotangent: Tensor, _: Tensor) -> tuple[Tensor | None, ...]:
        z, target, mask, cut = ctx.saved_tensors
        if needs_reference(cotangent):
            grad = cotangent.unsqueeze(-1) * _residual(ctx, z, target, mask)
            largest = torch.finfo(z.dtype).max
            grad = grad.clamp(-largest, largest).to(z.dtype)
        else:
            options = kernels.LossOptions(ctx.alpha, mask, ctx.smoothing)
            grad = kernels.class_loss_fused_backward(z, target, options, cut, cotangent)
        return grad, None, None, None, None

    @staticmethod
    def tangent(ctx: Any, *tangents: Any) -> tuple[Tensor, None]:
        z, target, mask, _ = ctx.saved_tensors
        return (_residual(ctx, z, target, mask) * tangents[0].float()).sum(-1), None


def _residual(ctx: Any, z: Tensor, target: Tensor | None, mask: Tensor | None) -> Tensor:
    """p̂ − q, or p̂ without a target, by differentiable operations."""
    p = entmax(z.float(), ctx.alpha, mask=mask)
    if target is None:
        return p
    residual = less_target(p, target.unsqueeze(-1), mask, ctx.smoothing, -1, in_place=False)
    return residual if mask is None else torch.where(mask, residual, 0)
