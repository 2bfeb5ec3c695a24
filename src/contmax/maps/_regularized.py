"""p̂ = argmax ⟨x, p⟩ − Ω_α(p) and its value Ω*_α(x) in one sweep, by whichever backend fits; no gradients here."""

import torch
from torch import Tensor

from contmax import kernels
from contmax._eager import is_eager_cpu
from contmax.deformed import log_beta
from contmax.maps._threshold import deformed_exp, newton_partition, sorted_probabilities


def regularized_argmax(
    scores: Tensor, alpha: float | Tensor, dim: int, weights: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """The maximiser p (the shape of the scores) and the conjugate Ω*_α(x) (size 1 along `dim`).

    Ω*_α(x) = ⟨x, p⟩ − Ω_α(p), in float64 so that large scores do not swallow it; −inf where nothing may be attended.
    """
    if weights is None:
        compiled = kernels.regularized_argmax(scores, alpha, dim)
        if compiled is not None:
            return compiled
    top = scores.amax(dim, keepdim=True)
    shift = torch.where(top == -torch.inf, 0, top)
    shifted = scores - shift
    p = _probabilities(shifted, alpha, dim, weights)
    total = p.sum(dim, keepdim=True) if weights is None else (weights * p).sum(dim, keepdim=True)
    p = p / torch.where(total == 0, 1, total)
    return p, top.double() + _conjugate(p, shifted, alpha, dim, weights)


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


def _conjugate(p: Tensor, shifted: Tensor, alpha: float | Tensor, dim: int, weights: Tensor | None) -> Tensor:
    """⟨x, p⟩ − Ω_α(p) for shifted scores; Ω_α(p) = Σ w p log_{2−α}(p)/α where Σ w p = 1."""
    inside = p > 0
    surprise = log_beta(torch.where(inside, p, 1), 2 - alpha)
    gain = torch.where(inside, p * (torch.where(inside, shifted, 0) - surprise / alpha), 0)
    return (gain if weights is None else weights * gain).sum(dim, keepdim=True)
