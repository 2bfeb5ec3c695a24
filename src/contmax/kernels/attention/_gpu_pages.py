"""Decoding that skips pages of keys: bounds of pages, the pages to read first, and scores of the pages that are read.

`bound_pages` bounds the scores of each page by the box around its keys. `choose_pages` takes the pages with the largest
bounds, and `score_pages` reads them. The tile maxima of these scores give a lower bound of the row's threshold
(`bound_thresholds`); then `score_pages` reads the other pages whose bounds are above it. Keys that are not read have
the score NOTHING, and `_gpu_decoding` goes on as if they were masked. Queries that share a head of keys share what is
read.
"""

import triton
import triton.language as tl

from contmax.kernels.attention._gpu_decoding import (
    ANY_LENGTH,
    first_threshold,
    load_queries,
    queries_of_program,
    store_scores,
)
from contmax.kernels.attention._gpu_scores import PRECISION, Extras, epsilon_of_heads, larger, next_where, with_extras
from contmax.kernels.attention._sizes import ROUNDING_OF_PAGES
from contmax.kernels.rows._gpu_solve import NOTHING

_ROUNDING = tl.constexpr(ROUNDING_OF_PAGES)


@triton.jit(do_not_specialize=(*ANY_LENGTH, "pages"))
def bound_pages(
    Q, LOW, HIGH, M, B, LENGTHS, BOUNDS,
    pages, queries, keys, diagonal, heads, group, scale,
    qb, qh, qi, boxes_b, boxes_h, boxes_p, mb, mh, mi, mj, bb, bh, bi, bj,
    CAUSAL: tl.constexpr, HAS_MASK: tl.constexpr, HAS_BIAS: tl.constexpr, HAS_LENGTHS: tl.constexpr,
    D: tl.constexpr, WIDTH: tl.constexpr, ROWS: tl.constexpr, PAGE: tl.constexpr, PAGES: tl.constexpr,
):  # fmt: skip
    """Write BOUNDS (B·H·Q, pages): upper bounds of the scores in each page.

    A bound is −∞ where no key may be attended, and +∞ where the numbers of the box are NaN or too large.
    """
    block = queries_of_program(LENGTHS, queries, keys, diagonal, heads, group, CAUSAL, HAS_LENGTHS, ROWS)
    b, h = block.b, block.h[:, None]
    extras = Extras(scale, M + (b * mb + h * mh), (mi, mj), HAS_MASK, B + (b * bb + h * bh), (bi, bj), HAS_BIAS)
    q = load_queries(Q, block, qb, qh, qi, D, WIDTH)
    first = tl.program_id(0) * PAGES
    page, d = first + tl.arange(0, PAGES), tl.arange(0, WIDTH)
    at_box = block.b * boxes_b + block.g * boxes_h + page.to(tl.int64)[None, :] * boxes_p + d[:, None]
    exists = (page < pages)[None, :] & (d < D)[:, None]
    low, high = tl.load(LOW + at_box, mask=exists, other=0.0), tl.load(HIGH + at_box, mask=exists, other=0.0)
    bound = tl.dot(tl.maximum(q, 0.0).to(q.dtype), high, input_precision=PRECISION)
    bound = tl.dot(tl.minimum(q, 0.0).to(q.dtype), low, bound, input_precision=PRECISION)
    widest = tl.maximum(tl.abs(low), tl.abs(high)).to(q.dtype)
    bound = (bound + _ROUNDING * tl.dot(tl.abs(q), widest, input_precision=PRECISION)) * scale
    is_open = page.to(tl.int32)[None, :] * PAGE < block.ends[:, None]
    if HAS_MASK or HAS_BIAS:
        added = tl.full([ROWS, PAGES], NOTHING, tl.float32)
        for n in range(PAGES):
            j = (first + n) * PAGE + tl.arange(0, PAGE)
            allowed = j[None, :] < block.ends[:, None]
            nothing = tl.zeros([ROWS, PAGE], tl.float32)
            x = with_extras(nothing, block.i[:, None], j.to(tl.int64)[None, :], allowed, scale, extras)
            largest = tl.reduce(x, 1, larger)
            added = tl.where((page == first + n)[None, :], largest[:, None], added)
        is_open = is_open & ((added > NOTHING) | (added != added))
        bound += added + _ROUNDING * tl.abs(added)
    bound = tl.where(tl.abs(bound) < float("inf"), bound, float("inf"))
    bound = tl.where(is_open, bound, -float("inf"))
    inside = block.inside[:, None] & (page < pages)[None, :]
    tl.store(BOUNDS + block.row[:, None] * pages + page[None, :], bound, mask=inside)


@triton.jit(do_not_specialize=("pages", "first"))
def choose_pages(BOUNDS, CHOSEN, pages, first, ALL_PAGES: tl.constexpr):
    """Write CHOSEN (rows, pages), uint8: 1 for the `first` pages with the largest bounds; among equals the earlier.

    Pages with the bound −∞ have no key that may be attended, and are never chosen.
    """
    row = tl.program_id(0).to(tl.int64) * pages
    page = tl.arange(0, ALL_PAGES)
    bound = tl.load(BOUNDS + row + page, mask=page < pages, other=-float("inf"))
    bits = bound.to(tl.int32, bitcast=True)
    rank = (bits ^ ((bits >> 31) & 0x7FFFFFFF)).to(tl.int64)  # integers in the order of the bounds
    # Bisect the integers for the largest number that at least `first` ranks reach.
    low, high = tl.full([], -(2**31), tl.int64), tl.full([], 2**31, tl.int64)
    for _ in range(32):
        middle = (low + high) >> 1
        reaches = tl.sum((rank >= middle).to(tl.int32), 0) >= first
        low, high = tl.where(reaches, middle, low), tl.where(reaches, high, middle)
    equal = (rank == low).to(tl.int32)
    above = (rank > low).to(tl.int32)
    chosen = (above > 0) | ((equal > 0) & (tl.cumsum(equal, 0) <= first - tl.sum(above, 0)))
    chosen = chosen & (bound > -float("inf"))
    tl.store(CHOSEN + row + page, chosen.to(tl.uint8), mask=page < pages)


@triton.jit(do_not_specialize=ANY_LENGTH)
def bound_thresholds(
    A, MAXIMA, THRESHOLDS, tiles, queries, heads, fixed_epsilon,
    ORDER: tl.constexpr, PER_HEAD: tl.constexpr, WIDE: tl.constexpr,
):  # fmt: skip
    """Write THRESHOLDS (B·H·Q,), lower bounds of τ: scores up to these have no weight; −∞ if all keys must be read."""
    row = tl.program_id(0).to(tl.int64)
    tile = tl.arange(0, WIDE)
    maxima = tl.load(MAXIMA + row * tiles + tile, mask=tile < tiles, other=NOTHING)[None, :]
    maximum = tl.reduce(maxima, 1, larger)
    epsilon = epsilon_of_heads(A, fixed_epsilon, row // queries % heads, PER_HEAD, 1)
    _, _, below = first_threshold(maxima, maximum, epsilon, ORDER)
    is_bounded = (maximum * 0.0 == 0.0) & (epsilon == epsilon) & (maximum > 0.5 * NOTHING)
    tl.store(THRESHOLDS + row + tl.arange(0, 1), tl.where(is_bounded, maximum + below, -float("inf")))


@triton.jit(do_not_specialize=(*ANY_LENGTH, "pages"))
def score_pages(
    Q, K, M, B, LENGTHS, BOUNDS, CHOSEN, THRESHOLDS, SCORES, MAXIMA,
    span, tiles, pages, queries, keys, diagonal, heads, group, scale,
    qb, qh, qi, kb, kh, kj, mb, mh, mi, mj, bb, bh, bi, bj,
    CAUSAL: tl.constexpr, HAS_MASK: tl.constexpr, HAS_BIAS: tl.constexpr, HAS_LENGTHS: tl.constexpr,
    D: tl.constexpr, WIDTH: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr,
    PAGE: tl.constexpr, BLOCKS: tl.constexpr, IS_FIRST: tl.constexpr,
):  # fmt: skip
    """Like `score_keys`, but only for some pages: if IS_FIRST, pages CHOSEN for any query of the program, else other
    pages with BOUNDS above THRESHOLDS for any query. A program has up to BLOCKS blocks of keys, each within a page.
    """
    block = queries_of_program(LENGTHS, queries, keys, diagonal, heads, group, CAUSAL, HAS_LENGTHS, ROWS)
    b, h = block.b, block.h[:, None]
    extras = Extras(scale, M + (b * mb + h * mh), (mi, mj), HAS_MASK, B + (b * bb + h * bh), (bi, bj), HAS_BIAS)
    q = load_queries(Q, block, qb, qh, qi, D, WIDTH)
    K += block.b * kb + block.g * kh
    begin = tl.program_id(0) * span
    places = tl.arange(0, BLOCKS)
    keys_of_places = begin + places * COLUMNS
    exists = (places * COLUMNS < span) & (keys_of_places < block.end)
    at_page = block.row[:, None] * pages + (keys_of_places // PAGE)[None, :]
    loaded = block.inside[:, None] & exists[None, :]
    chosen = tl.load(CHOSEN + at_page, mask=loaded, other=0).to(tl.int32)
    wanted = tl.max(chosen, 0) > 0
    if not IS_FIRST:
        bound = tl.load(BOUNDS + at_page, mask=loaded, other=-float("inf"))
        threshold = tl.load(THRESHOLDS + block.row, mask=block.inside, other=float("inf"))
        wanted = (wanted == 0) & (tl.max((bound > threshold[:, None]).to(tl.int32), 0) > 0)
    # Visit blocks in runs of neighbours, because Triton pipelines a run.
    start = next_where(wanted, places, 0, BLOCKS)
    while start < BLOCKS:
        end = next_where(wanted == 0, places, start, BLOCKS)
        for n in range(begin + start * COLUMNS, begin + end * COLUMNS, COLUMNS):
            store_scores(
                SCORES, MAXIMA, K, kj, n, q, block, tiles, scale, extras, D, WIDTH, ROWS, COLUMNS
            )  # fmt: skip
        start = next_where(wanted, places, end, BLOCKS)
