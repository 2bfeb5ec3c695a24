r"""Tile maxima, the two largest scores of every tile of a row: all that is stored of the product of queries and keys.

In the layout of a matrix product four threads share a row. Of 64 neighbouring keys thread l = 0 … 3 holds the sixteen
keys 8i + 2l + e, i < 8, e < 2. These keys are a *tile*, so that threads find maxima without exchanging scores. For
long rows a tile unites these keys of several neighbouring groups of 64. The place of a score in its tile is written
over the last bits of the score, of whose 24 bits 15 or more remain for up to 2¹⁸ keys. That is enough for half
precision; `list_undecided` computes scores of float32 again.

Keys are read from the last to the first, because keys near a query often have the largest scores. A block of keys is
skipped if each of its scores is more than 1/(α − 1) below a score that its row has already seen: then no key of the
block has mass. (If a block with a score of −∞ is not skipped, this score becomes NaN when its place is written over its
last bits, and so does the row.)
"""

import triton
import triton.language as tl

from contmax.kernels.attention._gpu_scores import (
    ANY_SIZE,
    LANES,
    PRECISION,
    Extras,
    are_allowed,
    end_of,
    epsilon_of_heads,
    first_of,
    keys_of,
    larger,
    last_block_and_head,
    limits_of,
    load_columns,
    load_rows,
    start_of,
    with_extras,
)
from contmax.kernels.gpu._instructions import marked
from contmax.kernels.rows._gpu_solve import NOTHING

# A program tests whether it can skip each of the last 1/_SEARCHED_SHARE of its blocks of keys, or of the last
# _SEARCHED_FIRST if these are more. If it skips at least half of them, it tests the other blocks too.
_SEARCHED_SHARE = tl.constexpr(8)
_SEARCHED_FIRST = tl.constexpr(2)


@triton.jit
def _merged(a, b, c, d):
    """The two largest of four numbers a ≥ b and c ≥ d, in falling order; NaN counts as the largest."""
    return larger(a, c), tl.maximum(tl.minimum(a, c), tl.maximum(b, d))


@triton.jit
def _largest(x):
    """For each row of a block x (R, n), the largest of the scores that each thread holds, (R, LANES), or NaN."""
    left, right = tl.split(tl.reshape(x, [x.shape[0], x.shape[1] // 8, LANES, 2]))
    return tl.reduce(larger(left, right), 1, larger)


@triton.jit
def _maxima_of_block(x, PART: tl.constexpr, WIDE: tl.constexpr):
    """The two largest scores of each tile within a block x, (R, groups, LANES) each, with places in the last bits.

    PART neighbouring columns of the block belong to one group of LANES tiles.
    """
    place = tl.arange(0, x.shape[1]) % PART
    place = (place // 8) * 2 + place % 2
    x = marked(x.to(tl.int32, bitcast=True), place[None, :], -(WIDE // 4)).to(tl.float32, bitcast=True)
    TILES: tl.constexpr = x.shape[1] // PART
    left, right = tl.split(tl.reshape(x, [x.shape[0], TILES, PART // 8, LANES, 2]))
    first, second = larger(left, right), tl.minimum(left, right)
    # Merge halves until one column is left; both halves are in one thread.
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
    """Merge the two halves, along the third axis, of pairs first ≥ second, (R, groups, n, LANES) each."""
    shape: tl.constexpr = [first.shape[0], first.shape[1], 2, first.shape[2] // 2, LANES]
    a, c = tl.split(tl.permute(tl.reshape(first, shape), (0, 1, 3, 4, 2)))
    b, d = tl.split(tl.permute(tl.reshape(second, shape), (0, 1, 3, 4, 2)))
    return _merged(a, b, c, d)


@triton.jit
def _take_block(x, first, second, counts, n, to, COLUMNS: tl.constexpr, WIDE: tl.constexpr):
    """Merge a block of scores x, from key n on, into the two largest scores of its tiles, `first` ≥ `second`.

    If the flag `counts` is false, the block is skipped. Once all keys of a tile are read, its maxima are stored, and
    `first` and `second` start again at NOTHING; both are returned. `to` has three parts: a pointer to the maxima, the
    offsets of the maxima of one block, and whether their rows exist.
    """
    MAXIMA, at, stored = to
    if counts:
        high, low = _maxima_of_block(x, WIDE if WIDE <= COLUMNS else COLUMNS, WIDE)
        if WIDE > COLUMNS:
            part = ((n // COLUMNS) % (WIDE // COLUMNS)) * (COLUMNS // 4)
            high = (high.to(tl.int32, bitcast=True) | part).to(tl.float32, bitcast=True)
            low = (low.to(tl.int32, bitcast=True) | part).to(tl.float32, bitcast=True)
            high, low = _merged(first, second, high, low)
        first, second = high, low
    if WIDE <= COLUMNS or n % WIDE == 0:
        # Store both maxima of a tile side by side, then the next tile's.
        pairs = tl.reshape(tl.join(first, second), [first.shape[0], first.shape[1] * LANES * 2])
        tl.store(MAXIMA + at + (n // WIDE) * (2 * LANES), pairs, mask=stored)
        first = tl.full(first.shape, NOTHING, tl.float32)
        second = tl.full(second.shape, NOTHING, tl.float32)
    return first, second


@triton.jit
def _bound(best, reach):
    """A bound, (R,), `reach` below the largest product of each row so far: products up to the bound have no mass.

    `best`, (R, LANES), is the largest product of each thread so far.
    """
    best = tl.reduce(best, 1, larger)
    return best - reach - 1e-5 * tl.abs(best)


@triton.jit
def _whole_blocks(
    q, K, kj, high, low, first, second, best, bound, to,
    SEARCHES: tl.constexpr, D: tl.constexpr, WIDTH: tl.constexpr, COLUMNS: tl.constexpr, WIDE: tl.constexpr,
):  # fmt: skip
    """Merge the blocks of keys high − 1, …, low, which all queries may attend, into the tile maxima (`_take_block`).

    Returns first, second, best and skipped. With SEARCHES, blocks without a product above `bound` are skipped, and
    `skipped` counts them.
    """
    d = tl.arange(0, WIDTH)
    at_key = tl.arange(0, COLUMNS)[None, :] * kj + d[:, None]
    skipped = 0
    for i in range(high, low, -1):
        n = (i - 1) * COLUMNS
        block = K + start_of(n, kj) + at_key
        k = tl.load(block) if D == WIDTH else tl.load(block, mask=(d < D)[:, None], other=0.0)
        x = tl.dot(q, k, input_precision=PRECISION)
        counts = tl.full([], True, tl.int1)
        if SEARCHES:
            largest = _largest(x)
            is_below = largest <= bound[:, None]
            counts = tl.sum(tl.reshape(is_below.to(tl.int32), [is_below.numel]), 0) < is_below.numel
            skipped += tl.where(counts, 0, 1)
            best = larger(best, largest)
        first, second = _take_block(x, first, second, counts, n, to, COLUMNS, WIDE)
    return first, second, best, skipped


@triton.jit(do_not_specialize=ANY_SIZE)
def tile_maxima(
    Q, K, M, B, LIMITS, A, MAXIMA,
    begin, last, tiles, abreast, queries, keys, diagonal, heads, group, scale, fixed_epsilon,
    qb, qh, qi, kb, kh, kj, mb, mh, mi, mj, bb, bh, bi, bj,
    PER_HEAD: tl.constexpr,
    CAUSAL: tl.constexpr, HAS_MASK: tl.constexpr, HAS_BIAS: tl.constexpr, HAS_LENGTHS: tl.constexpr,
    HAS_SPANS: tl.constexpr,
    D: tl.constexpr, WIDTH: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr, WIDE: tl.constexpr,
):  # fmt: skip
    """Write MAXIMA (heads, last − begin, tiles, 2) of queries begin … last − 1, but not of tiles beyond the last key.

    Maxima are products ⟨q, k⟩, or scores if there is a bias. Without mask and bias the kernel may skip a block of keys
    in which no key has mass; its tiles then get NOTHING (−1e30), like tiles of masked keys.
    """
    block, head, b, h = last_block_and_head(abreast, heads)
    rows = begin + block * ROWS + tl.arange(0, ROWS)
    inside = rows < last
    q = load_rows(Q + (b * qb + h * qh), qi, begin + block * ROWS, inside, D, WIDTH)
    extras = Extras(scale, M + (b * mb + h * mh), (mi, mj), HAS_MASK, B + (b * bb + h * bh), (bi, bj), HAS_BIAS)
    K += b * kb + (h // group) * kh
    key_count = keys_of(LIMITS, b, keys, HAS_LENGTHS)
    begins, ends = limits_of(
        LIMITS, b, head, rows, inside, queries, keys, diagonal, CAUSAL, HAS_LENGTHS, HAS_SPANS
    )  # fmt: skip
    if HAS_SPANS:
        end = tl.max(ends, 0)
    else:
        end = end_of(tl.minimum(begin + (block + 1) * ROWS, last) - 1, key_count, diagonal, CAUSAL)
    # Every query of the block may attend every key before `whole`.
    whole = end_of(begin + block * ROWS, key_count, diagonal, CAUSAL) // COLUMNS * COLUMNS
    if HAS_MASK or HAS_BIAS or HAS_SPANS:
        whole = 0
    # Blocks are read down to block `start`, that of the first key that any query may attend, rounded down to a
    # multiple of WIDE: the maxima of four tiles, which share WIDE keys, are stored when all these keys have been read.
    start = first_of(begins, ends, WIDE if WIDE > COLUMNS else COLUMNS, HAS_SPANS) // COLUMNS
    GROUPS: tl.constexpr = COLUMNS // WIDE if WIDE <= COLUMNS else 1
    STRIPS: tl.constexpr = LANES * GROUPS
    MAXIMA += (head * (last - begin) + block * ROWS) * tiles * 2
    at = tl.arange(0, ROWS)[:, None] * (tiles * 2) + tl.arange(0, STRIPS * 2)[None, :]
    first = tl.full([ROWS, GROUPS, LANES], NOTHING, tl.float32)
    second = tl.full([ROWS, GROUPS, LANES], NOTHING, tl.float32)
    to = (MAXIMA, at, tl.broadcast_to(inside[:, None], [ROWS, STRIPS * 2]))
    best = tl.zeros([ROWS, LANES], tl.float32) + tl.where(inside, NOTHING, -NOTHING)[:, None]
    columns = tl.arange(0, COLUMNS)
    for i in range((end - whole + COLUMNS - 1) // COLUMNS, start, -1):
        n = whole + (i - 1) * COLUMNS
        j = n + columns
        k = load_columns(K, kj, n, key_count, D, WIDTH, COLUMNS)
        z = tl.dot(q, k, input_precision=PRECISION)
        allowed = are_allowed(j, inside, begins, ends, HAS_SPANS)
        row, wide = rows.to(tl.int64)[:, None], j.to(tl.int64)[None, :]
        x = with_extras(z, row, wide, allowed, scale if HAS_BIAS else 1.0, extras)
        best = larger(best, _largest(x))
        counts = tl.full([], True, tl.int1)
        first, second = _take_block(x, first, second, counts, n, to, COLUMNS, WIDE)
    # A product more than `reach` below another of its row has no mass; the factor 1.02 allows for rounding.
    reach = 1.02 / (epsilon_of_heads(A, fixed_epsilon, h, PER_HEAD, ROWS) * scale)
    blocks = whole // COLUMNS
    rest = tl.maximum(blocks - tl.maximum(blocks // _SEARCHED_SHARE, _SEARCHED_FIRST), 0)
    first, second, best, skipped = _whole_blocks(
        q, K, kj, blocks, rest, first, second, best, _bound(best, reach), to, True, D, WIDTH, COLUMNS, WIDE
    )  # fmt: skip
    unsearched = tl.where(2 * skipped >= blocks - rest, 0, rest)
    bound = _bound(best, reach)
    first, second, _, _ = _whole_blocks(
        q, K, kj, rest, unsearched, first, second, best, bound, to, True, D, WIDTH, COLUMNS, WIDE
    )  # fmt: skip
    _whole_blocks(q, K, kj, unsearched, 0, first, second, best, bound, to, False, D, WIDTH, COLUMNS, WIDE)
