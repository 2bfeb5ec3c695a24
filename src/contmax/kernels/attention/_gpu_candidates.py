r"""Candidate lists: the keys of each row that may have mass, with their scores, from the tile maxima of the row.

Tile maxima (`_gpu_tile_maxima`) are scores of a part of the keys, and the threshold of a part is a lower bound of the
row's threshold: scores below this bound have no mass. A tile with one of its two maxima above the bound has one key to
list (`list_keys`). A tile with both above it may have more keys to list and is *undecided*: its keys are multiplied
again (`list_undecided`), though mostly no third key has mass. A program takes sixteen rows and every tile that is
undecided for any of these rows, since neighbouring rows often share undecided tiles.

A block of rows is left to the kernels for dense blocks (`_gpu_dense`) if a list overflows, if nearly all keys may have
mass, or if a row has so many undecided tiles that a whole product of matrices would cost less. `_gpu_scores` defines
the symbols.
"""

import triton
import triton.language as tl

from contmax.kernels.attention._gpu_scores import (
    ANY_POWER,
    ANY_SIZE,
    DENSE_ROWS,
    LANES,
    PRECISION,
    Extras,
    are_allowed,
    epsilon_of_heads,
    gathered,
    has_power,
    larger,
    limits_of,
    line_of_roots,
    load_rows,
    powers_of_line,
    with_extras,
)
from contmax.kernels.gpu._instructions import store_scattered
from contmax.kernels.rows._gpu_solve import NOTHING, newton_step, relative_weights

# Newton's method raises a lower bound of the normaliser in _STEPS steps, and in _CLOSER_STEPS more if lists would not
# pay with this bound (`_decided`).
_STEPS = tl.constexpr(3)
_CLOSER_STEPS = tl.constexpr(2)
# Tile maxima of long rows are merged before a first bound is computed; at least this number of them must remain.
_FEWEST = tl.constexpr(64)
# Marks in DENSE say which kernel found a block to be dense. Several programs of `list_undecided` share a block: one may
# write the second mark while threads of another read it. So `list_undecided` tests for the first mark only: then all
# threads of a program take the same branch, whether they read before or after the write.
DENSE_BY_MAXIMA = tl.constexpr(1)
DENSE_BY_LISTS = tl.constexpr(2)
# A block is dense if, of all keys allowed to the rows of a program, at least this share may have mass. Exempt are
# blocks whose rows have at most _SHORTEST_WHOLE keys each: their lists are short in any case.
_NEARLY_ALL = tl.constexpr(0.875)
_SHORTEST_WHOLE = tl.constexpr(64)
# Listed keys per row that `_score_again` takes at a time.
_AGAIN = tl.constexpr(4)


@triton.jit
def _halved(x):
    """The elementwise maximum of the two halves of x (P, R, n) along the last axis; NaN where either is NaN.

    One thread holds the whole axis, so threads exchange nothing.
    """
    halves = tl.reshape(x, [x.shape[0], x.shape[1], 2, x.shape[2] // 2])
    a, b = tl.split(tl.permute(halves, (0, 1, 3, 2)))
    return larger(a, b)


@triton.jit
def _by_rows(x):
    """Reshape x, (P, R, n), to (R, P·n)."""
    return tl.reshape(tl.permute(x, (1, 0, 2)), [x.shape[1], x.shape[0] * x.shape[2]])


@triton.jit
def rounding_of_bound(normaliser, K: tl.constexpr):
    """The largest error, (R,), by which rounding of weights can raise a lower bound of the normaliser."""
    rounding: tl.constexpr = 1e-3 if K == ANY_POWER else 5e-5 if K == 0 else 1e-5
    return rounding * (1.0 + normaliser)


@triton.jit
def _sums(maxima, maximum, unit, ok, t, epsilon, K: tl.constexpr):
    """Sums, (R,) each, of the weights and the escorts p^{2−α} of tile maxima (R, n); 0 for rows that are not `ok`."""
    if K == ANY_POWER:  # next to α = 1 roots would lose digits
        y = tl.where(ok[:, None] & (maxima >= 0.5 * NOTHING), (maxima - maximum[:, None]) * unit, NOTHING)
        weight, escort = relative_weights(y, t, epsilon, K, True)
    else:
        # Subtract the maximum first: roots of scores with a large common offset would lose all digits.
        slope, base = line_of_roots(0.0, t, epsilon, unit, K)
        slope, base = tl.where(ok, slope, 0.0), tl.where(ok, base, 0.0)
        weight, escort, _ = powers_of_line(maxima - maximum[:, None], slope, base, epsilon, K)
    return tl.sum(weight, 1), tl.sum(escort, 1)


@triton.jit
def bound_of_part(scores, unit, epsilon, K: tl.constexpr):
    """Bound the normaliser of each row from the scores of a part of its keys, (R, n), given as multiples of `unit`.

    Returns three results, (R,) each: the maximum of the scores, or 0 if it is not finite or all keys are masked; a
    lower bound of the normaliser, up to rounding; and whether the maximum is finite.
    """
    maximum = tl.reduce(scores, 1, larger)
    ok = maximum * 0.0 == 0.0
    maximum = tl.where(ok & (maximum > 0.5 * NOTHING), maximum, 0.0)
    normaliser = tl.zeros([scores.shape[0]], tl.float32)
    for _ in tl.static_range(_STEPS):
        t = 1.0 - epsilon * normaliser
        total, slope = _sums(scores, maximum, unit, ok, t, epsilon, K)
        normaliser += newton_step(total, slope, normaliser, t, epsilon, K, True)
    return maximum, normaliser, ok


@triton.jit
def _closer(first, second, maximum, unit, ok, epsilon, normaliser, K: tl.constexpr):
    """Raise a lower bound of the normaliser by Newton steps on `first` and `second`, the maxima of tiles (P, R, n)."""
    for _ in range(_CLOSER_STEPS):
        t = 1.0 - epsilon * normaliser
        total, slope = _sums(_by_rows(first), maximum, unit, ok, t, epsilon, K)
        others, other_slope = _sums(_by_rows(second), maximum, unit, ok, t, epsilon, K)
        normaliser += newton_step(total + others, slope + other_slope, normaliser, t, epsilon, K, True)
    return normaliser


@triton.jit
def _decided(
    first, second, maximum, unit, ok, epsilon, normaliser, allowed, most,
    K: tl.constexpr, WIDE: tl.constexpr, CAPACITY: tl.constexpr,
):  # fmt: skip
    """Classify tiles by their maxima, (P, R, n) each, and a lower bound of the normaliser. Returns

    * per row, (R,) each: the lower bound of the normaliser, made safe against rounding; and a lower bound of the
      threshold, less the maximum of the row;
    * the kind of each tile: 1 if it has one key to list, 65536 if it is undecided, else 0;
    * sums of kinds over the tiles of a thread, (P, R), and over the tiles of a row, (R,);
    * whether lists do not pay: a row overflows its list, or has more than `most` undecided tiles, or nearly all keys of
      the rows may have mass (`allowed`, (R,), are the numbers of keys that the rows may attend).
    """
    reaches = epsilon > 0.0
    reach = 1.0 / tl.where(reaches, epsilon, 1.0)
    # The bounds allow for the last bits of scores, which `tile_maxima` overwrote: an error proportional to |maximum|.
    slack = rounding_of_bound(normaliser, K) + (WIDE / 8388608.0) * (tl.abs(maximum * unit) + reach)
    normaliser -= slack
    below = tl.where(reaches, normaliser - reach - slack, -float("inf"))
    bound = tl.maximum(maximum + below / tl.maximum(unit, 1e-30), 0.5 * NOTHING)
    bound = tl.where(ok, bound, float("inf"))[None, :, None]
    kinds = tl.where(second > bound, 65536, (first > bound).to(tl.int32))
    sums = tl.sum(kinds, 2)
    counted = tl.sum(sums, 0)
    listed, undecided = counted & 65535, counted >> 16
    # An undecided tile has at least two keys to list.
    overflows = ok & ((listed + 2 * undecided > CAPACITY) | (undecided > most))
    # Lists of nearly all keys cost more than a dense block, except in short rows. Sums of integers decide, because all
    # threads must agree (`gpu/README.md`).
    reached = tl.sum(tl.where(ok, listed + undecided * (WIDE // 4), 0), 0)
    allowed = tl.where(ok, allowed, 0)
    are_whole = (reached >= tl.sum(allowed, 0) * _NEARLY_ALL) & (tl.max(allowed, 0) > _SHORTEST_WHOLE)
    return normaliser, below, kinds, sums, counted, (tl.max(overflows.to(tl.int32), 0) > 0) | are_whole


@triton.jit
def mark_of(DENSE, head, row, queries):
    """Load the mark of the block of rows to which `row` belongs; 0 means that the block is not dense."""
    return tl.load(DENSE + head * ((queries + DENSE_ROWS - 1) // DENSE_ROWS) + row // DENSE_ROWS)


@triton.jit
def mark_dense(DENSE, ANY_DENSE, head, row, queries, group, MARK: tl.constexpr):
    """Mark the block of rows to which `row` belongs as dense; ANY_DENSE gets 1 at its key head."""
    tl.store(DENSE + head * ((queries + DENSE_ROWS - 1) // DENSE_ROWS) + row // DENSE_ROWS, MARK)
    tl.store(ANY_DENSE + head // group, 1)


@triton.jit
def first_key_of(tile, WIDE: tl.constexpr):
    """The first key of a tile."""
    return (tile // LANES) * WIDE + (tile % LANES) * 2


@triton.jit
def place_of(maximum, WIDE: tl.constexpr):
    """The place of a maximum in its tile: `tile_maxima` wrote it over the last bits of the score."""
    return maximum.to(tl.int32, bitcast=True) & (WIDE // 4 - 1)


@triton.jit
def distance_of(place):
    """The offset of a key from the first key of its tile: places 0, 1, 2, 3, … have the offsets 0, 1, 8, 9, …"""
    return (place & -2) * 4 + (place & 1)


# If Triton specialised `maxima_of_row` for its alignment, each thread would load neighbouring maxima, and threads would
# have to exchange all maxima to store lists.
@triton.jit(do_not_specialize=(*ANY_SIZE, "maxima_of_row", "most"))
def list_keys(
    LIMITS, A, MAXIMA, TILES, TILE_COUNTS, BITS, BOUNDS, KEYS, SCORES, COUNTS, STARTS, DENSE, ANY_DENSE,
    begin, last, maxima_of_row, most, queries, keys, diagonal, heads, group, scale, fixed_epsilon,
    ORDER: tl.constexpr, PER_HEAD: tl.constexpr,
    CAUSAL: tl.constexpr, HAS_BIAS: tl.constexpr, HAS_LENGTHS: tl.constexpr, HAS_SPANS: tl.constexpr,
    R: tl.constexpr, T: tl.constexpr, P: tl.constexpr, WIDE: tl.constexpr, CAPACITY: tl.constexpr,
):  # fmt: skip
    """Write KEYS and SCORES (heads, queries, CAPACITY) and COUNTS (heads, queries) for queries begin … last − 1.

    SCORES hold score − maximum of the row. STARTS (heads, queries, 2) gets this maximum, NaN for a row with NaN, and a
    lower bound of the normaliser A. A program lists R rows; P threads share the T tiles of a row, so that one
    instruction serves several rows. For `list_undecided`: TILES (heads, programs, T) get the tiles that are undecided
    for any of the R rows, and TILE_COUNTS (heads, programs) their number; bit i of BITS (heads, programs, P, R), at
    (p, r), is set if tile p + P·i is undecided for row r; BOUNDS (heads, queries) get lower bounds of the
    thresholds of the rows, less their maxima.

    Where lists do not pay (`_decided`), the program marks its block in DENSE (heads, blocks) and lists nothing.
    """
    head = tl.program_id(1).to(tl.int64)
    b, h = head // heads, head % heads
    start = begin + tl.program_id(0) * R
    rows = start + tl.arange(0, R)
    inside = rows < last
    for POWER in tl.static_range(ORDER, 1 if PER_HEAD else ORDER + 1):
        if has_power(A, h, POWER, PER_HEAD):
            begins, ends = limits_of(
                LIMITS, b, head, rows, inside, queries, keys, diagonal, CAUSAL, HAS_LENGTHS, HAS_SPANS
            )  # fmt: skip
            epsilon = epsilon_of_heads(A, fixed_epsilon, h, PER_HEAD, R)
            unit = 1.0 if HAS_BIAS else scale
            S: tl.constexpr = T // P
            turn = tl.arange(0, S)[None, None, :]
            tile = tl.arange(0, P)[:, None, None] + turn * P
            wanted = inside[None, :, None] & (tile < ((ends + WIDE - 1) // WIDE * LANES)[None, :, None])
            if HAS_SPANS:
                wanted = wanted & (tile >= (begins // WIDE * LANES)[None, :, None])
            at_maxima = MAXIMA + (head * (last - begin) + (rows - begin)) * maxima_of_row
            first = tl.load(at_maxima[None, :, None] + tile * 2, mask=wanted, other=NOTHING)
            # Merge only distant tiles: a merge loses the smaller maximum, and neighbours often both have mass.
            largest = first
            if S >= 2 and T >= 2 * _FEWEST:
                largest = _halved(largest)
            if S >= 4 and T >= 4 * _FEWEST:
                largest = _halved(largest)
            largest = _by_rows(largest)
            known = epsilon == epsilon
            epsilon = tl.where(known, epsilon, 0.5)
            maximum, normaliser, ok = bound_of_part(largest, unit, epsilon, POWER)
            known = known & ok
            ok, base = inside & known, maximum * unit
            second = tl.load(at_maxima[None, :, None] + tile * 2 + 1, mask=wanted, other=NOTHING)
            normaliser, below, kinds, sums, counted, overflows = _decided(
                first, second, maximum, unit, ok, epsilon, normaliser, ends - begins, most, POWER, WIDE, CAPACITY
            )  # fmt: skip
            if overflows:
                normaliser = _closer(first, second, maximum, unit, ok, epsilon, normaliser, POWER)
                normaliser, below, kinds, sums, counted, overflows = _decided(
                    first, second, maximum, unit, ok, epsilon, normaliser, ends - begins, most, POWER, WIDE, CAPACITY
                )  # fmt: skip
            at_row = head * queries + rows
            store_scattered(STARTS + at_row * 2, tl.where(known, base, float("nan")), inside)
            store_scattered(STARTS + at_row * 2 + 1, normaliser, inside)
            if overflows:
                # The lists of a dense block are not used.
                mark_dense(DENSE, ANY_DENSE, head, start, queries, group, DENSE_BY_MAXIMA)
            else:
                # List the keys of decided tiles; note undecided tiles for `list_undecided`.
                slot = ((tl.cumsum(sums, 0) - sums)[:, :, None] + tl.cumsum(kinds, 2) - kinds) & 65535
                key = first_key_of(tile, WIDE) + distance_of(place_of(first, WIDE))
                tl.store((KEYS + at_row * CAPACITY)[None, :, None] + slot, key, mask=kinds == 1)
                score = tl.fma(first, unit, -base[None, :, None])
                tl.store((SCORES + at_row * CAPACITY)[None, :, None] + slot, score, mask=kinds == 1)
                undecided = tl.sum(tl.where(kinds > 1, 1 << turn, 0), 2)
                any_undecided = tl.reduce_or(undecided, 1)
                any_undecided = tl.reshape((any_undecided[:, None] >> tl.arange(0, S)[None, :]) & 1, [T])
                any_tile = tl.arange(0, T) // S + (tl.arange(0, T) % S) * P
                program = head * tl.num_programs(0) + tl.program_id(0)
                tl.store(TILES + program * T + tl.cumsum(any_undecided, 0) - 1, any_tile, mask=any_undecided > 0)
                tl.store(TILE_COUNTS + program, tl.sum(any_undecided, 0))
                of_threads = tl.arange(0, P)[:, None] * R + tl.arange(0, R)[None, :]
                tl.store(BITS + program * (P * R) + of_threads, undecided)
                store_scattered(BOUNDS + at_row, below, inside)
                store_scattered(COUNTS + at_row, counted & 65535, inside)


@triton.jit
def _score_again(
    q, K, kj, row, base, KEYS, SCORES, at_row, count, extras, D: tl.constexpr, WIDTH: tl.constexpr,
    CAPACITY: tl.constexpr,
):  # fmt: skip
    """Compute scores of all listed keys again, in float32, from queries q (R, WIDTH), and store them in SCORES."""
    tl.debug_barrier()
    for n in range(0, tl.max(count, 0), _AGAIN):
        slot = n + tl.arange(0, _AGAIN)
        exists = slot[None, :] < count[:, None]
        at = (at_row * CAPACITY)[:, None] + slot[None, :]
        j = tl.load(KEYS + at, mask=exists, other=0).to(tl.int64)
        z = tl.sum(q.to(tl.float32)[:, None, :] * gathered(K, kj, j, exists, D, WIDTH), 2)
        x = with_extras(z, row, j, exists, extras.scale, extras)
        tl.store(SCORES + at, x - base[:, None], mask=exists)


@triton.jit
def _appended(to_keys, to_scores, found, j, y, has_mass, order, CAPACITY: tl.constexpr):
    """Append keys j (n,) and scores y where `has_mass` (R, n) to lists of `found` entries, (R,). Returns new counts."""
    # A product with the triangular matrix `order` is a cumulative sum in the layout of the scores.
    slot = found[:, None] + tl.dot(has_mass.to(tl.float16), order).to(tl.int32) - 1
    slot = tl.minimum(slot, CAPACITY - 1)  # overflowing lists are never read
    store_scattered(to_keys[:, None] + slot, tl.broadcast_to(j[None, :], slot.shape), has_mass)
    store_scattered(to_scores[:, None] + slot, y, has_mass)
    return found + tl.sum(has_mass.to(tl.int32), 1)


@triton.jit(do_not_specialize=ANY_SIZE)
def list_undecided(
    Q, K, M, B, LIMITS, MAXIMA, TILES, TILE_COUNTS, BITS, BOUNDS, KEYS, SCORES, COUNTS, STARTS, DENSE, ANY_DENSE,
    begin, last, tiles, queries, keys, diagonal, heads, group, scale,
    qb, qh, qi, kb, kh, kj, mb, mh, mi, mj, bb, bh, bi, bj,
    CAUSAL: tl.constexpr, HAS_MASK: tl.constexpr, HAS_BIAS: tl.constexpr, HAS_LENGTHS: tl.constexpr,
    HAS_SPANS: tl.constexpr,
    EXACT: tl.constexpr, D: tl.constexpr, WIDTH: tl.constexpr, R: tl.constexpr, T: tl.constexpr, P: tl.constexpr,
    WIDE: tl.constexpr, CAPACITY: tl.constexpr, TOGETHER: tl.constexpr,
):  # fmt: skip
    """Append the keys of undecided tiles to KEYS and SCORES, from TILES, TILE_COUNTS, BITS and BOUNDS of `list_keys`.

    Each product has TOGETHER keys. The kernel reads from BITS which tiles are undecided. It must not decide this again:
    with other rounding, a tile whose key is already listed might come out as undecided. With EXACT all listed scores
    are computed again, in float32.
    """
    head = tl.program_id(1).to(tl.int64)
    program = head * tl.num_programs(0) + tl.program_id(0)
    number = tl.load(TILE_COUNTS + program)
    start = begin + tl.program_id(0) * R
    # Skip blocks that `list_keys` found to be dense, because their lists are not used.
    if ((number > 0) | EXACT) & (mark_of(DENSE, head, start, queries) != DENSE_BY_MAXIMA):
        b, h = head // heads, head % heads
        rows = start + tl.arange(0, R)
        inside = rows < last
        at_row = head * queries + rows
        base = tl.load(STARTS + at_row * 2, mask=inside, other=0.0)
        below = tl.load(BOUNDS + at_row, mask=inside, other=0.0)
        found = tl.load(COUNTS + at_row, mask=inside, other=0)
        begins, ends = limits_of(
            LIMITS, b, head, rows, inside, queries, keys, diagonal, CAUSAL, HAS_LENGTHS, HAS_SPANS
        )  # fmt: skip
        last_end = tl.max(tl.where(inside, ends, 0), 0)
        row = rows.to(tl.int64)[:, None]
        q = load_rows(Q + (b * qb + h * qh), qi, start, inside, D, WIDTH)
        extras = Extras(scale, M + (b * mb + h * mh), (mi, mj), HAS_MASK, B + (b * bb + h * bh), (bi, bj), HAS_BIAS)
        K += b * kb + (h // group) * kh
        maxima = MAXIMA.to(tl.pointer_type(tl.int64), bitcast=True) + (head * (last - begin) + (rows - begin)) * tiles
        unit = 1.0 if HAS_BIAS else scale
        to_keys, to_scores = KEYS + at_row * CAPACITY, SCORES + at_row * CAPACITY
        place = tl.arange(0, TOGETHER)
        d = tl.arange(0, WIDTH)
        at_key = distance_of(place)[None, :] * kj + d[:, None]
        order = (place[:, None] <= place[None, :]).to(tl.float16)
        for m in range(0, number * (WIDE // 4) // TOGETHER):
            tile, part = tl.load(TILES + program * T + m // (WIDE // 4 // TOGETHER)), m % (WIDE // 4 // TOGETHER)
            # Load both maxima as one int64.
            both = tl.load(maxima + tile, mask=inside, other=0)
            first = both.to(tl.int32).to(tl.float32, bitcast=True)
            second = (both >> 32).to(tl.int32).to(tl.float32, bitcast=True)
            bits = tl.load(BITS + (program * P + tile % P) * R + tl.arange(0, R))
            undecided = ((bits >> (tile // P)) & 1) != 0
            # Masked keys have the score NOTHING and stay below the bound, even where α = 1 gives every score mass.
            least = tl.where(undecided, tl.maximum(below, 0.5 * NOTHING), float("inf"))
            high, low = place_of(first, WIDE), place_of(second, WIDE)
            origin = first_key_of(tile, WIDE)
            if part == 0:
                slot = tl.minimum(found, CAPACITY - 2)
                store_scattered(to_keys + slot, origin + distance_of(high), undecided)
                store_scattered(to_keys + slot + 1, origin + distance_of(low), undecided)
                store_scattered(to_scores + slot, tl.fma(first, unit, -base), undecided)
                store_scattered(to_scores + slot + 1, tl.fma(second, unit, -base), undecided)
                found += tl.where(undecided, 2, 0)
            origin += part * (TOGETHER * 4)
            j = origin + distance_of(place)
            k = tl.load(
                K + origin.to(tl.int64) * kj + at_key, mask=(j < last_end)[None, :] & (d < D)[:, None], other=0.0
            )
            z = tl.dot(q, k, input_precision=PRECISION)
            allowed = are_allowed(j, inside, begins, ends, HAS_SPANS)
            if HAS_MASK or HAS_BIAS:
                y = with_extras(z, row, j.to(tl.int64)[None, :], allowed, scale, extras) - base[:, None]
            else:
                y = tl.where(allowed, tl.fma(z, scale, -base[:, None]), NOTHING)
            here = (part * TOGETHER + place)[None, :]
            has_mass = (y > least[:, None]) & (here != high[:, None]) & (here != low[:, None])
            if tl.max(tl.max(has_mass.to(tl.int32), 1), 0) > 0:
                found = _appended(to_keys, to_scores, found, j, y, has_mass, order, CAPACITY)
        if EXACT:
            _score_again(
                q, K, kj, row, base, KEYS, SCORES, at_row, tl.minimum(found, CAPACITY), extras, D, WIDTH, CAPACITY
            )  # fmt: skip
        tl.store(COUNTS + at_row, found, mask=inside)
        if tl.max(found, 0) > CAPACITY:
            mark_dense(DENSE, ANY_DENSE, head, start, queries, group, DENSE_BY_LISTS)
