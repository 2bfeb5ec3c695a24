r"""Attention by candidate lists: exact thresholds and means of the values, then gradients.

Gradients of queries are sums over the lists of the rows. For gradients of keys and values the entries of all lists are
sorted by block of keys, then by block of rows. `rank_entries` counts the entries of each *cell* (a pair of a block of
rows and a block of keys) and ranks entries within their cell; a cumulative sum of the counts gives the offset of each
cell. Hence the order of entries, and every sum, is deterministic. `listed_keys_backward` takes the entries of one block
of keys per program, and sums the queries and cotangents of their rows by products with a matrix that has one nonzero
number per entry.
"""

import triton
import triton.language as tl

from contmax.kernels.attention._gpu_candidates import mark_of
from contmax.kernels.attention._gpu_scores import (
    ANY_SIZE,
    DENSE_ROWS,
    PRECISION,
    block_and_head,
    epsilon_of_heads,
    gathered,
    has_power,
    load_rows,
    store_rows,
)
from contmax.kernels.gpu._instructions import earlier_and_all, earlier_ends, load_scattered, store_scattered
from contmax.kernels.rows._gpu_rows import curvature, escort_of, saturated, unbiased
from contmax.kernels.rows._gpu_solve import NOTHING, climb, relative_weights

# Keys per row that a program gathers at a time, if its registers cannot hold more.
_TOGETHER = tl.constexpr(4)
# `_solved` is specialised for lists up to this length, up to twice this length, and longer.
_SHORT = tl.constexpr(32)
# `rank_entries` concatenates the entries of 32 rows, and ranks 32 entries at a time, one per thread of its warp.
_RANKED = tl.constexpr(32)


@triton.jit
def _entries(KEYS, WEIGHTS, row, count, slot, CAPACITY: tl.constexpr):
    """Load entries `slot` (n,) of the lists of rows (R,): offsets, whether each exists, keys, weights, (R, n) each."""
    exists = slot[None, :] < count[:, None]
    at = row[:, None] * CAPACITY + slot[None, :]
    key = tl.load(KEYS + at, mask=exists, other=0).to(tl.int64)
    return at, exists, key, tl.load(WEIGHTS + at, mask=exists, other=0.0)


@triton.jit
def _solved(lists, rows, K: tl.constexpr, ROUGH: tl.constexpr, WIDE: tl.constexpr, CAPACITY: tl.constexpr):
    """Turn scores into weights, and remove keys without weight from the lists; returns the sizes of the supports, (R,).

    `lists` are pointers to keys, scores and counts. `rows` are, per row, its index, its count, whether it exists, the
    rounding error of its scores, a lower bound of the normaliser, and ε.
    """
    KEYS, WEIGHTS, COUNTS = lists
    row, count, inside, slack, normaliser, epsilon = rows
    slot = tl.arange(0, WIDE)
    at = row[:, None] * CAPACITY + slot[None, :]
    exists = slot[None, :] < count[:, None]
    y = tl.load(WEIGHTS + at, mask=exists, other=NOTHING)
    key = tl.load(KEYS + at, mask=exists, other=0)
    # Listed scores had the row's maximum subtracted, but rounding may leave a maximum that is not 0: subtract it too.
    maximum = tl.where(count > 0, tl.max(y, 1), 0.0)
    y = tl.where(exists, y - maximum[:, None], NOTHING)
    normaliser = tl.maximum(normaliser - maximum, 0.0)
    normaliser, t = climb(y, epsilon, normaliser, 1.0 - epsilon * normaliser, K, ROUGH)
    weight, _ = relative_weights(y, t, epsilon, K, ROUGH)
    if K == 1 and ROUGH:
        # Drop scores that may equal the threshold: at α = 2 the gradient jumps there.
        exists = exists & (weight > tl.minimum(slack, t * 0.25)[:, None])
    weight = tl.where(exists, weight, 0.0)
    total = tl.sum(weight, 1)
    p = weight * (1.0 / tl.where(total > 0.0, total, 1.0))[:, None]
    has_mass = p > 0.0
    to = row[:, None] * CAPACITY + tl.cumsum(has_mass.to(tl.int32), 1) - 1
    support = tl.sum(has_mass.to(tl.int32), 1)
    tl.debug_barrier()
    store_scattered(KEYS + to, key, has_mass)
    store_scattered(WEIGHTS + to, p, has_mass)
    tl.store(COUNTS + row, support, mask=inside)
    return support


@triton.jit(do_not_specialize=ANY_SIZE)
def attend_listed(
    V, A, KEYS, WEIGHTS, COUNTS, STARTS, DENSE, OUT,
    queries, heads, group, fixed_epsilon, last_bits, vb, vh, vj,
    ORDER: tl.constexpr, PER_HEAD: tl.constexpr, C: tl.constexpr, WIDTH: tl.constexpr, R: tl.constexpr,
    CAPACITY: tl.constexpr,
):  # fmt: skip
    """Write OUT (heads, queries, C), and replace listed scores by weights. Rows of a dense block get empty lists.

    In half precision, places of keys have replaced the last bits of scores. `last_bits` bounds the relative error of
    scores that results.
    """
    head = tl.program_id(1).to(tl.int64)
    b, h = head // heads, head % heads
    row = tl.arange(0, R)
    inside = tl.program_id(0) * R + row < queries
    first = head * queries + tl.program_id(0) * R
    KEYS, WEIGHTS = KEYS + first * CAPACITY, WEIGHTS + first * CAPACITY
    COUNTS, STARTS = COUNTS + first, STARTS + first * 2
    if mark_of(DENSE, head, tl.program_id(0) * R, queries) != 0:
        tl.store(COUNTS + row, tl.zeros([R], tl.int32), mask=inside)
    else:
        count = tl.load(COUNTS + row, mask=inside, other=0)
        maximum = tl.load(STARTS + row * 2, mask=inside, other=0.0)
        normaliser = tl.load(STARTS + row * 2 + 1, mask=inside, other=0.0)
        epsilon = epsilon_of_heads(A, fixed_epsilon, h, PER_HEAD, R)
        longest = tl.max(count, 0)
        ROUGH: tl.constexpr = V.dtype.element_ty != tl.float32  # four digits are enough in half precision
        lists = (KEYS, WEIGHTS, COUNTS)
        solved, support = (row, count, inside, tl.abs(maximum) * last_bits, normaliser, epsilon), count
        for POWER in tl.static_range(ORDER, 1 if PER_HEAD else ORDER + 1):
            if has_power(A, h, POWER, PER_HEAD):
                if longest <= _SHORT:
                    support = _solved(lists, solved, POWER, ROUGH, _SHORT, CAPACITY)
                elif longest <= 2 * _SHORT:
                    support = _solved(lists, solved, POWER, ROUGH, 2 * _SHORT, CAPACITY)
                else:
                    support = _solved(lists, solved, POWER, ROUGH, CAPACITY, CAPACITY)
        tl.debug_barrier()
        V += b * vb + (h // group) * vh
        # Gather 32/R keys per row, one per thread, if registers suffice: with fewer keys, threads would repeat loads.
        TOGETHER: tl.constexpr = 32 // R if WIDTH * V.dtype.element_ty.primitive_bitwidth <= 1024 else _TOGETHER
        part = tl.arange(0, TOGETHER)
        total = tl.zeros([R, WIDTH], tl.float32) + (maximum * 0.0)[:, None]  # a row with NaN gets NaN
        for n in range(0, tl.max(support, 0), TOGETHER):
            _, exists, key, p = _entries(KEYS, WEIGHTS, row, support, n + part, CAPACITY)
            total += tl.sum(p[:, :, None] * gathered(V, vj, key, exists, C, WIDTH), 1)
        store_rows(OUT, first, total, inside, C)


@triton.jit
def _store_pair(PAIRS, to, slope, p, exists):
    """Store `slope`, a score's gradient, beside the weight p in PAIRS, in half precision as one number of 32 bits."""
    kind: tl.constexpr = PAIRS.dtype.element_ty
    if kind == tl.float32:
        store_scattered(PAIRS + to * 2, slope, exists)
        store_scattered(PAIRS + to * 2 + 1, p, exists)
    else:
        low = saturated(slope, PAIRS).to(kind).to(tl.uint16, bitcast=True).to(tl.int32)
        high = p.to(kind).to(tl.uint16, bitcast=True).to(tl.int32)
        store_scattered(PAIRS.to(tl.pointer_type(tl.int32), bitcast=True) + to, low | (high << 16), exists)


@triton.jit(do_not_specialize=ANY_SIZE)
def listed_queries_backward(
    K, V, G, A, KEYS, WEIGHTS, COUNTS, STARTS, RANKS, OFFSETS, DENSE, SLOPES, PLACES, PAIRS, DQ, DA,
    queries, heads, group, scale, fixed_epsilon, kb, kh, kj, vb, vh, vj, gb, gh, gi, key_blocks,
    ORDER: tl.constexpr, PER_HEAD: tl.constexpr, NEEDS_ALPHA: tl.constexpr,
    D: tl.constexpr, C: tl.constexpr, WIDTH: tl.constexpr, R: tl.constexpr, CAPACITY: tl.constexpr,
    KEY_BLOCK: tl.constexpr,
):  # fmt: skip
    """Write DQ, and with NEEDS_ALPHA the gradient of α per row, DA. SLOPES, as large as all lists, is scratch.

    The kernel also writes each list entry at its position in the order of `listed_keys_backward`: to PLACES the number
    row·KEY_BLOCK + key % KEY_BLOCK, rows being counted over all heads that share the keys; to PAIRS (…, 2) the gradient
    of its score, and its weight.
    """
    ROUGH: tl.constexpr = K.dtype.element_ty != tl.float32  # four digits are enough in half precision
    head = tl.program_id(1).to(tl.int64)
    b, h = head // heads, head % heads
    row = tl.arange(0, R)
    rows = tl.program_id(0) * R + row
    inside = rows < queries
    start = head * queries + tl.program_id(0) * R
    lists = start * CAPACITY
    KEYS, WEIGHTS, RANKS, SLOPES = KEYS + lists, WEIGHTS + lists, RANKS + lists, SLOPES + lists
    row_blocks = (queries + DENSE_ROWS - 1) // DENSE_ROWS
    row_block = tl.program_id(0) * R // DENSE_ROWS
    if mark_of(DENSE, head, tl.program_id(0) * R, queries) == 0:
        count = tl.load(COUNTS + start + row, mask=inside, other=0)
        maximum = tl.load(STARTS + start * 2 + row * 2, mask=inside, other=0.0)
        epsilon = epsilon_of_heads(A, fixed_epsilon, h, PER_HEAD, R)
        part = tl.arange(0, _TOGETHER)
        g = load_rows(G + (b * gb + h * gh), gi, tl.program_id(0) * R, inside, C, WIDTH).to(tl.float32)
        V += b * vb + (h // group) * vh
        K += b * kb + (h // group) * kh
        longest = tl.max(count, 0)
        mass, moment = tl.zeros([R], tl.float32), tl.zeros([R], tl.float32)
        rates = tl.zeros([R], tl.float32)
        for n in range(0, longest, _TOGETHER):
            at, exists, key, p = _entries(KEYS, WEIGHTS, row, count, n + part, CAPACITY)
            along = tl.sum(g[:, None, :] * gathered(V, vj, key, exists, C, WIDTH), 2)
            s = escort_of(p, epsilon, ORDER, ROUGH)
            mass += tl.sum(s, 1)
            moment += tl.sum(s * along, 1)
            if NEEDS_ALPHA:
                rates += tl.sum(s * curvature(tl.where(p > 0.0, p, 1.0), epsilon, ROUGH), 1)
            tl.store(SLOPES + at, along, mask=exists)
        tl.debug_barrier()
        mean = moment / tl.where(mass > 0.0, mass, 1.0)
        # Index in OFFSETS of the cell of this block of rows and the first block of keys.
        groups = heads // group
        stride = group * row_blocks
        first = (b * groups + h // group) * key_blocks * stride + (h % group) * row_blocks + row_block
        total = tl.zeros([R, WIDTH], tl.float32) + (maximum * 0.0)[:, None]
        turn, rest = tl.zeros([R], tl.float32), tl.zeros([R], tl.float32)
        for n in range(0, longest, _TOGETHER):
            at, exists, key, p = _entries(KEYS, WEIGHTS, row, count, n + part, CAPACITY)
            along = tl.load(SLOPES + at, mask=exists, other=0.0)
            slope = escort_of(p, epsilon, ORDER, ROUGH) * (along - mean[:, None])
            if NEEDS_ALPHA:
                turn += tl.sum(slope * curvature(tl.where(p > 0.0, p, 1.0), epsilon, ROUGH), 1)
                rest += tl.sum(slope, 1)
            total += tl.sum(slope[:, :, None] * gathered(K, kj, key, exists, D, WIDTH), 1)
            cell = first + (key // KEY_BLOCK) * stride
            before = load_scattered(OFFSETS + cell - 1, exists & (cell > 0))
            to = (before + tl.load(RANKS + at, mask=exists, other=0)).to(tl.int64)
            place = ((h % group) * queries + rows)[:, None] * KEY_BLOCK + key % KEY_BLOCK
            store_scattered(PLACES + to, place.to(tl.int32), exists)
            _store_pair(PAIRS, to, slope, p, exists)
        store_rows(DQ, start, saturated(total * scale, DQ), inside, D)
        if NEEDS_ALPHA:
            tl.store(DA + start + row, (maximum * 0.0) - unbiased(turn, rest, rates, mass), mask=inside)


@triton.jit(do_not_specialize=ANY_SIZE)
def rank_entries(
    KEYS, COUNTS, DENSE, RANKS, CELLS, queries, key_blocks, CAPACITY: tl.constexpr, KEY_BLOCK: tl.constexpr
):  # fmt: skip
    """Write RANKS (heads, queries, CAPACITY): for each list entry, the number of earlier entries in its cell.

    CELLS (heads, row blocks, key blocks), filled with 0, get the number of entries per cell, a pair of a block of rows
    and a block of keys. A program is one warp.
    """
    row_block = tl.program_id(0)
    head = tl.program_id(1).to(tl.int64)
    row_blocks = tl.num_programs(0)
    if tl.load(DENSE + head * row_blocks + row_block) == 0:
        cells = CELLS + (head * row_blocks + row_block) * key_blocks
        thread = tl.arange(0, _RANKED)
        for first in tl.static_range(0, DENSE_ROWS, _RANKED):
            row = row_block * DENSE_ROWS + first + thread
            count = tl.load(COUNTS + head * queries + row, mask=row < queries, other=0)
            ends = tl.cumsum(count, 0)
            total = tl.sum(count, 0)
            here = (head * queries + row_block * DENSE_ROWS + first) * CAPACITY
            at, block = _places(KEYS + here, ends, total, thread, CAPACITY, KEY_BLOCK)
            for n in range(0, total, _RANKED):
                # Load the next entries while `_rank` waits for the counts of cells.
                next_at, next_block = _places(KEYS + here, ends, total, thread + n + _RANKED, CAPACITY, KEY_BLOCK)
                _rank(RANKS + here + at, cells, block, n + thread < total, thread)
                at, block = next_at, next_block


@triton.jit
def _places(KEYS, ends, total, n, CAPACITY: tl.constexpr, KEY_BLOCK: tl.constexpr):
    """The offset in KEYS, and the block of keys, of entries n (32,) of 32 joined lists that end at `ends`, (32,)."""
    row, start = earlier_ends(ends, n)
    at = row * CAPACITY + n - start
    return at, tl.load(KEYS + at, mask=n < total, other=0) // KEY_BLOCK


@triton.jit
def _rank(to, cells, block, exists, slot):
    """Store at `to` the rank of each thread's entry in its cell, and add the entries to the counts in `cells`."""
    block = tl.where(exists, block, -1 - slot)  # a number that no other thread has
    earlier, all_ = earlier_and_all(block)
    before = tl.load(cells + block, mask=exists, other=0)
    tl.store(to, before + earlier, mask=exists)
    tl.debug_barrier()
    tl.store(cells + block, before + all_, mask=exists & (earlier == all_ - 1))
    tl.debug_barrier()


@triton.jit
def _where_same(PAIRS, at, exists, same):
    """Load pairs at offsets `at` (n,): two matrices (KEY_BLOCK, n), slopes and weights, with zeros where not `same`."""
    kind: tl.constexpr = PAIRS.dtype.element_ty
    if kind == tl.float32:
        both = tl.load(PAIRS + at[:, None] * 2 + tl.arange(0, 2)[None, :], mask=exists[:, None], other=0.0)
        slope, p = tl.split(both)
        return tl.where(same, slope[None, :], 0.0), tl.where(same, p[None, :], 0.0)
    else:
        # Select both as one number of 32 bits, by one `where`.
        both = tl.load(PAIRS.to(tl.pointer_type(tl.int32), bitcast=True) + at, mask=exists, other=0)
        both = tl.where(same, both[None, :], 0)
        slope, p = both.to(tl.int16), (both >> 16).to(tl.int16)
        return slope.to(kind, bitcast=True), p.to(kind, bitcast=True)


@triton.jit
def entries_of(OFFSETS, key_head, block, key_blocks, cells):
    """The index of the first entry of a block of keys among all sorted entries, and the end of its entries.

    A block of keys has `cells` cells: one per block of rows of each query head that shares the keys.
    """
    cell = (key_head * key_blocks + block) * cells
    return tl.load(OFFSETS + cell - 1, mask=cell > 0, other=0), tl.load(OFFSETS + cell + cells - 1)


@triton.jit(do_not_specialize=ANY_SIZE)
def listed_keys_backward(
    Q, G, PLACES, PAIRS, OFFSETS, ANY_DENSE, DENSE_DK, DENSE_DV, DK, DV,
    abreast, queries, keys, heads, group, cells, scale, qb, qh, qi, gb, gh, gi,
    D: tl.constexpr, C: tl.constexpr, WIDTH: tl.constexpr,
    GROUPED: tl.constexpr, KEY_BLOCK: tl.constexpr, TOGETHER: tl.constexpr,
):  # fmt: skip
    """Write DK (key heads, keys, D) and DV (key heads, keys, C); a block of keys has `cells` cells (`entries_of`).

    If a key head has dense blocks of rows, their part, DENSE_DK and DENSE_DV, is added, and blocks of keys without
    entries are skipped, because `dense_keys_backward` has written their gradients.
    """
    block, key_head = block_and_head(abreast)
    groups = heads // group
    b = key_head // groups
    start, end = entries_of(OFFSETS, key_head, block, tl.num_programs(0), cells)
    has_dense = tl.load(ANY_DENSE + key_head) != 0
    if (start < end) | (has_dense == 0):
        Q += b * qb + (key_head % groups) * group * qh
        G += b * gb + (key_head % groups) * group * gh
        c = tl.arange(0, WIDTH)
        # Compute this before the loop: if it came after, ptxas of CUDA 12 would serialise the loop's products.
        inside = block * KEY_BLOCK + tl.arange(0, KEY_BLOCK) < keys
        dk = tl.zeros([KEY_BLOCK, WIDTH], tl.float32)
        dv = tl.zeros([KEY_BLOCK, WIDTH], tl.float32)
        part = tl.arange(0, TOGETHER)
        for n in range(start, end, TOGETHER):
            exists = n + part < end
            place = tl.load(PLACES + n + part, mask=exists, other=0)
            row = (place // KEY_BLOCK).to(tl.int64)
            at_q, at_g = row * qi, row * gi
            if GROUPED:
                h = place // KEY_BLOCK // queries
                row -= h * queries
                at_q, at_g = h * qh + row * qi, h * gh + row * gi
            q = tl.load(Q + at_q[:, None] + c[None, :], mask=exists[:, None] & (c < D)[None, :], other=0.0)
            g = tl.load(G + at_g[:, None] + c[None, :], mask=exists[:, None] & (c < C)[None, :], other=0.0)
            same = tl.arange(0, KEY_BLOCK)[:, None] == (place % KEY_BLOCK)[None, :]
            slope, p = _where_same(PAIRS, (n + part).to(tl.int64), exists, same)
            dk = tl.dot(slope, q, dk, input_precision=PRECISION)
            dv = tl.dot(p, g, dv, input_precision=PRECISION)
        first = key_head * keys + block * KEY_BLOCK
        if has_dense:
            dk += load_rows(DENSE_DK, D, first, inside, D, WIDTH)
            dv += load_rows(DENSE_DV, C, first, inside, C, WIDTH)
        store_rows(DK, first, saturated(dk * scale, DK), inside, D)
        store_rows(DV, first, saturated(dv, DV), inside, C)
