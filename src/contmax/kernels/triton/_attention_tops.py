r"""The two largest scores of every tile of a row of attention: all that is kept of the product of queries and keys.

A *tile* is the sixteen keys of 64 neighbours that one thread holds of a row in the layout of a matrix product: keys
8i + 2l + e, i < 8, e < 2, for l = 0 … 3. So no thread has to ask another. For long rows a tile has as many of several
neighbouring 64s. The place of a score in its tile is written over the last bits of the score: of 24 bits 15 or more are
left. That is enough for half precision; scores of float32 are computed again (`_attention_doubted`).
"""

import triton
import triton.language as tl

from contmax.kernels.triton._solve import NOTHING

# Tiles that share neighbouring keys.
LANES = tl.constexpr(4)
# Sizes of which a compiled kernel does not know whether they are multiples of 16: one serves sentences of any length.
ANY_SIZE = ("begin", "last", "queries", "keys", "diagonal")


@triton.jit
def keys_of(LENGTHS, b, keys, HAS_LENGTHS: tl.constexpr):
    """How many keys the sequence b has."""
    if HAS_LENGTHS:
        return tl.minimum(tl.load(LENGTHS + b), keys)
    else:
        return keys


@triton.jit
def end_of(row, exist, diagonal, CAUSAL: tl.constexpr):
    """How many of the existing keys a row may attend at most."""
    if CAUSAL:
        return tl.minimum(tl.maximum(row + 1 + diagonal, 0), exist)
    else:
        return row * 0 + exist


@triton.jit
def with_extras(z, M, B, at_mask, at_bias, allowed, scale, HAS_MASK: tl.constexpr, HAS_BIAS: tl.constexpr):
    """Scores from products z: scaled, biased, NOTHING where not allowed; pointers are to each of them."""
    x = z * scale
    if HAS_BIAS:
        x += tl.load(B + at_bias, mask=allowed, other=0.0).to(tl.float32)
    if HAS_MASK:
        allowed = allowed & (tl.load(M + at_mask, mask=allowed, other=0) != 0)
    return tl.where(allowed & ((x >= NOTHING) | (x != x)), x, NOTHING)


@triton.jit
def _merged(a, b, c, d):
    """The two largest of two pairs, each in falling order; NaN wins."""
    top = tl.maximum(a, c, propagate_nan=tl.PropagateNan.ALL)
    return top, tl.maximum(tl.minimum(a, c), tl.maximum(b, d))


@triton.jit
def _tops_of_block(x, PART: tl.constexpr, WIDE: tl.constexpr):
    """The two largest of each tile that begins or lies in a block, (R, tiles, LANES), their places in the last bits.

    PART is how many of the columns of the block are of the same tiles.
    """
    place = tl.arange(0, x.shape[1]) % PART
    place = (place // 8) * 2 + place % 2
    x = ((x.to(tl.int32, bitcast=True) & (-(WIDE // 4))) | place[None, :]).to(tl.float32, bitcast=True)
    TILES: tl.constexpr = x.shape[1] // PART
    left, right = tl.split(tl.reshape(x, [x.shape[0], TILES, PART // 8, LANES, 2]))
    first, second = tl.maximum(left, right, propagate_nan=tl.PropagateNan.ALL), tl.minimum(left, right)
    # Halves are compared with halves, until one is left: all of them are in one thread.
    first, second = _halved(first, second)
    first, second = _halved(first, second)
    first, second = _halved(first, second)
    if PART > 64:
        first, second = _halved(first, second)
    if PART > 128:
        first, second = _halved(first, second)
    return tl.reshape(first, [x.shape[0], TILES, LANES]), tl.reshape(second, [x.shape[0], TILES, LANES])


@triton.jit
def _halved(first, second):
    """The two largest of both halves along the third axis of (R, tiles, n, LANES)."""
    shape: tl.constexpr = [first.shape[0], first.shape[1], 2, first.shape[2] // 2, LANES]
    a, c = tl.split(tl.permute(tl.reshape(first, shape), (0, 1, 3, 4, 2)))
    b, d = tl.split(tl.permute(tl.reshape(second, shape), (0, 1, 3, 4, 2)))
    return _merged(a, b, c, d)


@triton.jit
def _keep_tops(x, first, second, n, end, tiles, TOPS, at, stored, COLUMNS: tl.constexpr, WIDE: tl.constexpr):
    """Take a block into the tops of its tiles, and store these where they end."""
    if WIDE <= COLUMNS:
        first, second = _tops_of_block(x, WIDE, WIDE)
        _store_tops(first, second, TOPS + at + (n // WIDE) * LANES, tiles, stored)
    else:
        first, second = _with_part(x, first, second, n, COLUMNS, WIDE)
        if ((n + COLUMNS) % WIDE == 0) | (n + COLUMNS >= end):
            _store_tops(first, second, TOPS + at + (n // WIDE) * LANES, tiles, stored)
            first = tl.full(first.shape, NOTHING, tl.float32)
            second = tl.full(second.shape, NOTHING, tl.float32)
    return first, second


@triton.jit
def _store_tops(first, second, to, tiles, stored):
    """Tops (R, groups, LANES), the first of all tiles of a row before the second, neighbours side by side."""
    shape: tl.constexpr = [first.shape[0], first.shape[1] * LANES]
    tl.store(to, tl.reshape(first, shape), mask=stored)
    tl.store(to + tiles, tl.reshape(second, shape), mask=stored)


@triton.jit
def _with_part(x, first, second, n, COLUMNS: tl.constexpr, WIDE: tl.constexpr):
    """The tops of a tile of several blocks, with one of these."""
    high, low = _tops_of_block(x, COLUMNS, WIDE)
    part = ((n // COLUMNS) % (WIDE // COLUMNS)) * (COLUMNS // 4)
    high = (high.to(tl.int32, bitcast=True) | part).to(tl.float32, bitcast=True)
    low = (low.to(tl.int32, bitcast=True) | part).to(tl.float32, bitcast=True)
    return _merged(first, second, high, low)


@triton.jit(do_not_specialize=ANY_SIZE)
def tile_tops(
    Q, K, M, B, LENGTHS, TOPS,
    begin, last, tiles, keys, diagonal, heads, group, scale,
    qb, qh, qi, kb, kh, kj, mb, mh, mi, mj, bb, bh, bi, bj,
    CAUSAL: tl.constexpr, HAS_MASK: tl.constexpr, HAS_BIAS: tl.constexpr, HAS_LENGTHS: tl.constexpr,
    D: tl.constexpr, WIDTH: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr, WIDE: tl.constexpr,
):  # fmt: skip
    """TOPS (heads, last − begin, 2, tiles) of the queries begin … last; tiles behind the last key are left alone.

    What is kept are products, or scores where there is a bias.
    """
    block = tl.num_programs(0) - 1 - tl.program_id(0)  # with causal masks the last blocks take longest
    head = tl.program_id(1).to(tl.int64)
    b, h = head // heads, head % heads
    rows = begin + block * ROWS + tl.arange(0, ROWS)
    inside = rows < last
    d, columns = tl.arange(0, WIDTH), tl.arange(0, COLUMNS)
    at_query = b * qb + h * qh + rows.to(tl.int64)[:, None] * qi + d[None, :]
    q = tl.load(Q + at_query, mask=inside[:, None] & (d < D)[None, :], other=0.0)
    K += b * kb + (h // group) * kh
    exist = keys_of(LENGTHS, b, keys, HAS_LENGTHS)
    end = end_of(tl.minimum(begin + (block + 1) * ROWS, last) - 1, exist, diagonal, CAUSAL)
    # Up to here every query of the block may attend every key.
    whole = end_of(begin + block * ROWS, exist, diagonal, CAUSAL) // COLUMNS * COLUMNS
    if HAS_MASK or HAS_BIAS:
        whole = 0
    GROUPS: tl.constexpr = COLUMNS // WIDE if WIDE <= COLUMNS else 1
    at = ((head * (last - begin) + (rows - begin)) * tiles * 2)[:, None] + tl.arange(0, GROUPS * LANES)[None, :]
    first = tl.full([ROWS, GROUPS, LANES], NOTHING, tl.float32)
    second = tl.full([ROWS, GROUPS, LANES], NOTHING, tl.float32)
    stored = tl.broadcast_to(inside[:, None], [ROWS, GROUPS * LANES])
    PRECISION: tl.constexpr = "tf32x3"
    for n in range(0, whole, COLUMNS):
        at_key = (n + columns).to(tl.int64)[None, :] * kj + d[:, None]
        k = tl.load(K + at_key) if D == WIDTH else tl.load(K + at_key, mask=(d < D)[:, None], other=0.0)
        x = tl.dot(q, k, input_precision=PRECISION)
        first, second = _keep_tops(x, first, second, n, end, tiles, TOPS, at, stored, COLUMNS, WIDE)
    ends = end_of(rows, exist, diagonal, CAUSAL)
    for n in range(whole, end, COLUMNS):
        j = n + columns
        at_key = j.to(tl.int64)[None, :] * kj + d[:, None]
        k = tl.load(K + at_key, mask=(j < exist)[None, :] & (d < D)[:, None], other=0.0)
        z = tl.dot(q, k, input_precision=PRECISION)
        allowed = inside[:, None] & (j[None, :] < ends[:, None])
        at_mask = b * mb + h * mh + rows.to(tl.int64)[:, None] * mi + j.to(tl.int64)[None, :] * mj
        at_bias = b * bb + h * bh + rows.to(tl.int64)[:, None] * bi + j.to(tl.int64)[None, :] * bj
        x = with_extras(z, M, B, at_mask, at_bias, allowed, scale if HAS_BIAS else 1.0, HAS_MASK, HAS_BIAS)
        first, second = _keep_tops(x, first, second, n, end, tiles, TOPS, at, stored, COLUMNS, WIDE)
