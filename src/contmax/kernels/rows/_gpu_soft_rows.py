"""Fenchel–Young losses against soft targets over rows of logits: each pass reads both once.

The loss of a row is Ω*(z) + (1−s)·(Ω(q) − ⟨z, q⟩) − s·⟨z, u⟩, with q the targets over their sum and u uniform on the
allowed classes; its gradient is p̂ − (1−s)·q − s·u. The statistics of a row (`_gpu_row_loss`) end with one number more,
the factor of the targets. Rows that do not fit on the chip are in `_gpu_long_rows`.

Targets y ≥ 0 need not sum to 1. With S = Σ y and h(y) = log_{2−α} y = (y^ε − 1)/ε, smooth through ε = α − 1 = 0,

    Ω_α(y/S) = Σ (y/S) h(y/S) / α,      h(y/S) = S^{−ε} h(y) + h(1/S),

so one reading of y gives the mass, ⟨z, y⟩ and Ω_α(y/S).
"""

import triton
import triton.language as tl

from contmax.kernels.rows._gpu_row_loss import chunk_has_mass, store_cut, store_tops
from contmax.kernels.rows._gpu_rows import below_maximum, inverse_cube_root, load_rows, row_offsets, saturated
from contmax.kernels.rows._gpu_solve import NOTHING, log, newton_step, relative_weights, solved_weights

# Powers of smaller weights are negligible, and their logarithms would need special cases.
_LEAST = tl.constexpr(1e-37)
# From this distance from α = 1 on `contmax.deformed.tsallis_negentropy` uses the definition, in float32.
_FAR_FROM_ONE = tl.constexpr(0.0186)


@triton.jit
def deformed_log(y, epsilon, K: tl.constexpr):
    """h(y) for y > 0, (R, B); ε is (R,)."""
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
    """Σ y, Σ y h(y), Σ y·`below` where that is finite, and whether a y > 0 has score −inf; each (R,)."""
    has_target = y > 0.0
    possible = below > -float("inf")
    # A NaN among the targets stays one.
    bits = tl.where(has_target, y * deformed_log(tl.where(has_target, y, 1.0), epsilon, K), y * 0.0)
    product = tl.where(possible, y * below, 0.0)
    impossible = tl.max((has_target & (below == -float("inf"))).to(tl.int32), 1)
    return tl.sum(y, 1), tl.sum(bits, 1), tl.sum(product, 1), impossible


@triton.jit
def soft_terms(mass, bits, product, impossible, epsilon, smoothing, K: tl.constexpr):
    """Ω(q) − ⟨z, q⟩ for q = y/S and the factor of y in the gradient, (1−s)/S, negative where no score is finite."""
    mass = tl.where(mass == 0.0, 1.0, mass)
    shift = deformed_log((1.0 / mass)[:, None], epsilon, K)
    # S^{−ε} = 1 + ε h(1/S).
    shift = tl.sum(shift, 1)
    negentropy = ((1.0 + epsilon * shift) * (bits / mass) + shift) / (1.0 + epsilon)
    cost = tl.where(impossible > 0, float("inf"), negentropy - product / mass)
    scale = (1.0 - smoothing) / mass
    return tl.where(smoothing < 1.0, (1.0 - smoothing) * cost, 0.0), tl.where(impossible > 0, -scale, scale)


@triton.jit
def slope_of_negentropy(y, scale, smoothing, epsilon, K: tl.constexpr):
    """∂Ω(q)/∂q at q = y/S for y > 0, else 0, (R, B); the scale of `soft_terms` and ε are (R,)."""
    q = y * (tl.abs(scale) / tl.where(smoothing < 1.0, 1.0 - smoothing, 1.0))[:, None]
    # Along the simplex a constant changes nothing; this one makes the slope equal to that of the torch path.
    far = tl.abs(epsilon) >= _FAR_FROM_ONE
    constant = tl.where(far, 1.0 / tl.where(far, epsilon, 1.0), 1.0 / (1.0 + epsilon))
    return tl.where(q > 0.0, deformed_log(tl.where(q > 0.0, q, 1.0), epsilon, K) + constant[:, None], 0.0)


@triton.jit
def store_soft_loss(LOSS, CUT, r, exists, width, top, gain, cost, scale):
    """Store the loss of rows, and the factor of their targets as the last of their statistics."""
    loss = gain + cost
    # Clamp rounding below 0. A fully masked row has infinite loss.
    loss = tl.where(loss < 0.0, 0.0, tl.where(top == -float("inf"), float("inf"), loss))
    tl.store(LOSS + r, loss.to(tl.float64), mask=exists)
    tl.store(CUT + r.to(tl.int64) * width + width - 1, scale, mask=exists)


@triton.jit
def soft_loss_rows(
    X, M, Q, CUT, LOSS, rows, n, fixed_epsilon, smoothing, width,
    size_b, size_c, xa, xb, xc, ma, mb, mc,
    K: tl.constexpr, HAS_MASK: tl.constexpr, SMOOTHS: tl.constexpr,
    SPAN: tl.constexpr, R: tl.constexpr, B: tl.constexpr,
):  # fmt: skip
    """Losses and statistics of rows that fit on the chip."""
    r = tl.program_id(0) * R + tl.arange(0, R)
    columns = tl.arange(0, B)
    exists = r < rows
    inside = exists[:, None] & (columns < n)[None, :]
    at = row_offsets(r, size_b, size_c, xa, xb, xc)
    mask_at = row_offsets(r, size_b, size_c, ma, mb, mc)
    here = r.to(tl.int64)[:, None] * n + columns[None, :]
    target = tl.load(Q + here, mask=inside, other=0.0).to(tl.float32)
    x = load_rows(X, M, at, mask_at, inside, columns, HAS_MASK)
    y, top = below_maximum(x)
    epsilon = tl.zeros([R], tl.float32) + fixed_epsilon
    below = x - tl.where(top == -float("inf"), 0.0, top)[:, None]
    mass, bits, product, impossible = soft_sums(target, below, epsilon, K)
    cost, scale = soft_terms(mass, bits, product, impossible, epsilon, smoothing, K)
    share = tl.zeros([R], tl.float32)
    if SMOOTHS:
        allowed = inside
        if HAS_MASK:
            allowed = inside & (tl.load(M + mask_at[:, None] + columns[None, :], mask=inside, other=0) != 0)
        share = smoothing / tl.maximum(tl.sum(allowed.to(tl.float32), 1), 1.0)
        cost -= share * tl.sum(tl.where(allowed, below, 0.0), 1)
    normaliser, t, weight, total, slope = solved_weights(y, epsilon, K, False, B)
    normaliser += newton_step(total, slope, normaliser, t, epsilon, K)
    p = weight / tl.where(total > 0.0, total, 1.0)[:, None]
    gain = (epsilon * tl.sum(tl.where(p > 0.0, p * y, 0.0), 1) + normaliser) / (1.0 + epsilon)
    store_cut(CUT, r, exists, width, top, t, total, share)
    if SPAN > 0:  # one row a program
        store_tops(CUT + tl.program_id(0).to(tl.int64) * width, x, 0, n, B // SPAN, SPAN)
    store_soft_loss(LOSS, CUT, r, exists, width, top, gain, cost, scale)


@triton.jit
def soft_gradient(
    X, M, Q, CUT, G, DX, DQ, n, fixed_epsilon, smoothing, g_stride, width,
    size_b, size_c, xa, xb, xc, ma, mb, mc,
    K: tl.constexpr, HAS_MASK: tl.constexpr, SMOOTHS: tl.constexpr, NEEDS_TARGET: tl.constexpr,
    HAS_TOPS: tl.constexpr, CHUNKS: tl.constexpr, CHUNK: tl.constexpr,
):  # fmt: skip
    """g (p̂ − (1−s) q − s u), and g (1−s) (∂Ω/∂q − z)/S where NEEDS_TARGET.

    Rows with g = 0 are not read, nor are logits of tiles without mass unless the gradient of the targets needs them.
    """
    r = tl.program_id(0)
    row = r + tl.arange(0, 1)
    at = row_offsets(r, size_b, size_c, xa, xb, xc)
    mask_at = row_offsets(r, size_b, size_c, ma, mb, mc)
    g = tl.load(G + row.to(tl.int64) * g_stride).to(tl.float32)
    cut = CUT + row.to(tl.int64) * width
    highest, t, inverse = tl.load(cut), tl.load(cut + 1), tl.load(cut + 2)
    share, scale = tl.load(cut + 3), tl.load(cut + width - 1)
    top = tl.where(highest == -float("inf"), 0.0, highest)
    # A fully masked row has no gradient.
    g = tl.where(highest == -float("inf"), 0.0, g)
    broken = t * 0.0
    epsilon = tl.zeros([1], tl.float32) + fixed_epsilon
    begin = tl.program_id(1) * CHUNK * CHUNKS
    for start in range(begin, tl.minimum(begin + CHUNK * CHUNKS, n), CHUNK):
        columns = start + tl.arange(0, CHUNK)
        inside = columns < n
        wanted = inside & (g != 0.0)
        here = r.to(tl.int64) * n + columns
        target = tl.load(Q + here, mask=wanted, other=0.0).to(tl.float32)[None, :]
        allowed = wanted
        if HAS_MASK:  # masked scores have no gradient
            allowed = wanted & (tl.load(M + mask_at + columns, mask=wanted, other=0) != 0)
        has_mass = True
        if HAS_TOPS and not NEEDS_TARGET:
            has_mass = chunk_has_mass(tl.load(cut + 4 + start // CHUNK), top, t, epsilon)
        residual = tl.zeros([1, CHUNK], tl.float32) + broken[:, None]
        if has_mass:
            x = tl.load(X + at + columns, mask=allowed, other=-float("inf")).to(tl.float32)
            y = x[None, :] - top[:, None]
            weight, _ = relative_weights(tl.where(y < NOTHING, NOTHING, y), t, epsilon, K)
            residual += weight * inverse[:, None]
            if NEEDS_TARGET:
                # A target on a score of −inf makes the loss +inf whatever the others are: ⟨z, q⟩ has no slope.
                score = tl.where((scale > 0.0)[:, None] & (y > -float("inf")), y, 0.0)
                slope = slope_of_negentropy(target, scale, smoothing, epsilon, K) - score
                moved = tl.sum(g[:, None] * tl.abs(scale)[:, None] * slope, 0)
                tl.store(DQ + here, saturated(tl.where(wanted, moved, 0.0), DQ), mask=inside)
        residual -= target * tl.where(scale < 0.0, 0.0, scale)[:, None]
        if SMOOTHS:
            residual -= share[:, None]
        moved_scores = tl.sum(g[:, None] * residual, 0)
        tl.store(DX + here, saturated(tl.where(allowed, moved_scores, 0.0), DX), mask=inside)
