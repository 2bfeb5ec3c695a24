"""The normaliser A that makes exp_{2−α}(x − A) sum to one, or for α > 2 the support and then the probabilities.

Here exp_{2−α}(v) = [1 + (α−1)v]₊^{1/(α−1)}, so for α > 1 a score below the threshold τ = A − 1/(α−1) has probability 0.
Scores x lie along the last axis. For 0 < α ≤ 2 Newton's method finds A; callers first subtract the maximum of the
scores, so that A ≥ 0 unless points have weights. For α > 2 a search over the sorted scores finds the support, and then
one smooth scalar equation is solved, in logarithms. No function of this file is differentiated: `_jacobian` holds the
implicit derivatives.
"""

from collections.abc import Callable

import torch
from torch import Tensor

from contmax._eager import is_eager_cpu, widest_dtype
from contmax.deformed import log_beta

# Newton steps where the number must be fixed (traced graphs, accelerators). The most steps needed in a search over
# α ∈ (0, 2], 2 ≤ L ≤ 65,536 and logits from flat to peaked were 11 (float32) and 12 (float64).
_FIXED_STEPS = {torch.float32: 12, torch.float64: 14}
_MOST_STEPS = 64
# Newton steps for α > 2, and the relative change at which they end early. The most steps needed in a search over
# α ∈ (2, 100], lengths up to 1,000, scores from 1e-30 to 10 apart and weights over twelve decades were 7.
_FIXED_STEPS_BEYOND_TWO = 10
_TOLERANCE = 1e-14


def newton_normaliser(shifted: Tensor, alpha: float | Tensor, weights: Tensor | None) -> Tensor:
    r"""A for 0 < α ≤ 2, by Newton's method on a power mean.

    With ε = α − 1 and S(A) = Σ w·exp_{2−α}(x − A), the power mean S(A)^ε is convex and decreasing in A for
    1 < α ≤ 2, concave and increasing for α < 1, and nearly linear in both cases. From an A with S(A) ≥ 1
    Newton's iterates therefore climb to the root without overshooting and need no bracket:

        A ← A + S/Σ w p^{2−α} · (1 − S^{−ε})/ε,       which at ε = 0 is A ← A + ln S: softmax in one step.

    Args:
        shifted: scores x with maximum 0; −inf where nothing may be attended.
        alpha: α, a float or a tensor of size 1 along the last axis.
        weights: positive masses w of the points (None: all 1), as in a quadrature rule.

    Returns:
        A with size 1 along the last axis; 0 in slices without any finite score.
    """
    normaliser = torch.zeros_like(shifted[..., :1])
    if weights is not None:
        # Begin with the A at which the point of maximal score alone, of weight w, has mass 1: A = −log_{2−α}(1/w). Take
        # w = 1 if all points are masked.
        weight = torch.where(shifted == 0, weights, 0).amax(-1, keepdim=True)
        normaliser = -log_beta(1 / torch.where(weight > 0, weight, 1), 2 - alpha)
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


def sorted_probabilities(scores: Tensor, alpha: float | Tensor, weights: Tensor | None) -> Tensor:
    r"""p̂ for α > 2, in float64, or float32 on a device without it.

    For k = 1/(α−1) < 1 the sum Σ w [z − τ]₊ᵏ, z = (α−1)x, has infinite slope at each τ = z_i, so solving for τ
    loses all but a fraction k of the digits. Instead: (1) bisect over the sorted scores for the last point m of the
    support; (2) solve for its probability v; every other probability is the (α−1)-norm of v and p_i(0),

        p_i(v) = ((z_i − z_m) + v^{α−1})ᵏ,      Σ_{i≤m} w_i (p_i(v) − p_i(0)) = 1 − Σ_{i<m} w_i p_i(0) =: δ.

    Differences of 1e-300 matter, so z_i − z_m is computed from scores that are not shifted; and v^{α−1} may underflow,
    so powers are computed as exponentials of scaled logarithms.

    Args:
        scores: x, not shifted; −inf where nothing may be attended. The result is arbitrary for slices with NaN or +inf.
        alpha: α, a float or a tensor of size 1 along the last axis, along which the distribution lies.
        weights: positive masses w of the points (None: all 1).

    Returns:
        p of the shape of the scores, 0 off the support, with Σ w p = 1 up to rounding.
    """
    wide = widest_dtype(scores)
    epsilon = alpha.to(wide) - 1 if isinstance(alpha, Tensor) else alpha - 1
    x, order = scores.to(wide).sort(descending=True)
    w = torch.ones_like(x) if weights is None else weights.to(wide).expand_as(x).gather(-1, order)
    position = last_in_support(x, w, epsilon)
    inside = torch.arange(x.shape[-1], device=x.device) <= position
    w = torch.where(inside, w, 0)
    log_base = torch.where(inside, _log_base(x, x.gather(-1, position), epsilon), -torch.inf)
    p = _grow_to_fill(log_base, w, w.gather(-1, position), epsilon)
    return torch.zeros_like(p).scatter(-1, order, torch.where(inside & (x > -torch.inf), p, 0))


def _log_base(x: Tensor, lowest: Tensor, epsilon: float | Tensor) -> Tensor:
    """ln p_i(0) of `sorted_probabilities`, ln(ε(x_i − x_m))/ε, ε = α − 1; −inf if x_i ≤ x_m, NaN or ∞ if x_m = −inf."""
    gap = (x - lowest).clamp(min=0)
    # Add ln ε to the logarithm of the gap x_i − x_m, because their product could overflow.
    scale = epsilon.log() if isinstance(epsilon, Tensor) else torch.full_like(lowest, epsilon).log()
    return (gap.log() + scale) / epsilon


def last_in_support(x: Tensor, w: Tensor, epsilon: float | Tensor) -> Tensor:
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
    """The p_i(v) of `sorted_probabilities` that sum to one: Newton steps in ln v, or bisection if they leave a bracket.

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
    for _ in range(_FIXED_STEPS_BEYOND_TWO):
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
    """Steps of a bisection over `length` points; for a symbolic length, over the largest that it may have."""
    if isinstance(length, int):
        return max(1, (length - 1).bit_length())
    from torch.fx.experimental.symbolic_shapes import statically_known_true  # slow to import

    return next((bits for bits in range(1, 32) if statically_known_true(length <= 2**bits)), 32)


def power_on_support(p: Tensor, exponent: float | Tensor) -> Tensor:
    """p^exponent where p > 0, and 0 elsewhere, also for exponents ≤ 0."""
    inside = p > 0
    return torch.where(inside, torch.where(inside, p, 1) ** exponent, 0)


def below_maximum(scores: Tensor, dim: int) -> Tensor:
    """Scores less their maximum, which counts as a constant in derivatives; −∞ where all scores are −∞."""
    top = scores.detach().amax(dim, keepdim=True)
    return scores - torch.where(top == -torch.inf, 0, top)


def or_one(total: Tensor) -> Tensor:
    """`total` with 1 in place of 0, a safe denominator: fully masked slices give 0, not NaN."""
    return torch.where(total == 0, 1, total)
