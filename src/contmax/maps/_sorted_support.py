"""α-entmax for α > 2: the support by a search over the sorted scores, then one smooth scalar equation, in logarithms.

No function of this file is differentiated: `_jacobian` holds the implicit derivatives.
"""

import torch
from torch import Tensor

from contmax._eager import is_eager_cpu

# Newton steps where the number must be fixed (traced graphs, accelerators). The worst case found over α ∈ (2, 100],
# lengths up to 1,000, scores from 1e-30 to 10 apart and weights over twelve decades was 7.
_FIXED_STEPS = 10
_TOLERANCE = 1e-14


def sorted_probabilities(scores: Tensor, alpha: float | Tensor, weights: Tensor | None) -> Tensor:
    r"""p̂ for α > 2, in float64.

    For k = 1/(α−1) < 1 the sum Σ w [z − τ]₊ᵏ, z = (α−1)x, has infinite slope at each τ = z_i, so solving for τ
    loses all but a fraction k of the digits. Instead: (1) bisect over the sorted scores for the last point m of the
    support; (2) solve for its probability v; every other probability is the (α−1)-norm of v and p_i(0),

        p_i(v) = ((z_i − z_m) + v^{α−1})ᵏ,      Σ_{i≤m} w_i (p_i(v) − p_i(0)) = 1 − Σ_{i<m} w_i p_i(0) =: δ.

    Differences of 1e-300 matter, and v^{α−1} underflows: z_i − z_m comes from scores that are not shifted, and powers
    are exponentials of scaled logarithms.

    Args:
        scores: x, not shifted; −inf where nothing may be attended. The result is arbitrary for slices with NaN or +inf.
        alpha: α, a float or a tensor of size 1 along the last axis, along which the distribution lies.
        weights: positive masses w of the points (None: all 1).

    Returns:
        p of the shape of the scores, 0 off the support, with Σ w p = 1 up to rounding.
    """
    epsilon = alpha.double() - 1 if isinstance(alpha, Tensor) else alpha - 1
    x, order = scores.double().sort(descending=True)
    w = torch.ones_like(x) if weights is None else weights.double().expand_as(x).gather(-1, order)
    position = _last_in_support(x, w, epsilon)
    inside = torch.arange(x.shape[-1], device=x.device) <= position
    w = torch.where(inside, w, 0)
    log_base = torch.where(inside, _log_base(x, x.gather(-1, position), epsilon), -torch.inf)
    p = _grow_to_fill(log_base, w, w.gather(-1, position), epsilon)
    return torch.zeros_like(p).scatter(-1, order, torch.where(inside & (x > -torch.inf), p, 0))


def _log_base(x: Tensor, lowest: Tensor, epsilon: float | Tensor) -> Tensor:
    """ln p_i(0) of `sorted_probabilities`, ln(ε(x_i − x_m))/ε, ε = α − 1; −inf if x_i ≤ x_m, NaN or ∞ if x_m = −inf."""
    gap = (x - lowest).clamp(min=0)
    # Add ln ε: the product ε (x_i − x_m) could overflow.
    scale = epsilon.log() if isinstance(epsilon, Tensor) else torch.full_like(lowest, epsilon).log()
    return (gap.log() + scale) / epsilon


def _last_in_support(x: Tensor, w: Tensor, epsilon: float | Tensor) -> Tensor:
    """Index of the smallest sorted score x_m with Σ_{i<m} w_i p_i(0) < 1; the sum grows with m."""
    low = torch.zeros_like(x[..., :1], dtype=torch.int64)
    high = low + (x.shape[-1] - 1)
    for _ in range(_bits(x.shape[-1])):
        middle = (low + high + 1) // 2
        lowest = x.gather(-1, middle)
        mass = (w * _log_base(x, lowest, epsilon).exp()).sum(-1, keepdim=True)
        fits = (mass < 1) & (lowest > -torch.inf)
        low, high = torch.where(fits, middle, low), torch.where(fits, high, middle - 1)
    return low


def _grow_to_fill(log_base: Tensor, w: Tensor, last_weight: Tensor, epsilon: float | Tensor) -> Tensor:
    """p_i(v) of `sorted_probabilities`, by Newton steps in ln v, or bisection where a step leaves the bracket.

    The bracket follows from p_i(v) ≥ v and p_i(v) − p_i(0) ≤ v, which are equalities for the last point. From the
    upper end few steps reach the root, because on logarithmic scales the slope lies between 1 and ε.
    """
    base = log_base.exp()
    above_last = base > 0
    room = (1 - (w * base).sum(-1, keepdim=True)).clamp(min=torch.finfo(base.dtype).tiny)
    total = w.sum(-1, keepdim=True)
    low, high = (room / total).log(), torch.minimum(room / last_weight, 1 / total).log()
    log_v = high
    eager = is_eager_cpu(log_base, w)
    for _ in range(_FIXED_STEPS):
        ratio = log_v - log_base  # +inf for the last point
        tail = torch.log1p((-epsilon * ratio.abs()).exp()) / epsilon
        growth = torch.where(above_last, base * torch.expm1(ratio.clamp(min=0) + tail), log_v.exp())
        filled = (w * growth).sum(-1, keepdim=True)
        log_p = torch.maximum(log_base, log_v) + tail
        slope = (w * torch.lerp(log_p, log_v, epsilon).exp()).sum(-1, keepdim=True) / filled
        error = (filled / room).log()
        short = error < 0
        low, high = torch.where(short, log_v, low), torch.where(short, high, log_v)
        step = log_v - error / slope
        previous, log_v = log_v, torch.where((step >= low) & (step <= high), step, (low + high) / 2)
        if eager and not bool(((log_v - previous).abs() > _TOLERANCE * (1 + log_v.abs())).any()):
            break
    tail = torch.log1p((-epsilon * (log_v - log_base).abs()).exp()) / epsilon
    return (torch.maximum(log_base, log_v) + tail).exp()


def _bits(length: int | torch.SymInt) -> int:
    """Steps of a bisection over `length` points, or over the largest possible length if it is symbolic."""
    if isinstance(length, int):
        return max(1, (length - 1).bit_length())
    from torch.fx.experimental.symbolic_shapes import statically_known_true  # slow to import

    return next((bits for bits in range(1, 32) if statically_known_true(length <= 2**bits)), 32)
