"""Losses and statistics of rows with known normaliser; the backward pass computes p̂ from the statistics.

The statistics of a row are four numbers (`store_statistics`) and, for rows of several tiles, the maximum of each tile,
by which the backward pass skips tiles without mass. Soft targets add one number at the end, their factor (1−s)/S.

With logits z and smoothing s, the loss of a row is Ω*(z) + (1−s)·(Ω(q) − ⟨z, q⟩) − s·⟨z, u⟩, u uniform on the allowed
classes. Its gradient is p̂ − (1−s)·q − s·u, with p̂ the α-entmax of z. The target q is e_y for a class y, so that
Ω(q) = 0, or y/S for soft targets y ≥ 0 with the sum S. With ε = α − 1 and h(y) = log_{2−α} y = (y^ε − 1)/ε, smooth
through ε = 0,

    Ω_α(y/S) = Σ (y/S) h(y/S) / α,      h(y/S) = S^{−ε} h(y) + h(1/S),

so one reading of y gives S, ⟨z, y⟩ and Ω_α(y/S).
"""

import triton
import triton.language as tl

from contmax.kernels.rows._gpu_rows import inverse_cube_root
from contmax.kernels.rows._gpu_solve import below, log, relative_weights

# `deformed_log` raises smaller numbers to this, the least that `log` takes. Targets so small hardly change a loss.
_LEAST = tl.constexpr(1e-37)
# In float32 the reference, `contmax.deformed.tsallis_negentropy`, uses the definition of Ω from this |α − 1| on, and a
# stable form below it. The slopes of the two forms differ by a constant (`slope_of_negentropy`).
_FAR_FROM_ONE = tl.constexpr(0.0186)


@triton.jit
def store_statistics(STATISTICS, r, exists, width, top, t, total, share):
    """Store the first four statistics: maximum, t, 1/Σ weights, `share` (smoothing per allowed class); (R,) each."""
    at = STATISTICS + r.to(tl.int64) * width
    tl.store(at, top, mask=exists)
    tl.store(at + 1, t, mask=exists)
    tl.store(at + 2, 1.0 / tl.where(total > 0.0, total, 1.0), mask=exists)
    tl.store(at + 3, share, mask=exists)


@triton.jit
def probabilities(x, top, t, inverse, epsilon, K: tl.constexpr):
    """Probabilities p̂ of scores (R, B), from the maximum, t and 1/Σ weights of their rows, (R,) each."""
    return relative_weights(below(x, top), t, epsilon, K)[0] * inverse[:, None]


@triton.jit
def chunk_has_mass(highest, top, t, epsilon):
    """Whether a tile with maximum `highest`, (1,), may have mass in its row; a margin covers rounding."""
    return tl.max(((epsilon <= 0.0) | ((highest - top) * epsilon + t > -1e-6)).to(tl.int32), 0) > 0


@triton.jit
def store_loss(LOSS, r, exists, top, loss):
    """Store losses, (R,): rounding below 0 is clamped, and a fully masked row has infinite loss."""
    loss = tl.where(loss < 0.0, 0.0, tl.where(top == -float("inf"), float("inf"), loss))
    tl.store(LOSS + r, loss.to(tl.float64), mask=exists)


@triton.jit
def class_cost(X, M, Y, r, at, mask_at, exists, n, top, smoothing, HAS_MASK: tl.constexpr):
    """−(1−s)·(z_y − max z), (R,): infinite if the class y is masked, NaN if y is not in 0 … n − 1."""
    y = tl.load(Y + r, mask=exists, other=0)
    known = exists & (y >= 0) & (y < n)
    allowed = known
    if HAS_MASK:
        allowed = known & (tl.load(M + mask_at + y, mask=known, other=0) != 0)
    score = tl.load(X + at + y, mask=allowed, other=-float("inf")).to(tl.float32)
    cost = tl.where(known, tl.where(top == -float("inf"), 0.0, top) - score, float("nan"))
    return tl.where(smoothing < 1.0, (1.0 - smoothing) * cost, 0.0)


@triton.jit
def deformed_log(y, epsilon, K: tl.constexpr):
    """h(y) = log_{2−α} y = (y^ε − 1)/ε for y > 0, (R, B); ε is (R,)."""
    y = tl.maximum(y, _LEAST)
    if K == 1:
        return y - 1.0
    elif K == 2:
        return 2.0 * tl.sqrt(y) - 2.0
    elif K == 3:
        root = inverse_cube_root(y, False)
        return 3.0 * (y * root * root) - 3.0
    elif K == 4:
        return 4.0 * tl.sqrt(tl.sqrt(y)) - 4.0
    else:
        log_y = log(y)
        x = log_y * epsilon[:, None]
        series = 1.0 + x * (0.5 + x * (0.16666667 + x * (0.041666667 + x * (0.0083333333 + x * 0.0013888889))))
        wide = tl.abs(x) > 0.2
        return log_y * tl.where(wide, (tl.exp(x) - 1.0) / tl.where(wide, x, 1.0), series)


@triton.jit
def soft_sums(y, below, epsilon, K: tl.constexpr):
    """Σ y, Σ y log_{2−α} y and Σ y·`below` of targets y, and whether a y > 0 has `below` = −inf, (R,) each."""
    has_target = y > 0.0
    possible = below > -float("inf")
    # A NaN target stays NaN.
    bits = tl.where(has_target, y * deformed_log(tl.where(has_target, y, 1.0), epsilon, K), y * 0.0)
    product = tl.where(possible, y * below, 0.0)
    impossible = tl.max((has_target & (below == -float("inf"))).to(tl.int32), 1)
    return tl.sum(y, 1), tl.sum(bits, 1), tl.sum(product, 1), impossible


@triton.jit
def soft_terms(mass, bits, product, impossible, epsilon, smoothing, K: tl.constexpr):
    """(1−s)·(Ω(q) − ⟨z − max z, q⟩), q = y/S, from `soft_sums`; and (1−s)/S, negative if a y > 0 has score −inf."""
    mass = tl.where(mass == 0.0, 1.0, mass)
    shift = deformed_log((1.0 / mass)[:, None], epsilon, K)
    shift = tl.sum(shift, 1)
    # S^{−ε} = 1 + ε h(1/S).
    negentropy = ((1.0 + epsilon * shift) * (bits / mass) + shift) / (1.0 + epsilon)
    cost = tl.where(impossible > 0, float("inf"), negentropy - product / mass)
    scale = (1.0 - smoothing) / mass
    return tl.where(smoothing < 1.0, (1.0 - smoothing) * cost, 0.0), tl.where(impossible > 0, -scale, scale)


@triton.jit
def slope_of_negentropy(y, scale, smoothing, epsilon, K: tl.constexpr):
    """∂Ω(q)/∂q at q = y/S for y > 0, else 0, (R, B); `scale`, (R,), is (1−s)/S from `soft_terms`."""
    q = y * (tl.abs(scale) / tl.where(smoothing < 1.0, 1.0 - smoothing, 1.0))[:, None]
    # Adding a constant does not change the slope along the simplex; this one makes it equal the torch reference's.
    far = tl.abs(epsilon) >= _FAR_FROM_ONE
    constant = tl.where(far, 1.0 / tl.where(far, epsilon, 1.0), 1.0 / (1.0 + epsilon))
    return tl.where(q > 0.0, deformed_log(tl.where(q > 0.0, q, 1.0), epsilon, K) + constant[:, None], 0.0)
