r"""Lists of the keys that may have mass in a row of attention, with their scores, from the tops of its tiles.

The tops of the tiles are scores of a part of the keys, and the threshold of a part is a lower bound of the row's own.
The largest tops of some tiles each give a bound that leaves few tiles; all tops of these give a closer one. A tile with
one top above that has one key to list. One with two may have more: its keys are multiplied again. A row that needs more
room than a list has, or more work than a product of matrices, is left to `_attention_dense`, with all the others of its
block of rows.
"""

import triton
import triton.language as tl

from contmax.kernels.triton._attention_tops import LANES, end_of, keys_of, with_extras
from contmax.kernels.triton._solve import NOTHING, climb

# Rows that are left to dense products together, and keys that are gathered at a time.
DENSE_ROWS = tl.constexpr(64)
_CHUNK = tl.constexpr(16)
# The largest top of so many tiles is one of those that give a first bound.
_TOGETHER = tl.constexpr(4)


@triton.jit
def epsilon_of_heads(A, fixed_epsilon, h, PER_HEAD: tl.constexpr, R: tl.constexpr):
    """ε = α − 1 of a head for R rows, (R,); NaN where the kernels know no such α."""
    if PER_HEAD:
        epsilon = tl.load(A + h).to(tl.float32) - 1.0
        epsilon = tl.where((epsilon >= 0.0) & (epsilon <= 1.0), epsilon, float("nan"))
        return tl.zeros([R], tl.float32) + epsilon
    else:
        return tl.zeros([R], tl.float32) + fixed_epsilon


@triton.jit
def _lowest(partition, epsilon, size, K: tl.constexpr, WIDE: tl.constexpr):
    """From a bound of A, (R,), a surely lower one, and a bound of the scores that have mass.

    `size` is the magnitude of the scores, of which their last bits are lost.
    """
    reaches = epsilon > 0.0
    reach = 1.0 / tl.where(reaches, epsilon, 1.0)
    slack = (1e-5 if K > 0 else 1e-3) * (1.0 + partition) + (WIDE / 8388608.0) * (size + reach)
    partition = tl.maximum(partition - slack, 0.0)
    return partition, tl.where(reaches, partition - reach - slack, -float("inf"))


@triton.jit
def _less(tops, top, unit):
    """Scores less the largest, from tops (R, n); NOTHING as it was."""
    return tl.where(tops < 0.5 * NOTHING, NOTHING, (tops - top[:, None]) * unit)


@triton.jit
def _closer(first, second, epsilon, partition, size, K: tl.constexpr, WIDE: tl.constexpr):
    """Both bounds from all tops of some tiles, (R, n) each, and from a lower bound of A."""
    pairs = tl.reshape(tl.join(first, second), [first.shape[0], 2 * first.shape[1]])
    partition, _ = climb(pairs, epsilon, partition, 1.0 - epsilon * partition, K, True)
    return _lowest(partition, epsilon, size, K, WIDE)


@triton.jit
def _listed(
    q, K, M, B, at_mask, at_bias, j, exists, scale, kj, mj, bj,
    HAS_MASK: tl.constexpr, HAS_BIAS: tl.constexpr, D: tl.constexpr, WIDTH: tl.constexpr,
):  # fmt: skip
    """Scores (CHUNK,) of keys j for one query (1, WIDTH), in float32."""
    d = tl.arange(0, WIDTH)
    at_key = j.to(tl.int64)[:, None] * kj + d[None, :]
    k = tl.load(K + at_key, mask=exists[:, None] & (d < D)[None, :], other=0.0).to(tl.float32)
    z = tl.sum(q * k, 1)
    far = j.to(tl.int64)
    return with_extras(z, M, B, at_mask + far * mj, at_bias + far * bj, exists, scale, HAS_MASK, HAS_BIAS)


@triton.jit
def _list_rows(
    Q, K, M, B, LENGTHS, A, TOPS, SOME, KEYS, SCORES, COUNTS, STARTS, DENSE, ANY_DENSE,
    head, start, begin, last, tiles, queries, keys, diagonal, heads, group, scale, fixed_epsilon,
    qb, qh, qi, kb, kh, kj, mb, mh, mi, mj, bb, bh, bi, bj,
    ORDER: tl.constexpr, PER_HEAD: tl.constexpr,
    CAUSAL: tl.constexpr, HAS_MASK: tl.constexpr, HAS_BIAS: tl.constexpr, HAS_LENGTHS: tl.constexpr,
    EXACT: tl.constexpr, D: tl.constexpr, WIDTH: tl.constexpr, R: tl.constexpr, T: tl.constexpr, WIDE: tl.constexpr,
    CAPACITY: tl.constexpr, CANDIDATES: tl.constexpr, MOST: tl.constexpr,
):  # fmt: skip
    """The lists of R rows of a head from `start` on."""
    b, h = head // heads, head % heads
    rows = start + tl.arange(0, R)
    inside = rows < last
    exist = keys_of(LENGTHS, b, keys, HAS_LENGTHS)
    ends = end_of(rows, exist, diagonal, CAUSAL)
    epsilon = epsilon_of_heads(A, fixed_epsilon, h, PER_HEAD, R)
    tile, unit = tl.arange(0, T), 1.0 if HAS_BIAS else scale
    wanted = inside[:, None] & ((tile // LANES)[None, :] * WIDE < ends[:, None])
    at_tops = TOPS + (head * (last - begin) + (rows - begin))[:, None] * (tiles * 2)
    tops = tl.load(at_tops + tile[None, :], mask=wanted, other=NOTHING)
    broken = (tl.max((tops != tops).to(tl.int32), 1) > 0) | (epsilon != epsilon)
    epsilon = tl.where(epsilon == epsilon, epsilon, 0.5)
    top = tl.max(tops, 1)
    top = tl.where(broken | (top < 0.5 * NOTHING), 0.0, top)
    ok = inside & (broken == 0)
    y = tl.where(ok[:, None], _less(tops, top, unit), NOTHING)
    # The largest of some neighbouring tiles give a bound, and few tiles are above it.
    GROUP: tl.constexpr = _TOGETHER if T >= 2 * _TOGETHER else 1
    none = tl.zeros([R], tl.float32)
    largest = tl.max(tl.reshape(y, [R, T // GROUP, GROUP]), 2)
    partition, _ = climb(largest, epsilon, none, none + 1.0, ORDER, True)
    size = tl.abs(top) * unit
    partition, below = _lowest(partition, epsilon, size, ORDER, WIDE)
    some = (y > below[:, None]) & (y > NOTHING)
    number = tl.sum(some.to(tl.int32), 1)
    if tl.max(number, 0) > CANDIDATES:
        others = _less(tl.load(at_tops + tiles + tile[None, :], mask=wanted & ok[:, None], other=NOTHING), top, unit)
        partition, below = _closer(y, others, epsilon, partition, size, ORDER, WIDE)
        some = (y > below[:, None]) & (y > NOTHING)
        number = tl.sum(some.to(tl.int32), 1)
    slot = tl.cumsum(some.to(tl.int32), 1) - 1
    at_some = SOME + (head * (last - begin) + (rows - begin))[:, None] * CANDIDATES
    tl.store(at_some + slot, tl.broadcast_to(tile[None, :], [R, T]), mask=some & (slot < CANDIDATES))
    tl.debug_barrier()
    # All tops of these tiles give a closer bound.
    slot = tl.arange(0, CANDIDATES)
    exists = slot[None, :] < number[:, None]
    tile = tl.load(at_some + slot[None, :], mask=exists, other=0)
    tops = tl.load(at_tops + tile, mask=exists, other=NOTHING)
    high = _less(tops, top, unit)
    low = _less(tl.load(at_tops + tiles + tile, mask=exists, other=NOTHING), top, unit)
    partition, below = _closer(high, low, epsilon, partition, size, ORDER, WIDE)
    many = (low > below[:, None]) & (low > NOTHING)
    single = (high > below[:, None]) & (high > NOTHING) & (many == 0)
    at_row = head * queries + rows
    # Counted in one sweep: tiles with one key, and above 16 bits those of which more keys may have mass.
    kinds = tl.where(many, 65536, single.to(tl.int32))
    before = tl.cumsum(kinds, 1) - kinds
    counted = tl.sum(kinds, 1)
    count, more = counted & 65535, counted >> 16
    slot = before & 65535
    place = tops.to(tl.int32, bitcast=True) & (WIDE // 4 - 1)
    key = (tile // LANES) * WIDE + (place // 2) * 8 + (tile % LANES) * 2 + place % 2
    listed = single & (slot < CAPACITY)
    tl.store(KEYS + at_row[:, None] * CAPACITY + slot, key, mask=listed)
    tl.store(SCORES + at_row[:, None] * CAPACITY + slot, high, mask=listed)
    tl.debug_barrier()
    tl.store(at_some + (before >> 16), tile, mask=many)
    # Where more keys may have mass, two at least have.
    fits = (number <= CANDIDATES) & (count + 2 * more <= CAPACITY) & (more <= MOST)
    tl.store(COUNTS + at_row, tl.where(broken, 0, count), mask=inside)
    tl.store(STARTS + at_row * 2, tl.where(broken, float("nan"), top * unit), mask=inside)
    tl.store(STARTS + at_row * 2 + 1, partition, mask=inside)
    tl.debug_barrier()
    K += b * kb + (h // group) * kh
    d, chunk = tl.arange(0, WIDTH), tl.arange(0, _CHUNK)
    for r in range(0, R):
        mine = tl.arange(0, R) == r
        row = start + r
        tiles_left = tl.sum(tl.where(mine & fits & ok, more, 0), 0)
        found = tl.sum(tl.where(mine, count, 0), 0)
        overflow = tl.sum((mine & ok & (fits == 0)).to(tl.int32), 0)
        again = tl.sum((mine & fits & ok).to(tl.int32), 0)
        if (tiles_left > 0) | (EXACT & (again > 0)):
            here = head * queries + row
            # NaN of other rows must not enter the sums.
            least = tl.sum(tl.where(mine, tl.where(ok, below, 0.0), 0.0), 0)
            base = tl.sum(tl.where(mine, tl.where(ok, top * unit, 0.0), 0.0), 0)
            end = tl.sum(tl.where(mine, ends, 0), 0)
            q = tl.load(Q + b * qb + h * qh + row.to(tl.int64) * qi + d[None, :], mask=(d < D)[None, :], other=0.0)
            q = q.to(tl.float32)
            at_mask = b * mb + h * mh + row.to(tl.int64) * mi
            at_bias = b * bb + h * bh + row.to(tl.int64) * bi
            if EXACT:
                for n in range(0, found, _CHUNK):
                    there = n + chunk < found
                    j = tl.load(KEYS + here * CAPACITY + n + chunk, mask=there, other=0)
                    x = _listed(q, K, M, B, at_mask, at_bias, j, there, scale, kj, mj, bj, HAS_MASK, HAS_BIAS, D, WIDTH)
                    tl.store(SCORES + here * CAPACITY + n + chunk, x - base, mask=there)
            scratch = (head * (last - begin) + (row - begin)) * CANDIDATES
            for m in range(0, tiles_left):
                one = tl.load(SOME + scratch + m)
                origin = (one // LANES) * WIDE + (one % LANES) * 2
                for n in range(0, WIDE // 4, _CHUNK):
                    j = origin + (n + chunk) // 2 * 8 + chunk % 2
                    x = _listed(
                        q, K, M, B, at_mask, at_bias, j, j < end, scale, kj, mj, bj, HAS_MASK, HAS_BIAS, D, WIDTH
                    )
                    keep = (x - base > least) & (x > NOTHING)
                    slot_ = found + tl.cumsum(keep.to(tl.int32), 0) - 1
                    kept = keep & (slot_ < CAPACITY)
                    tl.store(KEYS + here * CAPACITY + slot_, j, mask=kept)
                    tl.store(SCORES + here * CAPACITY + slot_, x - base, mask=kept)
                    found += tl.sum(keep.to(tl.int32), 0)
            tl.store(COUNTS + here, found)
        if (overflow > 0) | (found > CAPACITY):
            blocks = (queries + DENSE_ROWS - 1) // DENSE_ROWS
            tl.store(DENSE + head * blocks + row // DENSE_ROWS, 1)
            tl.store(ANY_DENSE + b * (heads // group) + h // group, 1)


@triton.jit
def list_keys(
    Q, K, M, B, LENGTHS, A, TOPS, SOME, KEYS, SCORES, COUNTS, STARTS, DENSE, ANY_DENSE,
    begin, last, tiles, queries, keys, diagonal, heads, group, scale, fixed_epsilon,
    qb, qh, qi, kb, kh, kj, mb, mh, mi, mj, bb, bh, bi, bj,
    ORDER: tl.constexpr, PER_HEAD: tl.constexpr,
    CAUSAL: tl.constexpr, HAS_MASK: tl.constexpr, HAS_BIAS: tl.constexpr, HAS_LENGTHS: tl.constexpr,
    EXACT: tl.constexpr, D: tl.constexpr, WIDTH: tl.constexpr, R: tl.constexpr, T: tl.constexpr, WIDE: tl.constexpr,
    CAPACITY: tl.constexpr, CANDIDATES: tl.constexpr, MOST: tl.constexpr, TURNS: tl.constexpr,
):  # fmt: skip
    """KEYS and SCORES (heads, queries, CAPACITY) and COUNTS (heads, queries), for the queries begin … last.

    Scores are less the largest top of the row. STARTS (heads, queries, 2) has that top, NaN for a row with NaN, and a
    lower bound of A. DENSE (heads, blocks) is set where a row does not fit: where more than CANDIDATES tiles may have
    mass, or two keys of more than MOST tiles, or more keys than a list has room for. SOME (heads, queries, CANDIDATES)
    is scratch. With EXACT the scores of all keys are computed again. A program lists R rows at a time, TURNS times.
    """
    head = tl.program_id(1).to(tl.int64)
    first = begin + tl.program_id(0) * (R * TURNS)
    for start in range(first, tl.minimum(first + R * TURNS, last), R):
        _list_rows(
            Q, K, M, B, LENGTHS, A, TOPS, SOME, KEYS, SCORES, COUNTS, STARTS, DENSE, ANY_DENSE,
            head, start, begin, last, tiles, queries, keys, diagonal, heads, group, scale, fixed_epsilon,
            qb, qh, qi, kb, kh, kj, mb, mh, mi, mj, bb, bh, bi, bj,
            ORDER, PER_HEAD, CAUSAL, HAS_MASK, HAS_BIAS, HAS_LENGTHS, EXACT, D, WIDTH, R, T, WIDE,
            CAPACITY, CANDIDATES, MOST,
        )  # fmt: skip
