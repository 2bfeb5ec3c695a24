"""Long rows: one reading that keeps a list of the scores that may have mass.

The threshold of any part of a row is a lower bound of the row's own. Each chunk that brings a new maximum is solved by
itself, on the chip, and raises the bound; what lies below the bound is forgotten. The list is then a row that fits on
the chip. Where it overflows (flat rows, α ≤ 1) the row is read again for every step of Newton's method.
"""

import triton
import triton.language as tl

from contmax.kernels.triton._rows import below_maximum
from contmax.kernels.triton._solve import NOTHING, first_bound, is_climbing, newton_step, relative_weights, solve


@triton.jit
def load_chunk(X, M, at, mask_at, start, n, HAS_MASK: tl.constexpr, CHUNK: tl.constexpr):
    """Scores start … start + CHUNK of one row in float32, −inf where masked or outside."""
    columns = start + tl.arange(0, CHUNK)
    inside = columns < n
    if HAS_MASK:
        inside = inside & (tl.load(M + mask_at + columns, mask=inside, other=0) != 0)
    return tl.load(X + at + columns, mask=inside, other=-float("inf")).to(tl.float32)


@triton.jit
def chunk_bound(x, epsilon, K: tl.constexpr, CHUNK: tl.constexpr):
    """The score below which nothing has mass, in this chunk and so in any row with it; ε is (1,)."""
    y, top = below_maximum(x[None, :])
    partition, t = first_bound(y, epsilon, CHUNK)
    partition, t = solve(y, epsilon, partition, t, K)
    # A little lower, so that rounding loses nothing.
    reach = partition - 1.0 / tl.where(epsilon > 0.0, epsilon, 1.0) - 1e-5 * (1.0 + partition)
    return tl.max(tl.where(epsilon > 0.0, top + reach, -float("inf")), 0)


@triton.jit
def scan_row(
    X, M, P, at, mask_at, out_at, n, epsilon, SCORES, PLACES, list_at,
    K: tl.constexpr, HAS_MASK: tl.constexpr, CLEARS: tl.constexpr, CHUNK: tl.constexpr, CAPACITY: tl.constexpr,
):  # fmt: skip
    """The list of one row: its length, the row's maximum, and NaN if the row has one; CLEARS: P is set to zero."""
    bound = -float("inf")
    top = -float("inf")
    count = 0
    broken = 0.0
    for start in range(0, n, CHUNK):
        x = load_chunk(X, M, at, mask_at, start, n, HAS_MASK, CHUNK)
        broken += tl.sum(tl.where(x == x, 0.0, x), 0)
        chunk_top = tl.max(x, 0)
        if chunk_top > top:
            top = chunk_top
            bound = tl.maximum(bound, chunk_bound(x, epsilon, K, CHUNK))
        if chunk_top > bound:
            keep = x > bound
            place = count + tl.cumsum(keep.to(tl.int32), 0) - 1
            keep_here = keep & (place < CAPACITY)
            tl.store(SCORES + list_at + place, x, mask=keep_here)
            tl.store(PLACES + list_at + place, start + tl.arange(0, CHUNK), mask=keep_here)
            count += tl.sum(keep.to(tl.int32), 0)
        if CLEARS:
            columns = start + tl.arange(0, CHUNK)
            tl.store(P + out_at + columns, tl.zeros([CHUNK], P.dtype.element_ty), mask=columns < n)
    broken += tl.where(top == float("inf"), float("nan"), 0.0)
    tl.debug_barrier()  # the list was written by all threads and is read by others
    return count, top, broken


@triton.jit
def load_list(SCORES, list_at, count, top, CAPACITY: tl.constexpr):
    """The listed scores less the maximum, (1, CAPACITY)."""
    columns = tl.arange(0, CAPACITY)
    x = tl.load(SCORES + list_at + columns, mask=columns < count, other=-float("inf"))
    y = x - tl.where(top == -float("inf"), 0.0, top)
    return tl.where(y < NOTHING, NOTHING, y)[None, :]


@triton.jit
def chunk_sums(X, M, at, mask_at, n, top, t, epsilon, K: tl.constexpr, HAS_MASK: tl.constexpr, CHUNK: tl.constexpr):
    """Σ p/p_max, Σ (p/p_max)^{2−α} and Σ p y/p_max over a whole row, each (1,), by reading it again."""
    total = tl.zeros([1], tl.float32)
    slope = tl.zeros([1], tl.float32)
    product = tl.zeros([1], tl.float32)
    for start in range(0, n, CHUNK):
        x = load_chunk(X, M, at, mask_at, start, n, HAS_MASK, CHUNK)
        y = x - tl.where(top == -float("inf"), 0.0, top)
        y = tl.where(y < NOTHING, NOTHING, y)[None, :]
        weight, escort = relative_weights(y, t, epsilon, K)
        total += tl.sum(weight, 1)
        slope += tl.sum(escort, 1)
        product += tl.sum(tl.where(weight > 0.0, weight * y, 0.0), 1)
    return total, slope, product


@triton.jit
def solve_row(
    X, M, at, mask_at, n, count, top, broken, epsilon, SCORES, list_at,
    K: tl.constexpr, HAS_MASK: tl.constexpr, CHUNK: tl.constexpr, CAPACITY: tl.constexpr,
):  # fmt: skip
    """A, t, Σ p/p_max and Σ p y/p_max of a row, each (1,): from its list, or by reading it again for every step."""
    partition = tl.zeros([1], tl.float32) + broken
    t = 1.0 - epsilon * partition
    if count <= CAPACITY:
        y = load_list(SCORES, list_at, count, top, CAPACITY)
        partition, t = solve(y, epsilon, partition, t, K)
        weight, escort = relative_weights(y, t, epsilon, K)
        total = tl.sum(weight, 1)
        slope = tl.sum(escort, 1)
        product = tl.sum(tl.where(weight > 0.0, weight * y, 0.0), 1)
    else:
        total, slope = tl.zeros([1], tl.float32), tl.zeros([1], tl.float32)
        product = tl.zeros([1], tl.float32)
        steps = 0
        climbing = True
        while climbing:
            total, slope, product = chunk_sums(X, M, at, mask_at, n, top, t, epsilon, K, HAS_MASK, CHUNK)
            step = newton_step(total, slope, partition, t, epsilon, K)
            steps += 1
            climbing = (tl.max(is_climbing(step, t, K).to(tl.int32), 0) > 0) & (steps < 40)
            if climbing:
                partition += step
                t -= epsilon * step
    partition += newton_step(total, slope, partition, t, epsilon, K)
    return partition, t, total, product
