r"""Lists of the keys that may have mass in a row of attention, with their scores, from the tops of its tiles.

The tops of the tiles are scores of a part of the keys, and the threshold of a part is a lower bound of the row's own.
The largest tops of some tiles each give a bound that leaves few tiles. A tile with one top above that has one key to
list. One with two may have more: its keys are multiplied again (`_attention_doubted`). A row that needs more room than
a list has, or more work than a product of matrices, is left to `_attention_dense`, with all the others of its block of
rows.
"""

import triton
import triton.language as tl

from contmax.kernels.attention._gpu_powers import line_of_roots, powers_of_line
from contmax.kernels.attention._gpu_tops import (
    ANY_POWER,
    ANY_SIZE,
    LANES,
    end_of,
    epsilon_of_heads,
    has_power,
    keys_of,
    larger,
)
from contmax.kernels.gpu._instructions import store_apart
from contmax.kernels.rows._gpu_solve import NOTHING, newton_step, relative_weights

# Rows that are left to dense products together.
DENSE_ROWS = tl.constexpr(64)
# Newton's steps of a bound. Fewer leave a lower one, which is as right.
_STEPS = tl.constexpr(3)
_CLOSER_STEPS = tl.constexpr(2)
# A first bound is made of as many tops at least.
_FEWEST = tl.constexpr(64)
# Who found a block of rows to be dense. `list_doubted` asks for the first mark while its programs write the second: so
# all threads of a program get the same answer, whether they read before or after another program has written.
DENSE_BY_TOPS = tl.constexpr(1)
DENSE_BY_LISTS = tl.constexpr(2)


@triton.jit
def _halved(x):
    """The larger of both halves along the last axis of (P, R, n), which lie in one thread; NaN wins."""
    halves = tl.reshape(x, [x.shape[0], x.shape[1], 2, x.shape[2] // 2])
    a, b = tl.split(tl.permute(halves, (0, 1, 3, 2)))
    return larger(a, b)


@triton.jit
def _by_rows(x):
    """(P, R, n) as (R, Pn)."""
    return tl.reshape(tl.permute(x, (1, 0, 2)), [x.shape[1], x.shape[0] * x.shape[2]])


@triton.jit
def _less(tops, top, unit):
    """Scores less the largest, from tops (R, n); NOTHING as it was."""
    return tl.where(tops < 0.5 * NOTHING, NOTHING, (tops - top[:, None]) * unit)


@triton.jit
def rounding_of_bound(partition, K: tl.constexpr):
    """How much too large a bound of A, (R,), may be, as weights are good to some digits."""
    rounding: tl.constexpr = 1e-3 if K == ANY_POWER else 5e-5 if K == 0 else 1e-5
    return rounding * (1.0 + partition)


@triton.jit
def _lowest(partition, epsilon, size, K: tl.constexpr, WIDE: tl.constexpr):
    """From a bound of A, (R,), a surely lower one, and a bound of the scores that have mass.

    `size` is the magnitude of the scores, of which their last bits are lost: the largest may be below 0, and so may A.
    """
    reaches = epsilon > 0.0
    reach = 1.0 / tl.where(reaches, epsilon, 1.0)
    slack = rounding_of_bound(partition, K) + (WIDE / 8388608.0) * (size + reach)
    partition -= slack
    return partition, tl.where(reaches, partition - reach - slack, -float("inf"))


@triton.jit
def _as_top(below, top, unit, ok):
    """A bound of scores, (R,), as one of tops; above all of them for rows that are not ok."""
    return tl.where(ok, tl.maximum(top + below / tl.maximum(unit, 1e-30), 0.5 * NOTHING), float("inf"))


@triton.jit
def _counted(first, second, bound):
    """What kind each tile is, and sums of these along the last axis: 1 has one key to list, 65536 perhaps more, so that
    one sum counts both.
    """
    kinds = tl.where(second > bound[None, :, None], 65536, (first > bound[None, :, None]).to(tl.int32))
    return kinds, tl.sum(kinds, 2)


@triton.jit
def _sums(tops, top, unit, ok, t, epsilon, K: tl.constexpr):
    """Those of weights and of escorts of tops (R, n), (R,) each; 0 for rows that are not ok."""
    if K == ANY_POWER:  # next to α = 1 roots would lose digits
        y = tl.where(ok[:, None], _less(tops, top, unit), NOTHING)
        weight, escort = relative_weights(y, t, epsilon, K, True)
    else:
        # Tops less the largest are exact. Roots of tops would lose all digits of it where all share a large number.
        slope, base = line_of_roots(0.0, t, epsilon, unit, K)
        slope, base = tl.where(ok, slope, 0.0), tl.where(ok, base, 0.0)
        weight, escort, _ = powers_of_line(tops - top[:, None], slope, base, epsilon, K)
    return tl.sum(weight, 1), tl.sum(escort, 1)


@triton.jit
def _closer(first, second, top, unit, ok, epsilon, partition, K: tl.constexpr):
    """A bound of A from all tops, (P, R, n) each, and a lower one."""
    for _ in range(_CLOSER_STEPS):
        t = 1.0 - epsilon * partition
        total, slope = _sums(_by_rows(first), top, unit, ok, t, epsilon, K)
        others, other_slope = _sums(_by_rows(second), top, unit, ok, t, epsilon, K)
        partition += newton_step(total + others, slope + other_slope, partition, t, epsilon, K, True)
    return partition


@triton.jit
def mark_of(DENSE, head, row, queries):
    """What marks the block of a row: 0 where it is not dense."""
    return tl.load(DENSE + head * ((queries + DENSE_ROWS - 1) // DENSE_ROWS) + row // DENSE_ROWS)


@triton.jit
def mark_dense(DENSE, ANY_DENSE, head, row, queries, group, MARK: tl.constexpr):
    """The block of a row is dense."""
    tl.store(DENSE + head * ((queries + DENSE_ROWS - 1) // DENSE_ROWS) + row // DENSE_ROWS, MARK)
    tl.store(ANY_DENSE + head // group, 1)


@triton.jit
def first_key_of(tile, WIDE: tl.constexpr):
    """The first key of a tile."""
    return (tile // LANES) * WIDE + (tile % LANES) * 2


@triton.jit
def place_of(top, WIDE: tl.constexpr):
    """The place of a top in its tile."""
    return top.to(tl.int32, bitcast=True) & (WIDE // 4 - 1)


@triton.jit
def distance_of(place):
    """How far from the first key of its tile the one at a place is: eight for every two."""
    return (place & -2) * 4 + (place & 1)


# Were rows of tops known to be aligned, threads would load neighbours together, and exchange them all to store lists.
@triton.jit(do_not_specialize=(*ANY_SIZE, "row_of_tops", "most"))
def list_keys(
    LENGTHS, A, TOPS, SOME, NUMBERS, DOUBTS, BOUNDS, KEYS, SCORES, COUNTS, STARTS, DENSE, ANY_DENSE,
    begin, last, row_of_tops, most, queries, keys, diagonal, heads, group, scale, fixed_epsilon,
    ORDER: tl.constexpr, PER_HEAD: tl.constexpr,
    CAUSAL: tl.constexpr, HAS_BIAS: tl.constexpr, HAS_LENGTHS: tl.constexpr,
    R: tl.constexpr, T: tl.constexpr, P: tl.constexpr, WIDE: tl.constexpr, CAPACITY: tl.constexpr,
):  # fmt: skip
    """KEYS and SCORES (heads, queries, CAPACITY) and COUNTS (heads, queries), for the queries begin … last.

    Scores are less the largest top of the row. STARTS (heads, queries, 2) has that top, NaN for a row with NaN, and a
    lower bound of A. A program lists R rows, of each of which P threads hold T tops: so what is computed once for a row
    is computed for several by one instruction. SOME (heads, programs, T) are the tiles of which more keys may have mass
    in any of its rows, NUMBERS (heads, programs) how many they are, and DOUBTS (heads, programs, P, R) has a bit for
    each tile p + P·bit of a row that is set if it is one of them for this row. BOUNDS (heads, queries) are those of
    scores less the largest.

    DENSE (heads, blocks) is set where a row does not fit: where two keys of more than `most` tiles may have mass, or
    more keys than a list has room for. Then nothing is listed.
    """
    head = tl.program_id(1).to(tl.int64)
    b, h = head // heads, head % heads
    start = begin + tl.program_id(0) * R
    rows = start + tl.arange(0, R)
    inside = rows < last
    for POWER in tl.static_range(ORDER, 1 if PER_HEAD else ORDER + 1):
        if has_power(A, h, POWER, PER_HEAD):
            exist = keys_of(LENGTHS, b, keys, HAS_LENGTHS)
            ends = end_of(rows, exist, diagonal, CAUSAL)
            epsilon = epsilon_of_heads(A, fixed_epsilon, h, PER_HEAD, R)
            unit = 1.0 if HAS_BIAS else scale
            S: tl.constexpr = T // P
            turn = tl.arange(0, S)[None, None, :]
            tile = tl.arange(0, P)[:, None, None] + turn * P
            wanted = inside[None, :, None] & (tile < ((ends + WIDE - 1) // WIDE * LANES)[None, :, None])
            at_tops = TOPS + (head * (last - begin) + (rows - begin)) * row_of_tops
            first = tl.load(at_tops[None, :, None] + tile * 2, mask=wanted, other=NOTHING)
            # The largest of tiles that are far from each other give a bound: neighbours may share the mass.
            largest = first
            if S >= 2 and T >= 2 * _FEWEST:
                largest = _halved(largest)
            if S >= 4 and T >= 4 * _FEWEST:
                largest = _halved(largest)
            largest = _by_rows(largest)
            top = tl.max(largest, 1)
            broken = (tl.sum(largest * 0.0, 1) != 0.0) | (epsilon != epsilon)
            epsilon = tl.where(epsilon == epsilon, epsilon, 0.5)
            top = tl.where(broken | (top < 0.5 * NOTHING), 0.0, top)
            ok = inside & (broken == 0)
            partition = tl.zeros([R], tl.float32)
            for _ in tl.static_range(_STEPS):
                t = 1.0 - epsilon * partition
                total, slope = _sums(largest, top, unit, ok, t, epsilon, POWER)
                partition += newton_step(total, slope, partition, t, epsilon, POWER, True)
            second = tl.load(at_tops[None, :, None] + tile * 2 + 1, mask=wanted, other=NOTHING)
            base = top * unit
            partition, below = _lowest(partition, epsilon, tl.abs(base), POWER, WIDE)
            bound = _as_top(below, top, unit, ok)
            kinds, sums = _counted(first, second, bound)
            counted = tl.sum(sums, 0)
            # Where more keys may have mass, two at least have.
            fits = ((counted & 65535) + 2 * (counted >> 16) <= CAPACITY) & (counted >> 16 <= most)
            if tl.max((ok & (fits == 0)).to(tl.int32), 0) > 0:
                partition = _closer(first, second, top, unit, ok, epsilon, partition, POWER)
                partition, below = _lowest(partition, epsilon, tl.abs(base), POWER, WIDE)
                bound = _as_top(below, top, unit, ok)
                kinds, sums = _counted(first, second, bound)
                counted = tl.sum(sums, 0)
                fits = ((counted & 65535) + 2 * (counted >> 16) <= CAPACITY) & (counted >> 16 <= most)
            at_row = head * queries + rows
            store_apart(STARTS + at_row * 2, tl.where(broken, float("nan"), base), inside)
            store_apart(STARTS + at_row * 2 + 1, partition, inside)
            if tl.max((ok & (fits == 0)).to(tl.int32), 0) > 0:
                # The lists of a dense block are not used.
                mark_dense(DENSE, ANY_DENSE, head, start, queries, group, DENSE_BY_TOPS)
            else:
                # Tiles with one key are listed, those of which more may have mass are noted for the program.
                slot = ((tl.cumsum(sums, 0) - sums)[:, :, None] + tl.cumsum(kinds, 2) - kinds) & 65535
                key = first_key_of(tile, WIDE) + distance_of(place_of(first, WIDE))
                tl.store((KEYS + at_row * CAPACITY)[None, :, None] + slot, key, mask=kinds == 1)
                score = tl.fma(first, unit, -base[None, :, None])
                tl.store((SCORES + at_row * CAPACITY)[None, :, None] + slot, score, mask=kinds == 1)
                doubts = tl.sum(tl.where(kinds > 1, 1 << turn, 0), 2)
                doubted = tl.reduce_or(doubts, 1)
                doubted = tl.reshape((doubted[:, None] >> tl.arange(0, S)[None, :]) & 1, [T])
                any_tile = tl.arange(0, T) // S + (tl.arange(0, T) % S) * P
                program = head * tl.num_programs(0) + tl.program_id(0)
                tl.store(SOME + program * T + tl.cumsum(doubted, 0) - 1, any_tile, mask=doubted > 0)
                tl.store(NUMBERS + program, tl.sum(doubted, 0))
                of_threads = tl.arange(0, P)[:, None] * R + tl.arange(0, R)[None, :]
                tl.store(DOUBTS + program * (P * R) + of_threads, doubts)
                store_apart(BOUNDS + at_row, below, inside)
                store_apart(COUNTS + at_row, counted & 65535, inside)
