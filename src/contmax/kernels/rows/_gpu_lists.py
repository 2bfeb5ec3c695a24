"""Rows that do not fit on the chip: what may have mass is listed while a row is read, once, by many programs.

The threshold of any part of a row is a lower bound of the row's own. A program of one warp reads a slice of a row chunk
by chunk, and keeps the largest score that each of its threads has met: from these few scores it knows a bound, which
grows as it reads. Scores above it are listed, among them all that have mass in the row. The lists of a row are then a
short row (`_long_rows`). Where a list overflows (flat rows, α ≤ 1) its count says so.
"""

import triton
import triton.language as tl

from contmax.kernels.rows._gpu_rows import epsilon_of_rows, row_offsets
from contmax.kernels.rows._gpu_soft_targets import soft_sums
from contmax.kernels.rows._gpu_solve import NOTHING, climb

# Scores of a chunk that a thread lists one after the other.
_FEW_OF_A_THREAD = tl.constexpr(3)
# What a sum and a difference may lose of a float32, with a margin.
_LAST_BITS = tl.constexpr(2.4e-7)


@triton.jit
def load_chunk(X, M, at, mask_at, start, n, HAS_MASK: tl.constexpr, CHUNK: tl.constexpr):
    """Scores start … start + CHUNK of one row in float32, −inf where masked or outside."""
    columns = start + tl.arange(0, CHUNK)
    inside = columns < n
    if HAS_MASK:
        inside = inside & (tl.load(M + mask_at + columns, mask=inside, other=0) != 0)
    return tl.load(X + at + columns, mask=inside, other=-float("inf")).to(tl.float32)


@triton.jit
def by_threads(x, VECTOR: tl.constexpr):
    """A chunk as (turns, 32, VECTOR): what each thread of a warp holds of it, VECTOR side by side."""
    return tl.reshape(x, [x.shape[0] // (32 * VECTOR), 32, VECTOR])


@triton.jit
def largest_of_threads(x, VECTOR: tl.constexpr):
    """The largest of the scores that each thread of a warp holds, (32,); NaN as +inf."""
    return tl.max(tl.max(by_threads(tl.where(x == x, x, float("inf")), VECTOR), 2), 0)


@triton.jit
def append(VALUES, PLACES, first, count, x, bound, column, CAPACITY: tl.constexpr, VECTOR: tl.constexpr,
           KEEPS_PLACES: tl.constexpr):  # fmt: skip
    """List the scores of a chunk that are above a bound, from `count` on, and where they are: the new count.

    Where every thread has few of them, one of each is listed at a time: so nothing is moved between threads.
    """
    columns = column + tl.arange(0, x.shape[0])
    keep = x > bound
    counts = tl.sum(tl.sum(by_threads(keep.to(tl.int32), VECTOR), 2), 0)
    if tl.max(counts, 0) <= _FEW_OF_A_THREAD:
        held, at = by_threads(tl.where(keep, x, -float("inf")), VECTOR), by_threads(columns, VECTOR)
        for _ in range(tl.max(counts, 0)):
            largest = tl.max(tl.max(held, 2), 0)
            found = (largest > -float("inf")).to(tl.int32)
            place = count + tl.cumsum(found, 0) - 1
            # The first of equals.
            where = tl.where(held == largest[None, :, None], at, 2147483647)
            where = tl.min(tl.min(where, 2), 0)
            fits = (found > 0) & (place < CAPACITY)
            tl.store(VALUES + first + place, largest.to(VALUES.dtype.element_ty), mask=fits)
            if KEEPS_PLACES:
                tl.store(PLACES + first + place, where.to(tl.int16), mask=fits)
            count += tl.sum(found, 0)
            held = tl.where(at == where[None, :, None], -float("inf"), held)
    else:
        place = count + tl.cumsum(keep.to(tl.int32), 0) - 1
        fits = keep & (place < CAPACITY)
        tl.store(VALUES + first + place, x.to(VALUES.dtype.element_ty), mask=fits)
        if KEEPS_PLACES:
            tl.store(PLACES + first + place, columns.to(tl.int16), mask=fits)
        count += tl.sum(counts, 0)
    return count


@triton.jit
def bound_of_rows(y, epsilon, partition, t, K: tl.constexpr, PER_ROW: tl.constexpr):
    """A of rows y ≤ 0, roughly, from a lower bound of it and its t; K as `solve_long_rows` chooses it."""
    if PER_ROW:
        if tl.min(tl.abs(epsilon), 0) >= 0.1:
            partition, t = climb(y, epsilon, partition, t, 0, True)
        else:
            partition, t = climb(y, epsilon, partition, t, -1, True)
    else:
        partition, t = climb(y, epsilon, partition, t, K, True)
    return partition


@triton.jit
def list_scores(
    X, M, A, P, Q, SCORES, PLACES, COUNTS, PEAKS, SUMS, CUT, n, fixed_epsilon, width,
    size_b, size_c, xa, xb, xc, ma, mb, mc,
    K: tl.constexpr, PER_ROW: tl.constexpr, HAS_MASK: tl.constexpr, IS_MAP: tl.constexpr, IS_SOFT: tl.constexpr,
    SLICE: tl.constexpr, CHUNK: tl.constexpr, CAPACITY: tl.constexpr, VECTOR: tl.constexpr,
):  # fmt: skip
    """List the scores of a slice that may have mass; for a map also their places, and p is cleared.

    Of each slice the maximum is kept, NaN if there is a NaN or +inf, and a lower bound of maximum + A. For a loss the
    largest score of every chunk goes into the cut of the row. Soft targets Q are read along: SUMS gets the sums of
    `soft_sums` of each slice, that of scores less the maximum of the slice, and that maximum.
    """
    r, slice_ = tl.program_id(0), tl.program_id(0) * tl.num_programs(1) + tl.program_id(1)
    row = r + tl.arange(0, 1)
    at = row_offsets(r, size_b, size_c, xa, xb, xc)
    mask_at = row_offsets(r, size_b, size_c, ma, mb, mc)
    epsilon = epsilon_of_rows(A, fixed_epsilon, row, row >= 0, PER_ROW, 1)
    reaches = epsilon > 0.0
    reach = 1.0 / tl.where(reaches, epsilon, 1.0)
    first = slice_.to(tl.int64) * CAPACITY
    largest = tl.full([32], -float("inf"), tl.float32)
    top = -float("inf")
    level = tl.full([1], -float("inf"), tl.float32)  # maximum + A, or less
    bound = -float("inf")
    count = 0
    mass, bits, product = tl.zeros([1], tl.float32), tl.zeros([1], tl.float32), tl.zeros([1], tl.float32)
    impossible = tl.zeros([1], tl.int32)
    level_of_sums = 0.0
    begin = tl.program_id(1) * SLICE
    for start in range(begin, tl.minimum(begin + SLICE, n), CHUNK):
        columns = start + tl.arange(0, CHUNK)
        x = load_chunk(X, M, at, mask_at, start, n, HAS_MASK, CHUNK)
        if IS_MAP:
            tl.store(P + r.to(tl.int64) * n + columns, tl.zeros([CHUNK], P.dtype.element_ty), mask=columns < n)
        of_threads = largest_of_threads(x, VECTOR)
        chunk_top = tl.max(of_threads, 0)
        if not IS_MAP:
            tl.store(CUT + r.to(tl.int64) * width + 4 + start // CHUNK, chunk_top)
        if IS_SOFT:
            y_soft = tl.load(Q + r.to(tl.int64) * n + columns, mask=columns < n, other=0.0).to(tl.float32)
            met = tl.maximum(top, chunk_top)
            met = tl.where(met == -float("inf"), 0.0, met)
            more = soft_sums(y_soft[None, :], (x - met)[None, :], epsilon, K)
            # The sum so far moves to the new level.
            product += mass * (level_of_sums - met) + more[2]
            level_of_sums = met
            mass += more[0]
            bits += more[1]
            impossible = tl.maximum(impossible, more[3])
        top = tl.maximum(top, chunk_top)
        # What a list that is full leaves out, nobody will look for in it.
        if (chunk_top > bound) & (count <= CAPACITY):
            largest = tl.maximum(largest, of_threads)
            y = largest - top
            y = tl.where(y < NOTHING, NOTHING, y)[None, :]
            partition = tl.maximum(level - top, 0.0)
            partition = bound_of_rows(y, epsilon, partition, 1.0 - epsilon * partition, K, PER_ROW)
            # A little lower, so that rounding loses nothing: also where the scores are so large that all which have
            # mass are equal, or A is less than the distance between two numbers.
            level = top + partition - _LAST_BITS * tl.abs(top)
            below = level - reach - (1e-5 if K > 0 else 1e-3) * (1.0 + partition)
            bound = tl.max(tl.where(reaches, below, -float("inf")), 0)
            count = append(SCORES, PLACES, first, count, x, bound, start - begin, CAPACITY, VECTOR, IS_MAP)
    tl.store(COUNTS + slice_, count)
    tl.store(PEAKS + 2 * slice_, tl.where(top == -float("inf"), top, top + (top - top)))
    tl.store(PEAKS + 2 * slice_ + 1 + tl.arange(0, 1), level)
    if IS_SOFT:
        sums = SUMS + 5 * slice_ + tl.arange(0, 1)
        tl.store(sums, mass)
        tl.store(sums + 1, bits)
        tl.store(sums + 2, product)
        tl.store(sums + 3, impossible.to(tl.float32))
        tl.store(sums + 4, mass * 0.0 + level_of_sums)


@triton.jit
def list_support(
    P, DX, MASSES, PLACES, COUNTS, n,
    SLICE: tl.constexpr, CHUNK: tl.constexpr, CAPACITY: tl.constexpr, VECTOR: tl.constexpr,
):  # fmt: skip
    """List the support of a slice, and clear its gradient; a NaN overflows the list."""
    here = tl.program_id(0).to(tl.int64) * n
    slice_ = tl.program_id(0) * tl.num_programs(1) + tl.program_id(1)
    first = slice_.to(tl.int64) * CAPACITY
    count = 0
    begin = tl.program_id(1) * SLICE
    for start in range(begin, tl.minimum(begin + SLICE, n), CHUNK):
        columns = start + tl.arange(0, CHUNK)
        p = tl.load(P + here + columns, mask=columns < n, other=0.0).to(tl.float32)
        tl.store(DX + here + columns, tl.zeros([CHUNK], DX.dtype.element_ty), mask=columns < n)
        top = tl.max(largest_of_threads(p, VECTOR), 0)
        if top > 0.0:
            count = append(MASSES, PLACES, first, count, p, 0.0, start - begin, CAPACITY, VECTOR, True)
            if top == float("inf"):
                count += CAPACITY + 1
    tl.store(COUNTS + slice_, count)


@triton.jit
def listed_slots(COUNTS, r, slices, CAPACITY: tl.constexpr, SLICES: tl.constexpr, SLOTS: tl.constexpr):
    """The slots of all lists of row r, each (SLICES·SLOTS,): whether one is taken, its index, the slice it is of."""
    slot = tl.arange(0, SLICES * SLOTS)
    slice_ = slot // SLOTS
    count = tl.load(COUNTS + r * slices + slice_, mask=slice_ < slices, other=0)
    # Of a list that overflowed the count is larger than what it holds.
    taken = slot % SLOTS < tl.minimum(count, CAPACITY)
    return taken, (r.to(tl.int64) * slices + slice_) * CAPACITY + slot % SLOTS, slice_
