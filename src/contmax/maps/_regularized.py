"""p̂ = argmax ⟨x, p⟩ − Ω_α(p) and its value Ω*_α(x) by torch operations, for every α; no gradients here."""

import torch
from torch import Tensor

from contmax._eager import is_eager_cpu
from contmax.deformed import log_beta
from contmax.maps._sorted_support import sorted_probabilities
from contmax.maps._threshold import deformed_exp, newton_partition, or_one


def regularized_argmax_reference(
    scores: Tensor, alpha: float | Tensor, dim: int, weights: Tensor | None
) -> tuple[Tensor, Tensor, Tensor]:
    """(p, scores less their maximum, maximum); `weights` are the masses of the points, Σ w p = 1."""
    top = scores.amax(dim, keepdim=True)
    shifted = scores - torch.where(top == -torch.inf, 0, top)
    p = _probabilities(scores, shifted, alpha, dim, weights)
    total = p.sum(dim, keepdim=True) if weights is None else (weights * p).sum(dim, keepdim=True)
    p = p / or_one(total)
    # torch.compile of torch 2.11 loses the gradient of an autograd.Function whose result is cast to its own dtype.
    return p if p.dtype == scores.dtype else p.to(scores.dtype), shifted, top


def regularized_max_reference(
    scores: Tensor, alpha: float | Tensor, dim: int, weights: Tensor | None
) -> tuple[Tensor, Tensor]:
    """(p, Ω*_α(x) − max x), Ω*_α(x) = ⟨x, p⟩ − Ω_α(p): see `contmax.maps._backend.regularized_max`."""
    p, shifted, top = regularized_argmax_reference(scores, alpha, dim, weights)
    # A maximum that is not a number makes NaN of its difference from itself.
    gain = _gain(p, shifted, alpha, dim, weights).double() + (top - top)
    return p, torch.where(top == -torch.inf, -torch.inf, gain)


def _probabilities(scores: Tensor, shifted: Tensor, alpha: float | Tensor, dim: int, weights: Tensor | None) -> Tensor:
    """p up to a factor close to one."""
    if isinstance(alpha, float):
        return _newton(shifted, alpha, dim, weights) if alpha <= 2 else _sorted(scores, alpha, dim, weights)
    beyond = alpha > 2
    if is_eager_cpu(alpha) and not bool(beyond.any()):
        return _newton(shifted, alpha, dim, weights)
    # Asking an accelerator which α there are would mean waiting: both answers are computed, each where it holds.
    low = _newton(shifted, torch.where(beyond, 2, alpha), dim, weights)
    return torch.where(beyond, _sorted(scores, torch.where(beyond, alpha, 3), dim, weights), low)


def _newton(shifted: Tensor, alpha: float | Tensor, dim: int, weights: Tensor | None) -> Tensor:
    return deformed_exp(shifted - newton_partition(shifted, alpha, dim, weights), alpha - 1)


def _sorted(scores: Tensor, alpha: float | Tensor, dim: int, weights: Tensor | None) -> Tensor:
    p = sorted_probabilities(scores, alpha, dim, weights)
    return p.masked_fill(~(scores.amax(dim, keepdim=True) < torch.inf), torch.nan)


def _gain(p: Tensor, shifted: Tensor, alpha: float | Tensor, dim: int, weights: Tensor | None) -> Tensor:
    """⟨x, p⟩ − Ω_α(p) for shifted scores; Ω_α(p) = Σ w p log_{2−α}(p)/α where Σ w p = 1."""
    inside = p > 0
    surprise = log_beta(torch.where(inside, p, 1), 2 - alpha)
    gain = torch.where(inside, p * (torch.where(inside, shifted, 0) - surprise / alpha), 0)
    return (gain if weights is None else weights * gain).sum(dim, keepdim=True)
