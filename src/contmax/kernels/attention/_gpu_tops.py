r"""The two largest scores of every tile of a row of attention: all that is kept of the product of queries and keys.

A *tile* is the sixteen keys of 64 neighbours that one thread holds of a row in the layout of a matrix product: keys
8i + 2l + e, i < 8, e < 2, for l = 0 … 3. So no thread has to ask another. For long rows a tile has as many of several
neighbouring 64s. The place of a score in its tile is written over the last bits of the score: of 24 bits 15 or more are
left. That is enough for half precision; scores of float32 are computed again (`_attention_doubted`).

Keys are read from the last to the first, as those near a query often have the largest scores. A block none of whose
scores is within 1/(α − 1) of one that its row has already seen has no mass: nothing more is done with it. (A product of
−∞ is not a number here, which counts unless it is in such a block.)
"""

import triton
import triton.language as tl

from contmax.kernels.attention._gpu_order import block_and_head
from contmax.kernels.gpu._instructions import marked
from contmax.kernels.rows._gpu_solve import NOTHING

# Tiles that share neighbouring keys.
LANES = tl.constexpr(4)
# How products of float32 are made.
PRECISION = tl.constexpr("tf32x3")
# Blocks of keys of which it is asked first whether they have mass: one of so many, and so many at least.
_ASKED_SHARE = tl.constexpr(8)
_ASKED_FIRST = tl.constexpr(2)
# Sizes of which a compiled kernel does not know whether they are multiples of 16: one serves sentences of any length.
ANY_SIZE = ("begin", "last", "queries", "keys", "diagonal", "abreast")


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
def start_of(row, stride):
    """Where a row begins, in 64 bits: those for places in a block of rows are 32, which take half the instructions."""
    return tl.cast(row, tl.int64) * stride


@triton.jit
def epsilon_of_heads(A, fixed_epsilon, h, PER_HEAD: tl.constexpr, R: tl.constexpr):
    """ε = α − 1 of a head for R rows, (R,); NaN where the kernels know no such α."""
    if PER_HEAD:
        epsilon = tl.load(A + h).to(tl.float32) - 1.0
        epsilon = tl.where((epsilon >= 0.0) & (epsilon <= 1.0), epsilon, float("nan"))
        return tl.zeros([R], tl.float32) + epsilon
    else:
        return tl.zeros([R], tl.float32) + fixed_epsilon


# How powers are computed (K of `_solve`) where every head has its α: for any, and for those that are far from one.
ANY_POWER = tl.constexpr(-1)
FAR_POWER = tl.constexpr(0)


@triton.jit
def has_power(A, h, K: tl.constexpr, PER_HEAD: tl.constexpr):
    """Whether the powers of a head are to be computed by K: always for a fixed α, else so for one of both.

    They run over ``tl.static_range(ORDER, 1 if PER_HEAD else ORDER + 1)``: both, or the one of the fixed α.
    """
    if PER_HEAD:
        return (tl.load(A + h).to(tl.float32) >= 1.1) == (K == FAR_POWER)
    else:
        return tl.full([], True, tl.int1)


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
def larger(a, b):
    """The larger of two; NaN wins."""
    return tl.maximum(a, b, propagate_nan=tl.PropagateNan.ALL)


@triton.jit
def _merged(a, b, c, d):
    """The two largest of two pairs, each in falling order; NaN wins."""
    return larger(a, c), tl.maximum(tl.minimum(a, c), tl.maximum(b, d))


@triton.jit
def _largest(x):
    """The largest that a thread has of each row of a block, (R, LANES); NaN wins."""
    left, right = tl.split(tl.reshape(x, [x.shape[0], x.shape[1] // 8, LANES, 2]))
    return tl.reduce(larger(left, right), 1, larger)


@triton.jit
def _tops_of_block(x, PART: tl.constexpr, WIDE: tl.constexpr):
    """The two largest of each tile that begins or lies in a block, (R, tiles, LANES), their places in the last bits.

    PART is how many of the columns of the block are of the same tiles.
    """
    place = tl.arange(0, x.shape[1]) % PART
    place = (place // 8) * 2 + place % 2
    x = marked(x.to(tl.int32, bitcast=True), place[None, :], -(WIDE // 4)).to(tl.float32, bitcast=True)
    TILES: tl.constexpr = x.shape[1] // PART
    left, right = tl.split(tl.reshape(x, [x.shape[0], TILES, PART // 8, LANES, 2]))
    first, second = larger(left, right), tl.minimum(left, right)
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
def _keep_tops(
    x, first, second, counts, n, TOPS, at, stored, COLUMNS: tl.constexpr, WIDE: tl.constexpr
):  # fmt: skip
    """Take a block into the tops of its tiles where it `counts`, and store these where they are complete."""
    if WIDE <= COLUMNS:
        if counts:
            first, second = _tops_of_block(x, WIDE, WIDE)
        else:
            first = tl.full(first.shape, NOTHING, tl.float32)
            second = tl.full(second.shape, NOTHING, tl.float32)
        _store_tops(first, second, TOPS + at + (n // WIDE) * (2 * LANES), stored)
    else:
        if counts:
            first, second = _with_part(x, first, second, n, COLUMNS, WIDE)
        if n % WIDE == 0:
            _store_tops(first, second, TOPS + at + (n // WIDE) * (2 * LANES), stored)
            first = tl.full(first.shape, NOTHING, tl.float32)
            second = tl.full(second.shape, NOTHING, tl.float32)
    return first, second


@triton.jit
def _store_tops(first, second, to, stored):
    """Tops (R, groups, LANES): both of a tile side by side, and neighbours."""
    pairs = tl.join(first, second)
    tl.store(to, tl.reshape(pairs, [first.shape[0], first.shape[1] * LANES * 2]), mask=stored)


@triton.jit
def _with_part(x, first, second, n, COLUMNS: tl.constexpr, WIDE: tl.constexpr):
    """The tops of a tile of several blocks, with one of these."""
    high, low = _tops_of_block(x, COLUMNS, WIDE)
    part = ((n // COLUMNS) % (WIDE // COLUMNS)) * (COLUMNS // 4)
    high = (high.to(tl.int32, bitcast=True) | part).to(tl.float32, bitcast=True)
    low = (low.to(tl.int32, bitcast=True) | part).to(tl.float32, bitcast=True)
    return _merged(first, second, high, low)


@triton.jit
def _bound(best, reach):
    """From the largest products that each thread has seen, (R, LANES): what is not above has no mass, (R,)."""
    best = tl.reduce(best, 1, larger)
    return best - reach - 1e-5 * tl.abs(best)


@triton.jit
def _whole_blocks(
    q, K, kj, high, low, first, second, best, bound, TOPS, at, stored,
    ASKS: tl.constexpr, D: tl.constexpr, WIDTH: tl.constexpr, COLUMNS: tl.constexpr, WIDE: tl.constexpr,
):  # fmt: skip
    """Blocks of keys that all queries may attend, from `high` down to `low`.

    With ASKS those are left alone that have nothing above the bound; the last that is returned is how many.
    """
    d = tl.arange(0, WIDTH)
    at_key = tl.arange(0, COLUMNS)[None, :] * kj + d[:, None]
    left_alone = 0
    for i in range(high, low, -1):
        n = (i - 1) * COLUMNS
        block = K + start_of(n, kj) + at_key
        k = tl.load(block) if D == WIDTH else tl.load(block, mask=(d < D)[:, None], other=0.0)
        x = tl.dot(q, k, input_precision=PRECISION)
        counts = tl.full([], True, tl.int1)
        if ASKS:
            largest = _largest(x)
            is_below = largest <= bound[:, None]
            counts = tl.sum(tl.reshape(is_below.to(tl.int32), [is_below.numel]), 0) < is_below.numel
            left_alone += tl.where(counts, 0, 1)
            best = larger(best, largest)
        first, second = _keep_tops(x, first, second, counts, n, TOPS, at, stored, COLUMNS, WIDE)
    return first, second, best, left_alone


@triton.jit(do_not_specialize=ANY_SIZE)
def tile_tops(
    Q, K, M, B, LENGTHS, A, TOPS,
    begin, last, tiles, abreast, keys, diagonal, heads, group, scale, fixed_epsilon,
    qb, qh, qi, kb, kh, kj, mb, mh, mi, mj, bb, bh, bi, bj,
    PER_HEAD: tl.constexpr,
    CAUSAL: tl.constexpr, HAS_MASK: tl.constexpr, HAS_BIAS: tl.constexpr, HAS_LENGTHS: tl.constexpr,
    D: tl.constexpr, WIDTH: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr, WIDE: tl.constexpr,
):  # fmt: skip
    """TOPS (heads, last − begin, tiles, 2) of the queries begin … last; tiles behind the last key are left alone.

    What is kept are products, or scores where there is a bias. Without mask and bias it may be NOTHING where no key of
    a block has mass.
    """
    turn, head = block_and_head(abreast)
    block = tl.num_programs(0) - 1 - turn  # with causal masks the last blocks take longest
    b, h = head // heads, head % heads
    rows = begin + block * ROWS + tl.arange(0, ROWS)
    inside = rows < last
    d, columns = tl.arange(0, WIDTH), tl.arange(0, COLUMNS)
    at_query = b * qb + h * qh + rows.to(tl.int64)[:, None] * qi + d[None, :]
    q = tl.load(Q + at_query, mask=inside[:, None] & (d < D)[None, :], other=0.0)
    K += b * kb + (h // group) * kh
    exist = keys_of(LENGTHS, b, keys, HAS_LENGTHS)
    ends = end_of(rows, exist, diagonal, CAUSAL)
    end = end_of(tl.minimum(begin + (block + 1) * ROWS, last) - 1, exist, diagonal, CAUSAL)
    # Up to here every query of the block may attend every key.
    whole = end_of(begin + block * ROWS, exist, diagonal, CAUSAL) // COLUMNS * COLUMNS
    if HAS_MASK or HAS_BIAS:
        whole = 0
    GROUPS: tl.constexpr = COLUMNS // WIDE if WIDE <= COLUMNS else 1
    STRIPS: tl.constexpr = LANES * GROUPS
    TOPS += (head * (last - begin) + block * ROWS) * tiles * 2
    at = tl.arange(0, ROWS)[:, None] * (tiles * 2) + tl.arange(0, STRIPS * 2)[None, :]
    first = tl.full([ROWS, GROUPS, LANES], NOTHING, tl.float32)
    second = tl.full([ROWS, GROUPS, LANES], NOTHING, tl.float32)
    stored = tl.broadcast_to(inside[:, None], [ROWS, STRIPS * 2])
    best = tl.zeros([ROWS, LANES], tl.float32) + tl.where(inside, NOTHING, -NOTHING)[:, None]
    at_key = columns[None, :] * kj + d[:, None]
    for i in range((end - whole + COLUMNS - 1) // COLUMNS, 0, -1):
        n = whole + (i - 1) * COLUMNS
        j = n + columns
        k = tl.load(K + start_of(n, kj) + at_key, mask=(j < exist)[None, :] & (d < D)[:, None], other=0.0)
        z = tl.dot(q, k, input_precision=PRECISION)
        allowed = inside[:, None] & (j[None, :] < ends[:, None])
        at_mask = b * mb + h * mh + rows.to(tl.int64)[:, None] * mi + j.to(tl.int64)[None, :] * mj
        at_bias = b * bb + h * bh + rows.to(tl.int64)[:, None] * bi + j.to(tl.int64)[None, :] * bj
        x = with_extras(z, M, B, at_mask, at_bias, allowed, scale if HAS_BIAS else 1.0, HAS_MASK, HAS_BIAS)
        best = larger(best, _largest(x))
        counts = tl.full([], True, tl.int1)
        first, second = _keep_tops(x, first, second, counts, n, TOPS, at, stored, COLUMNS, WIDE)
    # Products so far below another have no mass, whatever is rounded.
    reach = 1.02 / (epsilon_of_heads(A, fixed_epsilon, h, PER_HEAD, ROWS) * scale)
    # Whether a block has any is asked of a few, and of the others where it pays.
    blocks = whole // COLUMNS
    rest = tl.maximum(blocks - tl.maximum(blocks // _ASKED_SHARE, _ASKED_FIRST), 0)
    first, second, best, left_alone = _whole_blocks(
        q, K, kj, blocks, rest, first, second, best, _bound(best, reach), TOPS, at, stored,
        True, D, WIDTH, COLUMNS, WIDE,
    )  # fmt: skip
    unasked = tl.where(2 * left_alone >= blocks - rest, 0, rest)
    bound = _bound(best, reach)
    first, second, _, _ = _whole_blocks(
        q, K, kj, rest, unasked, first, second, best, bound, TOPS, at, stored, True, D, WIDTH, COLUMNS, WIDE
    )  # fmt: skip
    _whole_blocks(
        q, K, kj, unasked, 0, first, second, best, bound, TOPS, at, stored, False, D, WIDTH, COLUMNS, WIDE
    )  # fmt: skip
