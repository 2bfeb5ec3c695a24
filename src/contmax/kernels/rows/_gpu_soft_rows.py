"""Fenchel–Young losses against soft targets over rows of logits: each pass reads both once.

The loss of a row is Ω*(z) + (1−s)·(Ω(q) − ⟨z, q⟩) − s·⟨z, u⟩, with q the targets over their sum and u uniform on the
allowed classes; its gradient is p̂ − (1−s)·q − s·u. The cut of a row (`_row_loss`) ends with one number more, the factor
of the targets. Rows that do not fit on the chip are in `_long_rows`.
"""

import triton
import triton.language as tl

from contmax.kernels.rows._gpu_row_loss import chunk_has_mass, store_cut, store_tops
from contmax.kernels.rows._gpu_rows import below_maximum, load_rows, row_offsets, saturated
from contmax.kernels.rows._gpu_soft_targets import slope_of_negentropy, soft_sums, soft_terms
from contmax.kernels.rows._gpu_solve import NOTHING, newton_step, relative_weights, solved_weights


@triton.jit
def store_soft_loss(LOSS, CUT, r, exists, width, top, gain, cost, scale):
    """The loss of rows, and the factor of their targets as the last number of their cuts."""
    loss = gain + cost
    # Below zero is rounding. Nothing to attend is an impossible target.
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
    """Rows that fit on the chip."""
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
    partition, t, weight, total, slope = solved_weights(y, epsilon, K, False, B)
    partition += newton_step(total, slope, partition, t, epsilon, K)
    p = weight / tl.where(total > 0.0, total, 1.0)[:, None]
    gain = (epsilon * tl.sum(tl.where(p > 0.0, p * y, 0.0), 1) + partition) / (1.0 + epsilon)
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
    """g (p̂ − (1−s) q − s u), and where asked for g (1−s) (∂Ω/∂q − z)/S; rows with g = 0 are not read.

    Nor are the logits of chunks without mass, which the gradient of the targets would need.
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
    # Nothing to attend: no gradient.
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
        if HAS_MASK:  # what is masked has no gradient
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
                # A score of −inf under a target: the loss is +inf whatever the others, and ⟨z, q⟩ has no slope.
                score = tl.where((scale > 0.0)[:, None] & (y > -float("inf")), y, 0.0)
                slope = slope_of_negentropy(target, scale, smoothing, epsilon, K) - score
                moved = tl.sum(g[:, None] * tl.abs(scale)[:, None] * slope, 0)
                tl.store(DQ + here, saturated(tl.where(wanted, moved, 0.0), DQ), mask=inside)
        residual -= target * tl.where(scale < 0.0, 0.0, scale)[:, None]
        if SMOOTHS:
            residual -= share[:, None]
        moved_scores = tl.sum(g[:, None] * residual, 0)
        tl.store(DX + here, saturated(tl.where(allowed, moved_scores, 0.0), DX), mask=inside)
