"""The loss against soft targets: by torch's operations, or by one kernel where it takes logits as they come."""

from typing import Any

import torch
from torch import Tensor

from contmax import kernels
from contmax._autograd import apply
from contmax._by_reference import gradients_by_reference, needs_reference, tangent_by_reference
from contmax.deformed import tsallis_negentropy
from contmax.losses._conjugate import Conjugate
from contmax.losses._fused import RowLoss, fused_losses, is_fused
from contmax.maps._half_precision import widened_scores
from contmax.maps._threshold import or_one


def fused_soft_losses(
    z: Tensor, target: Tensor, alpha: float, mask: Tensor | None, smoothing: float, dim: int
) -> Tensor:
    """`soft_losses` by one kernel, in float32; logits and targets in any precision that it takes."""
    allowed = None if mask is None else mask.expand(z.shape)
    if dim not in (-1, z.dim() - 1):
        z, target = z.movedim(dim, -1), target.movedim(dim, -1)
        allowed = None if allowed is None else allowed.movedim(dim, -1)
    losses, _ = apply(_SoftLoss, z, target, allowed, alpha, smoothing)
    return losses  # type: ignore[no-any-return]


def soft_losses(
    z: Tensor, target: Tensor, alpha: float | Tensor, mask: Tensor | None, smoothing: float, dim: int
) -> Tensor:
    """Ω*(z) + (1−s)·(Ω(q) − ⟨z, q⟩) − s·⟨z, u⟩ along an axis, which is dropped; u is uniform on the allowed classes.

    q is the targets over their sum. What is masked has a logit of −inf already.
    """
    # Near α = 1 the negentropy divides what the sum is off by, if only by rounding, by α − 1.
    target = target / or_one(target.detach().sum(dim, keepdim=True))
    z = below_maximum(z, dim)
    conjugate = conjugate_of(z, alpha, dim)
    negentropy = tsallis_negentropy(target, alpha, dim)
    losses = conjugate + (1 - smoothing) * (negentropy - _inner(target, z, dim))
    if smoothing > 0:
        allowed = torch.ones_like(z) if mask is None else mask.expand_as(z).to(z.dtype)
        losses = losses - smoothing * _inner(allowed / allowed.sum(dim, keepdim=True).clamp(min=1), z, dim)
    # Nothing to attend (Ω* = −inf) is an impossible target. Rounding below zero is cut off, its gradient is not.
    losses = torch.where(conjugate == -torch.inf, torch.inf, losses)
    return losses + (losses.detach().clamp(min=0) - losses.detach()).nan_to_num()


class _SoftLoss(RowLoss):
    """Against soft targets of the shape of the logits."""

    @staticmethod
    def forward(
        z: Tensor, target: Tensor, mask: Tensor | None, alpha: float, smoothing: float
    ) -> tuple[Tensor, Tensor]:
        losses, cut = kernels.soft_loss_fused(z, target, kernels.LossOptions(alpha, mask, smoothing))
        return losses.float(), cut

    @staticmethod
    def backward(ctx: Any, cotangent: Tensor, _: Tensor) -> tuple[Tensor | None, ...]:
        z, target, mask, cut = ctx.saved_tensors
        needed = ctx.needs_input_grad[:2]
        if needs_reference(cotangent):
            gradients = gradients_by_reference(_reference(ctx, mask), (z, target), needed, cotangent)
            return *gradients, None, None, None
        options = kernels.LossOptions(ctx.alpha, mask, ctx.smoothing)
        return *kernels.soft_loss_fused_backward(z, target, options, cut, cotangent, needed[1]), None, None, None

    @staticmethod
    def tangent(ctx: Any, *tangents: Any) -> tuple[Tensor, None]:
        z, target, mask, _ = ctx.saved_tensors
        return tangent_by_reference(_reference(ctx, mask), (z, target), tangents[:2]), None


def _reference(ctx: Any, mask: Tensor | None) -> Any:
    """The losses by differentiable operations."""

    def losses(z: Tensor, target: Tensor) -> Tensor:
        z, target = widened_scores(z), widened_scores(target)
        z = z if mask is None else z.masked_fill(~mask, -torch.inf)
        return soft_losses(z, target, ctx.alpha, mask, ctx.smoothing, -1)

    return losses


def conjugate_of(z: Tensor, alpha: float | Tensor, dim: int) -> Tensor:
    """Ω*(z) along an axis, which is dropped."""
    if isinstance(alpha, float) and is_fused(z, alpha):
        return fused_losses(z, None, alpha, None, 0.0, dim)
    conjugate: Tensor = apply(Conjugate, z, alpha, dim)[0]
    return conjugate


def below_maximum(z: Tensor, dim: int) -> Tensor:
    """Losses do not change when all logits move together; without their maximum they keep their digits."""
    top = z.detach().amax(dim, keepdim=True)
    return z - torch.where(top == -torch.inf, 0, top)


def _inner(y: Tensor, z: Tensor, dim: int) -> Tensor:
    """⟨y, z⟩ with 0·(−inf) = 0, and −inf with a finite gradient where y > 0 meets z = −inf."""
    impossible = (y > 0) & (z == -torch.inf)
    finite = torch.where(z == -torch.inf, 0, z)
    return torch.where(impossible.any(dim), -torch.inf, (y * finite).sum(dim))
