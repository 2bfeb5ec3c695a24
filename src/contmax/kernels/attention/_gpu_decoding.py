r"""Attention of few queries over many keys, without gradients: a step of generation.

`score_keys` writes all scores, and the maximum of every tile, in one pass over the keys. The maxima are scores of a
part of the keys, whose normaliser is a lower bound of the row's normaliser A. `solve_rows`, one program per row (query
of a head), reads the tiles whose maximum may have mass, solves the row from their keys that may have mass (the
*candidates*), and averages values of the support.

A row with too many candidates is *dense*: its program estimates A from a sample of the row's scores, and then solves
for A by passes over all scores. `average_values` forms weighted sums of values over spans of keys by products; the last
program to finish adds up the spans. Without dense rows `average_values` returns at once.
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
    expm1_ratio,
    first_bound,
    is_climbing,
    newton_step,
    relative_weights,
    solved_from,
    sums,
)

# A block of COLUMNS keys is dealt to its TILES tiles in runs of _NEIGHBOURS neighbouring keys: run 0 to tile 0, run 1
# to tile 1, and so on. One warp holds a run.
_NEIGHBOURS = tl.constexpr(8)
_MOST_STEPS = tl.constexpr(40)
# Arguments that Triton does not specialise: one compiled kernel serves caches of all lengths.
ANY_LENGTH = ("span", "tiles", "row_blocks", "queries", "keys", "diagonal", "spans")


class Queries(NamedTuple):
    """A block of queries of the heads that share one head of keys."""

    b: Any  # index of the sequence
    g: Any  # index of the key head in the sequence
    h: Any  # head of each query, int64
    i: Any  # position of each query, int64
    row: Any  # index of each query among the B·H·Q queries, int64
    inside: Any  # whether each query exists
    ends: Any  # each query may attend only keys before this one
    end: Any  # the largest of `ends`


@triton.jit
def queries_of_program(
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


@triton.jit
def load_queries(Q, block, qb, qh, qi, D: tl.constexpr, WIDTH: tl.constexpr):
    """The queries of a block, (ROWS, WIDTH)."""
    d = tl.arange(0, WIDTH)
    at = block.b * qb + block.h * qh + block.i * qi
    return tl.load(Q + at[:, None] + d[None, :], mask=block.inside[:, None] & (d < D)[None, :], other=0.0)


class HeadExtras(NamedTuple):
    """Scale, mask and bias of the scores of all heads: `Extras` before a head is chosen."""

    scale: Any  # factor of the products
    mask: Any  # pointer to the mask
    mask_strides: Any  # along sequences, heads, queries and keys
    has_mask: tl.constexpr  # whether the mask is read
    bias: Any  # pointer to the bias
    bias_strides: Any  # along sequences, heads, queries and keys
    has_bias: tl.constexpr  # whether the bias is read


@triton.jit
def extras_of(extras, b, h):
    """The `Extras` of heads h, a number or a tensor, of sequence b."""
    mask, bias = extras.mask_strides, extras.bias_strides
    return Extras(
        extras.scale, extras.mask + (b * mask[0] + h * mask[1]), (mask[2], mask[3]), extras.has_mask,
        extras.bias + (b * bias[0] + h * bias[1]), (bias[2], bias[3]), extras.has_bias,
    )  # fmt: skip


@triton.jit
def _scores_of_block(z, n, block, queries, group, extras, FEW: tl.constexpr):
    """Scores (ROWS, COLUMNS) from products with keys from key n on.

    FEW is the number of rows if they are few and have a mask or a bias, else 0.
    """
    j = n + tl.arange(0, z.shape[1])
    wide, allowed = j.to(tl.int64), j[None, :] < block.ends[:, None]
    if FEW == 0:
        of_rows = extras_of(extras, block.b, block.h[:, None])
        return with_extras(z, block.i[:, None], wide[None, :], allowed, extras.scale, of_rows)
    else:
        # A product has at least 16 rows, most of which do not exist: load masks and biases only of the FEW that do.
        row, added = tl.arange(0, z.shape[0]), tl.zeros(z.shape, tl.float32)
        for r in tl.static_range(FEW):
            of_row = extras_of(extras, block.b, block.g * group + r // queries)
            i = tl.cast(r % queries, tl.int64)
            one = with_extras(tl.zeros([z.shape[1]], tl.float32), i, wide, j < block.end, 1.0, of_row)
            added = tl.where((row == r)[:, None], one[None, :], added)
        x = z * extras.scale + added
        return tl.where(allowed & (added != NOTHING) & ((x >= NOTHING) | (x != x)), x, NOTHING)


@triton.jit
def store_scores(
    SCORES, MAXIMA, K, kj, n, q, block, tiles, queries, group, extras, D: tl.constexpr, WIDTH: tl.constexpr,
    ROWS: tl.constexpr, COLUMNS: tl.constexpr, TILES: tl.constexpr, FEW: tl.constexpr,
):  # fmt: skip
    """Write the scores and tile maxima of a block of keys, from key n on, for queries q (ROWS, WIDTH).

    Returns the maxima, (ROWS, TILES).
    """
    k = load_columns(K, kj, n, block.end, D, WIDTH, COLUMNS)
    z = tl.dot(q, k, input_precision=PRECISION)
    x = _scores_of_block(z, n, block, queries, group, extras, FEW)
    at_score = block.row * (tiles // TILES * COLUMNS)
    tl.store(SCORES + at_score[:, None] + (n + tl.arange(0, COLUMNS))[None, :], x, mask=block.inside[:, None])
    parts = tl.reshape(x, [ROWS, COLUMNS // (TILES * _NEIGHBOURS), TILES, _NEIGHBOURS])
    maxima = tl.reduce(tl.reduce(parts, 3, larger), 1, larger)
    at_maximum = (block.row * tiles)[:, None] + tl.arange(0, TILES)[None, :]
    tl.store(MAXIMA + at_maximum + n // COLUMNS * TILES, maxima, mask=block.inside[:, None])
    return maxima


@triton.jit(do_not_specialize=ANY_LENGTH)
def score_keys(
    Q, K, M, B, LENGTHS, SCORES, MAXIMA,
    span, tiles, queries, keys, diagonal, heads, group, scale,
    qb, qh, qi, kb, kh, kj, mb, mh, mi, mj, bb, bh, bi, bj,
    CAUSAL: tl.constexpr, HAS_MASK: tl.constexpr, HAS_BIAS: tl.constexpr, HAS_LENGTHS: tl.constexpr,
    D: tl.constexpr, WIDTH: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr, TILES: tl.constexpr,
    STAGES: tl.constexpr, FEW: tl.constexpr,
):  # fmt: skip
    """Write SCORES (B·H·Q, keys rounded up to whole blocks) and MAXIMA (B·H·Q, tiles) for a span of keys.

    Blocks of keys from `block.end` on, past the last key that any query of the program may attend, are not written.
    (Keys hidden by a mask are written, as NOTHING.)
    """
    block = queries_of_program(LENGTHS, queries, keys, diagonal, heads, group, CAUSAL, HAS_LENGTHS, ROWS)
    extras = HeadExtras(scale, M, (mb, mh, mi, mj), HAS_MASK, B, (bb, bh, bi, bj), HAS_BIAS)
    q = load_queries(Q, block, qb, qh, qi, D, WIDTH)
    K += block.b * kb + block.g * kh
    begin = tl.program_id(0) * span
    # By default Triton loads only operands of products ahead; with `num_stages` it loads masks and biases ahead too.
    for n in tl.range(begin, tl.minimum(begin + span, block.end), COLUMNS, num_stages=STAGES):
        store_scores(
            SCORES, MAXIMA, K, kj, n, q, block, tiles, queries, group, extras, D, WIDTH, ROWS, COLUMNS, TILES, FEW
        )  # fmt: skip


@triton.jit
def _upper_bound(normaliser, epsilon, size, K: tl.constexpr):
    """A number, (R,), up to which scores less their row's maximum have no mass, from a lower bound of the normaliser.

    It is a lower bound of the threshold less the maximum. `size` is the magnitude of the scores, to which their
    rounding errors are proportional.
    """
    reaches = epsilon > 0.0
    reach = 1.0 / tl.where(reaches, epsilon, 1.0)
    slack = 2.0 * rounding_of_bound(normaliser, K) + 1e-6 * (size + reach)
    return tl.where(reaches, tl.maximum(normaliser - reach - slack, 0.5 * NOTHING), 0.5 * NOTHING)


@triton.jit
def first_threshold(maxima, maximum, epsilon, K: tl.constexpr):
    """Bound the threshold of each row from some of its scores, (R, n), the largest of which is `maximum`, (R,).

    Returns the scores less the maximum, a lower bound of the normaliser, (R,), and `_upper_bound`, (R,).
    """
    y = tl.where(maxima > 0.5 * NOTHING, maxima - maximum[:, None], NOTHING)
    start = tl.zeros([maxima.shape[0]], tl.float32)
    normaliser, _ = climb(y, epsilon, start, start + 1.0, K, True)
    normaliser = tl.maximum(normaliser - rounding_of_bound(normaliser, K), 0.0)
    return y, normaliser, _upper_bound(normaliser, epsilon, tl.abs(maximum), K)


@triton.jit
def _estimate(X, end, maximum, epsilon, K: tl.constexpr, SAMPLE: tl.constexpr):
    """An estimate of the normaliser A and of t, (1,) each, for a row of `end` scores X in memory, from a sample.

    The sample, SAMPLE of the n = `end` scores, should have SAMPLE/n of the mass: Σ uᵏ = SAMPLE/n for its roots u. Then
    Σ (su)ᵏ = 1 for s = (n/SAMPLE)^ε: multiply the scores of the sample by s, solve for t, and divide t by s.
    """
    place = tl.arange(0, SAMPLE)
    # The sample consists of runs of eight neighbours: each run lies in one sector of memory.
    run = ((place // 8).to(tl.int64) * end // SAMPLE).to(tl.int32) * 8
    at = run + place % 8
    x = tl.load(X + at, mask=at < end, other=NOTHING)[None, :]
    ratio = tl.log(end * (1.0 / SAMPLE))
    scale = tl.exp(epsilon * ratio)
    y = tl.where(x > 0.5 * NOTHING, (x - maximum[:, None]) * scale[:, None], NOTHING)
    start, t = first_bound(y, epsilon, SAMPLE)
    normaliser, t = climb(y, epsilon, start, t, K, True)
    return normaliser / scale + ratio * expm1_ratio(-epsilon * ratio), t / scale


@triton.jit
def _solve_over(X, end, maximum, epsilon, normaliser, t, K: tl.constexpr, ROUGH: tl.constexpr, CHUNK: tl.constexpr):
    """t, (1,), of a row of scores X in memory, by Newton steps from an estimate of the normaliser A and its t.

    Newton steps from below A climb towards A. If the estimate is above A, the first step leads below A.
    """
    column = tl.arange(0, CHUNK)
    steps = 0
    climbing = True
    while climbing:
        weights, escorts = tl.zeros([1, CHUNK], tl.float32), tl.zeros([1, CHUNK], tl.float32)
        for n in tl.range(0, end, CHUNK, num_stages=3):
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
        moves = moves | is_climbing(-step, t, K, ROUGH)
        normaliser += step
        t -= epsilon * step
        steps += 1
        climbing = (tl.max(moves.to(tl.int32), 0) > 0) & (steps < _MOST_STEPS)
    return t


@triton.jit
def _list_candidates(
    SCORES, LIVE, memory, is_live, tile, maximum, below, COLUMNS: tl.constexpr, TILES: tl.constexpr,
    CANDIDATES: tl.constexpr, TOGETHER: tl.constexpr,
):  # fmt: skip
    """List the keys whose scores, less the maximum, exceed `below`, with these differences; return their number.

    `memory` are pointers to the lists of keys and of differences. If more than CANDIDATES keys or tiles qualify, the
    lists are incomplete, and the result is some number above CANDIDATES. Only `is_live` tiles are read.
    """
    KEYS, LISTED = memory
    TILE: tl.constexpr = COLUMNS // TILES
    live = tl.sum(is_live, 0)
    found = tl.full([], CANDIDATES + 1, tl.int32)
    if live <= CANDIDATES:
        tl.store(LIVE + tl.cumsum(is_live, 0) - 1, tile, mask=is_live > 0)
        tl.debug_barrier()  # other threads will read the tiles
        found = tl.zeros([], tl.int32)
        place = tl.arange(0, TILE)
        offset = place // _NEIGHBOURS * (TILES * _NEIGHBOURS) + place % _NEIGHBOURS
        for n in range(0, live, TOGETHER):
            slot = n + tl.arange(0, TOGETHER)
            of_tile = tl.load(LIVE + slot, mask=slot < live, other=0)
            first = of_tile // TILES * COLUMNS + of_tile % TILES * _NEIGHBOURS
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
    key = tl.load(KEYS + candidate, mask=candidate < found, other=0)
    _, _, weight, total, _ = solved_from(y, epsilon, normaliser, 1.0 - epsilon * normaliser, K, ROUGH)
    p = tl.reshape(weight / total[:, None], [CANDIDATES])
    has_weight = (p > 0.0).to(tl.int32)
    at = tl.cumsum(has_weight, 0) - 1
    tl.debug_barrier()  # all threads have read the lists
    tl.store(LISTED + at, p, mask=has_weight > 0)
    tl.store(KEYS + at, key, mask=has_weight > 0)
    tl.debug_barrier()
    size = tl.sum(has_weight, 0)
    c = tl.arange(0, VALUE_WIDTH)
    mean = tl.zeros([TOGETHER, VALUE_WIDTH], tl.float32)
    for n in range(0, size, TOGETHER):
        slot = n + tl.arange(0, TOGETHER)
        inside = slot < size
        weights = tl.load(LISTED + slot, mask=inside, other=0.0)
        at_value = tl.load(KEYS + slot, mask=inside, other=0).to(tl.int64) * vj
        v = tl.load(V + at_value[:, None] + c[None, :], mask=inside[:, None] & (c < C)[None, :], other=0.0)
        mean += weights[:, None] * v.to(tl.float32)
    return tl.sum(mean, 0)


@triton.jit
def _hide_keys(
    SCORES, MAXIMA, exists, is_hidden, tiles, COLUMNS: tl.constexpr, TILES: tl.constexpr, TOGETHER: tl.constexpr
):
    """Write NOTHING over scores in tiles whose maximum is NOTHING: scores of skipped pages are uninitialised memory."""
    if tl.max(is_hidden.to(tl.int32), 0) > 0:
        TILE: tl.constexpr = COLUMNS // TILES
        place = tl.arange(0, TILE)
        offset = place // _NEIGHBOURS * (TILES * _NEIGHBOURS) + place % _NEIGHBOURS
        nothing = tl.full([TOGETHER, TILE], NOTHING, tl.float32)
        for n in range(0, tl.sum(exists.to(tl.int32), 0), TOGETHER):
            tile = n + tl.arange(0, TOGETHER)
            hidden = tl.load(MAXIMA + tile, mask=tile < tiles, other=0.0) == NOTHING
            first = tile // TILES * COLUMNS + tile % TILES * _NEIGHBOURS
            tl.store(SCORES + first[:, None] + offset[None, :], nothing, mask=hidden[:, None])
        tl.debug_barrier()  # other threads will read the scores


@triton.jit
def _store_mean(OUT, mean, C: tl.constexpr):
    """Store the mean of the values of one row."""
    c = tl.arange(0, mean.shape[0])
    tl.store(OUT + c, mean.to(OUT.dtype.element_ty), mask=c < C)


@triton.jit(do_not_specialize=ANY_LENGTH)
def solve_rows(
    V, LENGTHS, A, SCORES, MAXIMA, LIVE, KEYS, LISTED, STATES, FINISHED, OUT,
    tiles, row_blocks, queries, keys, diagonal, heads, group, fixed_epsilon, vb, vh, vj,
    ORDER: tl.constexpr, PER_HEAD: tl.constexpr, CAUSAL: tl.constexpr, HAS_LENGTHS: tl.constexpr,
    C: tl.constexpr, VALUE_WIDTH: tl.constexpr, COLUMNS: tl.constexpr, TILES: tl.constexpr, WIDE: tl.constexpr,
    CANDIDATES: tl.constexpr, SAMPLE: tl.constexpr, CHUNK: tl.constexpr, TILES_TOGETHER: tl.constexpr,
    VALUES_TOGETHER: tl.constexpr, SKIPS: tl.constexpr,
):  # fmt: skip
    """Write OUT (B·H·Q, C) of rows that are not dense, and STATES (B·H·Q, 2): maximum and t of dense rows, else t = 0.

    A row has up to WIDE tiles. LIVE, KEYS and LISTED (B·H·Q, CANDIDATES) are scratch: tiles that may have mass,
    candidate keys, and the candidates' scores less the maximum. FINISHED is set to 0, for `average_values`.
    """
    ROUGH: tl.constexpr = V.dtype.element_ty != tl.float32  # four digits are enough in half precision
    row = tl.program_id(0).to(tl.int64)
    head, i = row // queries, (row % queries).to(tl.int32)
    b, h = head // heads, head % heads
    end = end_of(i, keys_of(LENGTHS, b, keys, HAS_LENGTHS), diagonal, CAUSAL)
    SCORES += row * (tiles // TILES * COLUMNS)
    memory = (KEYS + row * CANDIDATES, LISTED + row * CANDIDATES)
    STATES, OUT = STATES + row * 2, OUT + row * C
    if row < tl.num_programs(0) // (group * queries) * row_blocks:
        tl.store(FINISHED + row, 0)
    tile = tl.arange(0, WIDE)
    exists = tile < (end + COLUMNS - 1) // COLUMNS * TILES
    maxima = tl.load(MAXIMA + row * tiles + tile, mask=exists, other=NOTHING)[None, :]
    maximum = tl.reduce(maxima, 1, larger)
    epsilon = epsilon_of_heads(A, fixed_epsilon, h, PER_HEAD, 1)
    is_broken = (maximum * 0.0 != 0.0) | (epsilon != epsilon)
    can_attend = (is_broken == 0) & (maximum > 0.5 * NOTHING)
    if tl.max(can_attend.to(tl.int32), 0) == 0:
        tl.store(STATES + 1, 0.0)
        _store_mean(OUT, tl.zeros([VALUE_WIDTH], tl.float32) + tl.where(is_broken, float("nan"), 0.0), C)
    else:
        y, normaliser, below = first_threshold(maxima, maximum, epsilon, ORDER)
        is_live = tl.reshape((y > below[:, None]).to(tl.int32), [WIDE])
        found = _list_candidates(
            SCORES, LIVE + row * CANDIDATES, memory, is_live, tile, maximum, below, COLUMNS, TILES, CANDIDATES,
            TILES_TOGETHER,
        )  # fmt: skip
        if found <= CANDIDATES:
            V += b * vb + (h // group) * vh
            mean = _mean_of_candidates(
                V, vj, memory, found, epsilon, normaliser, ORDER, ROUGH, C, VALUE_WIDTH, CANDIDATES,
                VALUES_TOGETHER,
            )  # fmt: skip
            tl.store(STATES + 1, 0.0)
            _store_mean(OUT, mean, C)
        else:
            if SKIPS:
                is_hidden = exists & (tl.reshape(maxima, [WIDE]) == NOTHING)
                _hide_keys(SCORES, MAXIMA + row * tiles, exists, is_hidden, tiles, COLUMNS, TILES, TILES_TOGETHER)
            estimate, t = _estimate(SCORES, end, maximum, epsilon, ORDER, SAMPLE)
            t = tl.where(estimate > normaliser, t, 1.0 - epsilon * normaliser)
            normaliser = tl.maximum(normaliser, estimate)
            t = _solve_over(SCORES, end, maximum, epsilon, normaliser, t, ORDER, ROUGH, CHUNK)
            tl.store(STATES, tl.max(maximum, 0))
            tl.store(STATES + 1, tl.max(t, 0))


@triton.jit(do_not_specialize=ANY_LENGTH)
def average_values(
    V, LENGTHS, A, SCORES, STATES, FINISHED, PARTS, TOTALS, OUT,
    span, tiles, spans, queries, keys, diagonal, heads, group, fixed_epsilon, vb, vh, vj,
    ORDER: tl.constexpr, PER_HEAD: tl.constexpr, CAUSAL: tl.constexpr, HAS_LENGTHS: tl.constexpr,
    HIDES: tl.constexpr, C: tl.constexpr, VALUE_WIDTH: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr,
    TILES: tl.constexpr, SPANS_TOGETHER: tl.constexpr,
):  # fmt: skip
    """Write OUT (B·H·Q, C) of dense rows. Weights are divided by their largest, against underflow in half precision.

    Each program writes PARTS (B·H·Q, spans, C), weighted sums of values over a span, and TOTALS (B·H·Q, spans), sums of
    weights. FINISHED counts the finished programs of each block of queries; the last of them adds up the spans.
    HIDES says that keys may be masked or unread: then values whose weights are all 0 are not read.
    """
    ROUGH: tl.constexpr = V.dtype.element_ty != tl.float32
    block = queries_of_program(LENGTHS, queries, keys, diagonal, heads, group, CAUSAL, HAS_LENGTHS, ROWS)
    t = tl.load(STATES + block.row * 2 + 1, mask=block.inside, other=0.0)
    begin = tl.program_id(0) * span
    if (tl.max(t, 0) > 0.0) & (begin < block.end):
        is_dense = t > 0.0
        t = tl.where(is_dense, t, 1.0)
        maximum = tl.load(STATES + block.row * 2, mask=is_dense, other=0.0)
        epsilon = tl.where(is_dense, epsilon_of_heads(A, fixed_epsilon, block.h, PER_HEAD, ROWS), 0.5)
        largest, _escort = relative_weights(tl.zeros([ROWS, 1], tl.float32), t, epsilon, ORDER, ROUGH)
        c, column = tl.arange(0, VALUE_WIDTH), tl.arange(0, COLUMNS)
        V += block.b * vb + block.g * vh
        at_value = column[:, None] * vj + c[None, :]
        at_score = block.row * (tiles // TILES * COLUMNS)
        part = tl.zeros([ROWS, VALUE_WIDTH], tl.float32)
        totals = tl.zeros([ROWS, LANES], tl.float32)
        for n in range(begin, tl.minimum(begin + span, block.end), COLUMNS):
            x = tl.load(SCORES + at_score[:, None] + (n + column)[None, :], mask=is_dense[:, None], other=NOTHING)
            if HIDES:  # a row's scores past its own end are undefined where their page was not read
                x = tl.where((n + column)[None, :] < block.ends[:, None], x, NOTHING)
            y = tl.where(x > 0.5 * NOTHING, x - maximum[:, None], NOTHING)
            weight, _ = relative_weights(y, t, epsilon, ORDER, ROUGH)
            weight = tl.where(y > 0.5 * NOTHING, weight / largest, 0.0)
            totals += by_lane(weight)
            is_wanted = n + column < block.end
            if HIDES:
                is_wanted = tl.max(weight, 0) > 0.0
            v = tl.load(V + start_of(n, vj) + at_value, mask=is_wanted[:, None] & (c < C)[None, :], other=0.0)
            part = tl.dot(weight.to(v.dtype), v, part, input_precision=PRECISION)
        at = block.row * spans
        written = (at + tl.program_id(0)) * C
        tl.store(PARTS + written[:, None] + c[None, :], part, mask=is_dense[:, None] & (c < C)[None, :])
        tl.store(TOTALS + at + tl.program_id(0), tl.sum(totals, 1), mask=is_dense)
        tl.debug_barrier()  # all threads have stored
        count = (block.end + span - 1) // span
        program = tl.program_id(1) * tl.num_programs(2) + tl.program_id(2)
        if tl.atomic_add(FINISHED + program, 1) == count - 1:
            sums_of_values = tl.zeros([ROWS, SPANS_TOGETHER, VALUE_WIDTH], tl.float32)
            sums_of_weights = tl.zeros([ROWS, SPANS_TOGETHER], tl.float32)
            for n in tl.range(0, count, SPANS_TOGETHER, num_stages=3):
                of_span = n + tl.arange(0, SPANS_TOGETHER)
                wanted = is_dense[:, None] & (of_span < count)[None, :]
                place = at[:, None] + of_span[None, :]
                sums_of_weights += tl.load(TOTALS + place, mask=wanted, other=0.0)
                parts = PARTS + (place * C)[:, :, None] + c[None, None, :]
                sums_of_values += tl.load(parts, mask=wanted[:, :, None] & (c < C)[None, None, :], other=0.0)
            total = tl.sum(sums_of_weights, 1)
            mean = tl.sum(sums_of_values, 1) / tl.where(total > 0.0, total, 1.0)[:, None]
            at_mean = (block.row * C)[:, None] + c[None, :]
            tl.store(OUT + at_mean, mean.to(OUT.dtype.element_ty), mask=is_dense[:, None] & (c < C)[None, :])
