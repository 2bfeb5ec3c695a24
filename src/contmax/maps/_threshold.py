"""Where to cut: the scalar A that makes exp_{2−α}(x − A) sum to one, for every α > 0.

Scores arrive shifted so that each slice has maximum 0; A is then ≥ 0 (up to the weight of the maximum) and is
returned in the same shifted units. Nothing here is differentiated: `_jacobian` holds the implicit derivatives.
"""

import torch
from torch import Tensor

from contmax._eager import is_eager_cpu
from contmax.deformed import log_beta

# Newton steps where the number must be fixed (traced graphs, accelerators). The worst case found over α ∈ (0, 2],
# 2 ≤ L ≤ 65,536 and logits from flat to peaked was 11 (float32) and 12 (float64).
_FIXED_STEPS = {torch.float32: 12, torch.float64: 14}
_MOST_STEPS = 64


def newton_partition(shifted: Tensor, alpha: float | Tensor, dim: int, weights: Tensor | None) -> Tensor:
    r"""Log-partition for 0 < α ≤ 2, by Newton's method on a power mean.

    With ε = α − 1 and S(A) = Σ w·exp_{2−α}(x − A), the power mean S(A)^ε is convex and decreasing in A for
    1 < α ≤ 2, concave and increasing for α < 1, and nearly linear in both cases. From a left end where S ≥ 1
    Newton's iterates therefore climb to the root without overshooting and need no bracket:

        A ← A + S/Σ w p^{2−α} · (1 − S^{−ε})/ε,       which at ε = 0 is A ← A + ln S: softmax in one step.

    Args:
        shifted: scores x with maximum 0 along `dim`; −inf where nothing may be attended.
        alpha: α, a float or a tensor of size 1 along `dim`.
        dim: the axis of the distribution.
        weights: positive masses w of the points (None: all 1), as in a quadrature rule.

    Returns:
        A with size 1 along `dim`; 0 in slices without any finite score.
    """
    epsilon = alpha - 1
    partition = _left_end(shifted, alpha, dim, weights)
    eager = is_eager_cpu(shifted, alpha, weights)
    tolerance = 4 * torch.finfo(shifted.dtype).eps
    for _ in range(_MOST_STEPS if eager else _FIXED_STEPS[shifted.dtype]):
        p = deformed_exp(shifted - partition, epsilon)
        total = _sum(p, weights, dim)
        log_total = torch.where(total > 0, total, 1).log()
        slope = _sum(power_on_support(p, 2 - alpha), weights, dim)
        step = total / torch.where(slope > 0, slope, 1) * _shrunk(log_total, epsilon)
        partition = partition + step
        # Rounding ends the climb: a row has arrived when it no longer moves right.
        if eager and not bool((step > tolerance * (1 + partition)).any()):
            break
    return partition


def sorted_probabilities(shifted: Tensor, alpha: float | Tensor, dim: int, weights: Tensor | None) -> Tensor:
    r"""The map itself for α > 2, by a search over the sorted scores and one smooth scalar equation.

    For k = 1/(α−1) < 1 the sum Σ w [z − τ]₊ᵏ, z = (α−1)x, has infinite slope at every z, so solving for τ loses
    all but a fraction k of the digits. Instead: (1) bisect over the sorted scores for the last point m of the
    support; (2) solve for its probability v, in terms of which every other probability is an α−1-norm,

        p_i(v) = ((z_i − z_m) + v^{α−1})ᵏ,      Σ_{i≤m} w_i (p_i(v) − p_i(0)) = 1 − Σ_{i<m} w_i p_i(0) =: δ.

    The left side lies between w_m·v and v·Σw, a bracket, and on logarithmic scales its slope lies between 1 and
    α − 1, so clipped Newton steps in ln v converge in a few steps and v keeps full relative precision.
    """
    epsilon = alpha - 1
    k = 1 / epsilon
    w = torch.ones_like(shifted) if weights is None else weights.expand_as(shifted)
    # The maximum alone has mass one at τ = −w^{−ε}: scores below that get none. A finite floor under it keeps −inf out
    # of the differences.
    floor = -2 - 2 * _weight_of_maximum(shifted, w, dim) ** (-epsilon)
    z, order = (epsilon * shifted).clamp(min=floor).sort(dim=dim, descending=True)
    w = w.gather(dim, order)
    position = _last_in_support(z, w, k, dim)
    rank = torch.arange(z.shape[dim], device=z.device).view([-1 if d == dim % z.dim() else 1 for d in range(z.dim())])
    inside = rank <= position
    w = torch.where(inside, w, 0)
    gap = torch.where(inside, z - z.gather(dim, position), 0)
    base = torch.where(gap > 0, gap, 0) ** k
    room = 1 - (w * base).sum(dim, keepdim=True)
    p = _grow_to_fill(gap, w, base, room, epsilon, dim)
    return torch.zeros_like(p).scatter(dim, order, torch.where(inside, p, 0))


def _last_in_support(z: Tensor, w: Tensor, k: float | Tensor, dim: int) -> Tensor:
    """Index of the smallest sorted score z_m with Σ_{i<m} w_i (z_i − z_m)ᵏ < 1; the sum grows with m."""
    first = torch.zeros_like(z.narrow(dim, 0, 1), dtype=torch.int64)
    low, high = first, first + (z.shape[dim] - 1)
    for _ in range(_bits(z.shape[dim])):
        middle = (low + high + 1) // 2
        gap = z - z.gather(dim, middle)
        mass = (w * torch.where(gap > 0, gap, 0) ** k).sum(dim, keepdim=True)
        low, high = torch.where(mass < 1, middle, low), torch.where(mass < 1, high, middle - 1)
    return low


def _grow_to_fill(gap: Tensor, w: Tensor, base: Tensor, room: Tensor, epsilon: float | Tensor, dim: int) -> Tensor:
    """Probabilities p_i(v) with Σ w (p − base) = room, by clipped Newton steps in ln v."""
    room = room.clamp(min=torch.finfo(gap.dtype).tiny)
    lowest = torch.where(w > 0, w, torch.inf).amin(dim, keepdim=True)
    low, high = (room / w.sum(dim, keepdim=True)).log(), (room / lowest).log()
    log_v = low
    for _ in range(_FIXED_STEPS[gap.dtype]):
        p = _norm(gap, log_v, epsilon)
        filled = (w * _growth(gap, base, log_v, epsilon)).sum(dim, keepdim=True)
        slope = (w * ((log_v - p.log()) * (epsilon - 1) + log_v).exp()).sum(dim, keepdim=True) / filled
        low, high = torch.where(filled < room, log_v, low), torch.where(filled < room, high, log_v)
        log_v = (log_v + (room / filled).log() / slope).clamp(low, high)
    return _norm(gap, log_v, epsilon)


def _norm(gap: Tensor, log_v: Tensor, epsilon: float | Tensor) -> Tensor:
    """(gap + v^ε)^{1/ε}."""
    return (gap + (epsilon * log_v).exp()) ** (1 / epsilon)


def _growth(gap: Tensor, base: Tensor, log_v: Tensor, epsilon: float | Tensor) -> Tensor:
    """(gap + v^ε)^{1/ε} − gap^{1/ε} without cancellation; v itself where gap = 0."""
    ratio = (epsilon * log_v).exp() / torch.where(gap > 0, gap, 1)
    return torch.where(gap > 0, base * torch.expm1(torch.log1p(ratio) / epsilon), log_v.exp())


def _left_end(shifted: Tensor, alpha: float | Tensor, dim: int, weights: Tensor | None) -> Tensor:
    """A at which the maximum alone has mass one, so that S ≥ 1: 0 without weights, −log_{2−α}(1/w_max) with."""
    if weights is None:
        return torch.zeros_like(shifted.narrow(dim, 0, 1))
    return -log_beta(1 / _weight_of_maximum(shifted, weights, dim), 2 - alpha)


def _weight_of_maximum(shifted: Tensor, weights: Tensor, dim: int) -> Tensor:
    """The largest weight among the maxima; 1 where nothing may be attended."""
    weight = torch.where(shifted == 0, weights, 0).amax(dim, keepdim=True)
    return torch.where(weight > 0, weight, 1)


def deformed_exp(v: Tensor, epsilon: float | Tensor) -> Tensor:
    """exp_{1−ε}(v) = [1 + εv]₊^{1/ε}: the value alone, in few passes, where no derivative needs protection."""
    if isinstance(epsilon, Tensor):
        curved = (epsilon * v).clamp(min=-1).log1p() / torch.where(epsilon == 0, 1, epsilon)
        return torch.where(epsilon == 0, v, curved).exp()
    return v.exp() if epsilon == 0 else ((epsilon * v).clamp(min=-1).log1p() / epsilon).exp()


def _shrunk(log_total: Tensor, epsilon: float | Tensor) -> Tensor:
    """(1 − S^{−ε})/ε from ln S; ln S itself at ε = 0."""
    if isinstance(epsilon, Tensor):
        curved = -torch.expm1(-epsilon * log_total) / torch.where(epsilon == 0, 1, epsilon)
        return torch.where(epsilon == 0, log_total, curved)
    return log_total if epsilon == 0 else -torch.expm1(-epsilon * log_total) / epsilon


def _sum(values: Tensor, weights: Tensor | None, dim: int) -> Tensor:
    return (values if weights is None else weights * values).sum(dim, keepdim=True)


def power_on_support(p: Tensor, exponent: float | Tensor) -> Tensor:
    """p^exponent where p > 0, and 0 elsewhere, also for exponents ≤ 0."""
    inside = p > 0
    return torch.where(inside, torch.where(inside, p, 1) ** exponent, 0)


def _bits(length: int) -> int:
    return max(1, (length - 1).bit_length()) if isinstance(length, int) else 32
