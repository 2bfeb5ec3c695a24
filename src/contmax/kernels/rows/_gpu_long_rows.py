"""Rows that do not fit on the chip, from their lists (`_lists`), or, where a list overflowed, by reading them again."""

import triton
import triton.language as tl

from contmax.kernels.rows._gpu_lists import listed_slots, load_chunk
from contmax.kernels.rows._gpu_row_loss import smoothed, store_cut, store_loss, target_score
from contmax.kernels.rows._gpu_rows import epsilon_of_rows, row_offsets
from contmax.kernels.rows._gpu_soft_rows import store_soft_loss
from contmax.kernels.rows._gpu_soft_targets import soft_terms
from contmax.kernels.rows._gpu_solve import (
    NOTHING,
    exceeds,
    is_climbing,
    newton_step,
    relative_weights,
    solve,
    solved_from,
)


@triton.jit
def chunk_sums(
    X, M, at, mask_at, n, top, t, epsilon,
    K: tl.constexpr, ROUGH: tl.constexpr, HAS_MASK: tl.constexpr, CHUNK: tl.constexpr,
):  # fmt: skip
    """Sums of weights, of escorts and of weights times y over a row, each (1,), by reading it again."""
    # Threads wait for each other once, at the end.
    total = tl.zeros([1, CHUNK], tl.float32)
    slope = tl.zeros([1, CHUNK], tl.float32)
    product = tl.zeros([1, CHUNK], tl.float32)
    for start in range(0, n, CHUNK):
        y = load_chunk(X, M, at, mask_at, start, n, HAS_MASK, CHUNK) - top
        y = tl.where(y < NOTHING, NOTHING, y)[None, :]
        weight, escort = relative_weights(y, t, epsilon, K, ROUGH)
        total += weight
        slope += escort
        product += tl.where(weight > 0.0, weight * y, 0.0)
    return tl.sum(total, 1), tl.sum(slope, 1), tl.sum(product, 1)


@triton.jit
def listed_scores(SCORES, listed, slot, top):
    """The scores in these slots less their maximum, (1, slots)."""
    y = tl.load(SCORES + slot, mask=listed, other=-float("inf")).to(tl.float32) - top
    return tl.where(y < NOTHING, NOTHING, y)[None, :]


@triton.jit
def solve_listed(
    P, SCORES, PLACES, COUNTS, r, n, slices, top, epsilon, partition, t,
    K: tl.constexpr, ROUGH: tl.constexpr, IS_MAP: tl.constexpr,
    SLICE: tl.constexpr, CAPACITY: tl.constexpr, SLICES: tl.constexpr, SLOTS: tl.constexpr,
):  # fmt: skip
    """A and t of row r from its lists, and the sums of `chunk_sums`, each (1,); of a map p is stored."""
    listed, slot, slice_ = listed_slots(COUNTS, r, slices, CAPACITY, SLICES, SLOTS)
    y = listed_scores(SCORES, listed, slot, top)
    partition, t, weight, total, slope = solved_from(y, epsilon, partition, t, K, ROUGH)
    product = tl.sum(tl.where(weight > 0.0, weight * y, 0.0), 1)
    if IS_MAP:
        place = tl.load(PLACES + slot, mask=listed, other=0).to(tl.int32) + slice_ * SLICE
        p = tl.sum(weight / tl.where(total > 0.0, total, 1.0)[:, None], 0)
        tl.store(P + r.to(tl.int64) * n + place, p.to(P.dtype.element_ty), mask=listed)
    return partition, t, total, slope, product


@triton.jit
def listed_soft_terms(SUMS, r, slices, top, epsilon, smoothing, K: tl.constexpr, SLICES: tl.constexpr):
    """`soft_terms` of row r, (1,), from the sums of its slices."""
    each = tl.arange(0, SLICES)
    sums_at, exists = SUMS + 5 * (r * slices + each), each < slices
    masses = tl.load(sums_at, mask=exists, other=0.0)
    products = tl.load(sums_at + 2, mask=exists, other=0.0)
    levels = tl.load(sums_at + 4, mask=exists, other=0.0)
    products += tl.where(masses != 0.0, masses * (levels - top), 0.0)
    bits = tl.sum(tl.load(sums_at + 1, mask=exists, other=0.0)[None, :], 1)
    impossible = tl.max(tl.load(sums_at + 3, mask=exists, other=0.0)[None, :], 1)
    mass, product = tl.sum(masses[None, :], 1), tl.sum(products[None, :], 1)
    return soft_terms(mass, bits, product, impossible, epsilon, smoothing, K)


@triton.jit
def solve_long_rows(
    X, M, A, Y, P, SCORES, PLACES, COUNTS, PEAKS, SUMS, CUT, LOSS, n, slices, fixed_epsilon, smoothing, width,
    size_b, size_c, xa, xb, xc, ma, mb, mc,
    K: tl.constexpr, PER_ROW: tl.constexpr, HAS_MASK: tl.constexpr, HAS_TARGET: tl.constexpr, SMOOTHS: tl.constexpr,
    IS_MAP: tl.constexpr, IS_SOFT: tl.constexpr, NEEDS_LOSS: tl.constexpr,
    CHUNK: tl.constexpr, SLICE: tl.constexpr, CAPACITY: tl.constexpr, SLICES: tl.constexpr, SLOTS: tl.constexpr,
    SHORT: tl.constexpr,
):  # fmt: skip
    """`solve_long_row` of each; one with an α of its own, not next to 1, by the arithmetic that costs less."""
    row = tl.program_id(0) + tl.arange(0, 1)
    epsilon = epsilon_of_rows(A, fixed_epsilon, row, row >= 0, PER_ROW, 1)
    if PER_ROW:
        if tl.min(tl.abs(epsilon), 0) >= 0.1:
            solve_long_row(
                X, M, Y, P, SCORES, PLACES, COUNTS, PEAKS, SUMS, CUT, LOSS, n, slices, epsilon, smoothing, width,
                size_b, size_c, xa, xb, xc, ma, mb, mc, 0, HAS_MASK, HAS_TARGET, SMOOTHS, IS_MAP, IS_SOFT, NEEDS_LOSS,
                CHUNK, SLICE, CAPACITY, SLICES, SLOTS, SHORT,
            )  # fmt: skip
        else:
            solve_long_row(
                X, M, Y, P, SCORES, PLACES, COUNTS, PEAKS, SUMS, CUT, LOSS, n, slices, epsilon, smoothing, width,
                size_b, size_c, xa, xb, xc, ma, mb, mc, -1, HAS_MASK, HAS_TARGET, SMOOTHS, IS_MAP, IS_SOFT, NEEDS_LOSS,
                CHUNK, SLICE, CAPACITY, SLICES, SLOTS, SHORT,
            )  # fmt: skip
    else:
        solve_long_row(
            X, M, Y, P, SCORES, PLACES, COUNTS, PEAKS, SUMS, CUT, LOSS, n, slices, epsilon, smoothing, width,
            size_b, size_c, xa, xb, xc, ma, mb, mc, K, HAS_MASK, HAS_TARGET, SMOOTHS, IS_MAP, IS_SOFT, NEEDS_LOSS,
            CHUNK, SLICE, CAPACITY, SLICES, SLOTS, SHORT,
        )  # fmt: skip


@triton.jit
def solve_long_row(
    X, M, Y, P, SCORES, PLACES, COUNTS, PEAKS, SUMS, CUT, LOSS, n, slices, epsilon, smoothing, width,
    size_b, size_c, xa, xb, xc, ma, mb, mc,
    K: tl.constexpr, HAS_MASK: tl.constexpr, HAS_TARGET: tl.constexpr, SMOOTHS: tl.constexpr,
    IS_MAP: tl.constexpr, IS_SOFT: tl.constexpr, NEEDS_LOSS: tl.constexpr,
    CHUNK: tl.constexpr, SLICE: tl.constexpr, CAPACITY: tl.constexpr, SLICES: tl.constexpr, SLOTS: tl.constexpr,
    SHORT: tl.constexpr,
):  # fmt: skip
    """p of a row into what is cleared, or the cut of the row; and its loss or Ω* where asked for.

    SLICES and SLOTS are powers of two that hold the slices of a row and the slots of a list; SHORT of these are enough
    for most lists.
    """
    # Four digits are enough for probabilities in half precision.
    ROUGH: tl.constexpr = IS_MAP and not NEEDS_LOSS and P.dtype.element_ty.primitive_bitwidth == 16
    r = tl.program_id(0)
    row = r + tl.arange(0, 1)
    ats = row_offsets(row, size_b, size_c, xa, xb, xc)
    mask_ats = row_offsets(row, size_b, size_c, ma, mb, mc)
    at, mask_at = tl.max(ats, 0), tl.max(mask_ats, 0)
    each = tl.arange(0, SLICES)
    tops = tl.load(PEAKS + 2 * (r * slices + each), mask=each < slices, other=-float("inf"))
    levels = tl.load(PEAKS + 2 * (r * slices + each) + 1, mask=each < slices, other=-float("inf"))
    broken = tl.sum(tl.where(tops == tops, 0.0, tops), 0)
    highest = tl.max(tops, 0)
    top = tl.where(highest == -float("inf"), 0.0, highest)
    longest = tl.max(tl.load(COUNTS + r * slices + each, mask=each < slices, other=0), 0)
    partition = tl.zeros([1], tl.float32) + tl.maximum(tl.max(levels, 0) - top, 0.0) + broken
    t = 1.0 - epsilon * partition
    total, slope = tl.zeros([1], tl.float32), tl.zeros([1], tl.float32)
    product = tl.zeros([1], tl.float32)
    if longest <= tl.minimum(SHORT, CAPACITY):
        partition, t, total, slope, product = solve_listed(
            P, SCORES, PLACES, COUNTS, r, n, slices, top, epsilon, partition, t, K, ROUGH, IS_MAP, SLICE, CAPACITY,
            SLICES, SHORT,
        )  # fmt: skip
    elif (SHORT < SLOTS) & (longest <= CAPACITY):
        partition, t, total, slope, product = solve_listed(
            P, SCORES, PLACES, COUNTS, r, n, slices, top, epsilon, partition, t, K, ROUGH, IS_MAP, SLICE, CAPACITY,
            SLICES, SLOTS,
        )  # fmt: skip
    else:
        # The threshold of those that found a place is a lower bound, close to that of all.
        listed, slot, _ = listed_slots(COUNTS, r, slices, CAPACITY, SLICES, SLOTS)
        partition, t = solve(listed_scores(SCORES, listed, slot, top), epsilon, partition, t, K, ROUGH)
        steps = 0
        climbing, arriving = True, False
        while climbing:
            total, slope, product = chunk_sums(X, M, at, mask_at, n, top, t, epsilon, K, ROUGH, HAS_MASK, CHUNK)
            step = newton_step(total, slope, partition, t, epsilon, K)
            # The last step is taken too, and the sums are those after it.
            climbing = (not arriving) & (steps < 40)
            if not ROUGH and K != 1 and K <= 2:  # as in `solved_from`
                # What the digits of t, next to α = 1 those of A, cannot hold is left for good.
                near = tl.abs(epsilon) < 0.1
                moves_on = tl.where(near, partition + step != partition, t - epsilon * step != t)
                left = moves_on & exceeds(total, partition, t, epsilon, K, ROUGH)
                climbing = ((not arriving) | (tl.max(left.to(tl.int32), 0) > 0)) & (steps < 40)
            moves = is_climbing(step, t, K, ROUGH)
            if ROUGH and K != 1:
                moves = moves | exceeds(total, partition, t, epsilon, K, ROUGH)
            arriving = tl.max(moves.to(tl.int32), 0) == 0
            steps += 1
            if climbing:
                partition += step
                t -= epsilon * step
    if IS_MAP and ((longest > CAPACITY) | (broken != 0.0)):
        for start in range(0, n, CHUNK):
            columns = start + tl.arange(0, CHUNK)
            scores = load_chunk(X, M, at, mask_at, start, n, HAS_MASK, CHUNK)[None, :] - top
            every, _ = relative_weights(tl.where(scores < NOTHING, NOTHING, scores), t, epsilon, K, ROUGH)
            masses = tl.sum(every / tl.where(total > 0.0, total, 1.0)[:, None], 0) + broken
            tl.store(P + r.to(tl.int64) * n + columns, masses.to(P.dtype.element_ty), mask=columns < n)
    partition += newton_step(total, slope, partition, t, epsilon, K)
    row_top = tl.zeros([1], tl.float32) + highest
    linear, share = tl.zeros([1], tl.float32), tl.zeros([1], tl.float32)
    if HAS_TARGET or IS_SOFT:
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
    if not IS_MAP:
        store_cut(CUT, row, row >= 0, width, row_top, t + broken, total, share)
    if NEEDS_LOSS:
        gain = (epsilon * product / tl.where(total > 0.0, total, 1.0) + partition) / (1.0 + epsilon) + broken
        if IS_SOFT:
            cost, scale = listed_soft_terms(SUMS, r, slices, top, epsilon, smoothing, K, SLICES)
            store_soft_loss(LOSS, CUT, row, row >= 0, width, row_top, gain, cost - linear, scale)
        elif IS_MAP:
            gain = tl.where(row_top == -float("inf"), row_top, gain)
            tl.store(LOSS + row, gain.to(tl.float64), mask=row >= 0)
        else:
            store_loss(LOSS, row, row >= 0, row_top, gain, linear, HAS_TARGET)
