"""Fenchel–Young losses over rows of logits: the forward keeps a few numbers per row, the backward makes the gradient.

The loss of a row against q = (1−s)·e_y + s·(uniform on the allowed classes) is Ω*(z) − ⟨z, q⟩ with gradient p̂ − q;
without a target it is Ω*(z), with gradient p̂. What the backward needs of a row is its *cut*: the maximum, t, and
1/Σ(p/p_max) (`_solve`), and the mass that smoothing gives to each allowed class.
"""

import triton
import triton.language as tl

from contmax.kernels.triton._rows import below_maximum, load_rows, row_offsets, saturated
from contmax.kernels.triton._scan import load_chunk, scan_row, solve_row
from contmax.kernels.triton._solve import NOTHING, first_bound, newton_step, relative_weights, solve


@triton.jit
def store_row(CUT, LOSS, r, exists, top, t, total, share, gain, linear, HAS_TARGET: tl.constexpr):
    """Write what is known of rows r, (R,): `gain` is Ω* and `linear` ⟨z, q⟩, both less the maximum."""
    tl.store(CUT + r * 4, top, mask=exists)
    tl.store(CUT + r * 4 + 1, t, mask=exists)
    tl.store(CUT + r * 4 + 2, 1.0 / tl.where(total > 0.0, total, 1.0), mask=exists)
    tl.store(CUT + r * 4 + 3, share, mask=exists)
    empty = top == -float("inf")
    if HAS_TARGET:
        loss = gain - linear
        # Below zero is rounding. Nothing to attend: the target, wherever it is, has logit −inf.
        loss = tl.where(loss < 0.0, 0.0, tl.where(empty, float("inf"), loss))
        tl.store(LOSS + r, loss.to(tl.float64), mask=exists)
    else:
        highest = top.to(tl.float64)
        tl.store(LOSS + r, tl.where(empty, highest, highest + gain.to(tl.float64)), mask=exists)


@triton.jit
def target_score(X, M, Y, r, at, mask_at, exists, n, top, HAS_MASK: tl.constexpr):
    """The target's score less the maximum, (R,): −inf where it is masked, NaN where there is no such class."""
    y = tl.load(Y + r, mask=exists, other=0)
    known = exists & (y >= 0) & (y < n)
    allowed = known
    if HAS_MASK:
        allowed = known & (tl.load(M + mask_at + y, mask=known, other=0) != 0)
    score = tl.load(X + at + y, mask=allowed, other=-float("inf")).to(tl.float32)
    return tl.where(known, score - tl.where(top == -float("inf"), 0.0, top), float("nan"))


@triton.jit
def loss_rows(
    X, M, Y, CUT, LOSS, rows, n, fixed_epsilon, smoothing,
    size_b, size_c, xa, xb, xc, ma, mb, mc,
    K: tl.constexpr, HAS_MASK: tl.constexpr, HAS_TARGET: tl.constexpr,
    SMOOTHS: tl.constexpr, R: tl.constexpr, B: tl.constexpr,
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
    partition, t = first_bound(y, epsilon, B)
    partition, t = solve(y, epsilon, partition, t, K)
    weight, escort = relative_weights(y, t, epsilon, K)
    total = tl.sum(weight, 1)
    partition += newton_step(total, tl.sum(escort, 1), partition, t, epsilon, K)
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
            linear = tl.where(smoothing < 1.0, (1.0 - smoothing) * linear, 0.0) + share * spread
    store_row(CUT, LOSS, r, exists, top, t, total, share, gain, linear, HAS_TARGET)


@triton.jit
def loss_long_rows(
    X, M, Y, CUT, LOSS, SCORES, PLACES, rows, n, fixed_epsilon, smoothing,
    size_b, size_c, xa, xb, xc, ma, mb, mc,
    K: tl.constexpr, HAS_MASK: tl.constexpr, HAS_TARGET: tl.constexpr,
    SMOOTHS: tl.constexpr, CHUNK: tl.constexpr, CAPACITY: tl.constexpr,
):  # fmt: skip
    """Rows that do not: each is read once, and again only where it is smoothed or nearly flat."""
    list_at = tl.program_id(0).to(tl.int64) * CAPACITY
    for r in range(tl.program_id(0), rows, tl.num_programs(0)):
        row = r + tl.arange(0, 1)
        ats = row_offsets(row, size_b, size_c, xa, xb, xc)
        mask_ats = row_offsets(row, size_b, size_c, ma, mb, mc)
        at, mask_at = tl.max(ats, 0), tl.max(mask_ats, 0)
        epsilon = tl.zeros([1], tl.float32) + fixed_epsilon
        count, top, broken = scan_row(
            X, M, X, at, mask_at, at, n, epsilon, SCORES, PLACES, list_at, K, HAS_MASK, False, CHUNK, CAPACITY
        )
        partition, t, total, product = solve_row(
            X, M, at, mask_at, n, count, top, broken, epsilon, SCORES, list_at, K, HAS_MASK, CHUNK, CAPACITY
        )
        inverse = 1.0 / tl.where(total > 0.0, total, 1.0)
        gain = (epsilon * product * inverse + partition) / (1.0 + epsilon) + broken
        tops = top + tl.zeros([1], tl.float32)
        linear, share = tl.zeros([1], tl.float32), tl.zeros([1], tl.float32)
        if HAS_TARGET:
            linear = target_score(X, M, Y, row, ats, mask_ats, row < rows, n, tops, HAS_MASK)
        if SMOOTHS:
            spread, allowed = tl.zeros([1], tl.float32), tl.zeros([1], tl.float32)
            for start in range(0, n, CHUNK):
                columns = start + tl.arange(0, CHUNK)
                counts = columns < n
                if HAS_MASK:
                    counts = counts & (tl.load(M + mask_at + columns, mask=counts, other=0) != 0)
                y = load_chunk(X, M, at, mask_at, start, n, HAS_MASK, CHUNK) - top
                spread += tl.sum(tl.where(counts, y, 0.0), 0)
                allowed += tl.sum(counts.to(tl.float32), 0)
            share = smoothing / tl.maximum(allowed, 1.0)
            linear = tl.where(smoothing < 1.0, (1.0 - smoothing) * linear, 0.0) + share * spread
        store_row(CUT, LOSS, row, row < rows, tops, t, total, share, gain, linear, HAS_TARGET)
        tl.debug_barrier()  # the next row writes the list anew


@triton.jit
def loss_gradient(
    X, M, Y, CUT, G, DX, n, fixed_epsilon, smoothing, g_stride,
    size_b, size_c, xa, xb, xc, ma, mb, mc,
    K: tl.constexpr, HAS_MASK: tl.constexpr, HAS_TARGET: tl.constexpr,
    SMOOTHS: tl.constexpr, CHUNK: tl.constexpr,
):  # fmt: skip
    """g (p̂ − q), or g p̂ without a target; rows with g = 0 are not read."""
    r = tl.program_id(0)
    row = r + tl.arange(0, 1)
    at = tl.max(row_offsets(row, size_b, size_c, xa, xb, xc), 0)
    mask_at = tl.max(row_offsets(row, size_b, size_c, ma, mb, mc), 0)
    g = tl.load(G + row.to(tl.int64) * g_stride).to(tl.float32)
    columns = tl.program_id(1) * CHUNK + tl.arange(0, CHUNK)
    inside = columns < n
    wanted = inside & (g != 0.0)
    if HAS_MASK:  # what is masked has no gradient, not even as a target
        wanted = wanted & (tl.load(M + mask_at + columns, mask=wanted, other=0) != 0)
    x = tl.load(X + at + columns, mask=wanted, other=-float("inf")).to(tl.float32)
    top, t, inverse = tl.load(CUT + row * 4), tl.load(CUT + row * 4 + 1), tl.load(CUT + row * 4 + 2)
    epsilon = tl.zeros([1], tl.float32) + fixed_epsilon
    y = x[None, :] - tl.where(top == -float("inf"), 0.0, top)[:, None]
    weight, _ = relative_weights(tl.where(y < NOTHING, NOTHING, y), t, epsilon, K)
    residual = tl.sum(weight * inverse[:, None], 0) + tl.sum(t * 0.0, 0)
    if HAS_TARGET:
        residual -= tl.where(columns == tl.load(Y + r), 1.0 - smoothing, 0.0)
        if SMOOTHS:
            residual -= tl.where(wanted, tl.load(CUT + r * 4 + 3), 0.0)
    here = r.to(tl.int64) * n + columns
    tl.store(DX + here, saturated(tl.where(wanted, g * residual, 0.0), DX), mask=inside)
