"""Rows that do not fit on the chip: read once, in chunks, by many programs.

The threshold of any part of a row is a lower bound of the row's own. So each chunk is solved by itself, and lists what
is above its own threshold: a few scores, among which is all that has mass in the row. The lists of a row are then a
short row. Where a list overflows (flat rows, α ≤ 1) the row is read again for every step of Newton's method.
"""

import triton
import triton.language as tl

from contmax.kernels.triton._row_loss import smoothed, store_cut, store_loss, target_score
from contmax.kernels.triton._rows import (
    below_maximum,
    curvature,
    epsilon_of_rows,
    escort_of,
    row_offsets,
    saturated,
)
from contmax.kernels.triton._solve import NOTHING, first_bound, is_climbing, newton_step, relative_weights, solve, sums


@triton.jit
def load_chunk(X, M, at, mask_at, start, n, HAS_MASK: tl.constexpr, CHUNK: tl.constexpr):
    """Scores start … start + CHUNK of one row in float32, −inf where masked or outside."""
    columns = start + tl.arange(0, CHUNK)
    inside = columns < n
    if HAS_MASK:
        inside = inside & (tl.load(M + mask_at + columns, mask=inside, other=0) != 0)
    return tl.load(X + at + columns, mask=inside, other=-float("inf")).to(tl.float32)


@triton.jit
def list_chunks(
    X, M, A, SCORES, PLACES, COUNTS, TOPS, n, fixed_epsilon, size_b, size_c, xa, xb, xc, ma, mb, mc,
    K: tl.constexpr, PER_ROW: tl.constexpr, HAS_MASK: tl.constexpr, KEEPS_PLACES: tl.constexpr,
    CHUNK: tl.constexpr, CAPACITY: tl.constexpr,
):  # fmt: skip
    """List what may have mass in each chunk, and where; its maximum is NaN if there is a NaN or +inf."""
    row = tl.program_id(0) + tl.arange(0, 1)
    at = tl.max(row_offsets(row, size_b, size_c, xa, xb, xc), 0)
    mask_at = tl.max(row_offsets(row, size_b, size_c, ma, mb, mc), 0)
    epsilon = epsilon_of_rows(A, fixed_epsilon, row, row >= 0, PER_ROW, 1)
    x = load_chunk(X, M, at, mask_at, tl.program_id(1) * CHUNK, n, HAS_MASK, CHUNK)
    y, top = below_maximum(x[None, :])
    partition, t = first_bound(y, epsilon, CHUNK)
    broken = t * 0.0
    partition, t = solve(y, epsilon, partition, t, K)
    # A little lower, so that rounding loses nothing.
    reach = partition - 1.0 / tl.where(epsilon > 0.0, epsilon, 1.0) - 1e-5 * (1.0 + partition)
    bound = tl.where(epsilon > 0.0, top + reach, -float("inf"))
    keep = x > tl.max(bound, 0)
    place = tl.cumsum(keep.to(tl.int32), 0) - 1
    chunk = tl.program_id(0) * tl.num_programs(1) + tl.program_id(1)
    first = chunk.to(tl.int64) * CAPACITY
    fits = keep & (place < CAPACITY)
    tl.store(SCORES + first + place, x.to(SCORES.dtype.element_ty), mask=fits)
    if KEEPS_PLACES:
        tl.store(PLACES + first + place, tl.arange(0, CHUNK).to(tl.int16), mask=fits)
    tl.store(COUNTS + chunk, tl.sum(keep.to(tl.int32), 0))
    tl.store(TOPS + chunk + tl.arange(0, 1), top + broken)


@triton.jit
def chunk_sums(X, M, at, mask_at, n, top, t, epsilon, K: tl.constexpr, HAS_MASK: tl.constexpr, CHUNK: tl.constexpr):
    """Sums of weights, of escorts and of weights times y over a row, each (1,), by reading it again."""
    total = tl.zeros([1], tl.float32)
    slope = tl.zeros([1], tl.float32)
    product = tl.zeros([1], tl.float32)
    for start in range(0, n, CHUNK):
        y = load_chunk(X, M, at, mask_at, start, n, HAS_MASK, CHUNK) - top
        y = tl.where(y < NOTHING, NOTHING, y)[None, :]
        weight, escort = relative_weights(y, t, epsilon, K)
        total += tl.sum(weight, 1)
        slope += tl.sum(escort, 1)
        product += tl.sum(tl.where(weight > 0.0, weight * y, 0.0), 1)
    return total, slope, product


@triton.jit
def solve_long_rows(
    X, M, A, Y, SCORES, COUNTS, TOPS, CUT, LOSS, n, chunks, fixed_epsilon, smoothing,
    size_b, size_c, xa, xb, xc, ma, mb, mc,
    K: tl.constexpr, PER_ROW: tl.constexpr, HAS_MASK: tl.constexpr, HAS_TARGET: tl.constexpr, SMOOTHS: tl.constexpr,
    NEEDS_LOSS: tl.constexpr, CHUNK: tl.constexpr, CAPACITY: tl.constexpr, CHUNKS: tl.constexpr, SLOTS: tl.constexpr,
):  # fmt: skip
    """The cut of each row, and its loss or Ω* where asked for; CHUNKS and SLOTS are powers of two that hold them."""
    r = tl.program_id(0)
    row = r + tl.arange(0, 1)
    ats = row_offsets(row, size_b, size_c, xa, xb, xc)
    mask_ats = row_offsets(row, size_b, size_c, ma, mb, mc)
    at, mask_at = tl.max(ats, 0), tl.max(mask_ats, 0)
    epsilon = epsilon_of_rows(A, fixed_epsilon, row, row >= 0, PER_ROW, 1)
    each = tl.arange(0, CHUNKS)
    tops = tl.load(TOPS + r * chunks + each, mask=each < chunks, other=-float("inf"))
    broken = tl.sum(tl.where(tops == tops, 0.0, tops), 0)
    highest = tl.max(tops, 0)
    top = tl.where(highest == -float("inf"), 0.0, highest)
    longest = tl.max(tl.load(COUNTS + r * chunks + each, mask=each < chunks, other=0), 0)
    partition = tl.zeros([1], tl.float32) + broken
    t = 1.0 - epsilon * partition
    total, slope = tl.zeros([1], tl.float32), tl.zeros([1], tl.float32)
    product = tl.zeros([1], tl.float32)
    if longest <= CAPACITY:
        slots = tl.arange(0, CHUNKS * SLOTS)
        chunk = slots // SLOTS
        count = tl.load(COUNTS + r * chunks + chunk, mask=chunk < chunks, other=0)
        listed = slots % SLOTS < count
        place = r.to(tl.int64) * chunks * CAPACITY + chunk * CAPACITY + slots % SLOTS
        x = tl.load(SCORES + place, mask=listed, other=-float("inf")).to(tl.float32)
        y = x - top
        y = tl.where(y < NOTHING, NOTHING, y)[None, :]
        partition, t = solve(y, epsilon, partition, t, K)
        weight, escort = relative_weights(y, t, epsilon, K)
        total, slope = sums(weight, escort)
        product = tl.sum(tl.where(weight > 0.0, weight * y, 0.0), 1)
    else:
        steps = 0
        climbing, arriving = True, False
        while climbing:
            total, slope, product = chunk_sums(X, M, at, mask_at, n, top, t, epsilon, K, HAS_MASK, CHUNK)
            step = newton_step(total, slope, partition, t, epsilon, K)
            # The last step is taken too, and the sums are those after it.
            climbing = (not arriving) & (steps < 40)
            arriving = tl.max(is_climbing(step, t, K).to(tl.int32), 0) == 0
            steps += 1
            if climbing:
                partition += step
                t -= epsilon * step
    partition += newton_step(total, slope, partition, t, epsilon, K)
    row_top = tl.zeros([1], tl.float32) + highest
    linear, share = tl.zeros([1], tl.float32), tl.zeros([1], tl.float32)
    if HAS_TARGET:
        linear = target_score(X, M, Y, row, ats, mask_ats, row >= 0, n, row_top, HAS_MASK)
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
            linear = smoothed(smoothing, linear, share, spread)
    store_cut(CUT, row, row >= 0, row_top, t + broken, total, share)
    if NEEDS_LOSS:
        gain = (epsilon * product / tl.where(total > 0.0, total, 1.0) + partition) / (1.0 + epsilon) + broken
        store_loss(LOSS, row, row >= 0, row_top, gain, linear, HAS_TARGET)


@triton.jit
def write_long_rows(
    X, M, A, SCORES, PLACES, COUNTS, CUT, P, n, chunks, fixed_epsilon, size_b, size_c, xa, xb, xc, ma, mb, mc,
    K: tl.constexpr, PER_ROW: tl.constexpr, HAS_MASK: tl.constexpr,
    CHUNK: tl.constexpr, CAPACITY: tl.constexpr, CHUNKS: tl.constexpr, SLOTS: tl.constexpr,
):  # fmt: skip
    """p of each chunk: zeros and what is listed, or from the scores where the row's lists overflowed."""
    r = tl.program_id(0)
    row = r + tl.arange(0, 1)
    epsilon = epsilon_of_rows(A, fixed_epsilon, row, row >= 0, PER_ROW, 1)
    highest, t, inverse = tl.load(CUT + row * 4), tl.load(CUT + row * 4 + 1), tl.load(CUT + row * 4 + 2)
    top = tl.where(highest == -float("inf"), 0.0, highest)
    each = tl.arange(0, CHUNKS)
    longest = tl.max(tl.load(COUNTS + r * chunks + each, mask=each < chunks, other=0), 0)
    start = tl.program_id(1) * CHUNK
    columns = start + tl.arange(0, CHUNK)
    here = r.to(tl.int64) * n
    if longest <= CAPACITY:
        broken = tl.sum(t * 0.0, 0)
        zeros = tl.zeros([CHUNK], tl.float32) + broken
        tl.store(P + here + columns, zeros.to(P.dtype.element_ty), mask=columns < n)
        tl.debug_barrier()  # other threads write what is listed
        chunk = r * chunks + tl.program_id(1)
        slots = tl.arange(0, SLOTS)
        listed = slots < tl.load(COUNTS + chunk)
        first = chunk.to(tl.int64) * CAPACITY
        x = tl.load(SCORES + first + slots, mask=listed, other=-float("inf")).to(tl.float32)
        place = tl.load(PLACES + first + slots, mask=listed, other=0).to(tl.int32)
        y = x[None, :] - top[:, None]
        weight, _listed = relative_weights(tl.where(y < NOTHING, NOTHING, y), t, epsilon, K)
        p = weight * inverse[:, None] + broken
        tl.store(P + here + start + place[None, :], p.to(P.dtype.element_ty), mask=listed[None, :])
    else:
        at = tl.max(row_offsets(row, size_b, size_c, xa, xb, xc), 0)
        mask_at = tl.max(row_offsets(row, size_b, size_c, ma, mb, mc), 0)
        scores = load_chunk(X, M, at, mask_at, start, n, HAS_MASK, CHUNK)[None, :] - top[:, None]
        every, _each = relative_weights(tl.where(scores < NOTHING, NOTHING, scores), t, epsilon, K)
        every = every * inverse[:, None] + (t * 0.0)[:, None]
        tl.store(P + here + columns[None, :], every.to(P.dtype.element_ty), mask=(columns < n)[None, :])


@triton.jit
def backward_long_rows(
    P, G, A, DX, DA, rows, n, fixed_epsilon, size_b, size_c, ga, gb, gc, gn,
    K: tl.constexpr, PER_ROW: tl.constexpr, NEEDS_ALPHA: tl.constexpr, CHUNK: tl.constexpr,
):  # fmt: skip
    """s (g − ⟨g⟩) as in `backward_rows`: chunks without support are cleared in the first pass, and left out later."""
    r = tl.program_id(0)
    row = r + tl.arange(0, 1)
    here = r.to(tl.int64) * n
    at = tl.max(row_offsets(row, size_b, size_c, ga, gb, gc), 0)
    epsilon = epsilon_of_rows(A, fixed_epsilon, row, row < rows, PER_ROW, 1)
    top = 0.0
    anchor = 0.0
    mass = 0.0
    moment = 0.0  # Σ s (g − anchor)
    broken = 0.0
    live = tl.zeros([], tl.int64)
    for start in range(0, n, CHUNK):
        columns = start + tl.arange(0, CHUNK)
        p = tl.load(P + here + columns, mask=columns < n, other=0.0).to(tl.float32)
        broken += tl.sum(tl.where(p == p, 0.0, p), 0)
        chunk_top = tl.max(p, 0)
        if chunk_top > 0.0:
            live = live | (tl.full([], 1, tl.int64) << (start // CHUNK))
            g = tl.load(G + at + columns * gn, mask=(columns < n) & (p > 0.0), other=0.0).to(tl.float32)
            s = tl.max(escort_of(p[None, :], epsilon, K), 0)
            if chunk_top > top:
                # The sums so far move to the new anchor, the point of largest weight.
                next_anchor = tl.max(tl.where(p == chunk_top, g, -float("inf")), 0)
                moment += mass * (anchor - next_anchor)
                anchor = next_anchor
                top = chunk_top
            mass += tl.sum(s, 0)
            moment += tl.sum(tl.where(p > 0.0, s * (g - anchor), 0.0), 0)
        else:
            tl.store(DX + here + columns, tl.zeros([CHUNK], DX.dtype.element_ty) + broken, mask=columns < n)
    mean = moment / tl.where(mass > 0.0, mass, 1.0)
    slope = tl.zeros([1], tl.float32) + broken
    for start in range(0, n, CHUNK):
        if ((live >> (start // CHUNK)) & 1) != 0:
            columns = start + tl.arange(0, CHUNK)
            p = tl.load(P + here + columns, mask=columns < n, other=0.0).to(tl.float32)
            g = tl.load(G + at + columns * gn, mask=(columns < n) & (p > 0.0), other=0.0).to(tl.float32)
            s = escort_of(p[None, :], epsilon, K)
            deviation = tl.where(p > 0.0, g - anchor - mean, 0.0)[None, :]
            tl.store(DX + here + columns[None, :], saturated(s * deviation, DX) + broken, mask=(columns < n)[None, :])
            if NEEDS_ALPHA:
                rate = curvature(tl.where(p > 0.0, p, 1.0)[None, :], epsilon)
                slope -= tl.sum(s * rate * deviation, 1)
    if NEEDS_ALPHA:
        tl.store(DA + row, slope)
