"""The normaliser A that makes exp_{2−α}(x − A) sum to one, for 0 < α ≤ 2: the threshold is τ = A − 1/(α−1).

Scores x lie along the last axis, with their maximum subtracted, so that A ≥ 0 unless points have weights. No function
of this file is differentiated: `_jacobian` holds the implicit derivatives. For α > 2 see `_sorted_support`.
"""

from collections.abc import Callable

import torch
from torch import Tensor

from contmax._eager import is_eager_cpu
from contmax.deformed import log_beta

# Newton steps where the number must be fixed (traced graphs, accelerators). The worst case found over α ∈ (0, 2],
# 2 ≤ L ≤ 65,536 and logits from flat to peaked was 11 (float32) and 12 (float64).
_FIXED_STEPS = {torch.float32: 12, torch.float64: 14}
_MOST_STEPS = 64


def newton_normaliser(shifted: Tensor, alpha: float | Tensor, weights: Tensor | None) -> Tensor:
    r"""A for 0 < α ≤ 2, by Newton's method on a power mean.

    With ε = α − 1 and S(A) = Σ w·exp_{2−α}(x − A), the power mean S(A)^ε is convex and decreasing in A for
    1 < α ≤ 2, concave and increasing for α < 1, and nearly linear in both cases. From a left end where S ≥ 1
    Newton's iterates therefore climb to the root without overshooting and need no bracket:

        A ← A + S/Σ w p^{2−α} · (1 − S^{−ε})/ε,       which at ε = 0 is A ← A + ln S: softmax in one step.

    Args:
        shifted: scores x with maximum 0; −inf where nothing may be attended.
        alpha: α, a float or a tensor of size 1 along the last axis.
        weights: positive masses w of the points (None: all 1), as in a quadrature rule.

    Returns:
        A with size 1 along the last axis; 0 in slices without any finite score.
    """
    normaliser = _left_end(shifted, alpha, weights)
    eager = is_eager_cpu(shifted, alpha, weights)
    info = torch.finfo(shifted.dtype)
    for _ in range(_MOST_STEPS if eager else _FIXED_STEPS[shifted.dtype]):
        log_p = _log_of_deformed_exp(shifted - normaliser, alpha - 1)
        p, is_two = log_p.exp(), isinstance(alpha, float) and alpha == 2
        power = p.sign() if is_two else (log_p * (2 - alpha)).exp()  # p^{2−α}
        if isinstance(alpha, Tensor):
            power = torch.where(log_p == -torch.inf, 0, power)
        total, slope = _sum(p, weights), _sum(power, weights)
        # In a fully masked row the total is zero, and so is the step.
        log_total = total.clamp(min=info.tiny).log()
        step = total / slope.clamp(min=info.tiny) * _over(1 - alpha, log_total, torch.expm1)
        previous, normaliser = normaliser, normaliser + step
        # Newton's iterates increase until rounding stops them: a row has converged when A no longer grows.
        if eager and not bool((normaliser - previous > 4 * info.eps * (1 + normaliser.abs())).any()):
            break
    return normaliser


def _left_end(shifted: Tensor, alpha: float | Tensor, weights: Tensor | None) -> Tensor:
    """A at which the maximum alone, of weight w, has mass 1, so the total ≥ 1: −log_{2−α}(1/w), 0 without weights."""
    if weights is None:
        return torch.zeros_like(shifted[..., :1])
    # The largest weight among the maxima; 1 where nothing may be attended.
    weight = torch.where(shifted == 0, weights, 0).amax(-1, keepdim=True)
    return -log_beta(1 / torch.where(weight > 0, weight, 1), 2 - alpha)


def deformed_exp(v: Tensor, epsilon: float | Tensor) -> Tensor:
    """exp_{1−ε}(v) = [1 + εv]₊^{1/ε} in few passes over memory, where no derivative is needed."""
    return _log_of_deformed_exp(v, epsilon).exp()


def _log_of_deformed_exp(v: Tensor, epsilon: float | Tensor) -> Tensor:
    return _over(epsilon, v, lambda x: x.clamp(min=-1).log1p())


def _over(epsilon: float | Tensor, v: Tensor, function: Callable[[Tensor], Tensor]) -> Tensor:
    """f(εv)/ε, and v at ε = 0, for a function f(x) = x + O(x²)."""
    if isinstance(epsilon, Tensor):
        return torch.where(epsilon == 0, v, function(epsilon * v) / torch.where(epsilon == 0, 1, epsilon))
    return v if epsilon == 0 else function(epsilon * v) / epsilon


def _sum(values: Tensor, weights: Tensor | None) -> Tensor:
    return (values if weights is None else weights * values).sum(-1, keepdim=True)


def power_on_support(p: Tensor, exponent: float | Tensor) -> Tensor:
    """p^exponent where p > 0, and 0 elsewhere, also for exponents ≤ 0."""
    inside = p > 0
    return torch.where(inside, torch.where(inside, p, 1) ** exponent, 0)


def or_one(total: Tensor) -> Tensor:
    """`total` with 1 in place of 0, a safe denominator: fully masked slices give 0, not NaN."""
    return torch.where(total == 0, 1, total)
