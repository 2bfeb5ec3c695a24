"""Gradients of attention for dense blocks of rows (`_gpu_dense`), by products of whole tiles."""

import triton
import triton.language as tl

from contmax.kernels.attention._gpu_listed import entries_of
from contmax.kernels.attention._gpu_scores import (
    ANY_POWER,
    ANY_SIZE,
    DENSE_ROWS,
    LANES,
    PRECISION,
    Extras,
    block_and_head,
    by_lane,
    by_lane_of_products,
    dense_rows,
    dense_scores,
    epsilon_of_heads,
    first_and_end,
    has_power,
    keys_of,
    last_block_and_head,
    load_columns,
    load_rows,
    next_where,
    probabilities,
    store_rows,
)
from contmax.kernels.gpu._instructions import quick_log2
from contmax.kernels.rows._gpu_rows import curvature, saturated, unbiased


@triton.jit
def _state_of(STATES, rows):
    """Load `state_of_rows` of a block. Rows that do not exist get an arbitrary p; their cotangents are 0."""
    at, inside = STATES + rows.first * 4 + tl.arange(0, DENSE_ROWS) * 4, rows.inside
    first, second = tl.load(at, mask=inside, other=0.0), tl.load(at + 1, mask=inside, other=1.0)
    return first, second, tl.load(at + 2, mask=inside, other=0.0), tl.load(at + 3, mask=inside, other=0.0)


@triton.jit
def _rates(p, u, epsilon, K: tl.constexpr, ROUGH: tl.constexpr):
    """D = ∂/∂α log_{2−α} p of p (R, n), which the gradient of α needs; finite but arbitrary where p is 0.

    If ROUGH and K is not ANY_POWER, the result is ε²·D, computed from u = p^ε; else `curvature` computes D.
    """
    if ROUGH and K != ANY_POWER:
        return tl.fma(u, tl.fma(tl.maximum(quick_log2(u), -150.0), 0.69314718, -1.0), 1.0)
    else:
        return curvature(tl.where(p > 0.0, p, 1.0), epsilon, ROUGH)


@triton.jit(do_not_specialize=ANY_SIZE)
def dense_queries_backward(
    Q, K, V, M, B, G, LIMITS, A, DENSE, STATES, ALONG, SHIFTS, MARKS, MEANS, DQ, DA,
    abreast, queries, keys, diagonal, heads, group, scale, fixed_epsilon,
    qb, qh, qi, kb, kh, kj, vb, vh, vj, gb, gh, gi, mb, mh, mi, mj, bb, bh, bi, bj,
    ORDER: tl.constexpr, PER_HEAD: tl.constexpr, NEEDS_ALPHA: tl.constexpr,
    CAUSAL: tl.constexpr, HAS_MASK: tl.constexpr, HAS_BIAS: tl.constexpr, HAS_LENGTHS: tl.constexpr,
    HAS_SPANS: tl.constexpr,
    D: tl.constexpr, C: tl.constexpr, WIDTH: tl.constexpr, COLUMNS: tl.constexpr, HAS_LISTS: tl.constexpr,
):  # fmt: skip
    """Write DQ (heads, queries, D) of dense blocks; with NEEDS_ALPHA also DA (heads, queries), gradients of α by row.

    ALONG (heads, queries) gets the product of each row of G with its row of MEANS, for `dense_keys_backward`.
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
            g = load_rows(G + (b * gb + h * gh), gi, block * DENSE_ROWS, inside, C, WIDTH)
            along_mean = tl.sum(g.to(tl.float32) * load_rows(MEANS, C, rows.first, inside, C, WIDTH), 1)
            tl.store(ALONG + rows.first + row, along_mean, mask=inside)
            state = _state_of(STATES, rows)
            K += b * kb + (h // group) * kh
            V += b * vb + (h // group) * vh
            epsilon = epsilon_of_heads(A, fixed_epsilon, h, PER_HEAD, DENSE_ROWS)
            unit = 1.0 if HAS_BIAS else scale
            dq = tl.zeros([DENSE_ROWS, WIDTH], tl.float32)
            turns, rests = tl.zeros([DENSE_ROWS, LANES], tl.float32), tl.zeros([DENSE_ROWS, LANES], tl.float32)
            rates, masses = tl.zeros([DENSE_ROWS, LANES], tl.float32), tl.zeros([DENSE_ROWS, LANES], tl.float32)
            low, high = first_and_end(DENSE, at_block, True)
            for n in range(low * COLUMNS, high * COLUMNS, COLUMNS):
                k = load_columns(K, kj, n, key_count, D, WIDTH, COLUMNS)
                x = dense_scores(q, k, n, rows, extras)
                p, escort, u = probabilities(x, state, epsilon, unit, POWER, ROUGH)
                v = load_columns(V, vj, n, key_count, C, WIDTH, COLUMNS)
                along = tl.dot(g, v, input_precision=PRECISION)
                slope = escort * (along - along_mean[:, None])
                dq = tl.dot(saturated(slope, K).to(k.dtype), tl.trans(k), dq, input_precision=PRECISION)
                if NEEDS_ALPHA:
                    rate = _rates(p, u, epsilon, POWER, ROUGH)
                    turns += by_lane_of_products(slope, rate)
                    rests += by_lane(slope)
                    rates += by_lane_of_products(escort, rate)
                    masses += by_lane(escort)
            broken = (state[0] + state[1]) * 0.0  # a row with NaN gets NaN
            store_rows(DQ, rows.first, saturated(dq * scale + broken[:, None], DQ), inside, D)
            if NEEDS_ALPHA:
                slope = unbiased(tl.sum(turns, 1), tl.sum(rests, 1), tl.sum(rates, 1), tl.sum(masses, 1))
                if ROUGH and POWER != ANY_POWER:
                    slope /= epsilon * epsilon  # undo the factor ε² of `_rates` per row, not per score
                tl.store(DA + rows.first + row, broken - slope, mask=inside)


@triton.jit(do_not_specialize=ANY_SIZE)
def dense_keys_backward(
    Q, K, V, M, B, G, LIMITS, A, DENSE, STATES, ALONG, SHIFTS, MARKS, OFFSETS, DENSE_DK, DENSE_DV, DK, DV,
    abreast, queries, keys, diagonal, heads, group, scale, fixed_epsilon,
    qb, qh, qi, kb, kh, kj, vb, vh, vj, gb, gh, gi, mb, mh, mi, mj, bb, bh, bi, bj,
    ORDER: tl.constexpr, PER_HEAD: tl.constexpr,
    CAUSAL: tl.constexpr, HAS_MASK: tl.constexpr, HAS_BIAS: tl.constexpr, HAS_LENGTHS: tl.constexpr,
    HAS_SPANS: tl.constexpr,
    D: tl.constexpr, C: tl.constexpr, WIDTH: tl.constexpr, COLUMNS: tl.constexpr,
    BLOCKS: tl.constexpr, KEY_BLOCK: tl.constexpr, HAS_LISTS: tl.constexpr,
):  # fmt: skip
    """Write DK (key heads, keys, D) and DV (key heads, keys, C) of blocks of keys that have no entries in lists.

    For blocks with entries the kernel writes only the sum over dense blocks of rows, to DENSE_DK (not multiplied by
    the scale) and DENSE_DV. If there are lists, it skips key heads without dense blocks of rows.
    """
    ROUGH: tl.constexpr = Q.dtype.element_ty != tl.float32  # four digits are enough in half precision
    block, key_head = block_and_head(abreast)
    mark = tl.load(MARKS + key_head)
    if (mark != 0) | (HAS_LISTS == 0):
        groups = heads // group
        b = key_head // groups
        n = block * COLUMNS
        key_count = keys_of(LIMITS, b, keys, HAS_LENGTHS)
        k = load_columns(K + (b * kb + (key_head % groups) * kh), kj, n, key_count, D, WIDTH, COLUMNS)
        v = load_columns(V + (b * vb + (key_head % groups) * vh), vj, n, key_count, C, WIDTH, COLUMNS)
        dk = tl.zeros([COLUMNS, WIDTH], tl.float32)
        dv = tl.zeros([COLUMNS, WIDTH], tl.float32)
        row_blocks = (queries + DENSE_ROWS - 1) // DENSE_ROWS
        unit = 1.0 if HAS_BIAS else scale
        has_shifts = 0 if HAS_LISTS else mark
        blocks = tl.arange(0, BLOCKS)
        for h_in_group in range(0, group):
            h = (key_head % groups) * group + h_in_group
            head = b * heads + h
            extras = Extras(scale, M + (b * mb + h * mh), (mi, mj), HAS_MASK, B + (b * bb + h * bh), (bi, bj), HAS_BIAS)
            epsilon = epsilon_of_heads(A, fixed_epsilon, h, PER_HEAD, DENSE_ROWS)
            # Visit runs of consecutive blocks of rows with mass in these keys: Triton pipelines the loop over a run.
            low, high = first_and_end(DENSE, head * row_blocks + blocks, blocks < row_blocks)
            has_mass = (low <= n // COLUMNS) & (n // COLUMNS < high)
            for POWER in tl.static_range(ORDER, 1 if PER_HEAD else ORDER + 1):
                if has_power(A, h, POWER, PER_HEAD):
                    start = next_where(has_mass, blocks, 0, row_blocks)
                    while start < row_blocks:
                        end = next_where(has_mass == 0, blocks, start, row_blocks)
                        for row_block in range(start, end):
                            rows = dense_rows(
                                LIMITS, b, head, row_block, queries, keys, diagonal, extras, SHIFTS, has_shifts,
                                CAUSAL, HAS_LENGTHS, HAS_SPANS, not HAS_LISTS,
                            )  # fmt: skip
                            first_row = row_block * DENSE_ROWS
                            # Queries that may attend no key may hold NaN: load zeros.
                            asks = rows.inside & (rows.ends > 0) if HAS_LENGTHS or HAS_SPANS else rows.inside
                            q = load_rows(Q + (b * qb + h * qh), qi, first_row, asks, D, WIDTH)
                            g = load_rows(G + (b * gb + h * gh), gi, first_row, rows.inside, C, WIDTH)
                            state = _state_of(STATES, rows)
                            at = ALONG + rows.first + tl.arange(0, DENSE_ROWS)
                            along_mean = tl.load(at, mask=rows.inside, other=0.0)
                            x = dense_scores(q, k, n, rows, extras)
                            p, escort, _ = probabilities(x, state, epsilon, unit, POWER, ROUGH)
                            dv = tl.dot(tl.trans(p.to(g.dtype)), g, dv, input_precision=PRECISION)
                            along = tl.dot(g, v, input_precision=PRECISION)
                            slope = escort * (along - along_mean[:, None])
                            dk = tl.dot(tl.trans(saturated(slope, Q).to(q.dtype)), q, dk, input_precision=PRECISION)
                        start = next_where(has_mass, blocks, end, row_blocks)
        inside, first = n + tl.arange(0, COLUMNS) < keys, key_head * keys + n
        is_listed = tl.full([], False, tl.int1)
        if HAS_LISTS:
            tl.static_assert(KEY_BLOCK % COLUMNS == 0)
            key_blocks = (keys + KEY_BLOCK - 1) // KEY_BLOCK
            listed, end_of_listed = entries_of(OFFSETS, key_head, n // KEY_BLOCK, key_blocks, group * row_blocks)
            is_listed = listed < end_of_listed
        if is_listed:
            store_rows(DENSE_DK, first, dk, inside, D)
            store_rows(DENSE_DV, first, dv, inside, C)
        else:
            store_rows(DK, first, saturated(dk * scale, DK), inside, D)
            store_rows(DV, first, saturated(dv, DV), inside, C)
