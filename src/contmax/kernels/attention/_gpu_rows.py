"""Attention by lists: the exact threshold and the means of the values of a row, and the gradient of its query."""

import triton
import triton.language as tl

from contmax.kernels.attention._gpu_lists import DENSE_ROWS, mark_of
from contmax.kernels.attention._gpu_tops import ANY_SIZE, epsilon_of_heads, has_power
from contmax.kernels.gpu._instructions import load_apart, store_apart
from contmax.kernels.rows._gpu_rows import curvature, escort_of, saturated, unbiased
from contmax.kernels.rows._gpu_solve import NOTHING, climb, relative_weights

# Keys of each row that are gathered at a time, where there is no room for more.
_TOGETHER = tl.constexpr(4)
# Lists up to this length are solved apart from longer ones, and so are those up to twice this.
_SHORT = tl.constexpr(32)


@triton.jit
def _solved(
    KEYS, WEIGHTS, COUNTS, row, count, inside, slack, partition, epsilon,
    K: tl.constexpr, ROUGH: tl.constexpr, WIDE: tl.constexpr, CAPACITY: tl.constexpr,
):  # fmt: skip
    """Scores become weights, and keys without any are taken off the lists; the number of those that stay, (R,).

    `slack` is how much scores are off in half precision, (R,).
    """
    slot = tl.arange(0, WIDE)
    at = row[:, None] * CAPACITY + slot[None, :]
    exists = slot[None, :] < count[:, None]
    y = tl.load(WEIGHTS + at, mask=exists, other=NOTHING)
    key = tl.load(KEYS + at, mask=exists, other=0)
    # Rounding may have left a score above the top, or all below it.
    top = tl.where(count > 0, tl.max(y, 1), 0.0)
    y = tl.where(exists, y - top[:, None], NOTHING)
    partition = tl.maximum(partition - top, 0.0)
    partition, t = climb(y, epsilon, partition, 1.0 - epsilon * partition, K, ROUGH)
    weight, _ = relative_weights(y, t, epsilon, K, ROUGH)
    if K == 1 and ROUGH:
        # Scores that may meet the threshold: at α = 2 the gradient jumps there.
        exists = exists & (weight > tl.minimum(slack, t * 0.25)[:, None])
    weight = tl.where(exists, weight, 0.0)
    total = tl.sum(weight, 1)
    p = weight * (1.0 / tl.where(total > 0.0, total, 1.0))[:, None]
    keep = p > 0.0
    to = row[:, None] * CAPACITY + tl.cumsum(keep.to(tl.int32), 1) - 1
    kept = tl.sum(keep.to(tl.int32), 1)
    tl.debug_barrier()
    store_apart(KEYS + to, key, keep)
    store_apart(WEIGHTS + to, p, keep)
    tl.store(COUNTS + row, kept, mask=inside)
    return kept


@triton.jit(do_not_specialize=ANY_SIZE)
def attend_listed(
    V, A, KEYS, WEIGHTS, COUNTS, STARTS, DENSE, OUT,
    queries, heads, group, fixed_epsilon, last_bits, vb, vh, vj,
    ORDER: tl.constexpr, PER_HEAD: tl.constexpr, C: tl.constexpr, WIDTH: tl.constexpr, R: tl.constexpr,
    CAPACITY: tl.constexpr,
):  # fmt: skip
    """OUT (heads, queries, C); lists of scores become lists of weights. Rows of a dense block get empty lists.

    In half precision places in tiles take the last bits of listed scores, this share of them (`_attention_tops`).
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
        top = tl.load(STARTS + row * 2, mask=inside, other=0.0)
        partition = tl.load(STARTS + row * 2 + 1, mask=inside, other=0.0)
        epsilon = epsilon_of_heads(A, fixed_epsilon, h, PER_HEAD, R)
        longest = tl.max(count, 0)
        ROUGH: tl.constexpr = V.dtype.element_ty != tl.float32  # four digits do in half precision
        kept, slack = count, tl.abs(top) * last_bits
        for POWER in tl.static_range(ORDER, 1 if PER_HEAD else ORDER + 1):
            if has_power(A, h, POWER, PER_HEAD):
                if longest <= _SHORT:
                    kept = _solved(
                        KEYS, WEIGHTS, COUNTS, row, count, inside, slack, partition, epsilon, POWER, ROUGH, _SHORT,
                        CAPACITY,
                    )  # fmt: skip
                elif longest <= 2 * _SHORT:
                    kept = _solved(
                        KEYS, WEIGHTS, COUNTS, row, count, inside, slack, partition, epsilon, POWER, ROUGH, 2 * _SHORT,
                        CAPACITY,
                    )  # fmt: skip
                else:
                    kept = _solved(
                        KEYS, WEIGHTS, COUNTS, row, count, inside, slack, partition, epsilon, POWER, ROUGH, CAPACITY,
                        CAPACITY,
                    )  # fmt: skip
        tl.debug_barrier()
        V += b * vb + (h // group) * vh
        # So many that each thread of a warp reads one key, if there is room: of fewer, every thread would read all.
        TOGETHER: tl.constexpr = 32 // R if WIDTH * V.dtype.element_ty.primitive_bitwidth <= 1024 else _TOGETHER
        d, part = tl.arange(0, WIDTH), tl.arange(0, TOGETHER)
        total = tl.zeros([R, WIDTH], tl.float32) + (top * 0.0)[:, None]  # NaN stays NaN
        for n in range(0, tl.max(kept, 0), TOGETHER):
            slot = n + part
            exists = slot[None, :] < kept[:, None]
            at = row[:, None] * CAPACITY + slot[None, :]
            key = tl.load(KEYS + at, mask=exists, other=0).to(tl.int64)
            p = tl.load(WEIGHTS + at, mask=exists, other=0.0)
            wanted = exists[:, :, None] & (d < C)[None, None, :]
            v = tl.load(V + key[:, :, None] * vj + d[None, None, :], mask=wanted, other=0.0).to(tl.float32)
            total += tl.sum(p[:, :, None] * v, 1)
        at = row[:, None] * C + d[None, :]
        tl.store(OUT + first * C + at, total.to(OUT.dtype.element_ty), mask=inside[:, None] & (d < C)[None, :])


@triton.jit
def _store_pair(PAIRS, to, slope, p, exists):
    """Both numbers side by side: in half precision as one of 32 bits."""
    kind: tl.constexpr = PAIRS.dtype.element_ty
    if kind == tl.float32:
        store_apart(PAIRS + to * 2, slope, exists)
        store_apart(PAIRS + to * 2 + 1, p, exists)
    else:
        low = saturated(slope, PAIRS).to(kind).to(tl.uint16, bitcast=True).to(tl.int32)
        high = p.to(kind).to(tl.uint16, bitcast=True).to(tl.int32)
        store_apart(PAIRS.to(tl.pointer_type(tl.int32), bitcast=True) + to, low | (high << 16), exists)


@triton.jit(do_not_specialize=ANY_SIZE)
def listed_queries_backward(
    K, V, G, A, KEYS, WEIGHTS, COUNTS, STARTS, RANKS, OFFSETS, DENSE, SLOPES, PLACES, PAIRS, DQ, DA,
    queries, heads, group, scale, fixed_epsilon, kb, kh, kj, vb, vh, vj, gb, gh, gi, key_blocks,
    ORDER: tl.constexpr, PER_HEAD: tl.constexpr, NEEDS_ALPHA: tl.constexpr,
    D: tl.constexpr, WIDTH: tl.constexpr, C: tl.constexpr, VALUE_WIDTH: tl.constexpr, R: tl.constexpr,
    CAPACITY: tl.constexpr, KEY_BLOCK: tl.constexpr,
):  # fmt: skip
    """The gradient of the queries, and of α for each row where asked for. SLOPES, as long as the lists, is scratch.

    Each entry of a list is noted where the keys look for it (`_attention_columns`): in PLACES its row, among those of
    all heads that share the keys, and its place in the block of keys; in PAIRS (…, 2) the gradient of its score, and
    its weight.
    """
    ROUGH: tl.constexpr = K.dtype.element_ty != tl.float32  # four digits do in half precision
    head = tl.program_id(1).to(tl.int64)
    b, h = head // heads, head % heads
    row = tl.arange(0, R)
    rows = tl.program_id(0) * R + row
    inside = rows < queries
    at_row = head * queries + rows
    lists = (head * queries + tl.program_id(0) * R) * CAPACITY
    KEYS, WEIGHTS, RANKS, SLOPES = KEYS + lists, WEIGHTS + lists, RANKS + lists, SLOPES + lists
    row_blocks = (queries + DENSE_ROWS - 1) // DENSE_ROWS
    row_block = tl.program_id(0) * R // DENSE_ROWS
    if mark_of(DENSE, head, tl.program_id(0) * R, queries) == 0:
        count = tl.load(COUNTS + at_row, mask=inside, other=0)
        top = tl.load(STARTS + at_row * 2, mask=inside, other=0.0)
        epsilon = epsilon_of_heads(A, fixed_epsilon, h, PER_HEAD, R)
        c, part = tl.arange(0, VALUE_WIDTH), tl.arange(0, _TOGETHER)
        at_g = b * gb + h * gh + rows.to(tl.int64)[:, None] * gi + c[None, :]
        g = tl.load(G + at_g, mask=inside[:, None] & (c < C)[None, :], other=0.0).to(tl.float32)
        V += b * vb + (h // group) * vh
        K += b * kb + (h // group) * kh
        longest = tl.max(count, 0)
        mass, moment = tl.zeros([R], tl.float32), tl.zeros([R], tl.float32)
        rates = tl.zeros([R], tl.float32)
        for n in range(0, longest, _TOGETHER):
            slot = n + part
            exists = slot[None, :] < count[:, None]
            at = row[:, None] * CAPACITY + slot[None, :]
            key = tl.load(KEYS + at, mask=exists, other=0).to(tl.int64)
            p = tl.load(WEIGHTS + at, mask=exists, other=0.0)
            wanted = exists[:, :, None] & (c < C)[None, None, :]
            v = tl.load(V + key[:, :, None] * vj + c[None, None, :], mask=wanted, other=0.0).to(tl.float32)
            along = tl.sum(g[:, None, :] * v, 2)
            s = escort_of(p, epsilon, ORDER, ROUGH)
            mass += tl.sum(s, 1)
            moment += tl.sum(s * along, 1)
            if NEEDS_ALPHA:
                rates += tl.sum(s * curvature(tl.where(p > 0.0, p, 1.0), epsilon, ROUGH), 1)
            tl.store(SLOPES + at, along, mask=exists)
        tl.debug_barrier()
        mean = moment / tl.where(mass > 0.0, mass, 1.0)
        # Where the entries of a key block from this block of rows begin.
        groups = heads // group
        stride = group * row_blocks
        first = (b * groups + h // group) * key_blocks * stride + (h % group) * row_blocks + row_block
        d = tl.arange(0, WIDTH)
        total = tl.zeros([R, WIDTH], tl.float32) + (top * 0.0)[:, None]
        turn, rest = tl.zeros([R], tl.float32), tl.zeros([R], tl.float32)
        for n in range(0, longest, _TOGETHER):
            slot = n + part
            exists = slot[None, :] < count[:, None]
            at = row[:, None] * CAPACITY + slot[None, :]
            key = tl.load(KEYS + at, mask=exists, other=0).to(tl.int64)
            p = tl.load(WEIGHTS + at, mask=exists, other=0.0)
            along = tl.load(SLOPES + at, mask=exists, other=0.0)
            slope = escort_of(p, epsilon, ORDER, ROUGH) * (along - mean[:, None])
            if NEEDS_ALPHA:
                turn += tl.sum(slope * curvature(tl.where(p > 0.0, p, 1.0), epsilon, ROUGH), 1)
                rest += tl.sum(slope, 1)
            wanted = exists[:, :, None] & (d < D)[None, None, :]
            k = tl.load(K + key[:, :, None] * kj + d[None, None, :], mask=wanted, other=0.0).to(tl.float32)
            total += tl.sum(slope[:, :, None] * k, 1)
            cell = first + (key // KEY_BLOCK) * stride
            before = load_apart(OFFSETS + cell - 1, exists & (cell > 0))
            to = (before + tl.load(RANKS + at, mask=exists, other=0)).to(tl.int64)
            place = ((h % group) * queries + rows)[:, None] * KEY_BLOCK + key % KEY_BLOCK
            store_apart(PLACES + to, place.to(tl.int32), exists)
            _store_pair(PAIRS, to, slope, p, exists)
        at = at_row[:, None] * D + d[None, :]
        tl.store(DQ + at, saturated(total * scale, DQ).to(DQ.dtype.element_ty), mask=inside[:, None] & (d < D)[None, :])
        if NEEDS_ALPHA:
            tl.store(DA + at_row, (top * 0.0) - unbiased(turn, rest, rates, mass), mask=inside)
