"""Ω*_α(z), the convex conjugate whose gradient is the map, and the loss against one class per example.

Both keep one copy of the logits for the backward pass: the probabilities, or the gradient itself. Where the backward
may be differentiated again, it is rebuilt from the logits by differentiable operations.
"""

from typing import Any

import torch
from torch import Tensor

from contmax._by_reference import may_be_differentiated
from contmax._eager import is_eager
from contmax.deformed import log_beta, mean_u_exp
from contmax.maps._backend import regularized_max
from contmax.maps._entmax import entmax_map


class Conjugate(torch.autograd.Function):
    """Ω*_α(z) along an axis, which is dropped; the gradient is p̂."""

    generate_vmap_rule = True

    @staticmethod
    def forward(scores: Tensor, alpha: float | Tensor, dim: int) -> tuple[Tensor, Tensor]:
        p, gain = regularized_max(scores, alpha, dim)
        return (scores.amax(dim, keepdim=True) + gain).to(scores.dtype).squeeze(dim), p

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor]) -> None:
        scores, alpha, ctx.dim = inputs
        ctx.mark_non_differentiable(output[1])
        _save(ctx, scores, alpha, output[1])

    @staticmethod
    def backward(ctx: Any, cotangent: Tensor, _: Tensor) -> tuple[Tensor | None, ...]:
        scores, alpha, p = _saved(ctx)
        if may_be_differentiated():
            p = entmax_map(scores, alpha, ctx.dim)
        cotangent = cotangent.unsqueeze(ctx.dim)
        return cotangent * p, _alpha_gradient(ctx, cotangent, p, alpha), None

    @staticmethod
    def tangent(ctx: Any, *tangents: Any) -> tuple[Tensor, None]:
        scores, alpha, _ = _saved(ctx)
        p = entmax_map(scores, alpha, ctx.dim)
        return _push_forward(p, p, alpha, ctx.dim, tangents), None


class ClassLoss(torch.autograd.Function):
    """Ω*(z) − ⟨z, q⟩ with q = (1−ε)·e_y + ε·u, u uniform on the allowed classes: the gradient is p̂ − q."""

    generate_vmap_rule = True

    @staticmethod
    def forward(
        scores: Tensor, alpha: float | Tensor, target: Tensor, allowed: Tensor | None, smoothing: float, dim: int
    ) -> tuple[Tensor, Tensor]:
        loss, p = class_losses(scores, alpha, target, allowed, smoothing, dim)
        return loss.squeeze(dim), less_target(
            p, target, allowed, smoothing, dim, in_place=is_eager(p) and is_eager(target)
        )

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor]) -> None:
        scores, alpha, target, allowed, ctx.smoothing, ctx.dim = inputs
        ctx.mark_non_differentiable(output[1])
        _save(ctx, scores, alpha, target, allowed, output[1])

    @staticmethod
    def backward(ctx: Any, cotangent: Tensor, _: Tensor) -> tuple[Tensor | None, ...]:
        scores, alpha, target, allowed, residual = _saved(ctx)
        p = None
        if may_be_differentiated() or ctx.needs_input_grad[1]:
            p = entmax_map(scores, alpha, ctx.dim)
        if may_be_differentiated() and p is not None:
            residual = less_target(p, target, allowed, ctx.smoothing, ctx.dim, in_place=False)
        cotangent = cotangent.unsqueeze(ctx.dim)
        gradient = _where_it_counts(cotangent, residual)
        return gradient, _alpha_gradient(ctx, cotangent, p, alpha), None, None, None, None

    @staticmethod
    def tangent(ctx: Any, *tangents: Any) -> tuple[Tensor, None]:
        scores, alpha, target, allowed, _ = _saved(ctx)
        p = entmax_map(scores, alpha, ctx.dim)
        residual = less_target(p, target, allowed, ctx.smoothing, ctx.dim, in_place=False)
        return _push_forward(residual, p, alpha, ctx.dim, tangents), None


def class_losses(
    scores: Tensor, alpha: float | Tensor, target: Tensor, allowed: Tensor | None, smoothing: float, dim: int
) -> tuple[Tensor, Tensor]:
    """The losses of `ClassLoss`, of size 1 along `dim`, and p̂; not differentiable."""
    p, gain = regularized_max(scores, alpha, dim)
    # Everything less the maximum, which would swallow the loss where logits are large.
    top = scores.amax(dim, keepdim=True)
    top = torch.where(top == -torch.inf, 0, top)
    linear = (1 - smoothing) * (scores.gather(dim, target) - top).double()
    if smoothing > 0:
        kept = scores - top if allowed is None else torch.where(allowed, scores - top, 0)
        linear = linear + kept.sum(dim, keepdim=True, dtype=torch.float64) * _share(scores, allowed, smoothing, dim)
    # Ω*(z) ≥ ⟨z, q⟩ for every q on the simplex: what falls below zero is rounding.
    loss = (gain - linear).to(scores.dtype).clamp(min=0)
    # Nothing to attend: the target, wherever it is, has logit −inf.
    return torch.where(gain == -torch.inf, torch.inf, loss), p


def _save(ctx: Any, scores: Tensor, alpha: float | Tensor, *others: Tensor | None) -> None:
    ctx.fixed_alpha = None if isinstance(alpha, Tensor) else alpha
    saved = (scores, alpha if isinstance(alpha, Tensor) else None, *others)
    ctx.save_for_backward(*saved)
    ctx.save_for_forward(*saved)


def _saved(ctx: Any) -> tuple[Any, ...]:
    scores, alpha, *others = ctx.saved_tensors
    return scores, ctx.fixed_alpha if alpha is None else alpha, *others


def _share(scores: Tensor, allowed: Tensor | None, smoothing: float, dim: int) -> float | Tensor:
    """The mass that label smoothing gives to each allowed class."""
    if allowed is None:
        return smoothing / scores.shape[dim]
    # In the dtype of the scores: a number over an integer would be float32.
    return smoothing / allowed.expand_as(scores).sum(dim, keepdim=True, dtype=scores.dtype).clamp(min=1)


def less_target(
    p: Tensor, target: Tensor, allowed: Tensor | None, smoothing: float, dim: int, in_place: bool
) -> Tensor:
    """p − q; the forward pass, which owns p, overwrites it."""
    mass = torch.full_like(target, smoothing - 1, dtype=p.dtype)
    residual = p.scatter_add_(dim, target, mass) if in_place else p.scatter_add(dim, target, mass)
    if smoothing == 0:
        return residual
    share = _share(p, allowed, smoothing, dim)
    share = share if allowed is None else (allowed * share).to(p.dtype)
    return residual.sub_(share) if in_place else residual - share


def _alpha_gradient(ctx: Any, cotangent: Tensor, p: Tensor | None, alpha: float | Tensor) -> Tensor | None:
    if not ctx.needs_input_grad[1] or p is None or not isinstance(alpha, Tensor):
        return None
    return _where_it_counts(cotangent, _rate_in_alpha(p, alpha, ctx.dim)).sum_to_size(alpha.shape)


def _where_it_counts(cotangent: Tensor, slope: Tensor) -> Tensor:
    """Their product: 0 for an example that counts nothing, even if its slope is NaN."""
    return torch.where(cotangent == 0, 0, cotangent * slope)


def _push_forward(gradient: Tensor, p: Tensor, alpha: float | Tensor, dim: int, tangents: tuple[Any, ...]) -> Tensor:
    total = torch.zeros_like(p.narrow(dim, 0, 1))
    if tangents[0] is not None:
        total = total + (gradient * tangents[0]).sum(dim, keepdim=True)
    if isinstance(alpha, Tensor) and tangents[1] is not None:
        total = total + _rate_in_alpha(p, alpha, dim) * tangents[1]
    return total.squeeze(dim)


def _rate_in_alpha(p: Tensor, alpha: Tensor, dim: int) -> Tensor:
    r"""∂Ω*_α(z)/∂α = −∂Ω_α(p̂)/∂α, by the envelope theorem; smooth through α = 1.

    With Ω_α(p) = Σ p h/α and h = log_{2−α}(p): ∂Ω/∂α = Σ p (D/α − h/α²), D = ∂h/∂α.
    """
    inside = p > 0
    inner = torch.where(inside, p, 1)
    log_p = inner.log()
    rate = log_p.square() * mean_u_exp((alpha - 1) * log_p) / alpha - log_beta(inner, 2 - alpha) / alpha**2
    return -torch.where(inside, p * rate, 0).sum(dim, keepdim=True)
