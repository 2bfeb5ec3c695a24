r"""The lists of attention seen from the keys: gradients of keys and values.

Entries of the lists are put in the order of blocks of keys, those of one block of keys in the order of blocks of rows:
first every block of rows ranks its own entries among those for the same block of keys, then a sum over all counts says
where each begins. So the order is the same every time. A program then takes the entries of one block of keys, and adds
up their queries and cotangents by products with a matrix that has one number per entry.
"""

import triton
import triton.language as tl

from contmax.kernels.attention._gpu_lists import DENSE_ROWS
from contmax.kernels.attention._gpu_order import block_and_head
from contmax.kernels.attention._gpu_tops import ANY_SIZE, PRECISION
from contmax.kernels.gpu._instructions import earlier_and_all, earlier_ends
from contmax.kernels.rows._gpu_rows import saturated

# Entries that are ranked at a time, and rows whose entries come one after another: each thread of a warp has one.
_RANKED = tl.constexpr(32)


@triton.jit(do_not_specialize=ANY_SIZE)
def rank_entries(
    KEYS, COUNTS, DENSE, RANKS, CELLS, queries, key_blocks, CAPACITY: tl.constexpr, KEY_BLOCK: tl.constexpr
):  # fmt: skip
    """RANKS (heads, queries, CAPACITY) and CELLS (heads, row blocks, key blocks), which are zero before.

    The entries of a block of rows come one after another, 32 at a time: what these have counted, the next go on from.
    A program is one warp.
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
            at, block = _entries(KEYS + here, ends, total, thread, CAPACITY, KEY_BLOCK)
            for n in range(0, total, _RANKED):
                # The next are on their way while these wait for the counts.
                next_at, next_block = _entries(KEYS + here, ends, total, thread + n + _RANKED, CAPACITY, KEY_BLOCK)
                _rank(RANKS + here + at, cells, block, n + thread < total, thread)
                at, block = next_at, next_block


@triton.jit
def _entries(KEYS, ends, total, n, CAPACITY: tl.constexpr, KEY_BLOCK: tl.constexpr):
    """Where the entries n of rows lie that come one after another and end so, and the blocks of their keys."""
    row, start = earlier_ends(ends, n)
    at = row * CAPACITY + n - start
    return at, tl.load(KEYS + at, mask=n < total, other=0) // KEY_BLOCK


@triton.jit
def _rank(to, cells, block, exists, slot):
    """Entries for blocks of keys get their ranks, and the cells count them; each thread has one."""
    block = tl.where(exists, block, -1 - slot)  # unlike all others
    earlier, all_ = earlier_and_all(block)
    before = tl.load(cells + block, mask=exists, other=0)
    tl.store(to, before + earlier, mask=exists)
    tl.debug_barrier()
    tl.store(cells + block, before + all_, mask=exists & (earlier == all_ - 1))
    tl.debug_barrier()


@triton.jit
def _where_same(PAIRS, at, exists, same):
    """Both numbers of the pairs at (n,), each as a matrix (KEY_BLOCK, n) that has them where the key is the `same`."""
    kind: tl.constexpr = PAIRS.dtype.element_ty
    if kind == tl.float32:
        both = tl.load(PAIRS + at[:, None] * 2 + tl.arange(0, 2)[None, :], mask=exists[:, None], other=0.0)
        slope, p = tl.split(both)
        return tl.where(same, slope[None, :], 0.0), tl.where(same, p[None, :], 0.0)
    else:
        # As one number of 32 bits: chosen once for both.
        both = tl.load(PAIRS.to(tl.pointer_type(tl.int32), bitcast=True) + at, mask=exists, other=0)
        both = tl.where(same, both[None, :], 0)
        slope, p = both.to(tl.int16), (both >> 16).to(tl.int16)
        return slope.to(kind, bitcast=True), p.to(kind, bitcast=True)


@triton.jit
def entries_of(OFFSETS, key_head, block, key_blocks, cells):
    """The first entry for a block of keys, and the end of those.

    `cells` is how many cells it has: one for each block of rows of each head of its group.
    """
    cell = (key_head * key_blocks + block) * cells
    return tl.load(OFFSETS + cell - 1, mask=cell > 0, other=0), tl.load(OFFSETS + cell + cells - 1)


@triton.jit(do_not_specialize=ANY_SIZE)
def listed_keys_backward(
    Q, G, PLACES, PAIRS, OFFSETS, ANY_DENSE, DENSE_DK, DENSE_DV, DK, DV,
    abreast, queries, keys, heads, group, cells, scale, qb, qh, qi, gb, gh, gi,
    D: tl.constexpr, WIDTH: tl.constexpr, C: tl.constexpr, VALUE_WIDTH: tl.constexpr,
    GROUPED: tl.constexpr, KEY_BLOCK: tl.constexpr, TOGETHER: tl.constexpr,
):  # fmt: skip
    """DK (key heads, keys, D) and DV (key heads, keys, C); `cells` are those of a block of keys.

    What dense blocks of rows contribute is added. Blocks of keys without entries are left alone where there are any:
    `dense_keys_backward` has written them.
    """
    block, key_head = block_and_head(abreast)
    groups = heads // group
    b = key_head // groups
    start, end = entries_of(OFFSETS, key_head, block, tl.num_programs(0), cells)
    has_dense = tl.load(ANY_DENSE + key_head) != 0
    if (start < end) | (has_dense == 0):
        Q += b * qb + (key_head % groups) * group * qh
        G += b * gb + (key_head % groups) * group * gh
        d, c = tl.arange(0, WIDTH), tl.arange(0, VALUE_WIDTH)
        key = block * KEY_BLOCK + tl.arange(0, KEY_BLOCK)
        dk = tl.zeros([KEY_BLOCK, WIDTH], tl.float32)
        dv = tl.zeros([KEY_BLOCK, VALUE_WIDTH], tl.float32)
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
            at_q, at_g = at_q[:, None] + d[None, :], at_g[:, None] + c[None, :]
            q = tl.load(Q + at_q, mask=exists[:, None] & (d < D)[None, :], other=0.0)
            g = tl.load(G + at_g, mask=exists[:, None] & (c < C)[None, :], other=0.0)
            same = tl.arange(0, KEY_BLOCK)[:, None] == (place % KEY_BLOCK)[None, :]
            slope, p = _where_same(PAIRS, (n + part).to(tl.int64), exists, same)
            dk = tl.dot(slope, q, dk, input_precision=PRECISION)
            dv = tl.dot(p, g, dv, input_precision=PRECISION)
        inside = key < keys
        at_k = (key_head * keys + key)[:, None] * D + d[None, :]
        at_v = (key_head * keys + key)[:, None] * C + c[None, :]
        wanted_k = inside[:, None] & (d < D)[None, :]
        wanted_v = inside[:, None] & (c < C)[None, :]
        if has_dense:
            dk += tl.load(DENSE_DK + at_k, mask=wanted_k, other=0.0)
            dv += tl.load(DENSE_DV + at_v, mask=wanted_v, other=0.0)
        tl.store(DK + at_k, saturated(dk * scale, DK).to(DK.dtype.element_ty), mask=wanted_k)
        tl.store(DV + at_v, saturated(dv, DV).to(DV.dtype.element_ty), mask=wanted_v)
