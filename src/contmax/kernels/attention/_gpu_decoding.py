r"""Attention of few queries over many keys, without gradients: a step of generation.

`score_keys` writes all scores, and the maximum of every tile, in one pass over the keys. The maxima are scores of a
part of the keys, whose normaliser is a lower bound of the row's normaliser A. `solve_rows`, one program per row (query
of a head), reads the tiles whose maximum may have mass, solves their candidates, and averages values of the support.

A row with too many candidates is *dense*: its program finds A by passes over all scores. Then `average_values` sums the
values of spans of keys by products, and `join_means` adds the spans. Without dense rows both kernels return at once.
"""

from typing import Any, NamedTuple

import triton
import triton.language as tl

from contmax.kernels.attention._gpu_candidates import rounding_of_bound
from contmax.kernels.attention._gpu_scores import (
    LANES,
    PRECISION,
    Extras,
    by_lane,
    end_of,
    epsilon_of_heads,
    keys_of,
    larger,
    load_columns,
    start_of,
    with_extras,
)
from contmax.kernels.rows._gpu_solve import (
    NOTHING,
    climb,
    exceeds,
    is_climbing,
    newton_step,
    relative_weights,
    solved_from,
    sums,
)

# A tile has runs of this many neighbouring keys. The LANES tiles of a block take runs in turn: one warp holds a tile.
_NEIGHBOURS = tl.constexpr(8)
_MOST_STEPS = tl.constexpr(40)
# Arguments that Triton does not specialise: one compiled kernel serves caches of all lengths.
ANY_LENGTH = ("span", "tiles", "queries", "keys", "diagonal", "spans")


class Queries(NamedTuple):
    """A block of queries of the heads that share one head of keys.

    Attributes:
        b, g: index of the sequence, and of the key head in it.
        h, i: head and position of each query, int64.
        row: index of each query among the B·H·Q queries, int64.
        inside: whether each query exists.
        ends: each query may attend only keys before this one.
        end: the largest of `ends`.
    """

    b: Any
    g: Any
    h: Any
    i: Any
    row: Any
    inside: Any
    ends: Any
    end: Any


@triton.jit
def _queries_of_program(
    LENGTHS, queries, keys, diagonal, heads, group, CAUSAL: tl.constexpr, HAS_LENGTHS: tl.constexpr,
    ROWS: tl.constexpr,
):  # fmt: skip
    """The `Queries` of a program; the axes of the grid are spans of keys, key heads, and blocks of queries."""
    pair = tl.program_id(1).to(tl.int64)
    b, g = pair // (heads // group), pair % (heads // group)
    r = tl.program_id(2) * ROWS + tl.arange(0, ROWS)
    inside = r < group * queries
    i = (r % queries).to(tl.int64)
    ends = end_of(r % queries, keys_of(LENGTHS, b, keys, HAS_LENGTHS), diagonal, CAUSAL)
    ends = tl.where(inside, ends, 0)
    h = tl.where(inside, g * group + r // queries, 0)
    return Queries(b, g, h, i, pair * group * queries + r, inside, ends, tl.max(ends, 0))


@triton.jit(do_not_specialize=ANY_LENGTH)
def score_keys(
    Q, K, M, B, LENGTHS, SCORES, MAXIMA,
    span, tiles, queries, keys, diagonal, heads, group, scale,
    qb, qh, qi, kb, kh, kj, mb, mh, mi, mj, bb, bh, bi, bj,
    CAUSAL: tl.constexpr, HAS_MASK: tl.constexpr, HAS_BIAS: tl.constexpr, HAS_LENGTHS: tl.constexpr,
    D: tl.constexpr, WIDTH: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr,
):  # fmt: skip
    """Write SCORES (B·H·Q, keys rounded up to whole blocks) and MAXIMA (B·H·Q, tiles) for a span of keys.

    Blocks of keys that no query of the program may attend are not written.
    """
    block = _queries_of_program(LENGTHS, queries, keys, diagonal, heads, group, CAUSAL, HAS_LENGTHS, ROWS)
    b, h = block.b, block.h[:, None]
    extras = Extras(scale, M + (b * mb + h * mh), (mi, mj), HAS_MASK, B + (b * bb + h * bh), (bi, bj), HAS_BIAS)
    d, columns = tl.arange(0, WIDTH), tl.arange(0, COLUMNS)
    at_query = block.b * qb + block.h * qh + block.i * qi
    q = tl.load(Q + at_query[:, None] + d[None, :], mask=block.inside[:, None] & (d < D)[None, :], other=0.0)
    K += block.b * kb + block.g * kh
    at_score = block.row * (tiles // LANES * COLUMNS)
    at_maximum = (block.row * tiles)[:, None] + tl.arange(0, LANES)[None, :]
    begin = tl.program_id(0) * span
    for n in range(begin, tl.minimum(begin + span, block.end), COLUMNS):
        k = load_columns(K, kj, n, block.end, D, WIDTH, COLUMNS)
        z = tl.dot(q, k, input_precision=PRECISION)
        j = n + columns
        allowed = j[None, :] < block.ends[:, None]
        x = with_extras(z, block.i[:, None], j.to(tl.int64)[None, :], allowed, scale, extras)
        tl.store(SCORES + at_score[:, None] + j[None, :], x, mask=block.inside[:, None])
        parts = tl.reshape(x, [ROWS, COLUMNS // (LANES * _NEIGHBOURS), LANES, _NEIGHBOURS])
        maxima = tl.reduce(tl.reduce(parts, 3, larger), 1, larger)
        tl.store(MAXIMA + at_maximum + n // COLUMNS * LANES, maxima, mask=block.inside[:, None])


@triton.jit
def _upper_bound(normaliser, epsilon, size, K: tl.constexpr):
    """The upper bound of scores without mass, less the maximum, (1,), from a lower bound of the normaliser.

    `size` is the magnitude of the scores, to which their rounding errors are proportional.
    """
    reaches = epsilon > 0.0
    reach = 1.0 / tl.where(reaches, epsilon, 1.0)
    slack = 2.0 * rounding_of_bound(normaliser, K) + 1e-6 * (size + reach)
    return tl.where(reaches, tl.maximum(normaliser - reach - slack, 0.5 * NOTHING), 0.5 * NOTHING)


@triton.jit
def _climb_over(X, end, maximum, epsilon, normaliser, t, K: tl.constexpr, ROUGH: tl.constexpr, CHUNK: tl.constexpr):
    """`climb` for one row of scores X in memory, CHUNK at a time; returns the normaliser and t, (1,) each."""
    column = tl.arange(0, CHUNK)
    steps = 0
    climbing = True
    while climbing:
        weights, escorts = tl.zeros([1, CHUNK], tl.float32), tl.zeros([1, CHUNK], tl.float32)
        for n in range(0, end, CHUNK):
            x = tl.load(X + n + column, mask=n + column < end, other=NOTHING)[None, :]
            y = tl.where(x > 0.5 * NOTHING, x - maximum[:, None], NOTHING)
            weight, escort = relative_weights(y, t, epsilon, K, ROUGH)
            weights += weight
            escorts += escort
        total, slope = sums(weights, escorts)
        step = newton_step(total, slope, normaliser, t, epsilon, K, ROUGH)
        moves = is_climbing(step, t, K, ROUGH, not ROUGH)
        if K != 1:
            exceeding = exceeds(total, normaliser, t, epsilon, K, ROUGH)
            moves = (moves | exceeding) if ROUGH else (moves & exceeding)
        normaliser += step
        t -= epsilon * step
        steps += 1
        climbing = (tl.max(moves.to(tl.int32), 0) > 0) & (steps < _MOST_STEPS)
    return normaliser, t


@triton.jit
def _list_candidates(
    SCORES, TILES, memory, is_live, tile, maximum, below, COLUMNS: tl.constexpr, CANDIDATES: tl.constexpr,
    TOGETHER: tl.constexpr,
):  # fmt: skip
    """List keys whose scores less the maximum are above `below`, with these differences; returns their number.

    `memory` are pointers to both lists. Only `is_live` tiles are read. More than CANDIDATES: lists are incomplete.
    """
    KEYS, LISTED = memory
    TILE: tl.constexpr = COLUMNS // LANES
    live = tl.sum(is_live, 0)
    found = tl.full([], CANDIDATES + 1, tl.int32)
    if live <= CANDIDATES:
        tl.store(TILES + tl.cumsum(is_live, 0) - 1, tile, mask=is_live > 0)
        tl.debug_barrier()  # other threads will read the tiles
        found = tl.zeros([], tl.int32)
        place = tl.arange(0, TILE)
        offset = place // _NEIGHBOURS * (LANES * _NEIGHBOURS) + place % _NEIGHBOURS
        for n in range(0, live, TOGETHER):
            slot = n + tl.arange(0, TOGETHER)
            of_tile = tl.load(TILES + slot, mask=slot < live, other=0)
            first = of_tile // LANES * COLUMNS + of_tile % LANES * _NEIGHBOURS
            key = first[:, None] + offset[None, :]
            x = tl.load(SCORES + key, mask=(slot < live)[:, None], other=NOTHING)
            y = tl.reshape(x, [TOGETHER * TILE]) - maximum
            may_have_mass = (y > below).to(tl.int32)
            at = found + tl.cumsum(may_have_mass, 0) - 1
            fits = (may_have_mass > 0) & (at < CANDIDATES)
            tl.store(KEYS + at, tl.reshape(key, [TOGETHER * TILE]), mask=fits)
            tl.store(LISTED + at, y, mask=fits)
            found += tl.sum(may_have_mass, 0)
        tl.debug_barrier()  # other threads will read the list
    return found


@triton.jit
def _mean_of_candidates(
    V, vj, memory, found, epsilon, normaliser, K: tl.constexpr, ROUGH: tl.constexpr, C: tl.constexpr,
    VALUE_WIDTH: tl.constexpr, CANDIDATES: tl.constexpr, TOGETHER: tl.constexpr,
):  # fmt: skip
    """The mean of the values, (VALUE_WIDTH,), by exact weights of `found` candidates; reads only values with weight."""
    KEYS, LISTED = memory
    candidate = tl.arange(0, CANDIDATES)
    y = tl.load(LISTED + candidate, mask=candidate < found, other=NOTHING)[None, :]
    _, _, weight, total, _ = solved_from(y, epsilon, normaliser, 1.0 - epsilon * normaliser, K, ROUGH)
    p = tl.reshape(weight / total[:, None], [CANDIDATES])
    tl.debug_barrier()  # all threads have read the scores
    tl.store(LISTED + candidate, p, mask=candidate < found)
    tl.debug_barrier()
    c = tl.arange(0, VALUE_WIDTH)
    mean = tl.zeros([TOGETHER, VALUE_WIDTH], tl.float32)
    for n in range(0, found, TOGETHER):
        slot = n + tl.arange(0, TOGETHER)
        weights = tl.load(LISTED + slot, mask=slot < found, other=0.0)
        key = tl.load(KEYS + slot, mask=slot < found, other=0).to(tl.int64)
        wanted = (weights > 0.0)[:, None] & (c < C)[None, :]
        v = tl.load(V + (key * vj)[:, None] + c[None, :], mask=wanted, other=0.0)
        mean += weights[:, None] * v.to(tl.float32)
    return tl.sum(mean, 0)


@triton.jit
def _store_mean(OUT, mean, C: tl.constexpr):
    """Store the mean of the values of one row."""
    c = tl.arange(0, mean.shape[0])
    tl.store(OUT + c, mean.to(OUT.dtype.element_ty), mask=c < C)


@triton.jit(do_not_specialize=ANY_LENGTH)
def solve_rows(
    V, LENGTHS, A, SCORES, MAXIMA, TILES, KEYS, LISTED, STATES, OUT,
    tiles, queries, keys, diagonal, heads, group, fixed_epsilon, vb, vh, vj,
    ORDER: tl.constexpr, PER_HEAD: tl.constexpr, CAUSAL: tl.constexpr, HAS_LENGTHS: tl.constexpr,
    C: tl.constexpr, VALUE_WIDTH: tl.constexpr, COLUMNS: tl.constexpr, WIDE: tl.constexpr,
    CANDIDATES: tl.constexpr, CHUNK: tl.constexpr, TOGETHER: tl.constexpr,
):  # fmt: skip
    """Write OUT (B·H·Q, C) of rows that are not dense, and STATES (B·H·Q, 2): maximum and t of dense rows, else t = 0.

    A row has up to WIDE tiles. TILES, KEYS and LISTED (B·H·Q, CANDIDATES) are scratch: tiles that may have mass,
    candidate keys, and the candidates' scores less the maximum.
    """
    ROUGH: tl.constexpr = V.dtype.element_ty != tl.float32  # four digits are enough in half precision
    row = tl.program_id(0).to(tl.int64)
    head, i = row // queries, (row % queries).to(tl.int32)
    b, h = head // heads, head % heads
    end = end_of(i, keys_of(LENGTHS, b, keys, HAS_LENGTHS), diagonal, CAUSAL)
    SCORES += row * (tiles // LANES * COLUMNS)
    memory = (KEYS + row * CANDIDATES, LISTED + row * CANDIDATES)
    STATES, OUT = STATES + row * 2, OUT + row * C
    tile = tl.arange(0, WIDE)
    exists = tile < (end + COLUMNS - 1) // COLUMNS * LANES
    maxima = tl.load(MAXIMA + row * tiles + tile, mask=exists, other=NOTHING)[None, :]
    maximum = tl.reduce(maxima, 1, larger)
    epsilon = epsilon_of_heads(A, fixed_epsilon, h, PER_HEAD, 1)
    is_broken = (maximum * 0.0 != 0.0) | (epsilon != epsilon)
    can_attend = (is_broken == 0) & (maximum > 0.5 * NOTHING)
    if tl.max(can_attend.to(tl.int32), 0) == 0:
        tl.store(STATES + 1, 0.0)
        _store_mean(OUT, tl.zeros([VALUE_WIDTH], tl.float32) + tl.where(is_broken, float("nan"), 0.0), C)
    else:
        y = tl.where(maxima > 0.5 * NOTHING, maxima - maximum[:, None], NOTHING)
        start = tl.zeros([1], tl.float32)
        normaliser, _ = climb(y, epsilon, start, start + 1.0, ORDER, True)
        normaliser = tl.maximum(normaliser - rounding_of_bound(normaliser, ORDER), 0.0)
        below = _upper_bound(normaliser, epsilon, tl.abs(maximum), ORDER)
        is_live = tl.reshape((y > below[:, None]).to(tl.int32), [WIDE])
        found = _list_candidates(
            SCORES, TILES + row * CANDIDATES, memory, is_live, tile, maximum, below, COLUMNS, CANDIDATES, TOGETHER
        )  # fmt: skip
        if found <= CANDIDATES:
            V += b * vb + (h // group) * vh
            mean = _mean_of_candidates(
                V, vj, memory, found, epsilon, normaliser, ORDER, ROUGH, C, VALUE_WIDTH, CANDIDATES, TOGETHER
            )  # fmt: skip
            tl.store(STATES + 1, 0.0)
            _store_mean(OUT, mean, C)
        else:
            first = 1.0 - epsilon * normaliser
            _, t = _climb_over(SCORES, end, maximum, epsilon, normaliser, first, ORDER, ROUGH, CHUNK)
            tl.store(STATES, tl.max(maximum, 0))
            tl.store(STATES + 1, tl.max(t, 0))


@triton.jit(do_not_specialize=ANY_LENGTH)
def average_values(
    V, LENGTHS, A, SCORES, STATES, PARTS, TOTALS,
    span, tiles, spans, queries, keys, diagonal, heads, group, fixed_epsilon, vb, vh, vj,
    ORDER: tl.constexpr, PER_HEAD: tl.constexpr, CAUSAL: tl.constexpr, HAS_LENGTHS: tl.constexpr,
    C: tl.constexpr, VALUE_WIDTH: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr,
):  # fmt: skip
    """Write PARTS (B·H·Q, spans, C), weighted sums of values over a span, and TOTALS (B·H·Q, spans), sums of weights.

    Only dense rows are written. Their weights are divided by the row's largest, against underflow in half precision.
    """
    ROUGH: tl.constexpr = V.dtype.element_ty != tl.float32
    block = _queries_of_program(LENGTHS, queries, keys, diagonal, heads, group, CAUSAL, HAS_LENGTHS, ROWS)
    t = tl.load(STATES + block.row * 2 + 1, mask=block.inside, other=0.0)
    begin = tl.program_id(0) * span
    if (tl.max(t, 0) > 0.0) & (begin < block.end):
        is_dense = t > 0.0
        t = tl.where(is_dense, t, 1.0)
        maximum = tl.load(STATES + block.row * 2, mask=is_dense, other=0.0)
        epsilon = tl.where(is_dense, epsilon_of_heads(A, fixed_epsilon, block.h, PER_HEAD, ROWS), 0.5)
        largest, _escort = relative_weights(tl.zeros([ROWS, 1], tl.float32), t, epsilon, ORDER, ROUGH)
        TOGETHER: tl.constexpr = COLUMNS // 2  # half a block: values pass through registers
        c, place = tl.arange(0, VALUE_WIDTH), tl.arange(0, TOGETHER)
        V += block.b * vb + block.g * vh
        at_value = place[:, None] * vj + c[None, :]
        at_score = block.row * (tiles // LANES * COLUMNS)
        part = tl.zeros([ROWS, VALUE_WIDTH], tl.float32)
        totals = tl.zeros([ROWS, LANES], tl.float32)
        for n in range(begin, tl.minimum(begin + span, block.end), TOGETHER):
            x = tl.load(SCORES + at_score[:, None] + (n + place)[None, :], mask=is_dense[:, None], other=NOTHING)
            y = tl.where(x > 0.5 * NOTHING, x - maximum[:, None], NOTHING)
            weight, _ = relative_weights(y, t, epsilon, ORDER, ROUGH)
            weight = tl.where(y > 0.5 * NOTHING, weight / largest, 0.0)
            totals += by_lane(weight)
            wanted = (tl.max(weight, 0) > 0.0)[:, None] & (c < C)[None, :]
            v = tl.load(V + start_of(n, vj) + at_value, mask=wanted, other=0.0)
            part = tl.dot(weight.to(v.dtype), v, part, input_precision=PRECISION)
        at = block.row * spans + tl.program_id(0)
        tl.store(PARTS + (at * C)[:, None] + c[None, :], part, mask=is_dense[:, None] & (c < C)[None, :])
        tl.store(TOTALS + at, tl.sum(totals, 1), mask=is_dense)


@triton.jit(do_not_specialize=ANY_LENGTH)
def join_means(
    LENGTHS, STATES, PARTS, TOTALS, OUT,
    span, spans, queries, keys, diagonal, heads,
    CAUSAL: tl.constexpr, HAS_LENGTHS: tl.constexpr, C: tl.constexpr, VALUE_WIDTH: tl.constexpr,
    TOGETHER: tl.constexpr,
):  # fmt: skip
    """Write OUT (B·H·Q, C) of dense rows, from PARTS and TOTALS of `average_values`."""
    row = tl.program_id(0).to(tl.int64)
    if tl.load(STATES + row * 2 + 1) > 0.0:
        key_count = keys_of(LENGTHS, row // queries // heads, keys, HAS_LENGTHS)
        end = end_of((row % queries).to(tl.int32), key_count, diagonal, CAUSAL)
        c = tl.arange(0, VALUE_WIDTH)
        mean = tl.zeros([TOGETHER, VALUE_WIDTH], tl.float32)
        totals = tl.zeros([TOGETHER], tl.float32)
        for n in range(0, (end + span - 1) // span, TOGETHER):
            at = n + tl.arange(0, TOGETHER)
            is_span = at * span < end
            totals += tl.load(TOTALS + row * spans + at, mask=is_span, other=0.0)
            wanted = is_span[:, None] & (c < C)[None, :]
            mean += tl.load(PARTS + ((row * spans + at) * C)[:, None] + c[None, :], mask=wanted, other=0.0)
        total = tl.sum(totals, 0)
        _store_mean(OUT + row * C, tl.sum(mean, 0) / tl.where(total > 0.0, total, 1.0), C)
