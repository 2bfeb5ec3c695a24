"""Fenchel–Young losses over rows of logits: the forward keeps a few numbers per row, the backward makes the gradient.

The loss of a row against q = (1−s)·e_y + s·(uniform on the allowed classes) is Ω*(z) − ⟨z, q⟩ with gradient p̂ − q;
without a target it is Ω*(z), with gradient p̂. What the backward needs of a row is its *cut*, four numbers. Rows that do
not fit on the chip are in `_long_rows`.
"""

import triton
import triton.language as tl

from contmax.kernels.rows._gpu_row_loss import chunk_has_mass, smoothed, store_cut, store_loss, store_tops, target_score
from contmax.kernels.rows._gpu_rows import below_maximum, load_rows, row_offsets, saturated
from contmax.kernels.rows._gpu_solve import NOTHING, newton_step, relative_weights, solved_weights


@triton.jit
def loss_rows(
    X, M, Y, CUT, LOSS, rows, n, fixed_epsilon, smoothing, width,
    size_b, size_c, xa, xb, xc, ma, mb, mc,
    K: tl.constexpr, HAS_MASK: tl.constexpr, HAS_TARGET: tl.constexpr,
    SMOOTHS: tl.constexpr, SPAN: tl.constexpr, R: tl.constexpr, B: tl.constexpr,
):  # fmt: skip
    """Rows that fit on the chip."""
    r = tl.program_id(0) * R + tl.arange(0, R)
    columns = tl.arange(0, B)
    exists = r < rows
    inside = exists[:, None] & (columns < n)[None, :]
    at = row_offsets(r, size_b, size_c, xa, xb, xc)
    mask_at = row_offsets(r, size_b, size_c, ma, mb, mc)
    x = load_rows(X, M, at, mask_at, inside, columns, HAS_MASK)
    y, top = below_maximum(x)
    epsilon = tl.zeros([R], tl.float32) + fixed_epsilon
    partition, t, weight, total, slope = solved_weights(y, epsilon, K, False, B)
    partition += newton_step(total, slope, partition, t, epsilon, K)
    p = weight / tl.where(total > 0.0, total, 1.0)[:, None]
    gain = (epsilon * tl.sum(tl.where(p > 0.0, p * y, 0.0), 1) + partition) / (1.0 + epsilon)
    linear, share = tl.zeros([R], tl.float32), tl.zeros([R], tl.float32)
    if HAS_TARGET:
        linear = target_score(X, M, Y, r, at, mask_at, exists, n, top, HAS_MASK)
        if SMOOTHS:
            allowed = inside
            if HAS_MASK:
                allowed = inside & (tl.load(M + mask_at[:, None] + columns[None, :], mask=inside, other=0) != 0)
            spread = tl.sum(tl.where(allowed, x - tl.where(top == -float("inf"), 0.0, top)[:, None], 0.0), 1)
            share = smoothing / tl.maximum(tl.sum(allowed.to(tl.float32), 1), 1.0)
            linear = smoothed(smoothing, linear, share, spread)
    store_cut(CUT, r, exists, width, top, t, total, share)
    if SPAN > 0:  # one row a program
        store_tops(CUT + tl.program_id(0).to(tl.int64) * width, x, 0, n, B // SPAN, SPAN)
    store_loss(LOSS, r, exists, top, gain, linear, HAS_TARGET)


@triton.jit
def loss_gradient(
    X, M, Y, CUT, G, DX, n, fixed_epsilon, smoothing, g_stride, width,
    size_b, size_c, xa, xb, xc, ma, mb, mc,
    K: tl.constexpr, HAS_MASK: tl.constexpr, HAS_TARGET: tl.constexpr,
    SMOOTHS: tl.constexpr, HAS_TOPS: tl.constexpr, CHUNKS: tl.constexpr, CHUNK: tl.constexpr,
):  # fmt: skip
    """g (p̂ − q), or g p̂ without a target; rows with g = 0 are not read, nor are chunks without mass."""
    r = tl.program_id(0)
    row = r + tl.arange(0, 1)
    at = row_offsets(r, size_b, size_c, xa, xb, xc)
    mask_at = row_offsets(r, size_b, size_c, ma, mb, mc)
    g = tl.load(G + row.to(tl.int64) * g_stride).to(tl.float32)
    cut = CUT + row.to(tl.int64) * width
    top, t, inverse = tl.load(cut), tl.load(cut + 1), tl.load(cut + 2)
    top = tl.where(top == -float("inf"), 0.0, top)
    share = tl.sum(tl.load(cut + 3), 0)
    broken = tl.sum(t * 0.0, 0)
    epsilon = tl.zeros([1], tl.float32) + fixed_epsilon
    if HAS_TARGET:
        target = tl.load(Y + r)
    begin = tl.program_id(1) * CHUNK * CHUNKS
    for start in range(begin, tl.minimum(begin + CHUNK * CHUNKS, n), CHUNK):
        columns = start + tl.arange(0, CHUNK)
        inside = columns < n
        wanted = inside & (g != 0.0)
        if HAS_MASK:  # what is masked has no gradient, not even as a target
            wanted = wanted & (tl.load(M + mask_at + columns, mask=wanted, other=0) != 0)
        has_mass = True
        if HAS_TOPS:
            has_mass = chunk_has_mass(tl.load(cut + 4 + start // CHUNK), top, t, epsilon)
        residual = tl.zeros([CHUNK], tl.float32) + broken
        if has_mass:
            x = tl.load(X + at + columns, mask=wanted, other=-float("inf")).to(tl.float32)
            y = x[None, :] - top[:, None]
            weight, _ = relative_weights(tl.where(y < NOTHING, NOTHING, y), t, epsilon, K)
            residual += tl.sum(weight * inverse[:, None], 0)
        if HAS_TARGET:
            residual -= tl.where(columns == target, 1.0 - smoothing, 0.0)
            if SMOOTHS:
                residual -= tl.where(wanted, share, 0.0)
        here = r.to(tl.int64) * n + columns
        tl.store(DX + here, saturated(tl.where(wanted, g * residual, 0.0), DX), mask=inside)
