r"""The lists of attention seen from the keys: gradients of keys and values.

Entries of the lists are put in the order of blocks of keys, those of one block of keys in the order of blocks of rows:
first every block of rows ranks its own entries among those for the same block of keys, then a sum over all counts says
where each begins. So the order is the same every time. A program then takes the entries of one block of keys, and adds
up their queries and cotangents by products with a matrix that has one number per entry.
"""

import triton
import triton.language as tl

from contmax.kernels.triton._attention_lists import DENSE_ROWS
from contmax.kernels.triton._rows import saturated

# Entries of a row that are ranked at a time, and entries that are multiplied at a time.
_RANKED = tl.constexpr(32)


@triton.jit
def rank_entries(
    KEYS,
    COUNTS,
    DENSE,
    RANKS,
    CELLS,
    queries,
    heads,
    group,
    key_blocks,
    CAPACITY: tl.constexpr,
    KEY_BLOCK: tl.constexpr,
):
    """RANKS (heads, queries, CAPACITY) and CELLS (key heads, key blocks, group, row blocks), which are zero before.

    The rows of a block come one after another: what one has counted, the next goes on from.
    """
    row_block = tl.program_id(0)
    head = tl.program_id(1).to(tl.int64)
    b, h = head // heads, head % heads
    row_blocks = tl.num_programs(0)
    if tl.load(DENSE + head * row_blocks + row_block) == 0:
        stride = group * row_blocks
        first = (b * (heads // group) + h // group) * key_blocks * stride + (h % group) * row_blocks + row_block
        slot = tl.arange(0, _RANKED)
        for row in range(row_block * DENSE_ROWS, tl.minimum((row_block + 1) * DENSE_ROWS, queries)):
            here = head * queries + row
            count = tl.load(COUNTS + here)
            for n in range(0, count, _RANKED):
                exists = n + slot < count
                block = tl.load(KEYS + here * CAPACITY + n + slot, mask=exists, other=0) // KEY_BLOCK
                block = tl.where(exists, block, -1 - slot)  # unlike all others
                same = block[:, None] == block[None, :]
                earlier = tl.sum((same & (slot[None, :] < slot[:, None])).to(tl.int32), 1)
                all_ = tl.sum(same.to(tl.int32), 1)
                cell = first + block.to(tl.int64) * stride
                before = tl.load(CELLS + cell, mask=exists, other=0)
                tl.store(RANKS + here * CAPACITY + n + slot, before + earlier, mask=exists)
                tl.debug_barrier()
                tl.store(CELLS + cell, before + all_, mask=exists & (earlier == all_ - 1))
                tl.debug_barrier()


@triton.jit
def listed_keys_backward(
    Q, G, KEYS, WEIGHTS, SLOPES, ENTRIES, OFFSETS, ANY_DENSE, DENSE_DK, DENSE_DV, DK, DV,
    queries, keys, heads, group, cells, scale, qb, qh, qi, gb, gh, gi,
    D: tl.constexpr, WIDTH: tl.constexpr, C: tl.constexpr, VALUE_WIDTH: tl.constexpr,
    CAPACITY: tl.constexpr, KEY_BLOCK: tl.constexpr, TOGETHER: tl.constexpr,
):  # fmt: skip
    """DK (key heads, keys, D) and DV (key heads, keys, C); `cells` are those of a block of keys.

    What dense blocks of rows contribute is added, where there are any.
    """
    key_head = tl.program_id(1).to(tl.int64)
    block = tl.program_id(0)
    groups = heads // group
    b = key_head // groups
    cell = (key_head * tl.num_programs(0) + block) * cells
    start = tl.load(OFFSETS + cell - 1, mask=cell > 0, other=0)
    end = tl.load(OFFSETS + cell + cells - 1)
    d, c = tl.arange(0, WIDTH), tl.arange(0, VALUE_WIDTH)
    key = block * KEY_BLOCK + tl.arange(0, KEY_BLOCK)
    dk = tl.zeros([KEY_BLOCK, WIDTH], tl.float32)
    dv = tl.zeros([KEY_BLOCK, VALUE_WIDTH], tl.float32)
    part = tl.arange(0, TOGETHER)
    for n in range(start, end, TOGETHER):
        exists = n + part < end
        entry = tl.load(ENTRIES + n + part, mask=exists, other=0).to(tl.int64)
        at_row = entry // CAPACITY
        row, h = at_row % queries, (at_row // queries) % heads
        mine = tl.load(KEYS + entry, mask=exists, other=-1)
        p = tl.load(WEIGHTS + entry, mask=exists, other=0.0)
        slope = tl.load(SLOPES + entry, mask=exists, other=0.0)
        at_q = (b * qb + h * qh + row * qi)[:, None] + d[None, :]
        at_g = (b * gb + h * gh + row * gi)[:, None] + c[None, :]
        q = tl.load(Q + at_q, mask=exists[:, None] & (d < D)[None, :], other=0.0)
        g = tl.load(G + at_g, mask=exists[:, None] & (c < C)[None, :], other=0.0)
        same = key[:, None] == mine[None, :]
        dk = tl.dot(tl.where(same, slope[None, :], 0.0).to(q.dtype), q, dk, input_precision="tf32x3")
        dv = tl.dot(tl.where(same, p[None, :], 0.0).to(g.dtype), g, dv, input_precision="tf32x3")
    inside = key < keys
    at_k = (key_head * keys + key)[:, None] * D + d[None, :]
    at_v = (key_head * keys + key)[:, None] * C + c[None, :]
    wanted_k = inside[:, None] & (d < D)[None, :]
    wanted_v = inside[:, None] & (c < C)[None, :]
    if tl.load(ANY_DENSE + key_head) != 0:
        dk += tl.load(DENSE_DK + at_k, mask=wanted_k, other=0.0)
        dv += tl.load(DENSE_DV + at_v, mask=wanted_v, other=0.0)
    tl.store(DK + at_k, saturated(dk * scale, DK).to(DK.dtype.element_ty), mask=wanted_k)
    tl.store(DV + at_v, saturated(dv, DV).to(DV.dtype.element_ty), mask=wanted_v)
