"""Losses of logits z along an axis, before weights and reduction: by torch operations, or by Triton's kernels.

p̂ = entmax(z), q is the target with smoothing s, and e_y the indicator of class y. Torch operations take any α and save,
besides z, one tensor of its shape: the gradient p̂ or p̂ − q. A backward pass that may be differentiated recomputes it.
"""

import functools
from typing import Any

import torch
from torch import Tensor

from contmax._autograd import (
    apply,
    gradients_by_reference,
    may_be_differentiated,
    needs_reference,
    tangent_by_reference,
)
from contmax._eager import is_eager, widest_dtype
from contmax.deformed import log_beta, mean_u_exp, tsallis_negentropy
from contmax.kernels.losses import row_losses, row_losses_backward
from contmax.maps._arguments import widened_scores
from contmax.maps._backend import axis_last, regularized_max
from contmax.maps._entmax import entmax_map
from contmax.maps._threshold import below_maximum, or_one


def fused_losses(z: Tensor, target: Tensor, alpha: float, mask: Tensor | None, smoothing: float, dim: int) -> Tensor:
    """`class_losses` or `soft_losses` by a Triton kernel, in float32; z may be in half precision and not yet masked."""
    allowed = None if mask is None else axis_last(mask.expand(z.shape), dim)
    target = axis_last(target, dim) if target.is_floating_point() else target
    losses: Tensor = apply(_FusedLoss, axis_last(z, dim), target, allowed, alpha, smoothing)[0]
    return losses


def class_losses(
    z: Tensor, ids: Tensor, alpha: float | Tensor, mask: Tensor | None, smoothing: float, dim: int
) -> Tensor:
    """Ω*(z) − ⟨z, q⟩ along an axis, which is dropped, with q = (1−s)·e_y + s·u, u uniform on the allowed classes.

    Class ids have the shape of the logits without `dim`. Masked logits must be −inf.
    """
    losses: Tensor = apply(_ClassLoss, z, alpha, ids.unsqueeze(dim), mask, smoothing, dim)[0]
    return losses


def soft_losses(
    z: Tensor, target: Tensor, alpha: float | Tensor, mask: Tensor | None, smoothing: float, dim: int
) -> Tensor:
    """Ω*(z) + (1−s)·(Ω(q) − ⟨z, q⟩) − s·⟨z, u⟩ along an axis, which is dropped; u is uniform on the allowed classes.

    Here q = target / Σ target, without smoothing. Masked logits must be −inf.
    """
    # Renormalise: near α = 1 any error in Σq is amplified by 1/(α−1).
    target = target / or_one(target.detach().sum(dim, keepdim=True))
    # Subtracting the maximum leaves losses unchanged and keeps their digits where logits are large.
    z = below_maximum(z, dim)
    conjugate: Tensor = apply(_ClassLoss, z, alpha, None, None, 0.0, dim)[0]
    negentropy = tsallis_negentropy(target, alpha, dim)
    losses = conjugate + (1 - smoothing) * (negentropy - _inner(target, z, dim))
    if smoothing > 0:
        allowed = torch.ones_like(z) if mask is None else mask.expand_as(z).to(z.dtype)
        losses = losses - smoothing * _inner(allowed / allowed.sum(dim, keepdim=True).clamp(min=1), z, dim)
    # A fully masked row (Ω* = −inf) has infinite loss.
    return not_negative(torch.where(conjugate == -torch.inf, torch.inf, losses))


def losses_of_every_class(z: Tensor, alpha: float | Tensor, dim: int) -> Tensor:
    """Ω*(z) − z_c for each class c; +inf with a finite gradient where z_c = −inf."""
    # Subtracting the maximum leaves losses unchanged and keeps their digits where logits are large.
    z = below_maximum(z, dim)
    conjugate: Tensor = apply(_ClassLoss, z, alpha, None, None, 0.0, dim)[0]
    losses = not_negative(conjugate.unsqueeze(dim) - torch.where(z == -torch.inf, 0, z))
    return torch.where(z == -torch.inf, torch.inf, losses)


def _inner(y: Tensor, z: Tensor, dim: int) -> Tensor:
    """⟨y, z⟩ with 0·(−inf) = 0, and −inf with a finite gradient where y > 0 meets z = −inf."""
    impossible = (y > 0) & (z == -torch.inf)
    finite = torch.where(z == -torch.inf, 0, z)
    return torch.where(impossible.any(dim), -torch.inf, (y * finite).sum(dim))


def not_negative(losses: Tensor) -> Tensor:
    """Losses clamped to at least 0, since they are negative only by rounding; the gradient is unchanged.

    Example:
        >>> not_negative(torch.tensor([-1e-9, 2.0]))
        tensor([0., 2.])
    """
    return losses - losses.detach().clamp(max=0)


class _FusedLoss(torch.autograd.Function):
    """Losses along the last axis by Triton's kernels, which save a few statistics per row for the backward pass."""

    generate_vmap_rule = True

    @staticmethod
    def forward(
        z: Tensor, target: Tensor, mask: Tensor | None, alpha: float, smoothing: float
    ) -> tuple[Tensor, Tensor]:
        # This wrapper is needed: torch.compile does not trace `forward = staticmethod(row_losses)`, since row_losses is
        # an operator.
        return row_losses(z, target, mask, alpha, smoothing)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor]) -> None:
        z, target, mask, ctx.alpha, ctx.smoothing = inputs
        ctx.mark_non_differentiable(output[1])
        ctx.save_for_backward(z, target, mask, output[1])
        ctx.save_for_forward(z, target, mask, output[1])

    @staticmethod
    def backward(ctx: Any, cotangent: Tensor, _: Tensor) -> tuple[Tensor | None, ...]:
        z, target, mask, statistics = ctx.saved_tensors
        options, needed = (mask, ctx.alpha, ctx.smoothing), ctx.needs_input_grad[:2]
        if needs_reference(cotangent):
            reference = functools.partial(_reference, mask=mask, alpha=ctx.alpha, smoothing=ctx.smoothing)
            return *gradients_by_reference(reference, (z, target), needed, cotangent), None, None, None
        grad, grad_target = row_losses_backward(z, target, *options, statistics, cotangent, needed[1])
        return grad, grad_target if needed[1] else None, None, None, None

    @staticmethod
    def tangent(ctx: Any, *tangents: Any) -> tuple[Tensor, None]:
        z, target, mask, _ = ctx.saved_tensors
        reference = functools.partial(_reference, mask=mask, alpha=ctx.alpha, smoothing=ctx.smoothing)
        return tangent_by_reference(reference, (z, target), tangents[:2]), None


def _reference(z: Tensor, target: Tensor, mask: Tensor | None, alpha: float, smoothing: float) -> Tensor:
    """The losses of `_FusedLoss` by differentiable operations."""
    z = widened_scores(z)
    z = z if mask is None else z.masked_fill(~mask, -torch.inf)
    if target.is_floating_point():
        return soft_losses(z, widened_scores(target), alpha, mask, smoothing, -1)
    return class_losses(z, target, alpha, mask, smoothing, -1)


class _ClassLoss(torch.autograd.Function):
    """`class_losses`, with gradient p̂ − q; without class ids it is Ω*(z), with gradient p̂."""

    generate_vmap_rule = True

    @staticmethod
    def forward(
        scores: Tensor, alpha: float | Tensor, target: Tensor | None, allowed: Tensor | None, smoothing: float, dim: int
    ) -> tuple[Tensor, Tensor]:
        loss, p = losses_and_map(scores, alpha, target, allowed, smoothing, dim)
        in_place = is_eager(p) and (target is None or is_eager(target))
        return loss.squeeze(dim), _less_target(p, target, allowed, smoothing, dim, in_place)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor]) -> None:
        scores, alpha, target, allowed, ctx.smoothing, ctx.dim = inputs
        ctx.mark_non_differentiable(output[1])
        ctx.fixed_alpha = None if isinstance(alpha, Tensor) else alpha
        saved = (scores, alpha if isinstance(alpha, Tensor) else None, target, allowed, output[1])
        ctx.save_for_backward(*saved)
        ctx.save_for_forward(*saved)

    @staticmethod
    def backward(ctx: Any, cotangent: Tensor, _: Tensor) -> tuple[Tensor | None, ...]:
        scores, alpha, target, allowed, residual = ctx.saved_tensors
        p = residual
        if may_be_differentiated() or (ctx.needs_input_grad[1] and target is not None):
            p = entmax_map(scores, ctx.fixed_alpha if alpha is None else alpha, ctx.dim)
        if may_be_differentiated():
            residual = _less_target(p, target, allowed, ctx.smoothing, ctx.dim, in_place=False)
        cotangent, grad_alpha = cotangent.unsqueeze(ctx.dim), None
        if ctx.needs_input_grad[1]:
            grad_alpha = _where_it_counts(cotangent, _rate_in_alpha(p, alpha, ctx.dim)).sum_to_size(alpha.shape)
        return _where_it_counts(cotangent, residual), grad_alpha, None, None, None, None

    @staticmethod
    def tangent(ctx: Any, *tangents: Any) -> tuple[Tensor, None]:
        scores, alpha, target, allowed, _ = ctx.saved_tensors
        p = entmax_map(scores, ctx.fixed_alpha if alpha is None else alpha, ctx.dim)
        total = torch.zeros_like(p.narrow(ctx.dim, 0, 1))
        if tangents[0] is not None:
            residual = _less_target(p, target, allowed, ctx.smoothing, ctx.dim, in_place=False)
            total = total + (residual * tangents[0]).sum(ctx.dim, keepdim=True)
        if tangents[1] is not None:
            total = total + _rate_in_alpha(p, alpha, ctx.dim) * tangents[1]
        return total.squeeze(ctx.dim), None


def losses_and_map(
    scores: Tensor, alpha: float | Tensor, target: Tensor | None, allowed: Tensor | None, smoothing: float, dim: int
) -> tuple[Tensor, Tensor]:
    """The losses of `_ClassLoss` and p̂, without derivatives; losses and class ids have size 1 along `dim`."""
    p, gain = regularized_max(scores, alpha, dim)
    top = scores.amax(dim, keepdim=True)
    if target is None:
        return (top + gain).to(scores.dtype), p
    # Subtract the maximum first: added to a large maximum, the loss would lose its digits.
    top = torch.where(top == -torch.inf, 0, top)
    linear = (1 - smoothing) * (scores.gather(dim, target) - top).to(widest_dtype(scores))
    if smoothing > 0:
        counted = scores - top if allowed is None else torch.where(allowed, scores - top, 0)
        linear = linear + counted.sum(dim, keepdim=True, dtype=linear.dtype) * _share(scores, allowed, smoothing, dim)
    # Ω*(z) ≥ ⟨z, q⟩ for every q on the simplex: clamp rounding below 0.
    loss = (gain - linear).to(scores.dtype).clamp(min=0)
    # In a fully masked row (gain = −inf) every class has logit −inf, so any target has infinite loss.
    return torch.where(gain == -torch.inf, torch.inf, loss), p


def _share(scores: Tensor, allowed: Tensor | None, smoothing: float, dim: int) -> float | Tensor:
    """The mass that label smoothing gives to each allowed class."""
    if allowed is None:
        return smoothing / scores.shape[dim]
    # Sum in the dtype of the scores: a float divided by an integer tensor would be in float32.
    return smoothing / allowed.expand_as(scores).sum(dim, keepdim=True, dtype=scores.dtype).clamp(min=1)


def _less_target(
    p: Tensor, target: Tensor | None, allowed: Tensor | None, smoothing: float, dim: int, in_place: bool
) -> Tensor:
    """p − q, written over p if `in_place`; p if there is no target."""
    if target is None:
        return p
    mass = torch.full_like(target, smoothing - 1, dtype=p.dtype)
    residual = p.scatter_add_(dim, target, mass) if in_place else p.scatter_add(dim, target, mass)
    if smoothing == 0:
        return residual
    share = _share(p, allowed, smoothing, dim)
    share = share if allowed is None else (allowed * share).to(p.dtype)
    return residual.sub_(share) if in_place else residual - share


def _where_it_counts(cotangent: Tensor, slope: Tensor) -> Tensor:
    """cotangent · slope, and 0 where the cotangent is 0, even if the slope is NaN."""
    if may_be_differentiated():
        # Multiply by the slope even where the cotangent is 0: the slope is the product's derivative in the cotangent.
        return cotangent * torch.where((cotangent == 0) & slope.isnan(), 0, slope)
    return torch.where(cotangent == 0, 0, cotangent * slope)


def _rate_in_alpha(p: Tensor, alpha: Tensor, dim: int) -> Tensor:
    r"""∂Ω*_α(z)/∂α = −∂Ω_α(p̂)/∂α, by the envelope theorem; smooth through α = 1.

    With Ω_α(p) = Σ p h/α and h = log_{2−α}(p): ∂Ω/∂α = Σ p (D/α − h/α²), D = ∂h/∂α.
    """
    inside = p > 0
    inner = torch.where(inside, p, 1)
    log_p = inner.log()
    rate = log_p.square() * mean_u_exp((alpha - 1) * log_p) / alpha - log_beta(inner, 2 - alpha) / alpha**2
    return -torch.where(inside, p * rate, 0).sum(dim, keepdim=True)
