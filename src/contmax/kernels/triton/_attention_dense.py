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
from contmax.kernels.triton._rows import curvature, saturated, unbiased
from contmax.kernels.triton._solve import NOTHING, is_climbing, log, newton_step, relative_weights

_MOST_STEPS = tl.constexpr(40)
_NO_BLOCK = tl.constexpr(2**31 - 1)


@triton.jit
def _fewest(ends, inside, HAS_MASK: tl.constexpr, HAS_BIAS: tl.constexpr):
    """Every row of the block attends so many keys, and they are scaled products alone."""
    if HAS_MASK or HAS_BIAS:
        return 0
    else:
        return tl.min(tl.where(inside, ends, 0), 0)


@triton.jit
def _scores(
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
def _quick_weights(x, top, t, epsilon, K: tl.constexpr):
    """Weights and escorts to four digits where α is not next to one, and the roots u: weights are their k-th powers."""
    slope = epsilon if K > 0 else epsilon / t
    base = (t if K > 0 else 1.0) - slope * top
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
    """`relative_weights` of scores (rows, keys), and the roots of `_quick_weights` where that is how they are made."""
    if ROUGH and K != -1:
        return _quick_weights(x, top, t, epsilon, K)
    elif ROUGH:
        if is_far:
            weight, escort, u = _quick_weights(x, top, t, epsilon, 0)
        else:
            weight, escort = relative_weights(_less(x, top), t, epsilon, -1, True)
            u = weight
        return weight, escort, u
    else:
        weight, escort = relative_weights(_less(x, top), t, epsilon, K, False)
        return weight, escort, weight


@triton.jit
def _less(x, top):
    """Scores less the largest of their rows; NOTHING as it was."""
    return tl.where(x <= NOTHING, NOTHING, x - top[:, None])


@triton.jit
def _by_lane(x):
    """Sums of what one thread has of each row of a product (R, n), (R, LANES): no thread has to ask another."""
    return tl.sum(tl.sum(tl.reshape(x, [x.shape[0], x.shape[1] // (2 * LANES), LANES, 2]), 3), 1)


@triton.jit
def _first_and_end(DENSE, at):
    """The first and the end of the blocks of keys in which a dense block of rows has mass."""
    span = tl.load(DENSE + at)
    return span.to(tl.int32), (span >> 32).to(tl.int32)


@triton.jit(do_not_specialize=ANY_SIZE)
def attend_dense(
    Q, K, V, M, B, LENGTHS, A, STARTS, DENSE, STATES, MEANS, OUT,
    queries, keys, diagonal, heads, group, scale, fixed_epsilon,
    qb, qh, qi, kb, kh, kj, vb, vh, vj, mb, mh, mi, mj, bb, bh, bi, bj,
    ORDER: tl.constexpr, PER_HEAD: tl.constexpr, NEEDS_MEANS: tl.constexpr,
    CAUSAL: tl.constexpr, HAS_MASK: tl.constexpr, HAS_BIAS: tl.constexpr, HAS_LENGTHS: tl.constexpr,
    D: tl.constexpr, WIDTH: tl.constexpr, C: tl.constexpr, VALUE_WIDTH: tl.constexpr, COLUMNS: tl.constexpr,
):  # fmt: skip
    """OUT (heads, queries, C) of dense blocks; what the backward pass needs of them where asked for.

    That is STATES (heads, queries, 4): the largest score, t, and factors of p and of p^{2−α}; and MEANS
    (heads, queries, C) of the values by p^{2−α}.
    """
    ROUGH: tl.constexpr = Q.dtype.element_ty != tl.float32  # four digits do in half precision
    head = tl.program_id(1).to(tl.int64)
    if tl.load(DENSE + head * tl.num_programs(0) + tl.program_id(0)) != 0:
        b, h = head // heads, head % heads
        rows = tl.program_id(0) * DENSE_ROWS + tl.arange(0, DENSE_ROWS)
        inside = rows < queries
        at_row = head * queries + rows
        d, c, columns = tl.arange(0, WIDTH), tl.arange(0, VALUE_WIDTH), tl.arange(0, COLUMNS)
        at_q = b * qb + h * qh + rows.to(tl.int64)[:, None] * qi + d[None, :]
        q = tl.load(Q + at_q, mask=inside[:, None] & (d < D)[None, :], other=0.0)
        K += b * kb + (h // group) * kh
        V += b * vb + (h // group) * vh
        exist = keys_of(LENGTHS, b, keys, HAS_LENGTHS)
        ends = end_of(rows, exist, diagonal, CAUSAL)
        fewest = _fewest(ends, inside, HAS_MASK, HAS_BIAS)
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
                x = _scores(
                    q, k, fewest, M, B, rows, n, ends, inside, b, h, scale, mb, mh, mi, mj, bb, bh, bi, bj,
                    HAS_MASK, HAS_BIAS,
                )  # fmt: skip
                weight, escort, _ = _weights(x, top, t, epsilon, is_far, ORDER, ROUGH)
                some = _by_lane(escort)
                totals += _by_lane(weight)
                slopes += some
                highs = tl.where(some > 0.0, n // COLUMNS + 1, highs)
                lows = tl.where((some > 0.0) & (lows == _NO_BLOCK), n // COLUMNS, lows)
            step = newton_step(tl.sum(totals, 1), tl.sum(slopes, 1), partition, t, epsilon, ORDER)
            moves = is_climbing(step, t, ORDER, ROUGH)
            partition += step
            t -= epsilon * step
            # As A grows the support shrinks: blocks that have no mass before a step have none after it.
            high = tl.max(tl.max(highs, 1), 0)
            low = tl.minimum(tl.min(tl.min(lows, 1), 0), high)
            steps += 1
            climbing = (tl.max(moves.to(tl.int32), 0) > 0) & (steps < _MOST_STEPS)
        totals = tl.zeros([DENSE_ROWS, LANES], tl.float32)
        slopes = tl.zeros([DENSE_ROWS, LANES], tl.float32)
        out = tl.zeros([DENSE_ROWS, VALUE_WIDTH], tl.float32)
        mean = tl.zeros([DENSE_ROWS, VALUE_WIDTH], tl.float32)
        for n in range(low * COLUMNS, high * COLUMNS, COLUMNS):
            j = n + columns
            at_k = j.to(tl.int64)[None, :] * kj + d[:, None]
            at_v = j.to(tl.int64)[:, None] * vj + c[None, :]
            k = tl.load(K + at_k, mask=(j < exist)[None, :] & (d < D)[:, None], other=0.0)
            x = _scores(
                q, k, fewest, M, B, rows, n, ends, inside, b, h, scale, mb, mh, mi, mj, bb, bh, bi, bj,
                HAS_MASK, HAS_BIAS,
            )  # fmt: skip
            weight, escort, _ = _weights(x, top, t, epsilon, is_far, ORDER, ROUGH)
            v = tl.load(V + at_v, mask=(j < exist)[:, None] & (c < C)[None, :], other=0.0)
            totals += _by_lane(weight)
            slopes += _by_lane(escort)
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
            # p = weight/total, and p^{2−α} = escort/total^{2−α}.
            factor = tl.exp((1.0 - epsilon) * log(inverse))
            tl.store(
                DENSE + head * tl.num_programs(0) + tl.program_id(0), (tl.maximum(high, 1).to(tl.int64) << 32) + low
            )
            tl.store(STATES + at_row * 4, top, mask=inside)
            tl.store(STATES + at_row * 4 + 1, t, mask=inside)
            tl.store(STATES + at_row * 4 + 2, inverse, mask=inside)
            tl.store(STATES + at_row * 4 + 3, factor, mask=inside)


@triton.jit
def _state_of(STATES, at_row, inside):
    """Largest score, t, and the factors of p and p^{2−α} of rows."""
    top = tl.load(STATES + at_row * 4, mask=inside, other=0.0)
    t = tl.load(STATES + at_row * 4 + 1, mask=inside, other=1.0)
    factor = tl.load(STATES + at_row * 4 + 2, mask=inside, other=0.0)
    factor_escort = tl.load(STATES + at_row * 4 + 3, mask=inside, other=0.0)
    return top, t, factor, factor_escort


@triton.jit
def _rates(p, u, epsilon, is_far, ROUGH: tl.constexpr):
    """`curvature` of p, (R, n); u = p^ε is used in half precision where α is far from one."""
    if ROUGH:
        if is_far:
            u = tl.maximum(u, 1e-37)
            rate = (u * (quick_log2(u) * 0.69314718 - 1.0) + 1.0) * (1.0 / (epsilon * epsilon))[:, None]
        else:
            rate = curvature(tl.where(p > 0.0, p, 1.0), epsilon, True)
        return rate
    else:
        return curvature(tl.where(p > 0.0, p, 1.0), epsilon)


@triton.jit(do_not_specialize=ANY_SIZE)
def dense_queries_backward(
    Q, K, V, M, B, G, LENGTHS, A, DENSE, STATES, ALONG, MEANS, DQ, DA,
    queries, keys, diagonal, heads, group, scale, fixed_epsilon,
    qb, qh, qi, kb, kh, kj, vb, vh, vj, gb, gh, gi, mb, mh, mi, mj, bb, bh, bi, bj,
    ORDER: tl.constexpr, PER_HEAD: tl.constexpr, NEEDS_ALPHA: tl.constexpr,
    CAUSAL: tl.constexpr, HAS_MASK: tl.constexpr, HAS_BIAS: tl.constexpr, HAS_LENGTHS: tl.constexpr,
    D: tl.constexpr, WIDTH: tl.constexpr, C: tl.constexpr, VALUE_WIDTH: tl.constexpr, COLUMNS: tl.constexpr,
):  # fmt: skip
    """DQ (heads, queries, D) of dense blocks, and the gradient of α for each row.

    ALONG (heads, queries) are the products of the cotangents and the means by p^{2−α}.
    """
    ROUGH: tl.constexpr = Q.dtype.element_ty != tl.float32  # four digits do in half precision
    head = tl.program_id(1).to(tl.int64)
    if tl.load(DENSE + head * tl.num_programs(0) + tl.program_id(0)) != 0:
        b, h = head // heads, head % heads
        rows = tl.program_id(0) * DENSE_ROWS + tl.arange(0, DENSE_ROWS)
        inside = rows < queries
        at_row = head * queries + rows
        d, c, columns = tl.arange(0, WIDTH), tl.arange(0, VALUE_WIDTH), tl.arange(0, COLUMNS)
        far = rows.to(tl.int64)[:, None]
        q = tl.load(Q + b * qb + h * qh + far * qi + d[None, :], mask=inside[:, None] & (d < D)[None, :], other=0.0)
        wanted = inside[:, None] & (c < C)[None, :]
        g = tl.load(G + b * gb + h * gh + far * gi + c[None, :], mask=wanted, other=0.0)
        mean = tl.load(MEANS + at_row[:, None] * C + c[None, :], mask=wanted, other=0.0)
        along_mean = tl.sum(g.to(tl.float32) * mean, 1)
        tl.store(ALONG + at_row, along_mean, mask=inside)
        top, t, factor, factor_escort = _state_of(STATES, at_row, inside)
        K += b * kb + (h // group) * kh
        V += b * vb + (h // group) * vh
        exist = keys_of(LENGTHS, b, keys, HAS_LENGTHS)
        ends = end_of(rows, exist, diagonal, CAUSAL)
        fewest = _fewest(ends, inside, HAS_MASK, HAS_BIAS)
        epsilon = epsilon_of_heads(A, fixed_epsilon, h, PER_HEAD, DENSE_ROWS)
        is_far = is_far_from_one(A, h, PER_HEAD)
        dq = tl.zeros([DENSE_ROWS, WIDTH], tl.float32)
        turns, rests = tl.zeros([DENSE_ROWS, LANES], tl.float32), tl.zeros([DENSE_ROWS, LANES], tl.float32)
        rates, masses = tl.zeros([DENSE_ROWS, LANES], tl.float32), tl.zeros([DENSE_ROWS, LANES], tl.float32)
        unit = tl.exp(epsilon * log(tl.maximum(factor, 1e-37)))
        low, high = _first_and_end(DENSE, head * tl.num_programs(0) + tl.program_id(0))
        for n in range(low * COLUMNS, high * COLUMNS, COLUMNS):
            j = n + columns
            at_k = j.to(tl.int64)[None, :] * kj + d[:, None]
            k = tl.load(K + at_k, mask=(j < exist)[None, :] & (d < D)[:, None], other=0.0)
            x = _scores(
                q, k, fewest, M, B, rows, n, ends, inside, b, h, scale, mb, mh, mi, mj, bb, bh, bi, bj,
                HAS_MASK, HAS_BIAS,
            )  # fmt: skip
            weight, escort, u = _weights(x, top, t, epsilon, is_far, ORDER, ROUGH)
            at_v = j.to(tl.int64)[None, :] * vj + c[:, None]
            v = tl.load(V + at_v, mask=(j < exist)[None, :] & (c < C)[:, None], other=0.0)
            along = tl.dot(g, v, input_precision=PRECISION)
            slope = escort * (along - along_mean[:, None])
            dq = tl.dot(slope.to(k.dtype), tl.trans(k), dq, input_precision=PRECISION)
            if NEEDS_ALPHA:
                rate = _rates(weight * factor[:, None], u * unit[:, None], epsilon, is_far, ROUGH)
                rate = tl.where(escort > 0.0, rate, 0.0)
                turns += _by_lane(slope * rate)
                rests += _by_lane(slope)
                rates += _by_lane(escort * rate)
                masses += _by_lane(escort)
        dq = saturated(dq * (factor_escort * scale + top * 0.0)[:, None], DQ)
        at = at_row[:, None] * D + d[None, :]
        tl.store(DQ + at, dq.to(DQ.dtype.element_ty), mask=inside[:, None] & (d < D)[None, :])
        if NEEDS_ALPHA:
            slope = unbiased(tl.sum(turns, 1), tl.sum(rests, 1), tl.sum(rates, 1), tl.sum(masses, 1))
            tl.store(DA + at_row, (top * 0.0) - factor_escort * slope, mask=inside)


@triton.jit(do_not_specialize=ANY_SIZE)
def dense_keys_backward(
    Q, K, V, M, B, G, LENGTHS, A, DENSE, STATES, ALONG, ANY_DENSE, DK, DV,
    queries, keys, diagonal, heads, group, scale, fixed_epsilon,
    qb, qh, qi, kb, kh, kj, vb, vh, vj, gb, gh, gi, mb, mh, mi, mj, bb, bh, bi, bj,
    ORDER: tl.constexpr, PER_HEAD: tl.constexpr,
    CAUSAL: tl.constexpr, HAS_MASK: tl.constexpr, HAS_BIAS: tl.constexpr, HAS_LENGTHS: tl.constexpr,
    D: tl.constexpr, WIDTH: tl.constexpr, C: tl.constexpr, VALUE_WIDTH: tl.constexpr, COLUMNS: tl.constexpr,
):  # fmt: skip
    """What dense blocks contribute to DK (key heads, keys, D), before it is scaled, and DV (key heads, keys, C)."""
    ROUGH: tl.constexpr = Q.dtype.element_ty != tl.float32  # four digits do in half precision
    key_head = tl.program_id(1).to(tl.int64)
    if tl.load(ANY_DENSE + key_head) != 0:
        groups = heads // group
        b = key_head // groups
        n = tl.program_id(0) * COLUMNS
        j = n + tl.arange(0, COLUMNS)
        exist = keys_of(LENGTHS, b, keys, HAS_LENGTHS)
        d, c = tl.arange(0, WIDTH), tl.arange(0, VALUE_WIDTH)
        far = j.to(tl.int64)
        at_k = b * kb + (key_head % groups) * kh + far[None, :] * kj + d[:, None]
        at_v = b * vb + (key_head % groups) * vh + far[None, :] * vj + c[:, None]
        k = tl.load(K + at_k, mask=(j < exist)[None, :] & (d < D)[:, None], other=0.0)
        v = tl.load(V + at_v, mask=(j < exist)[None, :] & (c < C)[:, None], other=0.0)
        dk = tl.zeros([COLUMNS, WIDTH], tl.float32)
        dv = tl.zeros([COLUMNS, VALUE_WIDTH], tl.float32)
        row_blocks = (queries + DENSE_ROWS - 1) // DENSE_ROWS
        earliest = 0
        if CAUSAL:
            earliest = tl.maximum(n - diagonal, 0) // DENSE_ROWS
        for h_in_group in range(0, group):
            h = (key_head % groups) * group + h_in_group
            head = b * heads + h
            epsilon = epsilon_of_heads(A, fixed_epsilon, h, PER_HEAD, DENSE_ROWS)
            is_far = is_far_from_one(A, h, PER_HEAD)
            for row_block in range(earliest, row_blocks):
                low, high = _first_and_end(DENSE, head * row_blocks + row_block)
                if (low <= n // COLUMNS) & (n // COLUMNS < high):
                    rows = row_block * DENSE_ROWS + tl.arange(0, DENSE_ROWS)
                    inside = rows < queries
                    at_row = head * queries + rows
                    at_q = b * qb + h * qh + rows.to(tl.int64)[:, None] * qi + d[None, :]
                    q = tl.load(Q + at_q, mask=inside[:, None] & (d < D)[None, :], other=0.0)
                    ends = end_of(rows, exist, diagonal, CAUSAL)
                    fewest = _fewest(ends, inside, HAS_MASK, HAS_BIAS)
                    top, t, factor, factor_escort = _state_of(STATES, at_row, inside)
                    wanted = inside[:, None] & (c < C)[None, :]
                    at_g = b * gb + h * gh + rows.to(tl.int64)[:, None] * gi + c[None, :]
                    g = tl.load(G + at_g, mask=wanted, other=0.0)
                    along_mean = tl.load(ALONG + at_row, mask=inside, other=0.0)
                    x = _scores(
                        q, k, fewest, M, B, rows, n, ends, inside, b, h, scale, mb, mh, mi, mj, bb, bh, bi, bj,
                        HAS_MASK, HAS_BIAS,
                    )  # fmt: skip
                    weight, escort, _ = _weights(x, top, t, epsilon, is_far, ORDER, ROUGH)
                    along = tl.dot(g, v, input_precision=PRECISION)
                    slope = escort * factor_escort[:, None] * (along - along_mean[:, None])
                    p = weight * factor[:, None]
                    dk = tl.dot(tl.trans(slope.to(q.dtype)), q, dk, input_precision=PRECISION)
                    dv = tl.dot(tl.trans(p.to(g.dtype)), g, dv, input_precision=PRECISION)
        at = key_head * keys + j
        tl.store(DK + at[:, None] * D + d[None, :], dk, mask=(j < keys)[:, None] & (d < D)[None, :])
        tl.store(DV + at[:, None] * C + c[None, :], dv, mask=(j < keys)[:, None] & (c < C)[None, :])
