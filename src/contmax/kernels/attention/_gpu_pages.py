"""Decoding that skips pages of keys: bounds of pages, pages that are read first, and scores of pages that are read.

`bound_pages` bounds the scores of each page by the box around its keys, and scores the most promising page of every
group of pages. The best of these scores give a lower bound of the row's threshold; `score_pages` computes it, and reads
the other pages whose bounds are above it. The tile maxima of keys that are not read are NOTHING, and `_gpu_decoding`
goes on as if these keys were masked. Queries that share a head of keys share what is read.

With a budget `choose_pages` takes the pages with the largest bounds, `score_pages` reads these alone, and
`bound_thresholds` bounds the thresholds from the scores that were read, which tells whether a page left out has weight.
"""

import triton
import triton.language as tl

from contmax.kernels.attention._gpu_decoding import (
    ANY_LENGTH,
    HeadExtras,
    extras_of,
    first_threshold,
    load_queries,
    queries_of_program,
    store_scores,
)
from contmax.kernels.attention._gpu_scores import PRECISION, epsilon_of_heads, larger, with_extras
from contmax.kernels.attention._sizes import ROUNDING_OF_PAGES
from contmax.kernels.rows._gpu_solve import NOTHING

_ROUNDING = tl.constexpr(ROUNDING_OF_PAGES)
# `score_pages` bounds a threshold from this number of scores.
_FEW_FIRSTS = tl.constexpr(16)


@triton.jit
def _place_of(ranks, places, turn):
    """The place whose rank is turn + 1; the wanted places have the ranks 1, 2, …, the others 0."""
    # With this sum a single loop over `turn` visits all wanted pages, and Triton loads pages ahead. In nested loops
    # over runs of neighbouring pages it would not.
    return tl.sum(tl.where(ranks == turn + 1, places, 0), 0)


@triton.jit
def _largest_extras(block, first, extras, ROWS: tl.constexpr, PAGE: tl.constexpr, PAGES: tl.constexpr):
    """The largest bias for each query and page, (ROWS, PAGES); NOTHING if the query may attend no key of the page."""
    place = tl.arange(0, ROWS)
    j = ((first + tl.arange(0, PAGES)) * PAGE)[:, None] + tl.arange(0, PAGE)[None, :]
    added = tl.full([ROWS, PAGES], NOTHING, tl.float32)
    for r in range(tl.sum(block.inside.to(tl.int32), 0)):
        is_row = place == r
        h, i = tl.sum(tl.where(is_row, block.h, 0), 0), tl.sum(tl.where(is_row, block.i, 0), 0)
        allowed = j < tl.sum(tl.where(is_row, block.ends, 0), 0)
        nothing = tl.zeros([PAGES, PAGE], tl.float32)
        x = with_extras(nothing, i, j.to(tl.int64), allowed, 1.0, extras_of(extras, block.b, h))
        added = tl.where(is_row[:, None], tl.reduce(x, 1, larger)[None, :], added)
    return added


@triton.jit(do_not_specialize=(*ANY_LENGTH, "pages", "groups"))
def bound_pages(
    Q, K, M, B, LENGTHS, LOW, HIGH, BOUNDS, CHOSEN, FIRSTS, SCORES, MAXIMA,
    tiles, pages, groups, queries, keys, diagonal, heads, group, scale,
    qb, qh, qi, kb, kh, kj, boxes_b, boxes_h, boxes_p, mb, mh, mi, mj, bb, bh, bi, bj,
    CAUSAL: tl.constexpr, HAS_MASK: tl.constexpr, HAS_BIAS: tl.constexpr, HAS_LENGTHS: tl.constexpr,
    D: tl.constexpr, WIDTH: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr, TILES: tl.constexpr,
    PAGE: tl.constexpr, PAGES: tl.constexpr, HAS_BUDGET: tl.constexpr, STAGES: tl.constexpr,
    FEW: tl.constexpr,
):  # fmt: skip
    """Write BOUNDS (B·H·Q, pages): upper bounds of the scores in each page. A program has a group of PAGES pages.

    A bound is −∞ where no key may be attended, and +∞ where the numbers of the box are NaN or too large. Without a
    budget each query chooses the page of the group with the largest bound: CHOSEN (B·H·Q, pages), uint8, gets 1 there.
    All queries of the program then get scores and tile maxima of all pages that any of them chose, and FIRSTS (B·H·Q,
    groups) gets the largest of these scores.
    """
    block = queries_of_program(LENGTHS, queries, keys, diagonal, heads, group, CAUSAL, HAS_LENGTHS, ROWS)
    extras = HeadExtras(scale, M, (mb, mh, mi, mj), HAS_MASK, B, (bb, bh, bi, bj), HAS_BIAS)
    q = load_queries(Q, block, qb, qh, qi, D, WIDTH)
    first = tl.program_id(0) * PAGES
    place, d = tl.arange(0, PAGES), tl.arange(0, WIDTH)
    page = first + place
    at_box = block.b * boxes_b + block.g * boxes_h + page.to(tl.int64)[None, :] * boxes_p + d[:, None]
    boxed = (page < pages)[None, :] & (d < D)[:, None]
    low, high = tl.load(LOW + at_box, mask=boxed, other=0.0), tl.load(HIGH + at_box, mask=boxed, other=0.0)
    bound = tl.dot(tl.maximum(q, 0.0).to(q.dtype), high, input_precision=PRECISION)
    bound = tl.dot(tl.minimum(q, 0.0).to(q.dtype), low, bound, input_precision=PRECISION)
    widest = tl.maximum(tl.abs(low), tl.abs(high)).to(q.dtype)
    bound = (bound + _ROUNDING * tl.dot(tl.abs(q), widest, input_precision=PRECISION)) * scale
    is_open = page.to(tl.int32)[None, :] * PAGE < block.ends[:, None]
    if HAS_MASK or HAS_BIAS:
        added = _largest_extras(block, first, extras, ROWS, PAGE, PAGES)
        is_open = is_open & ((added > NOTHING) | (added != added))
        bound += added + _ROUNDING * tl.abs(added)
    bound = tl.where(tl.abs(bound) < float("inf"), bound, float("inf"))
    bound = tl.where(is_open, bound, -float("inf"))
    inside = block.inside[:, None] & (page < pages)[None, :]
    at_page = block.row[:, None] * pages + page[None, :]
    tl.store(BOUNDS + at_page, bound, mask=inside)
    if not HAS_BUDGET:
        may_be_first = inside & (bound > -float("inf")) & (bound == tl.max(bound, 1)[:, None])
        chosen = place[None, :] == tl.min(tl.where(may_be_first, place[None, :], PAGES), 1)[:, None]
        tl.store(CHOSEN + at_page, chosen.to(tl.uint8), mask=inside)
        K += block.b * kb + block.g * kh
        OF_PAGE: tl.constexpr = PAGE // COLUMNS
        wanted = tl.broadcast_to(tl.max(chosen.to(tl.int32), 0)[:, None], [PAGES, OF_PAGE])
        places = tl.arange(0, PAGES * OF_PAGE)
        exists = first * PAGE + places * COLUMNS < block.end
        wanted = tl.reshape(wanted, [PAGES * OF_PAGE]) * exists.to(tl.int32)
        ranks = tl.cumsum(wanted, 0) * wanted
        largest = tl.full([ROWS, TILES], NOTHING, tl.float32)
        for turn in tl.range(0, tl.sum(wanted, 0), num_stages=STAGES):
            n = first * PAGE + _place_of(ranks, places, turn) * COLUMNS
            maxima = store_scores(
                SCORES, MAXIMA, K, kj, n, q, block, tiles, queries, group, extras, D, WIDTH, ROWS, COLUMNS, TILES, FEW
            )  # fmt: skip
            largest = larger(largest, maxima)
        tl.store(FIRSTS + block.row * groups + tl.program_id(0), tl.reduce(largest, 1, larger), mask=block.inside)


@triton.jit(do_not_specialize=("pages", "budget"))
def choose_pages(BOUNDS, CHOSEN, pages, budget, ALL_PAGES: tl.constexpr):
    """Write CHOSEN (rows, pages), uint8: 1 for the `budget` pages with the largest bounds; of equal ones the first.

    Pages with the bound −∞ have no key that may be attended, and are never chosen.
    """
    row = tl.program_id(0).to(tl.int64) * pages
    page = tl.arange(0, ALL_PAGES)
    bound = tl.load(BOUNDS + row + page, mask=page < pages, other=-float("inf"))
    bits = bound.to(tl.int32, bitcast=True)
    rank = (bits ^ ((bits >> 31) & 0x7FFFFFFF)).to(tl.int64)  # integers in the order of the bounds
    # Bisect the integers for the largest number that at least `budget` ranks reach.
    low, high = tl.full([], -(2**31), tl.int64), tl.full([], 2**31, tl.int64)
    for _ in range(32):
        middle = (low + high) >> 1
        reaches = tl.sum((rank >= middle).to(tl.int32), 0) >= budget
        low, high = tl.where(reaches, middle, low), tl.where(reaches, high, middle)
    equal = (rank == low).to(tl.int32)
    above = (rank > low).to(tl.int32)
    chosen = (above > 0) | ((equal > 0) & (tl.cumsum(equal, 0) <= budget - tl.sum(above, 0)))
    chosen = chosen & (bound > -float("inf"))
    tl.store(CHOSEN + row + page, chosen.to(tl.uint8), mask=page < pages)


@triton.jit
def _threshold_of(maxima, epsilon, K: tl.constexpr):
    """A lower bound of the threshold τ, (R,), from some scores (R, n) of each row; −∞ if they give none (read all)."""
    maximum = tl.reduce(maxima, 1, larger)
    _, _, below = first_threshold(maxima, maximum, epsilon, K)
    is_bounded = (maximum * 0.0 == 0.0) & (epsilon == epsilon) & (maximum > 0.5 * NOTHING)
    return tl.where(is_bounded, maximum + below, -float("inf"))


@triton.jit(do_not_specialize=ANY_LENGTH)
def bound_thresholds(
    A, MAXIMA, THRESHOLDS, tiles, queries, heads, fixed_epsilon,
    ORDER: tl.constexpr, PER_HEAD: tl.constexpr, WIDE: tl.constexpr,
):  # fmt: skip
    """Write THRESHOLDS (B·H·Q,): lower bounds of the thresholds, by `_threshold_of` from all tile maxima."""
    row = tl.program_id(0).to(tl.int64)
    tile = tl.arange(0, WIDE)
    maxima = tl.load(MAXIMA + row * tiles + tile, mask=tile < tiles, other=NOTHING)[None, :]
    epsilon = epsilon_of_heads(A, fixed_epsilon, row // queries % heads, PER_HEAD, 1)
    tl.store(THRESHOLDS + row + tl.arange(0, 1), _threshold_of(maxima, epsilon, ORDER))


@triton.jit(do_not_specialize=(*ANY_LENGTH, "pages", "groups"))
def score_pages(
    Q, K, M, B, LENGTHS, A, BOUNDS, CHOSEN, THRESHOLDS, FIRSTS, SCORES, MAXIMA,
    span, tiles, pages, groups, queries, keys, diagonal, heads, group, scale, fixed_epsilon,
    qb, qh, qi, kb, kh, kj, mb, mh, mi, mj, bb, bh, bi, bj,
    ORDER: tl.constexpr, PER_HEAD: tl.constexpr, CAUSAL: tl.constexpr, HAS_MASK: tl.constexpr,
    HAS_BIAS: tl.constexpr, HAS_LENGTHS: tl.constexpr, D: tl.constexpr, WIDTH: tl.constexpr, ROWS: tl.constexpr,
    COLUMNS: tl.constexpr, TILES: tl.constexpr, STAGES: tl.constexpr, PAGE: tl.constexpr, BLOCKS: tl.constexpr,
    GROUPS: tl.constexpr, HAS_BUDGET: tl.constexpr, FEW: tl.constexpr,
):  # fmt: skip
    """Do what `score_keys` does, for pages that are read; for all other pages write only the tile maxima, as NOTHING.

    A program has up to BLOCKS blocks of keys.

    With a budget the kernel reads the CHOSEN pages. Without one `bound_pages` has scored these, and the kernel reads
    the other pages with BOUNDS above a lower bound of the row's threshold, which it computes from FIRSTS and writes to
    THRESHOLDS. All queries of a program share what is read.
    """
    block = queries_of_program(LENGTHS, queries, keys, diagonal, heads, group, CAUSAL, HAS_LENGTHS, ROWS)
    extras = HeadExtras(scale, M, (mb, mh, mi, mj), HAS_MASK, B, (bb, bh, bi, bj), HAS_BIAS)
    q = load_queries(Q, block, qb, qh, qi, D, WIDTH)
    K += block.b * kb + block.g * kh
    begin = tl.program_id(0) * span
    places = tl.arange(0, BLOCKS)
    keys_of_places = begin + places * COLUMNS
    # Blocks past the last key that any query may attend are hidden too: `bound_thresholds` reads all tile maxima.
    exists = (places * COLUMNS < span) & (keys_of_places < keys)
    at_page = block.row[:, None] * pages + (keys_of_places // PAGE)[None, :]
    loaded = block.inside[:, None] & exists[None, :]
    wanted = tl.max(tl.load(CHOSEN + at_page, mask=loaded, other=0).to(tl.int32), 0)
    hidden = exists.to(tl.int32) - wanted
    if not HAS_BUDGET:
        bound = tl.load(BOUNDS + at_page, mask=loaded, other=-float("inf"))
        of_group = tl.arange(0, GROUPS)
        is_first = block.inside[:, None] & (of_group < groups)[None, :]
        firsts = tl.load(FIRSTS + block.row[:, None] * groups + of_group[None, :], mask=is_first, other=NOTHING)
        # Every program bounds the thresholds of its rows. To save time, merge groups of pages: keep the largest score.
        firsts = tl.reduce(tl.reshape(firsts, [ROWS, GROUPS // _FEW_FIRSTS, _FEW_FIRSTS]), 1, larger)
        threshold = _threshold_of(firsts, epsilon_of_heads(A, fixed_epsilon, block.h, PER_HEAD, ROWS), ORDER)
        if tl.program_id(0) == 0:
            tl.store(THRESHOLDS + block.row, threshold, mask=block.inside)
        may_have_weight = block.inside[:, None] & (bound > threshold[:, None])
        wanted = hidden * tl.max(may_have_weight.to(tl.int32), 0)
        hidden -= wanted
    ranks = tl.cumsum(wanted, 0) * wanted
    for turn in tl.range(0, tl.sum(wanted, 0), num_stages=STAGES):
        n = begin + _place_of(ranks, places, turn) * COLUMNS
        store_scores(
            SCORES, MAXIMA, K, kj, n, q, block, tiles, queries, group, extras, D, WIDTH, ROWS, COLUMNS, TILES, FEW
        )  # fmt: skip
    # The scores of pages that are not read stay undefined: no kernel uses them before `_hide_keys` overwrites them.
    of_tiles = tl.reshape(tl.broadcast_to(hidden[:, None], [BLOCKS, TILES]), [BLOCKS * TILES]) > 0
    at_tile = block.row[:, None] * tiles + (begin // COLUMNS * TILES + tl.arange(0, BLOCKS * TILES))[None, :]
    nothing = tl.full([ROWS, BLOCKS * TILES], NOTHING, tl.float32)
    tl.store(MAXIMA + at_tile, nothing, mask=block.inside[:, None] & of_tiles[None, :])
