"""Attention of blocks of rows by products of whole tiles, as softmax attention is: where one has too long a list, and
where there are few keys, for which lists are not worth their while.

Programs of other blocks leave at once, so that nobody has to ask the device whether there are any.
"""

import triton
import triton.language as tl

from contmax.kernels.attention._gpu_dense_scores import (
    by_lane,
    by_lane_of_products,
    dense_scores,
    fewest_keys,
    first_and_end,
    shift_of_rows,
    state_of_rows,
    unit_of_scores,
    weights_of_scores,
)
from contmax.kernels.attention._gpu_lists import DENSE_ROWS, rounding_of_bound
from contmax.kernels.attention._gpu_order import block_and_head
from contmax.kernels.attention._gpu_tops import (
    ANY_POWER,
    ANY_SIZE,
    LANES,
    PRECISION,
    end_of,
    epsilon_of_heads,
    has_power,
    keys_of,
    larger,
    start_of,
)
from contmax.kernels.rows._gpu_solve import NOTHING, exceeds, is_climbing, log_mass, newton_step, relative_weights

# Steps of a first bound, of which fewer would leave a lower one, which is as right; and of a threshold at most.
_FIRST_STEPS = tl.constexpr(3)
_MOST_STEPS = tl.constexpr(40)
_NO_BLOCK = tl.constexpr(2**31 - 1)
# In half precision: what ln Σ p may be before the last step, for each k = 1/(α − 1), which leaves a thousandth or less
# of most rows; what it may be before one of Halley's; and what it may be when the values are averaged. A step that
# leaves more than this share of the largest is one of rounding: where scores share a large number, no threshold is
# better.
_MASS_BEFORE_LAST = tl.constexpr(0.02)
_MASS_BEFORE_HALLEY = tl.constexpr(0.19)
_MASS_LEFT = tl.constexpr(0.002)
_LEAST_FALL = tl.constexpr(0.75)


@triton.jit
def _halley_step(step, total, slope, curve, epsilon, K: tl.constexpr):
    """Newton's step of A, (R,), longer by what the power mean is curved: its error is the third power of the last.

    That of Newton's method is the square. `curve` is Σ u^{k−2} of roots u; K is k, 3 or more, as for a smaller one the
    curve changes too much on the way.
    """
    bend = (K - 1) * (curve / tl.maximum(slope, 1e-37) - slope / tl.maximum(total, 1e-37))
    return step / tl.maximum(1.0 - 0.5 * epsilon * step * bend, 0.5)


@triton.jit
def _first_bounds(
    q, K, M, B, rows, fewest, end, exist, ends, inside, b, h, scale, unit, epsilon,
    kj, mb, mh, mi, mj, bb, bh, bi, bj,
    D: tl.constexpr, COLUMNS: tl.constexpr, HAS_MASK: tl.constexpr, HAS_BIAS: tl.constexpr, POWER: tl.constexpr,
):  # fmt: skip
    """The largest score of each row, NaN where there is one, and a lower bound of A, where nobody lists keys.

    Scores are multiples of the unit. The bound is the threshold of a part of the keys: the largest of those that are
    COLUMNS, or a multiple, apart.
    """
    d = tl.arange(0, q.shape[1])
    at_key = tl.arange(0, COLUMNS)[None, :] * kj + d[:, None]
    largest = tl.full([DENSE_ROWS, COLUMNS], NOTHING, tl.float32)
    for n in range(0, end, COLUMNS):
        j = n + tl.arange(0, COLUMNS)
        k = tl.load(K + start_of(n, kj) + at_key, mask=(j < exist)[None, :] & (d < D)[:, None], other=0.0)
        x = dense_scores(
            q, k, fewest, None, None, M, B, rows, n, ends, inside, b, h, scale, mb, mh, mi, mj, bb, bh, bi, bj,
            HAS_MASK, HAS_BIAS, False,
        )  # fmt: skip
        largest = larger(largest, x)
    top = tl.reduce(largest, 1, larger)
    is_broken = (top * 0.0 != 0.0) | (epsilon != epsilon)
    epsilon = tl.where(is_broken, 0.5, epsilon)
    ok = (is_broken == 0) & (top > 0.5 * NOTHING)
    top = tl.where(ok, top, 0.0)
    y = tl.where(ok[:, None] & (largest > 0.5 * NOTHING), (largest - top[:, None]) * unit, NOTHING)
    partition = tl.zeros([DENSE_ROWS], tl.float32)
    for _ in tl.static_range(_FIRST_STEPS):
        t = 1.0 - epsilon * partition
        weight, escort = relative_weights(y, t, epsilon, POWER, True)
        partition += newton_step(tl.sum(weight, 1), tl.sum(escort, 1), partition, t, epsilon, POWER, True)
    return tl.where(is_broken, float("nan"), top), partition - rounding_of_bound(partition, POWER)


@triton.jit(do_not_specialize=ANY_SIZE)
def solve_dense(
    Q, K, M, B, LENGTHS, A, STARTS, DENSE, SHIFTS, MARKS,
    abreast, queries, keys, diagonal, heads, group, scale, fixed_epsilon,
    qb, qh, qi, kb, kh, kj, mb, mh, mi, mj, bb, bh, bi, bj,
    ORDER: tl.constexpr, PER_HEAD: tl.constexpr,
    CAUSAL: tl.constexpr, HAS_MASK: tl.constexpr, HAS_BIAS: tl.constexpr, HAS_LENGTHS: tl.constexpr,
    D: tl.constexpr, WIDTH: tl.constexpr, COLUMNS: tl.constexpr, HAS_LISTS: tl.constexpr,
):  # fmt: skip
    """Thresholds of the rows of dense blocks: t takes the place of a bound in STARTS, spans that of marks in DENSE.

    Without lists all blocks are dense, and there are no bounds yet. Then SHIFTS (heads, queries) are `shift_of_rows`,
    MARKS (key heads,) are set where they are not all 0, and the largest score in STARTS is less its shift.
    """
    ROUGH: tl.constexpr = Q.dtype.element_ty != tl.float32  # four digits do in half precision
    turn, head = block_and_head(abreast)
    b, h = head // heads, head % heads
    block = tl.num_programs(0) - 1 - turn  # with causal masks the last blocks take longest
    at_block = head * tl.num_programs(0) + block
    has_mark = tl.full([], True, tl.int1)
    if HAS_LISTS:
        has_mark = tl.load(DENSE + at_block) != 0
    for POWER in tl.static_range(ORDER, 1 if PER_HEAD else ORDER + 1):
        if has_mark & has_power(A, h, POWER, PER_HEAD):
            first_row = block * DENSE_ROWS
            rows = first_row + tl.arange(0, DENSE_ROWS)
            inside = rows < queries
            at_row = head * queries + rows
            d, columns = tl.arange(0, WIDTH), tl.arange(0, COLUMNS)
            at_q = b * qb + h * qh + rows.to(tl.int64)[:, None] * qi + d[None, :]
            q = tl.load(Q + at_q, mask=inside[:, None] & (d < D)[None, :], other=0.0)
            K += b * kb + (h // group) * kh
            exist = keys_of(LENGTHS, b, keys, HAS_LENGTHS)
            ends = end_of(rows, exist, diagonal, CAUSAL)
            fewest = fewest_keys(first_row, queries, exist, diagonal, 0, CAUSAL, HAS_MASK, HAS_BIAS)
            end = tl.max(tl.where(inside, ends, 0), 0)
            epsilon = epsilon_of_heads(A, fixed_epsilon, h, PER_HEAD, DENSE_ROWS)
            unit = unit_of_scores(scale, HAS_BIAS)
            if HAS_LISTS:
                top = tl.load(STARTS + at_row * 2, mask=inside, other=0.0)
                partition = tl.load(STARTS + at_row * 2 + 1, mask=inside, other=0.0)
            else:
                top, partition = _first_bounds(
                    q, K, M, B, rows, fewest, end, exist, ends, inside, b, h, scale, unit, epsilon,
                    kj, mb, mh, mi, mj, bb, bh, bi, bj, D, COLUMNS, HAS_MASK, HAS_BIAS, POWER,
                )  # fmt: skip
                shift = shift_of_rows(top, epsilon, unit)
                top = (top - shift) * unit
                if tl.max((shift != 0.0).to(tl.int32), 0) > 0:
                    fewest = 0
                    tl.store(MARKS + head // group, 1)
                tl.store(SHIFTS + at_row, shift, mask=inside)
                tl.store(STARTS + at_row * 2, top, mask=inside)
                tl.debug_barrier()  # other threads will read the shifts
            at_key = columns[None, :] * kj + d[:, None]
            t = 1.0 - epsilon * partition
            steps = 0
            before = tl.full([], float("inf"), tl.float32)
            climbing = True
            low, high = 0, 0
            while climbing:
                totals = tl.zeros([DENSE_ROWS, LANES], tl.float32)
                slopes = tl.zeros([DENSE_ROWS, LANES], tl.float32)
                curves = tl.zeros([DENSE_ROWS, LANES], tl.float32)
                lows = tl.full([DENSE_ROWS, LANES], _NO_BLOCK, tl.int32)
                highs = tl.zeros([DENSE_ROWS, LANES], tl.int32)
                for n in range(0, end, COLUMNS):
                    j = n + columns
                    k = tl.load(K + start_of(n, kj) + at_key, mask=(j < exist)[None, :] & (d < D)[:, None], other=0.0)
                    x = dense_scores(
                        q, k, fewest, SHIFTS, at_row, M, B, rows, n, ends, inside, b, h, scale,
                        mb, mh, mi, mj, bb, bh, bi, bj, HAS_MASK, HAS_BIAS, not HAS_LISTS,
                    )  # fmt: skip
                    weight, escort, root = weights_of_scores(x, top, t, epsilon, unit, POWER, ROUGH)
                    some = by_lane(escort)
                    totals += by_lane_of_products(escort, root) if ROUGH and POWER >= 2 else by_lane(weight)
                    slopes += some
                    if ROUGH and POWER >= 3:
                        curves += by_lane(root) if POWER == 3 else by_lane_of_products(root, root)
                    highs = tl.where(some > 0.0, n // COLUMNS + 1, highs)
                    lows = tl.where((some > 0.0) & (lows == _NO_BLOCK), n // COLUMNS, lows)
                total, slope = tl.sum(totals, 1), tl.sum(slopes, 1)
                step = newton_step(total, slope, partition, t, epsilon, POWER)
                moves = is_climbing(step, t, POWER, ROUGH, True)
                if ROUGH and POWER != 1:
                    most = tl.minimum((1.0 / epsilon) * _MASS_BEFORE_LAST, 0.1)
                    if POWER >= 3:
                        step = _halley_step(step, total, slope, tl.sum(curves, 1), epsilon, POWER)
                        most = (1.0 / epsilon) * _MASS_BEFORE_HALLEY
                    mass = log_mass(total, partition, t, epsilon, POWER)
                    largest = tl.max(mass, 0)
                    moves = tl.where(largest < before * _LEAST_FALL, mass, 0.0) > most
                    before = largest
                elif POWER != 1:
                    moves = moves & exceeds(total, partition, t, epsilon, POWER, ROUGH)
                partition += step
                t -= epsilon * step
                # As A grows the support shrinks: blocks that have no mass before a step have none after it. (Where it
                # grows too far by Halley's step, what is lost is less than rounding.)
                high = tl.max(tl.max(highs, 1), 0)
                low = tl.minimum(tl.min(tl.min(lows, 1), 0), high)
                steps += 1
                climbing = (tl.max(moves.to(tl.int32), 0) > 0) & (steps < _MOST_STEPS)
            tl.store(STARTS + at_row * 2 + 1, t, mask=inside)
            span = (tl.maximum(high, 1).to(tl.int64) << 32) + low
            tl.store(DENSE + at_block, span)


@triton.jit(do_not_specialize=ANY_SIZE)
def attend_dense(
    Q, K, V, M, B, LENGTHS, A, STARTS, DENSE, SHIFTS, MARKS, STATES, MEANS, OUT,
    abreast, queries, keys, diagonal, heads, group, scale, fixed_epsilon,
    qb, qh, qi, kb, kh, kj, vb, vh, vj, mb, mh, mi, mj, bb, bh, bi, bj,
    ORDER: tl.constexpr, PER_HEAD: tl.constexpr, NEEDS_MEANS: tl.constexpr,
    CAUSAL: tl.constexpr, HAS_MASK: tl.constexpr, HAS_BIAS: tl.constexpr, HAS_LENGTHS: tl.constexpr,
    D: tl.constexpr, WIDTH: tl.constexpr, C: tl.constexpr, VALUE_WIDTH: tl.constexpr, COLUMNS: tl.constexpr,
    HAS_LISTS: tl.constexpr,
):  # fmt: skip
    """OUT (heads, queries, C) of dense blocks, once they are solved; what the backward pass needs where asked for.

    That is STATES (heads, queries, 4) of `state_of_rows` and MEANS (heads, queries, C) of the values by p^{2−α}.
    """
    ROUGH: tl.constexpr = Q.dtype.element_ty != tl.float32  # four digits do in half precision
    turn, head = block_and_head(abreast)
    b, h = head // heads, head % heads
    block = tl.num_programs(0) - 1 - turn  # with causal masks the last blocks take longest
    at_block = head * tl.num_programs(0) + block
    has_mark = tl.load(DENSE + at_block) != 0
    for POWER in tl.static_range(ORDER, 1 if PER_HEAD else ORDER + 1):
        if has_mark & has_power(A, h, POWER, PER_HEAD):
            first_row = block * DENSE_ROWS
            rows = first_row + tl.arange(0, DENSE_ROWS)
            inside = rows < queries
            at_row = head * queries + rows
            d, c, columns = tl.arange(0, WIDTH), tl.arange(0, VALUE_WIDTH), tl.arange(0, COLUMNS)
            at_q = b * qb + h * qh + rows.to(tl.int64)[:, None] * qi + d[None, :]
            q = tl.load(Q + at_q, mask=inside[:, None] & (d < D)[None, :], other=0.0)
            K += b * kb + (h // group) * kh
            V += b * vb + (h // group) * vh
            exist = keys_of(LENGTHS, b, keys, HAS_LENGTHS)
            ends = end_of(rows, exist, diagonal, CAUSAL)
            mark = 0 if HAS_LISTS else tl.load(MARKS + head // group)
            fewest = fewest_keys(first_row, queries, exist, diagonal, mark, CAUSAL, HAS_MASK, HAS_BIAS)
            epsilon = epsilon_of_heads(A, fixed_epsilon, h, PER_HEAD, DENSE_ROWS)
            unit = unit_of_scores(scale, HAS_BIAS)
            top = tl.load(STARTS + at_row * 2, mask=inside, other=0.0)
            t = tl.load(STARTS + at_row * 2 + 1, mask=inside, other=1.0)
            low, high = first_and_end(DENSE, at_block, True)
            at_key, at_value = columns[None, :] * kj + d[:, None], columns[:, None] * vj + c[None, :]
            out = tl.zeros([DENSE_ROWS, VALUE_WIDTH], tl.float32)
            mean = tl.zeros([DENSE_ROWS, VALUE_WIDTH], tl.float32)
            total, slope = top, top
            turns = 0
            before = tl.full([], float("inf"), tl.float32)
            again = True
            while again:
                totals = tl.zeros([DENSE_ROWS, LANES], tl.float32)
                slopes = tl.zeros([DENSE_ROWS, LANES], tl.float32)
                out = tl.zeros([DENSE_ROWS, VALUE_WIDTH], tl.float32)
                mean = tl.zeros([DENSE_ROWS, VALUE_WIDTH], tl.float32)
                for n in range(low * COLUMNS, high * COLUMNS, COLUMNS):
                    j = n + columns
                    k = tl.load(K + start_of(n, kj) + at_key, mask=(j < exist)[None, :] & (d < D)[:, None], other=0.0)
                    x = dense_scores(
                        q, k, fewest, SHIFTS, at_row, M, B, rows, n, ends, inside, b, h, scale,
                        mb, mh, mi, mj, bb, bh, bi, bj, HAS_MASK, HAS_BIAS, not HAS_LISTS,
                    )  # fmt: skip
                    weight, escort, _ = weights_of_scores(x, top, t, epsilon, unit, POWER, ROUGH)
                    v = tl.load(V + start_of(n, vj) + at_value, mask=(j < exist)[:, None] & (c < C)[None, :], other=0.0)
                    totals += by_lane(weight)
                    slopes += by_lane(escort)
                    out = tl.dot(weight.to(v.dtype), v, out, input_precision=PRECISION)
                    if NEEDS_MEANS:
                        mean = tl.dot(escort.to(v.dtype), v, mean, input_precision=PRECISION)
                total, slope = tl.sum(totals, 1), tl.sum(slopes, 1)
                again = tl.full([], False, tl.int1)
                if ROUGH and POWER != 1 and POWER != ANY_POWER:
                    # Seldom the last step has left too much: then it was not the last.
                    partition = (1.0 - t) / epsilon
                    largest = tl.max(log_mass(total, partition, t, epsilon, POWER), 0)
                    turns += 1
                    again = (largest > _MASS_LEFT) & (largest < before * _LEAST_FALL) & (turns < _MOST_STEPS)
                    before = largest
                    step = newton_step(total, slope, partition, t, epsilon, POWER)
                    t -= tl.where(again, epsilon * step, 0.0)
            inverse = 1.0 / tl.where(total > 0.0, total, 1.0)
            out = out * inverse[:, None] + (top * 0.0)[:, None]
            wanted = inside[:, None] & (c < C)[None, :]
            tl.store(OUT + at_row[:, None] * C + c[None, :], out.to(OUT.dtype.element_ty), mask=wanted)
            if NEEDS_MEANS:
                mean = mean / tl.where(slope > 0.0, slope, 1.0)[:, None]
                tl.store(MEANS + at_row[:, None] * C + c[None, :], mean, mask=wanted)
                first, second, factor, factor_escort = state_of_rows(top, t, total, epsilon, unit, POWER, ROUGH)
                tl.store(STATES + at_row * 4, first, mask=inside)
                tl.store(STATES + at_row * 4 + 1, second, mask=inside)
                tl.store(STATES + at_row * 4 + 2, factor, mask=inside)
                tl.store(STATES + at_row * 4 + 3, factor_escort, mask=inside)
