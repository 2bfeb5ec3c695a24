"""Launches of the attention kernels, cached per `AttentionKind`; a call adds only its tensors."""

from typing import Any, NamedTuple

import torch

from contmax._caches import cached
from contmax.kernels import blocks_of, power_of_two
from contmax.kernels.attention._gpu_call import AttentionKind
from contmax.kernels.attention._gpu_candidates import list_keys, list_undecided
from contmax.kernels.attention._gpu_decoding import average_values, score_keys, solve_rows
from contmax.kernels.attention._gpu_dense import attend_dense, solve_dense
from contmax.kernels.attention._gpu_dense_backward import dense_keys_backward, dense_queries_backward
from contmax.kernels.attention._gpu_listed import (
    attend_listed,
    listed_keys_backward,
    listed_queries_backward,
    rank_entries,
)
from contmax.kernels.attention._gpu_pages import bound_pages, bound_thresholds, choose_pages, score_pages
from contmax.kernels.attention._gpu_tile_maxima import tile_maxima
from contmax.kernels.attention._sizes import DENSE_ROWS, PAGES_OF_GROUP, DecodingSizes
from contmax.kernels.gpu._cached_launch import Launch, ReadyLaunch

# Keys per block of `listed_keys_backward`, by which list entries are sorted.
_KEY_BLOCK = 64
# `list_keys`: rows per program; threads per row, doubled for rows of more than _MANY_MAXIMA tiles.
_LISTED_TOGETHER, _THREADS_OF_A_ROW, _MANY_MAXIMA = 16, 8, 256
# `list_undecided` multiplies 32 keys at a time, not 16, if a group of four tiles has this many keys or more.
_LONG_TILE = 512
# A row makes its block dense if its undecided tiles (`_gpu_candidates`) hold more than
# max(L/_UNDECIDED_SHARE, _FEW_UNDECIDED) of the L keys.
_UNDECIDED_SHARE, _FEW_UNDECIDED = 16, 256
# Decoding: the most candidates per row. The other four say how many a program loads at a time: scores of tiles that may
# have mass, values, spans, and scores of dense rows (at least _CHUNK, which is also the size of the sample).
_CANDIDATES, _TILE_SCORES, _VALUES, _SPANS, _CHUNK = 1024, 4096, 64, 4, 2048
# Decoding: warps per program, blocks of keys that are loaded ahead, and the most rows whose masks and biases are loaded
# one row after the other.
_SCORING_WARPS, _SCORING_STAGES, _FEW = 4, 3, 8
# The most registers per thread of `score_pages`, so that four programs run at once on a multiprocessor.
_PAGE_REGISTERS = 128
# `solve_rows` gives a row one warp per _TILES_OF_A_WARP tiles, at least four warps, and at least eight if there are at
# most _FEW_ROWS rows, about one per multiprocessor.
_TILES_OF_A_WARP, _FEW_ROWS = 1024, 132


class Listing(NamedTuple):
    """Launches that make candidate lists, and shapes of the buffers that they share."""

    maxima_shape: tuple[int, ...]  # (B·H, queries per block, tiles, 2), float32, for MAXIMA of `tile_maxima`
    tiles_shape: tuple[int, ...]  # (B·H, programs, tiles rounded up to a power of two), int32, for TILES of `list_keys`
    bits_shape: tuple[int, ...]  # (B·H, programs, threads per row · rows per program), int32, for BITS of `list_keys`
    # For each block of queries the launches of `tile_maxima`, `list_keys` and `list_undecided`.
    blocks: tuple[tuple[ReadyLaunch, ReadyLaunch, ReadyLaunch], ...]


def _width_of_tiles(kind: AttentionKind) -> int:
    """WIDE of the kernels: the number of neighbouring keys that a group of four tiles shares."""
    return 64 * power_of_two(blocks_of(kind.keys, 16 * kind.tuning.most_tiles))


@cached
def listing(kind: AttentionKind) -> Listing:
    """The `Listing` of a kind: queries are divided into blocks whose tile maxima take ≤ `Tuning.bytes_of_maxima`."""
    tuning, queries = kind.tuning, kind.queries
    wide = _width_of_tiles(kind)
    # Round the number of tiles up, because `tile_maxima` writes whole blocks.
    tiles = blocks_of(kind.keys, max(tuning.columns, wide)) * max(tuning.columns // wide, 1) * 4
    together = max(1, tuning.bytes_of_maxima // (kind.all_heads * tiles * 8) // tuning.rows) * tuning.rows
    together = min(together, blocks_of(queries, tuning.rows) * tuning.rows)
    size, all_tiles = min(together, queries), power_of_two(tiles)
    programs = (kind.all_heads, blocks_of(size, _LISTED_TOGETHER))
    blocks = [(begin, min(begin + together, queries)) for begin in range(0, queries, together)]
    return Listing(
        (kind.all_heads, size, tiles, 2),
        (*programs, all_tiles),
        (*programs, _threads_of_a_row(all_tiles) * _LISTED_TOGETHER),
        tuple(_listing_of_block(kind, wide, tiles, *block) for block in blocks),
    )


def _listing_of_block(
    kind: AttentionKind, wide: int, tiles: int, begin: int, last: int
) -> tuple[ReadyLaunch, ReadyLaunch, ReadyLaunch]:
    """The launches for queries begin … last − 1, each with `tiles` tiles of wide // 4 keys."""
    tuning, all_tiles = kind.tuning, power_of_two(tiles)
    is_exact, many = kind.dtype == torch.float32, all_tiles > _MANY_MAXIMA
    block: dict[str, Any] = {"begin": begin, "last": last, "tiles": tiles, "WIDE": wide}
    maxima = launch_of(
        kind,
        tile_maxima,
        (blocks_of(last - begin, tuning.rows), kind.all_heads),
        tuning.warps,
        # A limit on registers lets more programs run at once, but masks, biases and float32 need more registers.
        None if is_exact or kind.mask_strides or kind.bias_strides else tuning.registers,
        tuning.tile_stages if wide == tuning.columns else tuning.stages,
        **block,
        abreast=tuning.maxima_abreast,
        ROWS=tuning.rows,
        COLUMNS=tuning.columns,
    )
    programs = (blocks_of(last - begin, _LISTED_TOGETHER), kind.all_heads)
    block |= {"R": _LISTED_TOGETHER, "T": all_tiles, "P": _threads_of_a_row(all_tiles)}
    keys = launch_of(
        kind,
        list_keys,
        programs,
        tuning.list_warps * (2 if many else 1),
        tuning.many_registers if many else tuning.list_registers,
        **block,
        maxima_of_row=2 * tiles,
        most=max(max(kind.keys // _UNDECIDED_SHARE, _FEW_UNDECIDED) // (wide // 4), 4),
    )
    undecided = launch_of(
        kind,
        list_undecided,
        programs,
        1,
        tuning.undecided_registers,
        tuning.undecided_stages,
        **block,
        EXACT=is_exact,
        TOGETHER=32 if wide >= _LONG_TILE else 16,
    )
    return maxima, keys, undecided


def _threads_of_a_row(tiles: int) -> int:
    """The number of threads of `list_keys` that share a row: each marks its tiles, 32 or fewer, in one int32."""
    return min(_THREADS_OF_A_ROW * (2 if tiles > _MANY_MAXIMA else 1), tiles)


@cached
def listed_means(kind: AttentionKind) -> ReadyLaunch:
    """The launch of `attend_listed`."""
    rows = kind.tuning.listed_rows
    last_bits = _width_of_tiles(kind) // 4 * 2.0**-22  # the sum of the relative errors of a score and of the maximum
    programs = (blocks_of(kind.queries, rows), kind.all_heads)
    return launch_of(kind, attend_listed, programs, 1, kind.tuning.listed_registers, last_bits=last_bits, R=rows)


@cached
def dense_means(kind: AttentionKind, has_lists: bool, needs_gradient: bool) -> tuple[ReadyLaunch, ReadyLaunch]:
    """Launches of `solve_dense` and `attend_dense`; without lists all blocks are dense."""
    tuning, blocks = kind.tuning, (blocks_of(kind.queries, DENSE_ROWS), kind.all_heads)
    dense: dict[str, Any] = {"COLUMNS": tuning.dense_columns, "HAS_LISTS": has_lists, "NEEDS_MEANS": needs_gradient}
    solve = launch_of(
        kind, solve_dense, blocks, tuning.dense_warps, tuning.dense_registers, tuning.dense_stages, **dense
    )  # fmt: skip
    return solve, launch_of(kind, attend_dense, blocks, tuning.dense_warps, None, tuning.dense_stages, **dense)


@cached
def dense_gradients(
    kind: AttentionKind, cotangent: tuple[int, ...], has_lists: bool, needs_alpha: bool
) -> tuple[ReadyLaunch, ReadyLaunch]:
    """Launches of `dense_queries_backward` and `dense_keys_backward`; `cotangent`: the first three strides of G."""
    tuning, blocks = kind.tuning, blocks_of(kind.queries, DENSE_ROWS)
    warps, stages = tuning.dense_warps, tuning.dense_gradient_stages
    dense: dict[str, Any] = {"COLUMNS": tuning.dense_columns, "HAS_LISTS": has_lists, **_strides_of(cotangent)}
    of_queries = launch_of(
        kind, dense_queries_backward, (blocks, kind.all_heads), warps, tuning.dense_registers, stages, contracts=True,
        **dense, NEEDS_ALPHA=needs_alpha,
    )  # fmt: skip
    key_blocks = (blocks_of(kind.keys, tuning.dense_columns), kind.all_groups)
    of_keys = launch_of(
        kind, dense_keys_backward, key_blocks, warps, None, stages, **dense, BLOCKS=power_of_two(blocks),
        KEY_BLOCK=_KEY_BLOCK,
    )  # fmt: skip
    return of_queries, of_keys


@cached
def listed_gradients(
    kind: AttentionKind, cotangent: tuple[int, ...], needs_alpha: bool
) -> tuple[tuple[int, ...], ReadyLaunch, ReadyLaunch, ReadyLaunch]:
    """The shape of CELLS, and launches of `rank_entries`, `listed_queries_backward` and `listed_keys_backward`.

    CELLS (B·G, blocks of rows of H/G query heads, blocks of keys), int32, hold the number of list entries
    that lie in a block of rows and a block of keys.
    """
    tuning, rows = kind.tuning, kind.tuning.gradient_rows
    row_blocks, key_blocks = blocks_of(kind.queries, DENSE_ROWS), blocks_of(kind.keys, _KEY_BLOCK)
    cells = kind.group * row_blocks
    listed: dict[str, Any] = {"key_blocks": key_blocks, "KEY_BLOCK": _KEY_BLOCK, **_strides_of(cotangent)}
    rank = launch_of(kind, rank_entries, (row_blocks, kind.all_heads), 1, **listed)
    blocks = (blocks_of(kind.queries, rows), kind.all_heads)
    of_queries = launch_of(
        kind, listed_queries_backward, blocks, 1, tuning.gradient_registers, contracts=True, **listed,
        NEEDS_ALPHA=needs_alpha, R=rows,
    )  # fmt: skip
    of_keys = launch_of(
        kind, listed_keys_backward, (key_blocks, kind.all_groups), tuning.key_warps, None, tuning.key_stages, **listed,
        cells=cells, GROUPED=kind.group > 1, TOGETHER=tuning.together,
    )  # fmt: skip
    return (kind.all_groups, cells, key_blocks), rank, of_queries, of_keys


class Decoding(NamedTuple):
    """Launches of decoding, and shapes of the buffers that they share."""

    scores_shape: tuple[int, ...]  # (B·H·Q, keys rounded up to whole blocks), float32
    maxima_shape: tuple[int, ...]  # (B·H·Q, tiles), float32
    candidates_shape: tuple[int, ...]  # (B·H·Q, _CANDIDATES), for LIVE, KEYS and LISTED of `solve_rows`
    finished_shape: tuple[int, ...]  # (B·G · programs along the queries,), int32
    parts_shape: tuple[int, ...]  # (B·H·Q, spans, c), float32
    score: ReadyLaunch  # of `score_keys`
    solve: ReadyLaunch  # of `solve_rows`
    average: ReadyLaunch  # of `average_values`


@cached
def decoding(kind: AttentionKind, sizes: DecodingSizes, skips: bool = False) -> Decoding:
    """The `Decoding` of a kind; `skips`: whether pages of keys may be left unread."""
    rows = kind.all_heads * kind.queries
    named, wide = _named(kind, sizes), _wide(sizes)
    warps = min(max(8 if rows <= _FEW_ROWS else 4, wide // _TILES_OF_A_WARP), 32)
    named |= {"CANDIDATES": _CANDIDATES, "SAMPLE": _CHUNK, "CHUNK": max(_CHUNK, 256 * warps)}
    named |= {"TILES_TOGETHER": _TILE_SCORES * sizes.tiles_of_block // sizes.columns}
    named |= {"VALUES_TOGETHER": _VALUES, "SPANS_TOGETHER": _SPANS}
    named["SKIPS"] = skips
    named["HIDES"] = skips or kind.mask_strides is not None or kind.bias_strides is not None
    blocks = (sizes.spans, kind.all_groups, sizes.row_blocks)
    return Decoding(
        (rows, blocks_of(kind.keys, sizes.columns) * sizes.columns),
        (rows, sizes.tiles),
        (rows, _CANDIDATES),
        (kind.all_groups * sizes.row_blocks,),
        (rows, sizes.spans, kind.value_channels),
        launch_of(kind, score_keys, blocks, _SCORING_WARPS, **named),
        launch_of(kind, solve_rows, (rows,), warps, **named),
        launch_of(kind, average_values, blocks, 8, stages=3, **named),
    )


class PageLaunches(NamedTuple):
    """Launches of decoding that may leave pages unread; without a budget only the first and the last are used."""

    bound: ReadyLaunch  # of `bound_pages`
    choose: ReadyLaunch  # of `choose_pages`
    score: ReadyLaunch  # of `score_pages`
    threshold: ReadyLaunch  # of `bound_thresholds`
    firsts_shape: tuple[int, ...]  # (B·H·Q, programs of `bound_pages`), float32


@cached
def page_launches(
    kind: AttentionKind, sizes: DecodingSizes, page: int, pages: int, budget: int, boxes: tuple[int, ...]
) -> PageLaunches:
    """The `PageLaunches` of a kind, for `pages` pages of `page` keys.

    Each query chooses `budget` pages; 0 if all pages are read that may have weight. `boxes` are the strides of the
    boxes along sequences, heads and pages.
    """
    rows, groups = kind.all_heads * kind.queries, blocks_of(pages, PAGES_OF_GROUP)
    named = _named(kind, sizes) | dict(zip(("boxes_b", "boxes_h", "boxes_p"), boxes, strict=True))
    named |= {"pages": pages, "budget": budget, "PAGE": page, "PAGES": PAGES_OF_GROUP, "ALL_PAGES": power_of_two(pages)}
    named |= {"groups": groups, "GROUPS": max(power_of_two(groups), 16), "HAS_BUDGET": budget > 0}
    named["BLOCKS"] = power_of_two(sizes.span // sizes.columns)
    blocks = (sizes.spans, kind.all_groups, sizes.row_blocks)
    return PageLaunches(
        launch_of(kind, bound_pages, (groups, *blocks[1:]), 4, **named),
        launch_of(kind, choose_pages, (rows,), min(max(power_of_two(pages) // 512, 1), 16), **named),
        launch_of(kind, score_pages, blocks, _SCORING_WARPS, _PAGE_REGISTERS, **named),
        launch_of(kind, bound_thresholds, (rows,), min(max(4, _wide(sizes) // _TILES_OF_A_WARP), 32), **named),
        (rows, groups),
    )


def _named(kind: AttentionKind, sizes: DecodingSizes) -> dict[str, Any]:
    """The sizes under the names of the kernels' arguments."""
    few = kind.group * kind.queries
    if few > _FEW or (kind.mask_strides is None and kind.bias_strides is None):
        few = 0
    named: dict[str, Any] = {**sizes._asdict(), "ROWS": sizes.rows, "COLUMNS": sizes.columns, "WIDE": _wide(sizes)}
    return named | {"TILES": sizes.tiles_of_block, "STAGES": _SCORING_STAGES, "FEW": few}


def _wide(sizes: DecodingSizes) -> int:
    return max(power_of_two(sizes.tiles), 64)


def _strides_of(cotangent: tuple[int, ...]) -> dict[str, int]:
    return dict(zip(("gb", "gh", "gi"), cotangent, strict=True))


def launch_of(
    kind: AttentionKind,
    kernel: Any,
    grid: tuple[int, ...],
    warps: int,
    registers: int | None = None,
    stages: int | None = None,
    contracts: bool = False,
    **own: Any,
) -> ReadyLaunch:
    """The launch of a kernel for all calls of a kind; each call adds its tensors.

    Args:
        kind: gives most arguments of the kernel (`AttentionKind.arguments`).
        kernel: takes tensors, then numbers, then constants in capitals.
        grid: the number of programs along each axis.
        warps, registers, stages, contracts: as for `Launch`.
        own: other arguments of the kernel, by name.
    """
    values = kind.arguments | own
    named = {name: values[name] for name in kernel.arg_names if name in values}
    constants = {name: named.pop(name) for name in list(named) if name.isupper()}
    numbers = tuple(named.values())
    return ReadyLaunch(Launch(kernel, grid, numbers, constants, warps, registers, stages, contracts), kind.device)
