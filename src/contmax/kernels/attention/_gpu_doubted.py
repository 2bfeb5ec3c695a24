r"""Keys of tiles of which more than one may have mass: both tops are listed, and what else is above the bound.

For that the keys are multiplied again. Mostly there is no third. A program takes sixteen rows and the tiles that any of
them doubts, since rows that are neighbours often doubt the same.
"""

import triton
import triton.language as tl

from contmax.kernels.attention._gpu_lists import (
    DENSE_BY_LISTS,
    DENSE_BY_TOPS,
    distance_of,
    first_key_of,
    mark_dense,
    mark_of,
    place_of,
)
from contmax.kernels.attention._gpu_tops import ANY_SIZE, PRECISION, end_of, keys_of, with_extras
from contmax.kernels.gpu._instructions import store_apart
from contmax.kernels.rows._gpu_solve import NOTHING

# Keys of a row that are scored again at a time.
_AGAIN = tl.constexpr(4)


@triton.jit
def _score_again(
    q, K, M, B, base, at_mask, at_bias, KEYS, SCORES, at_row, count, scale, kj, mj, bj,
    HAS_MASK: tl.constexpr, HAS_BIAS: tl.constexpr, D: tl.constexpr, WIDTH: tl.constexpr, CAPACITY: tl.constexpr,
):  # fmt: skip
    """Scores of all listed keys of queries (R, WIDTH), in float32."""
    d = tl.arange(0, WIDTH)
    tl.debug_barrier()
    for n in range(0, tl.max(count, 0), _AGAIN):
        slot = n + tl.arange(0, _AGAIN)
        there = slot[None, :] < count[:, None]
        at = (at_row * CAPACITY)[:, None] + slot[None, :]
        j = tl.load(KEYS + at, mask=there, other=0).to(tl.int64)
        at_key = j[:, :, None] * kj + d[None, None, :]
        k = tl.load(K + at_key, mask=there[:, :, None] & (d < D)[None, None, :], other=0.0).to(tl.float32)
        z = tl.sum(q.to(tl.float32)[:, None, :] * k, 2)
        at_masks, at_biases = at_mask[:, None] + j * mj, at_bias[:, None] + j * bj
        x = with_extras(z, M, B, at_masks, at_biases, there, scale, HAS_MASK, HAS_BIAS)
        tl.store(SCORES + at, x - base[:, None], mask=there)


@triton.jit
def _appended(to_keys, to_scores, found, j, y, keep, order, CAPACITY: tl.constexpr):
    """Put the kept ones of keys j (n,) and their scores (R, n) behind the first `found` of lists, (R,); new counts."""
    # How many are kept up to each, by a product, whose layout is that of the scores.
    slot = found[:, None] + tl.dot(keep.to(tl.float16), order).to(tl.int32) - 1
    slot = tl.minimum(slot, CAPACITY - 1)  # a list that is too long will not be used
    store_apart(to_keys[:, None] + slot, tl.broadcast_to(j[None, :], slot.shape), keep)
    store_apart(to_scores[:, None] + slot, y, keep)
    return found + tl.sum(keep.to(tl.int32), 1)


@triton.jit(do_not_specialize=ANY_SIZE)
def list_doubted(
    Q, K, M, B, LENGTHS, TOPS, SOME, NUMBERS, DOUBTS, BOUNDS, KEYS, SCORES, COUNTS, STARTS, DENSE, ANY_DENSE,
    begin, last, tiles, queries, keys, diagonal, heads, group, scale,
    qb, qh, qi, kb, kh, kj, mb, mh, mi, mj, bb, bh, bi, bj,
    CAUSAL: tl.constexpr, HAS_MASK: tl.constexpr, HAS_BIAS: tl.constexpr, HAS_LENGTHS: tl.constexpr,
    EXACT: tl.constexpr, D: tl.constexpr, WIDTH: tl.constexpr, R: tl.constexpr, T: tl.constexpr, P: tl.constexpr,
    WIDE: tl.constexpr, CAPACITY: tl.constexpr, TOGETHER: tl.constexpr,
):  # fmt: skip
    """More KEYS and SCORES, and COUNTS of all, from SOME, NUMBERS, DOUBTS and BOUNDS of `list_keys`.

    Keys are multiplied TOGETHER at a time. Which tiles a row doubts is read, not decided again: a tile that was listed
    and is doubted too would have its key twice. With EXACT the scores of all keys are computed again.
    """
    head = tl.program_id(1).to(tl.int64)
    program = head * tl.num_programs(0) + tl.program_id(0)
    number = tl.load(NUMBERS + program)
    start = begin + tl.program_id(0) * R
    # The lists of a dense block are not used.
    if ((number > 0) | EXACT) & (mark_of(DENSE, head, start, queries) != DENSE_BY_TOPS):
        b, h = head // heads, head % heads
        rows = start + tl.arange(0, R)
        inside = rows < last
        at_row = head * queries + rows
        base = tl.load(STARTS + at_row * 2, mask=inside, other=0.0)
        below = tl.load(BOUNDS + at_row, mask=inside, other=0.0)
        found = tl.load(COUNTS + at_row, mask=inside, other=0)
        ends = end_of(rows, keys_of(LENGTHS, b, keys, HAS_LENGTHS), diagonal, CAUSAL)
        last_end = tl.max(tl.where(inside, ends, 0), 0)
        d, far = tl.arange(0, WIDTH), rows.to(tl.int64)
        at_query = b * qb + h * qh + far[:, None] * qi + d[None, :]
        q = tl.load(Q + at_query, mask=inside[:, None] & (d < D)[None, :], other=0.0)
        K += b * kb + (h // group) * kh
        at_mask, at_bias = b * mb + h * mh + far * mi, b * bb + h * bh + far * bi
        tops = TOPS.to(tl.pointer_type(tl.int64), bitcast=True) + (head * (last - begin) + (rows - begin)) * tiles
        unit = 1.0 if HAS_BIAS else scale
        to_keys, to_scores = KEYS + at_row * CAPACITY, SCORES + at_row * CAPACITY
        place = tl.arange(0, TOGETHER)
        at_key = distance_of(place)[None, :] * kj + d[:, None]
        order = (place[:, None] <= place[None, :]).to(tl.float16)
        for m in range(0, number * (WIDE // 4) // TOGETHER):
            tile, part = tl.load(SOME + program * T + m // (WIDE // 4 // TOGETHER)), m % (WIDE // 4 // TOGETHER)
            # Both by one load.
            both = tl.load(tops + tile, mask=inside, other=0)
            first = both.to(tl.int32).to(tl.float32, bitcast=True)
            second = (both >> 32).to(tl.int32).to(tl.float32, bitcast=True)
            bits = tl.load(DOUBTS + (program * P + tile % P) * R + tl.arange(0, R))
            doubts = ((bits >> (tile // P)) & 1) != 0
            # What is not allowed is NOTHING, and stays below, also where α = 1 lets every score have mass.
            least = tl.where(doubts, tl.maximum(below, 0.5 * NOTHING), float("inf"))
            high, low = place_of(first, WIDE), place_of(second, WIDE)
            origin = first_key_of(tile, WIDE)
            if part == 0:
                slot = tl.minimum(found, CAPACITY - 2)
                store_apart(to_keys + slot, origin + distance_of(high), doubts)
                store_apart(to_keys + slot + 1, origin + distance_of(low), doubts)
                store_apart(to_scores + slot, tl.fma(first, unit, -base), doubts)
                store_apart(to_scores + slot + 1, tl.fma(second, unit, -base), doubts)
                found += tl.where(doubts, 2, 0)
            origin += part * (TOGETHER * 4)
            j = origin + distance_of(place)
            k = tl.load(
                K + origin.to(tl.int64) * kj + at_key, mask=(j < last_end)[None, :] & (d < D)[:, None], other=0.0
            )
            z = tl.dot(q, k, input_precision=PRECISION)
            allowed = inside[:, None] & (j[None, :] < ends[:, None])
            if HAS_MASK or HAS_BIAS:
                at_masks = at_mask[:, None] + j.to(tl.int64)[None, :] * mj
                at_biases = at_bias[:, None] + j.to(tl.int64)[None, :] * bj
                y = with_extras(z, M, B, at_masks, at_biases, allowed, scale, HAS_MASK, HAS_BIAS) - base[:, None]
            else:
                y = tl.where(allowed, tl.fma(z, scale, -base[:, None]), NOTHING)
            here = (part * TOGETHER + place)[None, :]
            keep = (y > least[:, None]) & (here != high[:, None]) & (here != low[:, None])
            if tl.max(tl.max(keep.to(tl.int32), 1), 0) > 0:
                found = _appended(to_keys, to_scores, found, j, y, keep, order, CAPACITY)
        if EXACT:
            _score_again(
                q, K, M, B, base, at_mask, at_bias, KEYS, SCORES, at_row, tl.minimum(found, CAPACITY), scale,
                kj, mj, bj, HAS_MASK, HAS_BIAS, D, WIDTH, CAPACITY,
            )  # fmt: skip
        tl.store(COUNTS + at_row, found, mask=inside)
        if tl.max(found, 0) > CAPACITY:
            mark_dense(DENSE, ANY_DENSE, head, start, queries, group, DENSE_BY_LISTS)
