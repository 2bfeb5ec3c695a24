"""Launches of decoding, cached per `AttentionKind`, as in `_gpu_launches`."""

from typing import Any, NamedTuple

from contmax._caches import cached
from contmax.kernels._counting import blocks_of, power_of_two
from contmax.kernels.attention._gpu_call import AttentionKind
from contmax.kernels.attention._gpu_decoding import average_values, score_keys, solve_rows
from contmax.kernels.attention._gpu_launches import launch_of
from contmax.kernels.attention._gpu_pages import bound_pages, bound_thresholds, choose_pages, score_pages
from contmax.kernels.attention._sizes import DecodingSizes
from contmax.kernels.gpu._cached_launch import LAUNCHES, ReadyLaunch

# The most candidates per row; then the numbers of tiles, values, spans, and scores of dense rows loaded at a time.
_CANDIDATES, _TILES, _VALUES, _SPANS, _CHUNK = 1024, 128, 64, 4, 2048
# `solve_rows` gives a row one warp per _TILES_OF_A_WARP tiles, at least four warps, and at least eight if there are at
# most _FEW_ROWS rows, about one per multiprocessor.
_TILES_OF_A_WARP, _FEW_ROWS = 1024, 132

# Pages per program of `bound_pages`.
_BOUNDED = 32


class Decoding(NamedTuple):
    """Launches of decoding, and shapes of the buffers that they share."""

    scores_shape: tuple[int, ...]  # (B·H·Q, keys rounded up to whole blocks), float32
    maxima_shape: tuple[int, ...]  # (B·H·Q, tiles), float32
    candidates_shape: tuple[int, ...]  # (B·H·Q, _CANDIDATES), for TILES, KEYS and LISTED of `solve_rows`
    finished_shape: tuple[int, ...]  # (B·G · programs along the queries,), int32
    parts_shape: tuple[int, ...]  # (B·H·Q, spans, c), float32
    # `score`, `solve`, `average`: launches of `score_keys`, `solve_rows` and `average_values`.
    score: ReadyLaunch
    solve: ReadyLaunch
    average: ReadyLaunch


@cached(LAUNCHES)
def decoding(kind: AttentionKind, sizes: DecodingSizes, skips: bool = False) -> Decoding:
    """The `Decoding` of a kind; `skips`: whether pages of keys may be left unread."""
    rows = kind.all_heads * kind.queries
    wide = max(power_of_two(sizes.tiles), 64)
    named: dict[str, Any] = {**sizes._asdict(), "ROWS": sizes.rows, "COLUMNS": sizes.columns, "WIDE": wide}
    warps = min(max(8 if rows <= _FEW_ROWS else 4, wide // _TILES_OF_A_WARP), 32)
    named |= {"CANDIDATES": _CANDIDATES, "SAMPLE": _CHUNK, "CHUNK": max(_CHUNK, 256 * warps)}
    named |= {"TILES_TOGETHER": _TILES, "VALUES_TOGETHER": _VALUES, "SPANS_TOGETHER": _SPANS}
    named["HIDES"] = skips or kind.mask_strides is not None or kind.bias_strides is not None
    blocks = (sizes.spans, kind.all_groups, sizes.row_blocks)
    return Decoding(
        (rows, blocks_of(kind.keys, sizes.columns) * sizes.columns),
        (rows, sizes.tiles),
        (rows, _CANDIDATES),
        (kind.all_groups * sizes.row_blocks,),
        (rows, sizes.spans, kind.value_channels),
        launch_of(kind, score_keys, blocks, 8, stages=3, **named),
        launch_of(kind, solve_rows, (rows,), warps, **named),
        launch_of(kind, average_values, blocks, 8, stages=3, **named),
    )


class PageLaunches(NamedTuple):
    """Launches of `bound_pages`, `choose_pages`, `score_pages`, `bound_thresholds`, and of `score_pages` once more."""

    bound: ReadyLaunch
    choose: ReadyLaunch
    score_first: ReadyLaunch
    threshold: ReadyLaunch
    score_others: ReadyLaunch


@cached(LAUNCHES)
def page_launches(
    kind: AttentionKind, sizes: DecodingSizes, page: int, pages: int, first: int, boxes: tuple[int, ...]
) -> PageLaunches:
    """The `PageLaunches` of a kind, for `pages` pages of `page` keys.

    Each query reads `first` pages first. `boxes` are the strides of the boxes along sequences, heads and pages.
    """
    rows, wide = kind.all_heads * kind.queries, max(power_of_two(sizes.tiles), 64)
    named: dict[str, Any] = {**sizes._asdict(), "ROWS": sizes.rows, "COLUMNS": sizes.columns, "WIDE": wide}
    named |= dict(zip(("boxes_b", "boxes_h", "boxes_p"), boxes, strict=True))
    named |= {"pages": pages, "first": first, "PAGE": page, "PAGES": _BOUNDED, "ALL_PAGES": power_of_two(pages)}
    named["BLOCKS"] = power_of_two(sizes.span // sizes.columns)
    blocks = (sizes.spans, kind.all_groups, sizes.row_blocks)
    warps = min(max(4, wide // _TILES_OF_A_WARP), 32)
    return PageLaunches(
        launch_of(kind, bound_pages, (blocks_of(pages, _BOUNDED), *blocks[1:]), 4, **named),
        launch_of(kind, choose_pages, (rows,), min(max(power_of_two(pages) // 512, 1), 16), **named),
        launch_of(kind, score_pages, blocks, 8, stages=3, **named, IS_FIRST=True),
        launch_of(kind, bound_thresholds, (rows,), warps, **named),
        launch_of(kind, score_pages, blocks, 8, stages=3, **named, IS_FIRST=False),
    )
