"""Attention of blocks of rows of which one has too long a list: by products of whole tiles, as softmax attention is.

Programs of other blocks leave at once, so that nobody has to ask the device whether there are any.
"""

import triton
import triton.language as tl

from contmax.kernels.triton._attention_lists import DENSE_ROWS
from contmax.kernels.triton._attention_tops import (
    ANY_SIZE,
    LANES,
    PRECISION,
    end_of,
    epsilon_of_heads,
    is_far_from_one,
    keys_of,
    with_extras,
)
from contmax.kernels.triton._instructions import quick_log2
from contmax.kernels.triton._solve import NOTHING, exceeds, is_climbing, log, newton_step, relative_weights

_MOST_STEPS = tl.constexpr(40)
_NO_BLOCK = tl.constexpr(2**31 - 1)


@triton.jit
def fewest_keys(row, queries, exist, diagonal, CAUSAL: tl.constexpr, HAS_MASK: tl.constexpr, HAS_BIAS: tl.constexpr):
    """Every row of the block that begins with this one attends so many keys, and they are scaled products alone."""
    if HAS_MASK or HAS_BIAS:
        return 0
    else:
        return tl.where(row + DENSE_ROWS <= queries, end_of(row, exist, diagonal, CAUSAL), 0)


@triton.jit
def dense_scores(
    q, k, fewest, M, B, rows, n, ends, inside, b, h, scale, mb, mh, mi, mj, bb, bh, bi, bj,
    HAS_MASK: tl.constexpr, HAS_BIAS: tl.constexpr,
):  # fmt: skip
    """Scores (rows, keys) of queries (rows, d) and keys (d, keys), from the key n on; NOTHING where not allowed."""
    z = tl.dot(q, k, input_precision=PRECISION)
    x = z * scale
    if n + k.shape[1] > fewest:
        j = n + tl.arange(0, k.shape[1])
        allowed = inside[:, None] & (j[None, :] < ends[:, None])
        far, wide = rows.to(tl.int64)[:, None], j.to(tl.int64)[None, :]
        at_mask = b * mb + h * mh + far * mi + wide * mj
        at_bias = b * bb + h * bh + far * bi + wide * bj
        x = with_extras(z, M, B, at_mask, at_bias, allowed, scale, HAS_MASK, HAS_BIAS)
    return x


@triton.jit
def _line_of(top, t, epsilon, K: tl.constexpr):
    """Roots of weights as a function of scores: slope and value at 0, (R,) each."""
    slope = epsilon if K > 0 else epsilon / t
    return slope, (t if K > 0 else 1.0) - slope * top


@triton.jit
def _powers(x, slope, base, epsilon, K: tl.constexpr):
    """Weights and escorts of scores to four digits, for α not next to one, and roots: weights are their k-th powers."""
    u = tl.maximum(x * slope[:, None] + base[:, None], 0.0)
    if K == 1:
        escort = tl.where(u > 0.0, 1.0, 0.0)
    elif K == 2:
        escort = u
    elif K == 3:
        escort = u * u
    elif K == 4:
        escort = u * u * u
    else:
        power = tl.exp2(quick_log2(tl.maximum(u, 1e-37)) * (1.0 / epsilon - 1.0)[:, None])
        escort = tl.where(u > 0.0, power, 0.0)
    return escort * u, escort, u


@triton.jit
def _weights(x, top, t, epsilon, is_far, K: tl.constexpr, ROUGH: tl.constexpr):
    """`relative_weights` of scores (rows, keys), in half precision by `_powers` where that will do."""
    if ROUGH and K != -1:
        slope, base = _line_of(top, t, epsilon, K)
        weight, escort, _ = _powers(x, slope, base, epsilon, K)
    elif ROUGH:
        if is_far:
            slope, base = _line_of(top, t, epsilon, 0)
            weight, escort, _ = _powers(x, slope, base, epsilon, 0)
        else:
            weight, escort = relative_weights(_less(x, top), t, epsilon, -1, True)
    else:
        weight, escort = relative_weights(_less(x, top), t, epsilon, K, False)
    return weight, escort


@triton.jit
def probabilities(x, state, epsilon, is_far, K: tl.constexpr, ROUGH: tl.constexpr):
    """p and p^{2−α} of scores (rows, keys) from the state of the rows, and p^{α−1} where `_powers` are used."""
    first, second, factor, factor_escort = state
    if ROUGH and K != -1:
        p, escort, u = _powers(x, first, second, epsilon, K)
    elif ROUGH:
        if is_far:
            p, escort, u = _powers(x, first, second, epsilon, 0)
        else:
            weight, escort = relative_weights(_less(x, first), second, epsilon, -1, True)
            p, escort = weight * factor[:, None], escort * factor_escort[:, None]
            u = p
    else:
        weight, escort = relative_weights(_less(x, first), second, epsilon, K, False)
        p, escort = weight * factor[:, None], escort * factor_escort[:, None]
        u = p
    return p, escort, u


@triton.jit
def _state(top, t, total, epsilon, is_far, K: tl.constexpr, ROUGH: tl.constexpr):
    """Four numbers for each row, of which `probabilities` are made, from the sum of its weights.

    Where these are made by `_powers` the first two are the line of p^{α−1}. Else they are the largest score and t. Then
    there are the factors of weights and escorts: p = weight/total, p^{2−α} = escort/total^{2−α}.
    """
    log_factor = -log(tl.where(total > 0.0, total, 1.0))
    root = tl.exp(epsilon * log_factor)
    if ROUGH:
        slope, base = _line_of(top, t, epsilon, 0 if K == -1 else K)
        is_line = (K != -1) | is_far
        top, t = tl.where(is_line, slope * root, top), tl.where(is_line, base * root, t)
    return top, t, tl.exp(log_factor), tl.exp((1.0 - epsilon) * log_factor)


@triton.jit
def _less(x, top):
    """Scores less the largest of their rows; NOTHING as it was."""
    return tl.where(x <= NOTHING, NOTHING, x - top[:, None])


@triton.jit
def by_lane(x):
    """Sums of what one thread has of each row of a product (R, n), (R, LANES): no thread has to ask another."""
    return tl.sum(tl.sum(tl.reshape(x, [x.shape[0], x.shape[1] // (2 * LANES), LANES, 2]), 3), 1)


@triton.jit
def first_and_end(DENSE, at, exist):
    """The first and the end of the blocks of keys in which dense blocks of rows have mass."""
    span = tl.load(DENSE + at, mask=exist, other=0)
    return span.to(tl.int32), (span >> 32).to(tl.int32)


@triton.jit(do_not_specialize=ANY_SIZE)
def solve_dense(
    Q, K, M, B, LENGTHS, A, STARTS, DENSE,
    queries, keys, diagonal, heads, group, scale, fixed_epsilon,
    qb, qh, qi, kb, kh, kj, mb, mh, mi, mj, bb, bh, bi, bj,
    ORDER: tl.constexpr, PER_HEAD: tl.constexpr,
    CAUSAL: tl.constexpr, HAS_MASK: tl.constexpr, HAS_BIAS: tl.constexpr, HAS_LENGTHS: tl.constexpr,
    D: tl.constexpr, WIDTH: tl.constexpr, COLUMNS: tl.constexpr,
):  # fmt: skip
    """Thresholds of the rows of dense blocks: t takes the place of a bound in STARTS, spans that of marks in DENSE."""
    ROUGH: tl.constexpr = Q.dtype.element_ty != tl.float32  # four digits do in half precision
    head = tl.program_id(1).to(tl.int64)
    if tl.load(DENSE + head * tl.num_programs(0) + tl.program_id(0)) != 0:
        b, h = head // heads, head % heads
        first_row = tl.program_id(0) * DENSE_ROWS
        rows = first_row + tl.arange(0, DENSE_ROWS)
        inside = rows < queries
        at_row = head * queries + rows
        d, columns = tl.arange(0, WIDTH), tl.arange(0, COLUMNS)
        at_q = b * qb + h * qh + rows.to(tl.int64)[:, None] * qi + d[None, :]
        q = tl.load(Q + at_q, mask=inside[:, None] & (d < D)[None, :], other=0.0)
        K += b * kb + (h // group) * kh
        exist = keys_of(LENGTHS, b, keys, HAS_LENGTHS)
        ends = end_of(rows, exist, diagonal, CAUSAL)
        fewest = fewest_keys(first_row, queries, exist, diagonal, CAUSAL, HAS_MASK, HAS_BIAS)
        end = tl.max(tl.where(inside, ends, 0), 0)
        epsilon = epsilon_of_heads(A, fixed_epsilon, h, PER_HEAD, DENSE_ROWS)
        is_far = is_far_from_one(A, h, PER_HEAD)
        top = tl.load(STARTS + at_row * 2, mask=inside, other=0.0)
        partition = tl.load(STARTS + at_row * 2 + 1, mask=inside, other=0.0)
        t = 1.0 - epsilon * partition
        steps = 0
        climbing = True
        low, high = 0, 0
        while climbing:
            totals = tl.zeros([DENSE_ROWS, LANES], tl.float32)
            slopes = tl.zeros([DENSE_ROWS, LANES], tl.float32)
            lows = tl.full([DENSE_ROWS, LANES], _NO_BLOCK, tl.int32)
            highs = tl.zeros([DENSE_ROWS, LANES], tl.int32)
            for n in range(0, end, COLUMNS):
                j = n + columns
                at_k = j.to(tl.int64)[None, :] * kj + d[:, None]
                k = tl.load(K + at_k, mask=(j < exist)[None, :] & (d < D)[:, None], other=0.0)
                x = dense_scores(
                    q, k, fewest, M, B, rows, n, ends, inside, b, h, scale, mb, mh, mi, mj, bb, bh, bi, bj,
                    HAS_MASK, HAS_BIAS,
                )  # fmt: skip
                weight, escort = _weights(x, top, t, epsilon, is_far, ORDER, ROUGH)
                some = by_lane(escort)
                totals += by_lane(weight)
                slopes += some
                highs = tl.where(some > 0.0, n // COLUMNS + 1, highs)
                lows = tl.where((some > 0.0) & (lows == _NO_BLOCK), n // COLUMNS, lows)
            total = tl.sum(totals, 1)
            step = newton_step(total, tl.sum(slopes, 1), partition, t, epsilon, ORDER)
            moves = is_climbing(step, t, ORDER, ROUGH, True)
            if ORDER != 1:
                left = exceeds(total, partition, t, epsilon, ORDER, ROUGH)
                moves = left if ROUGH else moves & left
            partition += step
            t -= epsilon * step
            # As A grows the support shrinks: blocks that have no mass before a step have none after it.
            high = tl.max(tl.max(highs, 1), 0)
            low = tl.minimum(tl.min(tl.min(lows, 1), 0), high)
            steps += 1
            climbing = (tl.max(moves.to(tl.int32), 0) > 0) & (steps < _MOST_STEPS)
        tl.store(STARTS + at_row * 2 + 1, t, mask=inside)
        span = (tl.maximum(high, 1).to(tl.int64) << 32) + low
        tl.store(DENSE + head * tl.num_programs(0) + tl.program_id(0), span)


@triton.jit(do_not_specialize=ANY_SIZE)
def attend_dense(
    Q, K, V, M, B, LENGTHS, A, STARTS, DENSE, STATES, MEANS, OUT,
    queries, keys, diagonal, heads, group, scale, fixed_epsilon,
    qb, qh, qi, kb, kh, kj, vb, vh, vj, mb, mh, mi, mj, bb, bh, bi, bj,
    ORDER: tl.constexpr, PER_HEAD: tl.constexpr, NEEDS_MEANS: tl.constexpr,
    CAUSAL: tl.constexpr, HAS_MASK: tl.constexpr, HAS_BIAS: tl.constexpr, HAS_LENGTHS: tl.constexpr,
    D: tl.constexpr, WIDTH: tl.constexpr, C: tl.constexpr, VALUE_WIDTH: tl.constexpr, COLUMNS: tl.constexpr,
):  # fmt: skip
    """OUT (heads, queries, C) of dense blocks, once they are solved; what the backward pass needs where asked for.

    That is STATES (heads, queries, 4) of `_state` and MEANS (heads, queries, C) of the values by p^{2−α}.
    """
    ROUGH: tl.constexpr = Q.dtype.element_ty != tl.float32  # four digits do in half precision
    head = tl.program_id(1).to(tl.int64)
    if tl.load(DENSE + head * tl.num_programs(0) + tl.program_id(0)) != 0:
        b, h = head // heads, head % heads
        first_row = tl.program_id(0) * DENSE_ROWS
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
        fewest = fewest_keys(first_row, queries, exist, diagonal, CAUSAL, HAS_MASK, HAS_BIAS)
        epsilon = epsilon_of_heads(A, fixed_epsilon, h, PER_HEAD, DENSE_ROWS)
        is_far = is_far_from_one(A, h, PER_HEAD)
        top = tl.load(STARTS + at_row * 2, mask=inside, other=0.0)
        t = tl.load(STARTS + at_row * 2 + 1, mask=inside, other=1.0)
        low, high = first_and_end(DENSE, head * tl.num_programs(0) + tl.program_id(0), True)
        totals = tl.zeros([DENSE_ROWS, LANES], tl.float32)
        slopes = tl.zeros([DENSE_ROWS, LANES], tl.float32)
        out = tl.zeros([DENSE_ROWS, VALUE_WIDTH], tl.float32)
        mean = tl.zeros([DENSE_ROWS, VALUE_WIDTH], tl.float32)
        for n in range(low * COLUMNS, high * COLUMNS, COLUMNS):
            j = n + columns
            at_k = j.to(tl.int64)[None, :] * kj + d[:, None]
            at_v = j.to(tl.int64)[:, None] * vj + c[None, :]
            k = tl.load(K + at_k, mask=(j < exist)[None, :] & (d < D)[:, None], other=0.0)
            x = dense_scores(
                q, k, fewest, M, B, rows, n, ends, inside, b, h, scale, mb, mh, mi, mj, bb, bh, bi, bj,
                HAS_MASK, HAS_BIAS,
            )  # fmt: skip
            weight, escort = _weights(x, top, t, epsilon, is_far, ORDER, ROUGH)
            v = tl.load(V + at_v, mask=(j < exist)[:, None] & (c < C)[None, :], other=0.0)
            totals += by_lane(weight)
            slopes += by_lane(escort)
            out = tl.dot(weight.to(v.dtype), v, out, input_precision=PRECISION)
            if NEEDS_MEANS:
                mean = tl.dot(escort.to(v.dtype), v, mean, input_precision=PRECISION)
        total, slope = tl.sum(totals, 1), tl.sum(slopes, 1)
        inverse = 1.0 / tl.where(total > 0.0, total, 1.0)
        out = out * inverse[:, None] + (top * 0.0)[:, None]
        wanted = inside[:, None] & (c < C)[None, :]
        tl.store(OUT + at_row[:, None] * C + c[None, :], out.to(OUT.dtype.element_ty), mask=wanted)
        if NEEDS_MEANS:
            mean = mean / tl.where(slope > 0.0, slope, 1.0)[:, None]
            tl.store(MEANS + at_row[:, None] * C + c[None, :], mean, mask=wanted)
            first, second, factor, factor_escort = _state(top, t, total, epsilon, is_far, ORDER, ROUGH)
            tl.store(STATES + at_row * 4, first, mask=inside)
            tl.store(STATES + at_row * 4 + 1, second, mask=inside)
            tl.store(STATES + at_row * 4 + 2, factor, mask=inside)
            tl.store(STATES + at_row * 4 + 3, factor_escort, mask=inside)
