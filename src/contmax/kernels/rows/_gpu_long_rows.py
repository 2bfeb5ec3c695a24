"""Rows that do not fit on the chip: forward and backward from lists of the scores that may have mass (`_gpu_lists`).

If a list of a row overflowed, the forward pass reads the whole row again for each step of Newton's method, and for p.
The backward pass then reads it three times.
"""

import triton
import triton.language as tl

from contmax.kernels.rows._gpu_lists import listed_slots, load_chunk
from contmax.kernels.rows._gpu_row_loss import class_cost, soft_terms, store_loss, store_statistics
from contmax.kernels.rows._gpu_rows import (
    curvature,
    epsilon_of_rows,
    escort_of,
    pulled_back,
    row_offsets,
    saturated,
    unbiased,
)
from contmax.kernels.rows._gpu_solve import (
    below,
    conjugate,
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
    """Sums over a row, (1,) each: of weights and escorts (`relative_weights`) and of weight·y; y is score − `top`."""
    # Reduce once, at the end, so that threads wait for each other once.
    total = tl.zeros([1, CHUNK], tl.float32)
    slope = tl.zeros([1, CHUNK], tl.float32)
    product = tl.zeros([1, CHUNK], tl.float32)
    for start in range(0, n, CHUNK):
        y = below(load_chunk(X, M, at, mask_at, start, n, HAS_MASK, CHUNK)[None, :], top)
        weight, escort = relative_weights(y, t, epsilon, K, ROUGH)
        total += weight
        slope += escort
        product += tl.where(weight > 0.0, weight * y, 0.0)
    return tl.sum(total, 1), tl.sum(slope, 1), tl.sum(product, 1)


@triton.jit
def listed_scores(SCORES, listed, slot, top):
    """The scores in `slot` less the row's maximum `top`, (1, slots); NOTHING where not `listed`."""
    return below(tl.load(SCORES + slot, mask=listed, other=-float("inf")).to(tl.float32)[None, :], top)


@triton.jit
def solve_listed(
    P, SCORES, PLACES, COUNTS, r, n, slices, top, epsilon, normaliser, t,
    K: tl.constexpr, ROUGH: tl.constexpr, IS_MAP: tl.constexpr,
    SLICE: tl.constexpr, CAPACITY: tl.constexpr, SLICES: tl.constexpr, SLOTS: tl.constexpr,
):  # fmt: skip
    """A and t of row r from its lists, and the three sums of `chunk_sums`, (1,) each; stores p if IS_MAP."""
    listed, slot, slice_ = listed_slots(COUNTS, r, slices, CAPACITY, SLICES, SLOTS)
    y = listed_scores(SCORES, listed, slot, top)
    normaliser, t, weight, total, slope = solved_from(y, epsilon, normaliser, t, K, ROUGH)
    product = tl.sum(tl.where(weight > 0.0, weight * y, 0.0), 1)
    if IS_MAP:
        place = tl.load(PLACES + slot, mask=listed, other=0).to(tl.int32) + slice_ * SLICE
        p = tl.sum(weight / tl.where(total > 0.0, total, 1.0)[:, None], 0)
        tl.store(P + r.to(tl.int64) * n + place, p.to(P.dtype.element_ty), mask=listed)
    return normaliser, t, total, slope, product


@triton.jit
def listed_soft_terms(SUMS, r, slices, top, epsilon, smoothing, K: tl.constexpr, SLICES: tl.constexpr):
    """The two results of `soft_terms` for row r, (1,) each: the part of the loss that depends on soft targets; (1−s)/S.

    s is the smoothing, S the sum of the targets. `list_scores` wrote five numbers per slice to SUMS: the three sums of
    `soft_sums`, whether a target > 0 has the score −∞, and the maximum that the third sum subtracts from scores.
    """
    each = tl.arange(0, SLICES)
    sums_at, exists = SUMS + 5 * (r * slices + each), each < slices
    masses = tl.load(sums_at, mask=exists, other=0.0)
    products = tl.load(sums_at + 2, mask=exists, other=0.0)
    origins = tl.load(sums_at + 4, mask=exists, other=0.0)
    products += tl.where(masses != 0.0, masses * (origins - top), 0.0)
    bits = tl.sum(tl.load(sums_at + 1, mask=exists, other=0.0)[None, :], 1)
    impossible = tl.max(tl.load(sums_at + 3, mask=exists, other=0.0)[None, :], 1)
    mass, product = tl.sum(masses[None, :], 1), tl.sum(products[None, :], 1)
    return soft_terms(mass, bits, product, impossible, epsilon, smoothing, K)


@triton.jit
def solve_long_rows(
    X, M, A, Y, P, SCORES, PLACES, COUNTS, PEAKS, SUMS, STATISTICS, LOSS,
    n, slices, fixed_epsilon, smoothing, width, size_b, size_c, xa, xb, xc, ma, mb, mc,
    K: tl.constexpr, PER_ROW: tl.constexpr, HAS_MASK: tl.constexpr, SMOOTHS: tl.constexpr,
    IS_MAP: tl.constexpr, IS_SOFT: tl.constexpr, NEEDS_OMEGA: tl.constexpr,
    CHUNK: tl.constexpr, SLICE: tl.constexpr, CAPACITY: tl.constexpr, SLICES: tl.constexpr, SLOTS: tl.constexpr,
    SHORT: tl.constexpr,
):  # fmt: skip
    """Call `solve_long_row`; if PER_ROW, with K = 0 for rows with |α − 1| ≥ 0.1, where it costs less than K = −1."""
    row = tl.program_id(0) + tl.arange(0, 1)
    epsilon = epsilon_of_rows(A, fixed_epsilon, row, row >= 0, PER_ROW, 1)
    tensors = (X, M, Y, P, SCORES, PLACES, COUNTS, PEAKS, SUMS, STATISTICS, LOSS)
    numbers = (n, slices, epsilon, smoothing, width, size_b, size_c, xa, xb, xc, ma, mb, mc)
    if PER_ROW and tl.min(tl.abs(epsilon), 0) >= 0.1:
        solve_long_row(
            *tensors, *numbers, 0, HAS_MASK, SMOOTHS, IS_MAP, IS_SOFT, NEEDS_OMEGA,
            CHUNK, SLICE, CAPACITY, SLICES, SLOTS, SHORT,
        )  # fmt: skip
    else:
        solve_long_row(
            *tensors, *numbers, K, HAS_MASK, SMOOTHS, IS_MAP, IS_SOFT, NEEDS_OMEGA,
            CHUNK, SLICE, CAPACITY, SLICES, SLOTS, SHORT,
        )  # fmt: skip


@triton.jit
def solve_long_row(
    X, M, Y, P, SCORES, PLACES, COUNTS, PEAKS, SUMS, STATISTICS, LOSS,
    n, slices, epsilon, smoothing, width, size_b, size_c, xa, xb, xc, ma, mb, mc,
    K: tl.constexpr, HAS_MASK: tl.constexpr, SMOOTHS: tl.constexpr,
    IS_MAP: tl.constexpr, IS_SOFT: tl.constexpr, NEEDS_OMEGA: tl.constexpr,
    CHUNK: tl.constexpr, SLICE: tl.constexpr, CAPACITY: tl.constexpr, SLICES: tl.constexpr, SLOTS: tl.constexpr,
    SHORT: tl.constexpr,
):  # fmt: skip
    """If IS_MAP, store p on the support (and Ω* − max x if NEEDS_OMEGA); otherwise store the loss and its statistics.

    Off the support `list_scores` wrote zeros. SLICES and SLOTS are powers of two ≥ the slices of a row and the slots of
    a list; SHORT slots are enough for most lists.
    """
    # Four digits are enough for probabilities in half precision.
    ROUGH: tl.constexpr = IS_MAP and not NEEDS_OMEGA and P.dtype.element_ty.primitive_bitwidth == 16
    r = tl.program_id(0)
    row = r + tl.arange(0, 1)
    ats = row_offsets(row, size_b, size_c, xa, xb, xc)
    mask_ats = row_offsets(row, size_b, size_c, ma, mb, mc)
    at, mask_at = tl.max(ats, 0), tl.max(mask_ats, 0)
    each = tl.arange(0, SLICES)
    peaks, exists = PEAKS + 2 * (r * slices + each), each < slices
    maxima = tl.load(peaks, mask=exists, other=-float("inf"))
    bound = tl.max(tl.load(peaks + 1, mask=exists, other=-float("inf")), 0)
    longest = tl.max(tl.load(COUNTS + r * slices + each, mask=exists, other=0), 0)
    broken = tl.sum(tl.where(maxima == maxima, 0.0, maxima), 0)
    highest = tl.zeros([1], tl.float32) + tl.max(maxima, 0)
    top = tl.where(highest == -float("inf"), 0.0, highest)
    normaliser = tl.maximum(bound - top, 0.0) + broken
    t = 1.0 - epsilon * normaliser
    total, slope = tl.zeros([1], tl.float32), tl.zeros([1], tl.float32)
    product = tl.zeros([1], tl.float32)
    begun = (P, SCORES, PLACES, COUNTS, r, n, slices, top, epsilon, normaliser, t)
    if longest <= tl.minimum(SHORT, CAPACITY):
        normaliser, t, total, slope, product = solve_listed(*begun, K, ROUGH, IS_MAP, SLICE, CAPACITY, SLICES, SHORT)
    elif (SHORT < SLOTS) & (longest <= CAPACITY):
        normaliser, t, total, slope, product = solve_listed(*begun, K, ROUGH, IS_MAP, SLICE, CAPACITY, SLICES, SLOTS)
    else:
        # A of the listed scores is a lower bound of the row's A, and close to it.
        listed, slot, _ = listed_slots(COUNTS, r, slices, CAPACITY, SLICES, SLOTS)
        normaliser, t = solve(listed_scores(SCORES, listed, slot, top), epsilon, normaliser, t, K, ROUGH)
        steps = 0
        climbing, arriving = True, False
        while climbing:
            total, slope, product = chunk_sums(X, M, at, mask_at, n, top, t, epsilon, K, ROUGH, HAS_MASK, CHUNK)
            step = newton_step(total, slope, normaliser, t, epsilon, K)
            # Read the row once more after the last step, for its sums.
            climbing = (not arriving) & (steps < 40)
            if not ROUGH and K != 1 and K <= 2:  # as in `solved_from`
                # After a step small enough to stop, continue while Σ p exceeds 1 and steps change t (A, if |ε| < 0.1).
                near = tl.abs(epsilon) < 0.1
                moves_on = tl.where(near, normaliser + step != normaliser, t - epsilon * step != t)
                left = moves_on & exceeds(total, normaliser, t, epsilon, K, ROUGH)
                climbing = ((not arriving) | (tl.max(left.to(tl.int32), 0) > 0)) & (steps < 40)
            moves = is_climbing(step, t, K, ROUGH)
            if ROUGH and K != 1:
                moves = moves | exceeds(total, normaliser, t, epsilon, K, ROUGH)
            arriving = tl.max(moves.to(tl.int32), 0) == 0
            steps += 1
            if climbing:
                normaliser += step
                t -= epsilon * step
    if IS_MAP and ((longest > CAPACITY) | (broken != 0.0)):
        for start in range(0, n, CHUNK):
            columns = start + tl.arange(0, CHUNK)
            y = below(load_chunk(X, M, at, mask_at, start, n, HAS_MASK, CHUNK)[None, :], top)
            every, _ = relative_weights(y, t, epsilon, K, ROUGH)
            masses = tl.sum(every / tl.where(total > 0.0, total, 1.0)[:, None], 0) + broken
            tl.store(P + r.to(tl.int64) * n + columns, masses.to(P.dtype.element_ty), mask=columns < n)
    if NEEDS_OMEGA or not IS_MAP:
        gain = conjugate(product, total, slope, normaliser, t, epsilon, K) + broken
    if IS_MAP:
        if NEEDS_OMEGA:
            tl.store(LOSS + row, tl.where(highest == -float("inf"), highest, gain).to(tl.float64))
    else:
        share, spread = tl.zeros([1], tl.float32), tl.zeros([1], tl.float32)
        if SMOOTHS:
            for start in range(0, n, CHUNK):
                columns = start + tl.arange(0, CHUNK)
                counts = columns < n
                if HAS_MASK:
                    counts = counts & (tl.load(M + mask_at + columns, mask=counts, other=0) != 0)
                y = load_chunk(X, M, at, mask_at, start, n, HAS_MASK, CHUNK) - top
                spread += tl.sum(tl.where(counts, y, 0.0), 0)
                share += tl.sum(counts.to(tl.float32), 0)
            share = smoothing / tl.maximum(share, 1.0)
        store_statistics(STATISTICS, row, row >= 0, width, highest, t + broken, total, share)
        if IS_SOFT:
            cost, scale = listed_soft_terms(SUMS, r, slices, top, epsilon, smoothing, K, SLICES)
            tl.store(STATISTICS + row.to(tl.int64) * width + width - 1, scale)
        else:
            cost = class_cost(X, M, Y, row, ats, mask_ats, row >= 0, n, highest, smoothing, HAS_MASK)
        store_loss(LOSS, row, row >= 0, highest, gain + cost - share * spread)


@triton.jit
def fill_listed(
    G, DX, MASSES, PLACES, COUNTS, r, at, here, slices, gn, epsilon,
    K: tl.constexpr, NEEDS_ALPHA: tl.constexpr, ROUGH: tl.constexpr,
    SLICE: tl.constexpr, CAPACITY: tl.constexpr, SLICES: tl.constexpr, SLOTS: tl.constexpr,
):  # fmt: skip
    """Store the gradient of row r from its lists; returns the gradient of its α, (1,), if NEEDS_ALPHA."""
    listed, slot, slice_ = listed_slots(COUNTS, r, slices, CAPACITY, SLICES, SLOTS)
    p = tl.load(MASSES + slot, mask=listed, other=0.0).to(tl.float32)
    place = tl.load(PLACES + slot, mask=listed, other=0).to(tl.int32) + slice_ * SLICE
    g = tl.load(G + at + place * gn, mask=listed, other=0.0).to(tl.float32)
    moved, slope = pulled_back(p[None, :], g[None, :], epsilon, K, ROUGH, NEEDS_ALPHA)
    tl.store(DX + here + place, saturated(tl.sum(moved, 0), DX), mask=listed)
    return slope


@triton.jit
def backward_long_rows(
    P, G, A, DX, DA, MASSES, PLACES, COUNTS, n, slices, fixed_epsilon, size_b, size_c, ga, gb, gc, gn,
    K: tl.constexpr, PER_ROW: tl.constexpr, NEEDS_ALPHA: tl.constexpr,
    CHUNK: tl.constexpr, SLICE: tl.constexpr, CAPACITY: tl.constexpr, SLICES: tl.constexpr, SLOTS: tl.constexpr,
    SHORT: tl.constexpr,
):  # fmt: skip
    """Store gradients, as `backward_rows` does; off the support there are already zeros, which `list_support` wrote."""
    r = tl.program_id(0)
    row = r + tl.arange(0, 1)
    here = r.to(tl.int64) * n
    at = row_offsets(r, size_b, size_c, ga, gb, gc)
    epsilon = epsilon_of_rows(A, fixed_epsilon, row, row >= 0, PER_ROW, 1)
    ROUGH: tl.constexpr = P.dtype.element_ty.primitive_bitwidth == 16
    each = tl.arange(0, SLICES)
    longest = tl.max(tl.load(COUNTS + r * slices + each, mask=each < slices, other=0), 0)
    slope = tl.zeros([1], tl.float32)
    listed = (G, DX, MASSES, PLACES, COUNTS, r, at, here, slices, gn, epsilon)
    if longest <= tl.minimum(SHORT, CAPACITY):
        slope = fill_listed(*listed, K, NEEDS_ALPHA, ROUGH, SLICE, CAPACITY, SLICES, SHORT)
    elif (SHORT < SLOTS) & (longest <= CAPACITY):
        slope = fill_listed(*listed, K, NEEDS_ALPHA, ROUGH, SLICE, CAPACITY, SLICES, SLOTS)
    else:
        # The anchor, which is subtracted from g, is g at the largest p. Threads wait for each other in a reduction, so
        # reduce once after each of the three readings of the row, not in each chunk.
        top, anchors = tl.zeros([CHUNK], tl.float32), tl.zeros([CHUNK], tl.float32)
        wrong = tl.zeros([CHUNK], tl.float32)
        for start in range(0, n, CHUNK):
            columns = start + tl.arange(0, CHUNK)
            p = tl.load(P + here + columns, mask=columns < n, other=0.0).to(tl.float32)
            g = tl.load(G + at + columns * gn, mask=(columns < n) & (p > top), other=0.0).to(tl.float32)
            wrong += tl.where(p == p, 0.0, p)
            anchors = tl.where(p > top, g, anchors)
            top = tl.maximum(top, p)
        broken = tl.sum(wrong, 0)
        anchor = tl.max(tl.where(top == tl.max(top, 0), anchors, -float("inf")), 0)
        masses, moments = tl.zeros([CHUNK], tl.float32), tl.zeros([CHUNK], tl.float32)
        for start in range(0, n, CHUNK):
            columns = start + tl.arange(0, CHUNK)
            p = tl.load(P + here + columns, mask=columns < n, other=0.0).to(tl.float32)
            g = tl.load(G + at + columns * gn, mask=(columns < n) & (p > 0.0), other=0.0).to(tl.float32)
            s = tl.max(escort_of(p[None, :], epsilon, K, ROUGH), 0)
            masses += s
            moments += tl.where(p > 0.0, s * (g - anchor), 0.0)
        mass = tl.sum(masses, 0)
        mean = tl.sum(moments, 0) / tl.where(mass > 0.0, mass, 1.0)
        along, rest = tl.zeros([CHUNK], tl.float32), tl.zeros([CHUNK], tl.float32)
        rates = tl.zeros([CHUNK], tl.float32)
        for start in range(0, n, CHUNK):
            columns = start + tl.arange(0, CHUNK)
            p = tl.load(P + here + columns, mask=columns < n, other=0.0).to(tl.float32)
            g = tl.load(G + at + columns * gn, mask=(columns < n) & (p > 0.0), other=0.0).to(tl.float32)
            s = tl.max(escort_of(p[None, :], epsilon, K, ROUGH), 0)
            deviation = tl.where(p > 0.0, g - anchor - mean, 0.0)
            tl.store(DX + here + columns, saturated(s * deviation, DX) + broken, mask=columns < n)
            if NEEDS_ALPHA:
                rate = tl.max(curvature(tl.where(p > 0.0, p, 1.0)[None, :], epsilon, ROUGH), 0)
                along += s * rate * deviation
                rest += s * deviation
                rates += s * rate
        slope += broken - unbiased(tl.sum(along, 0), tl.sum(rest, 0), tl.sum(rates, 0), mass)
    if NEEDS_ALPHA:
        tl.store(DA + row, slope)
