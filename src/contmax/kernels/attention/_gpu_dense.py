"""Attention of dense blocks of rows by products of whole tiles, like softmax attention.

A block of rows is dense if the lists of its rows do not pay (`_gpu_candidates`), mostly because one overflows. With few
keys all blocks are dense. Programs of other blocks return at once, so the host never waits to know which are dense.
"""

import triton
import triton.language as tl

from contmax.kernels.attention._gpu_candidates import bound_of_part, rounding_of_bound
from contmax.kernels.attention._gpu_scores import (
    ANY_POWER,
    ANY_SIZE,
    DENSE_ROWS,
    LANES,
    PRECISION,
    Extras,
    by_lane,
    by_lane_of_products,
    dense_rows,
    dense_scores,
    epsilon_of_heads,
    first_and_end,
    first_of,
    has_power,
    keys_of,
    larger,
    last_block_and_head,
    load_columns,
    load_rows,
    shift_of_rows,
    state_of_rows,
    state_of_weights,
    store_rows,
    weights_of_scores,
)
from contmax.kernels.rows._gpu_solve import NOTHING, exceeds, is_climbing, log_mass, newton_step

# The most steps of Newton's method per threshold.
_MOST_STEPS = tl.constexpr(40)
_NO_BLOCK = tl.constexpr(2**31 - 1)
# Steps bring ln Σ p to 0. In half precision and for α < 2, a step is the last if ln Σ p before it is at most
# min(_MASS_BEFORE_LAST·k, 0.1), k = 1/(α − 1), or with Halley's method _MASS_BEFORE_HALLEY·k. After it most rows
# have ln Σ p ≤ 0.001, and `attend_dense` accepts _MASS_LEFT. Steps also end if one leaves more than _LEAST_FALL of the
# largest ln Σ p in the block: the rest is then rounding error, as in rows of scores with a large common offset.
_MASS_BEFORE_LAST = tl.constexpr(0.02)
_MASS_BEFORE_HALLEY = tl.constexpr(0.19)
_MASS_LEFT = tl.constexpr(0.002)
_LEAST_FALL = tl.constexpr(0.75)


@triton.jit
def _halley_step(step, total, slope, curve, epsilon, K: tl.constexpr):
    """Halley's step of the normaliser, (R,): Newton's `step`, corrected for the curvature of the power mean.

    The method converges cubically. `total`, `slope` and `curve` are Σ uᵏ, Σ u^{k−1} and Σ u^{k−2} of the roots u. K is
    k ≥ 3: for smaller k, Σ u^{k−2} changes too much along a step.
    """
    bend = (K - 1) * (curve / tl.maximum(slope, 1e-37) - slope / tl.maximum(total, 1e-37))
    return step / tl.maximum(1.0 - 0.5 * epsilon * step * bend, 0.5)


@triton.jit
def _first_bounds(
    q, K, kj, rows, start, end, key_count, extras, unit, epsilon,
    D: tl.constexpr, WIDTH: tl.constexpr, COLUMNS: tl.constexpr, POWER: tl.constexpr,
):  # fmt: skip
    """For rows without lists: maxima (NaN if not finite, or if α is invalid) and lower bounds of the normalisers, (R,).

    Scores are multiples of `unit`. The bound is the normaliser of COLUMNS scores, a part of the row: for each column
    of a block of keys, the largest score in this column of all blocks.
    """
    largest = tl.full([DENSE_ROWS, COLUMNS], NOTHING, tl.float32)
    for n in range(start, end, COLUMNS):
        k = load_columns(K, kj, n, key_count, D, WIDTH, COLUMNS)
        largest = larger(largest, dense_scores(q, k, n, rows, extras))
    maximum, normaliser, ok = bound_of_part(largest, unit, epsilon, POWER)
    return tl.where(ok & (epsilon == epsilon), maximum, float("nan")), normaliser - rounding_of_bound(normaliser, POWER)


@triton.jit(do_not_specialize=ANY_SIZE)
def solve_dense(
    Q, K, M, B, LIMITS, A, STARTS, DENSE, SHIFTS, MARKS,
    abreast, queries, keys, diagonal, heads, group, scale, fixed_epsilon,
    qb, qh, qi, kb, kh, kj, mb, mh, mi, mj, bb, bh, bi, bj,
    ORDER: tl.constexpr, PER_HEAD: tl.constexpr,
    CAUSAL: tl.constexpr, HAS_MASK: tl.constexpr, HAS_BIAS: tl.constexpr, HAS_LENGTHS: tl.constexpr,
    HAS_SPANS: tl.constexpr,
    D: tl.constexpr, WIDTH: tl.constexpr, COLUMNS: tl.constexpr, HAS_LISTS: tl.constexpr,
):  # fmt: skip
    """Solve each dense block for the normaliser A of its rows: t = 1 − εA (`_gpu_solve`).

    STARTS (heads, queries, 2) holds the maximum of each row, and a lower bound of A, which t replaces. DENSE gets the
    first and the end of the blocks of keys with mass. Without lists all blocks are dense, and the kernel first computes
    maxima and bounds. In this case it stores the result of `shift_of_rows` in SHIFTS (heads, queries), subtracts it
    from the maxima in STARTS, and sets MARKS (key heads,) to 1 where a shift is not 0.
    """
    ROUGH: tl.constexpr = Q.dtype.element_ty != tl.float32  # four digits are enough in half precision
    block, head, b, h = last_block_and_head(abreast, heads)
    extras = Extras(scale, M + (b * mb + h * mh), (mi, mj), HAS_MASK, B + (b * bb + h * bh), (bi, bj), HAS_BIAS)
    at_block = head * tl.num_programs(0) + block
    has_mark = tl.full([], True, tl.int1)
    if HAS_LISTS:
        has_mark = tl.load(DENSE + at_block) != 0
    for POWER in tl.static_range(ORDER, 1 if PER_HEAD else ORDER + 1):
        if has_mark & has_power(A, h, POWER, PER_HEAD):
            key_count = keys_of(LIMITS, b, keys, HAS_LENGTHS)
            rows = dense_rows(
                LIMITS, b, head, block, queries, keys, diagonal, extras, SHIFTS, 0, CAUSAL, HAS_LENGTHS, HAS_SPANS,
                False,
            )  # fmt: skip
            inside, row = rows.inside, tl.arange(0, DENSE_ROWS)
            starts = STARTS + rows.first * 2 + row * 2
            q = load_rows(Q + (b * qb + h * qh), qi, block * DENSE_ROWS, inside, D, WIDTH)
            K += b * kb + (h // group) * kh
            start, end = first_of(rows.begins, rows.ends, COLUMNS, HAS_SPANS), tl.max(tl.where(inside, rows.ends, 0), 0)
            epsilon = epsilon_of_heads(A, fixed_epsilon, h, PER_HEAD, DENSE_ROWS)
            unit = 1.0 if HAS_BIAS else scale
            if HAS_LISTS:
                maximum = tl.load(starts, mask=inside, other=0.0)
                normaliser = tl.load(starts + 1, mask=inside, other=0.0)
            else:
                maximum, normaliser = _first_bounds(
                    q, K, kj, rows, start, end, key_count, extras, unit, epsilon, D, WIDTH, COLUMNS, POWER
                )  # fmt: skip
                shift = shift_of_rows(maximum, epsilon, unit)
                maximum = (maximum - shift) * unit
                is_shifted = tl.max((shift != 0.0).to(tl.int32), 0)
                if is_shifted > 0:
                    tl.store(MARKS + head // group, 1)
                rows = dense_rows(
                    LIMITS, b, head, block, queries, keys, diagonal, extras, SHIFTS, is_shifted, CAUSAL, HAS_LENGTHS,
                    HAS_SPANS, True,
                )  # fmt: skip
                tl.store(rows.shifts + row, shift, mask=inside)
                tl.store(starts, maximum, mask=inside)
                tl.debug_barrier()  # other threads will read the shifts
            t = 1.0 - epsilon * normaliser
            steps = 0
            before = tl.full([], float("inf"), tl.float32)
            climbing = True
            low, high = 0, 0
            while climbing:
                first, second = state_of_weights(maximum, t, epsilon, unit, POWER, ROUGH)
                totals = tl.zeros([DENSE_ROWS, LANES], tl.float32)
                slopes = tl.zeros([DENSE_ROWS, LANES], tl.float32)
                curves = tl.zeros([DENSE_ROWS, LANES], tl.float32)
                lows = tl.full([DENSE_ROWS, LANES], _NO_BLOCK, tl.int32)
                highs = tl.zeros([DENSE_ROWS, LANES], tl.int32)
                for n in range(start, end, COLUMNS):
                    k = load_columns(K, kj, n, key_count, D, WIDTH, COLUMNS)
                    x = dense_scores(q, k, n, rows, extras)
                    weight, escort, root = weights_of_scores(x, first, second, epsilon, unit, POWER, ROUGH)
                    some = by_lane(escort)
                    totals += by_lane_of_products(escort, root) if ROUGH and POWER >= 2 else by_lane(weight)
                    slopes += some
                    if ROUGH and POWER >= 3:
                        curves += by_lane(root) if POWER == 3 else by_lane_of_products(root, root)
                    highs = tl.where(some > 0.0, n // COLUMNS + 1, highs)
                    lows = tl.where((some > 0.0) & (lows == _NO_BLOCK), n // COLUMNS, lows)
                total, slope = tl.sum(totals, 1), tl.sum(slopes, 1)
                step = newton_step(total, slope, normaliser, t, epsilon, POWER)
                moves = is_climbing(step, t, POWER, ROUGH, True)
                if ROUGH and POWER != 1:
                    most = tl.minimum((1.0 / epsilon) * _MASS_BEFORE_LAST, 0.1)
                    if POWER >= 3:
                        step = _halley_step(step, total, slope, tl.sum(curves, 1), epsilon, POWER)
                        most = (1.0 / epsilon) * _MASS_BEFORE_HALLEY
                    mass = log_mass(total, normaliser, t, epsilon, POWER)
                    largest = tl.max(mass, 0)
                    moves = tl.where(largest < before * _LEAST_FALL, mass, 0.0) > most
                    before = largest
                elif POWER != 1:
                    moves = moves & exceeds(total, normaliser, t, epsilon, POWER, ROUGH)
                normaliser += step
                t -= epsilon * step
                # The support shrinks as the normaliser grows, so blocks without mass before a step have none after it.
                # (If Halley's step goes too far, the mass that is lost is less than rounding.)
                high = tl.max(tl.max(highs, 1), 0)
                low = tl.minimum(tl.min(tl.min(lows, 1), 0), high)
                steps += 1
                climbing = (tl.max(moves.to(tl.int32), 0) > 0) & (steps < _MOST_STEPS)
            tl.store(starts + 1, t, mask=inside)
            span = (tl.maximum(high, 1).to(tl.int64) << 32) + low
            tl.store(DENSE + at_block, span)


@triton.jit(do_not_specialize=ANY_SIZE)
def attend_dense(
    Q, K, V, M, B, LIMITS, A, STARTS, DENSE, SHIFTS, MARKS, STATES, MEANS, OUT,
    abreast, queries, keys, diagonal, heads, group, scale, fixed_epsilon,
    qb, qh, qi, kb, kh, kj, vb, vh, vj, mb, mh, mi, mj, bb, bh, bi, bj,
    ORDER: tl.constexpr, PER_HEAD: tl.constexpr, NEEDS_MEANS: tl.constexpr,
    CAUSAL: tl.constexpr, HAS_MASK: tl.constexpr, HAS_BIAS: tl.constexpr, HAS_LENGTHS: tl.constexpr,
    HAS_SPANS: tl.constexpr,
    D: tl.constexpr, C: tl.constexpr, WIDTH: tl.constexpr, COLUMNS: tl.constexpr, HAS_LISTS: tl.constexpr,
):  # fmt: skip
    """Write OUT (heads, queries, C) of dense blocks that `solve_dense` solved; with NEEDS_MEANS also STATES and MEANS.

    STATES (heads, queries, 4) gets `state_of_rows`; MEANS (heads, queries, C) means of the values weighted by p^{2−α}.
    """
    ROUGH: tl.constexpr = Q.dtype.element_ty != tl.float32  # four digits are enough in half precision
    block, head, b, h = last_block_and_head(abreast, heads)
    extras = Extras(scale, M + (b * mb + h * mh), (mi, mj), HAS_MASK, B + (b * bb + h * bh), (bi, bj), HAS_BIAS)
    at_block = head * tl.num_programs(0) + block
    has_mark = tl.load(DENSE + at_block) != 0
    for POWER in tl.static_range(ORDER, 1 if PER_HEAD else ORDER + 1):
        if has_mark & has_power(A, h, POWER, PER_HEAD):
            key_count = keys_of(LIMITS, b, keys, HAS_LENGTHS)
            mark = 0 if HAS_LISTS else tl.load(MARKS + head // group)
            rows = dense_rows(
                LIMITS, b, head, block, queries, keys, diagonal, extras, SHIFTS, mark, CAUSAL, HAS_LENGTHS, HAS_SPANS,
                not HAS_LISTS,
            )  # fmt: skip
            inside, row = rows.inside, tl.arange(0, DENSE_ROWS)
            q = load_rows(Q + (b * qb + h * qh), qi, block * DENSE_ROWS, inside, D, WIDTH)
            K += b * kb + (h // group) * kh
            V += b * vb + (h // group) * vh
            epsilon = epsilon_of_heads(A, fixed_epsilon, h, PER_HEAD, DENSE_ROWS)
            unit = 1.0 if HAS_BIAS else scale
            maximum = tl.load(STARTS + rows.first * 2 + row * 2, mask=inside, other=0.0)
            t = tl.load(STARTS + rows.first * 2 + row * 2 + 1, mask=inside, other=1.0)
            low, high = first_and_end(DENSE, at_block, True)
            out = tl.zeros([DENSE_ROWS, WIDTH], tl.float32)
            mean = tl.zeros([DENSE_ROWS, WIDTH], tl.float32)
            total, slope = maximum, maximum
            turns = 0
            before = tl.full([], float("inf"), tl.float32)
            again = True
            while again:
                first, second = state_of_weights(maximum, t, epsilon, unit, POWER, ROUGH)
                totals = tl.zeros([DENSE_ROWS, LANES], tl.float32)
                slopes = tl.zeros([DENSE_ROWS, LANES], tl.float32)
                out = tl.zeros([DENSE_ROWS, WIDTH], tl.float32)
                mean = tl.zeros([DENSE_ROWS, WIDTH], tl.float32)
                for n in range(low * COLUMNS, high * COLUMNS, COLUMNS):
                    k = load_columns(K, kj, n, key_count, D, WIDTH, COLUMNS)
                    x = dense_scores(q, k, n, rows, extras)
                    weight, escort, _ = weights_of_scores(x, first, second, epsilon, unit, POWER, ROUGH)
                    v = load_rows(V, vj, n, n + tl.arange(0, COLUMNS) < key_count, C, WIDTH)
                    totals += by_lane(weight)
                    slopes += by_lane(escort)
                    out = tl.dot(weight.to(v.dtype), v, out, input_precision=PRECISION)
                    if NEEDS_MEANS:
                        mean = tl.dot(escort.to(v.dtype), v, mean, input_precision=PRECISION)
                total, slope = tl.sum(totals, 1), tl.sum(slopes, 1)
                again = tl.full([], False, tl.int1)
                if ROUGH and POWER != 1 and POWER != ANY_POWER:
                    # If Σ p is still too large, which is rare, take another step and average the values again.
                    normaliser = (1.0 - t) / epsilon
                    largest = tl.max(log_mass(total, normaliser, t, epsilon, POWER), 0)
                    turns += 1
                    again = (largest > _MASS_LEFT) & (largest < before * _LEAST_FALL) & (turns < _MOST_STEPS)
                    before = largest
                    step = newton_step(total, slope, normaliser, t, epsilon, POWER)
                    t -= tl.where(again, epsilon * step, 0.0)
            inverse = 1.0 / tl.where(total > 0.0, total, 1.0)
            out = out * inverse[:, None] + (maximum * 0.0)[:, None]
            store_rows(OUT, rows.first, out, inside, C)
            if NEEDS_MEANS:
                mean = mean / tl.where(slope > 0.0, slope, 1.0)[:, None]
                store_rows(MEANS, rows.first, mean, inside, C)
                state = state_of_rows(maximum, t, total, epsilon, unit, POWER, ROUGH)
                for i in tl.static_range(4):
                    tl.store(STATES + rows.first * 4 + row * 4 + i, state[i], mask=inside)
