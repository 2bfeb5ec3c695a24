"""Candidate lists of rows that do not fit on the chip: a program reads a slice once, and lists scores above a bound.

The threshold of any part of a row is a lower bound of the row's threshold. A program of one warp reads a slice of a row
tile by tile, and remembers the largest score that each of its threads has met. The threshold of these 32 scores is a
lower bound that grows as the program reads. The program lists the scores above this bound, among them all scores with
mass. Together the lists of a row form a short row (`_gpu_long_rows`). A list may overflow (flat rows, α ≤ 1): its count
then exceeds its capacity.
"""

import triton
import triton.language as tl

from contmax.kernels.rows._gpu_row_loss import soft_sums
from contmax.kernels.rows._gpu_rows import epsilon_of_rows, row_offsets
from contmax.kernels.rows._gpu_solve import below, climb

# If no thread has more than this number of scores of a tile to list, each thread lists its own scores one by one.
_FEW_OF_A_THREAD = tl.constexpr(3)
# The relative rounding error of maximum + A − score in float32, with a margin.
_LAST_BITS = tl.constexpr(2.4e-7)


@triton.jit
def load_chunk(X, M, at, mask_at, start, n, HAS_MASK: tl.constexpr, CHUNK: tl.constexpr):
    """Scores start … start + CHUNK − 1 of a row in float32, −inf where masked or past its end."""
    columns = start + tl.arange(0, CHUNK)
    inside = columns < n
    if HAS_MASK:
        inside = inside & (tl.load(M + mask_at + columns, mask=inside, other=0) != 0)
    return tl.load(X + at + columns, mask=inside, other=-float("inf")).to(tl.float32)


@triton.jit
def by_threads(x, VECTOR: tl.constexpr):
    """Reshape a tile to (turns, 32, VECTOR): in each turn, each thread of a warp loads VECTOR neighbouring numbers."""
    return tl.reshape(x, [x.shape[0] // (32 * VECTOR), 32, VECTOR])


@triton.jit
def largest_of_threads(x, VECTOR: tl.constexpr):
    """Each thread's largest score, for the 32 threads of a warp, (32,); a NaN counts as +inf."""
    return tl.max(tl.max(by_threads(tl.where(x == x, x, float("inf")), VECTOR), 2), 0)


@triton.jit
def append(VALUES, PLACES, first, count, x, bound, column, CAPACITY: tl.constexpr, VECTOR: tl.constexpr,
           HAS_PLACES: tl.constexpr):  # fmt: skip
    """Append the scores of a tile above `bound`, and their places, to a list of `count` scores; returns the new count.

    If no thread has more than _FEW_OF_A_THREAD of these scores, each thread appends its own, so that no score moves
    between threads.
    """
    columns = column + tl.arange(0, x.shape[0])
    above = x > bound
    counts = tl.sum(tl.sum(by_threads(above.to(tl.int32), VECTOR), 2), 0)
    if tl.max(counts, 0) <= _FEW_OF_A_THREAD:
        held, at = by_threads(tl.where(above, x, -float("inf")), VECTOR), by_threads(columns, VECTOR)
        for _ in range(tl.max(counts, 0)):
            largest = tl.max(tl.max(held, 2), 0)
            found = (largest > -float("inf")).to(tl.int32)
            place = count + tl.cumsum(found, 0) - 1
            # If scores are equal, take the first.
            where = tl.where(held == largest[None, :, None], at, 2147483647)
            where = tl.min(tl.min(where, 2), 0)
            fits = (found > 0) & (place < CAPACITY)
            tl.store(VALUES + first + place, largest.to(VALUES.dtype.element_ty), mask=fits)
            if HAS_PLACES:
                tl.store(PLACES + first + place, where.to(tl.int16), mask=fits)
            count += tl.sum(found, 0)
            held = tl.where(at == where[None, :, None], -float("inf"), held)
    else:
        place = count + tl.cumsum(above.to(tl.int32), 0) - 1
        fits = above & (place < CAPACITY)
        tl.store(VALUES + first + place, x.to(VALUES.dtype.element_ty), mask=fits)
        if HAS_PLACES:
            tl.store(PLACES + first + place, columns.to(tl.int16), mask=fits)
        count += tl.sum(counts, 0)
    return count


@triton.jit
def list_scores(
    X, M, A, P, Q, SCORES, PLACES, COUNTS, PEAKS, SUMS, STATISTICS, n, fixed_epsilon, width,
    size_b, size_c, xa, xb, xc, ma, mb, mc,
    K: tl.constexpr, PER_ROW: tl.constexpr, HAS_MASK: tl.constexpr, IS_MAP: tl.constexpr, IS_SOFT: tl.constexpr,
    SLICE: tl.constexpr, CHUNK: tl.constexpr, CAPACITY: tl.constexpr, VECTOR: tl.constexpr,
):  # fmt: skip
    """List the scores of a slice that may have mass; for a map also list their places, and write zeros to p.

    PEAKS gets two numbers per slice: its maximum (NaN if it has a NaN or +inf), and a lower bound of (max x) + A
    of the row x. For a loss, STATISTICS gets the maxima of tiles. For soft targets Q, SUMS gets five numbers per slice:
    the three sums of `soft_sums`, whether a target > 0 has score −inf, and the maximum that the third sum subtracts
    from scores.
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
    absolute = tl.full([1], -float("inf"), tl.float32)  # a lower bound of maximum + A of the row
    bound = -float("inf")
    count = 0
    mass, bits, product = tl.zeros([1], tl.float32), tl.zeros([1], tl.float32), tl.zeros([1], tl.float32)
    impossible = tl.zeros([1], tl.int32)
    origin = 0.0
    begin = tl.program_id(1) * SLICE
    for start in range(begin, tl.minimum(begin + SLICE, n), CHUNK):
        columns = start + tl.arange(0, CHUNK)
        x = load_chunk(X, M, at, mask_at, start, n, HAS_MASK, CHUNK)
        if IS_MAP:
            tl.store(P + r.to(tl.int64) * n + columns, tl.zeros([CHUNK], P.dtype.element_ty), mask=columns < n)
        of_threads = largest_of_threads(x, VECTOR)
        tile_maximum = tl.max(of_threads, 0)
        if not IS_MAP:
            tl.store(STATISTICS + r.to(tl.int64) * width + 4 + start // CHUNK, tile_maximum)
        if IS_SOFT:
            y_soft = tl.load(Q + r.to(tl.int64) * n + columns, mask=columns < n, other=0.0).to(tl.float32)
            met = tl.maximum(top, tile_maximum)
            met = tl.where(met == -float("inf"), 0.0, met)
            more = soft_sums(y_soft[None, :], (x - met)[None, :], epsilon, K)
            # `product` is Σ target·(score − largest score so far): when the largest score grows, correct the sum of
            # earlier tiles.
            product += mass * (origin - met) + more[2]
            origin = met
            mass += more[0]
            bits += more[1]
            impossible = tl.maximum(impossible, more[3])
        top = tl.maximum(top, tile_maximum)
        # Stop appending to a list that overflowed: the row will be read again.
        if (tile_maximum > bound) & (count <= CAPACITY):
            largest = tl.maximum(largest, of_threads)
            y = below(largest[None, :], tl.zeros([1], tl.float32) + top)
            normaliser = tl.maximum(absolute - top, 0.0)
            t = 1.0 - epsilon * normaliser
            # Compute A of the threads' largest scores to four digits, with K as in `solve_long_rows`.
            if PER_ROW and tl.min(tl.abs(epsilon), 0) >= 0.1:
                normaliser, _ = climb(y, epsilon, normaliser, t, 0, True)
            else:
                normaliser, _ = climb(y, epsilon, normaliser, t, K, True)
            # Subtract the rounding error, so that no score with mass is lost. (Where scores are large, all scores with
            # mass may be equal, and A may be less than the spacing of floats.)
            absolute = top + normaliser - _LAST_BITS * tl.abs(top)
            threshold = absolute - reach - (1e-5 if K > 0 else 1e-3) * (1.0 + normaliser)
            bound = tl.max(tl.where(reaches, threshold, -float("inf")), 0)
            count = append(SCORES, PLACES, first, count, x, bound, start - begin, CAPACITY, VECTOR, IS_MAP)
    tl.store(COUNTS + slice_, count)
    tl.store(PEAKS + 2 * slice_, tl.where(top == -float("inf"), top, top + (top - top)))
    tl.store(PEAKS + 2 * slice_ + 1 + tl.arange(0, 1), absolute)
    if IS_SOFT:
        sums = SUMS + 5 * slice_ + tl.arange(0, 1)
        tl.store(sums, mass)
        tl.store(sums + 1, bits)
        tl.store(sums + 2, product)
        tl.store(sums + 3, impossible.to(tl.float32))
        tl.store(sums + 4, mass * 0.0 + origin)


@triton.jit
def list_support(
    P, DX, MASSES, PLACES, COUNTS, n,
    SLICE: tl.constexpr, CHUNK: tl.constexpr, CAPACITY: tl.constexpr, VECTOR: tl.constexpr,
):  # fmt: skip
    """List the support of a slice of p, and write zeros to DX. If p has a NaN, the list overflows: p is read again."""
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
    """For each slot of the lists of row r, (SLICES·SLOTS,): whether it holds a score, its memory index, its slice."""
    slot = tl.arange(0, SLICES * SLOTS)
    slice_ = slot // SLOTS
    count = tl.load(COUNTS + r * slices + slice_, mask=slice_ < slices, other=0)
    # The count of an overflowing list exceeds its capacity.
    taken = slot % SLOTS < tl.minimum(count, CAPACITY)
    return taken, (r.to(tl.int64) * slices + slice_) * CAPACITY + slot % SLOTS, slice_
