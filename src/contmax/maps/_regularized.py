"""p̂ = argmax ⟨x, p⟩ − Ω_α(p) and its value Ω*_α(x) in one sweep, by whichever backend fits; no gradients here."""

import torch
from torch import Tensor

from contmax import kernels
from contmax._eager import is_eager_cpu
from contmax.deformed import log_beta
from contmax.maps._threshold import deformed_exp, newton_partition, sorted_probabilities


def regularized_argmax(scores: Tensor, alpha: float | Tensor, dim: int, weights: Tensor | None = None) -> Tensor:
    """The maximiser p, of the shape of the scores; `weights` are the masses of the points."""
    compiled = None if weights is not None else kernels.regularized_argmax(scores, alpha, dim)
    return _reference(scores, alpha, dim, weights)[0] if compiled is None else compiled[0]


def regularized_max(scores: Tensor, alpha: float | Tensor, dim: int) -> tuple[Tensor, Tensor]:
    """The maximiser p and the maximum Ω*_α(x) = ⟨x, p⟩ − Ω_α(p), of size 1 along `dim`.

    The maximum is in float64, so that large scores do not swallow it, and −inf where nothing may be attended.
    """
    compiled = kernels.regularized_argmax(scores, alpha, dim)
    if compiled is not None:
        return compiled
    p, shifted, top = _reference(scores, alpha, dim, None)
    return p, top.double() + _gain(p, shifted, alpha, dim)


def _reference(
    scores: Tensor, alpha: float | Tensor, dim: int, weights: Tensor | None
) -> tuple[Tensor, Tensor, Tensor]:
    """(p, scores less their maximum, maximum) by torch operations."""
    top = scores.amax(dim, keepdim=True)
    shifted = scores - torch.where(top == -torch.inf, 0, top)
    p = _probabilities(shifted, alpha, dim, weights)
    total = p.sum(dim, keepdim=True) if weights is None else (weights * p).sum(dim, keepdim=True)
    return p / torch.where(total == 0, 1, total), shifted, top


def _probabilities(shifted: Tensor, alpha: float | Tensor, dim: int, weights: Tensor | None) -> Tensor:
    if isinstance(alpha, float):
        return (_newton if alpha <= 2 else _sorted)(shifted, alpha, dim, weights)
    beyond = alpha > 2
    if is_eager_cpu(alpha) and not bool(beyond.any()):
        return _newton(shifted, alpha, dim, weights)
    # A traced graph cannot ask which α it will meet: both answers are computed, each where it holds.
    low = _newton(shifted, torch.where(beyond, 2, alpha), dim, weights)
    return torch.where(beyond, _sorted(shifted, torch.where(beyond, alpha, 3), dim, weights), low)


def _newton(shifted: Tensor, alpha: float | Tensor, dim: int, weights: Tensor | None) -> Tensor:
    return deformed_exp(shifted - newton_partition(shifted, alpha, dim, weights), alpha - 1)


def _sorted(shifted: Tensor, alpha: float | Tensor, dim: int, weights: Tensor | None) -> Tensor:
    p = sorted_probabilities(shifted, alpha, dim, weights)
    nan = shifted.amax(dim, keepdim=True).isnan()
    return torch.where(shifted == -torch.inf, 0, p).masked_fill(nan, torch.nan)


def _gain(p: Tensor, shifted: Tensor, alpha: float | Tensor, dim: int) -> Tensor:
    """⟨x, p⟩ − Ω_α(p) for shifted scores; Ω_α(p) = Σ p log_{2−α}(p)/α where Σ p = 1."""
    inside = p > 0
    surprise = log_beta(torch.where(inside, p, 1), 2 - alpha)
    return torch.where(inside, p * (torch.where(inside, shifted, 0) - surprise / alpha), 0).sum(dim, keepdim=True)
