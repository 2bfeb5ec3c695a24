"""Launches of the kernels of attention, remembered for each kind of call: they wait for the tensors alone."""

import functools
from typing import Any, NamedTuple

import torch

from contmax.kernels.attention._gpu_call import AttentionKind
from contmax.kernels.attention._gpu_columns import listed_keys_backward, rank_entries
from contmax.kernels.attention._gpu_dense import attend_dense, solve_dense
from contmax.kernels.attention._gpu_dense_backward import dense_keys_backward, dense_queries_backward
from contmax.kernels.attention._gpu_doubted import list_doubted
from contmax.kernels.attention._gpu_lists import list_keys
from contmax.kernels.attention._gpu_memory import DENSE_ROWS, LIST_CAPACITY
from contmax.kernels.attention._gpu_rows import attend_listed, listed_queries_backward
from contmax.kernels.attention._gpu_tops import tile_tops
from contmax.kernels.gpu._counting import blocks_of, power_of_two
from contmax.kernels.gpu._kept import LAUNCHES, Launch, ReadyLaunch

# Keys of a block in the backward pass.
_KEY_BLOCK = 64
# Rows of a program that lists keys, and threads that share one of so many tops.
_LISTED_TOGETHER, _THREADS_OF_A_ROW, _MANY_TOPS = 16, 8, 256
# Neighbours of a tile whose keys are multiplied again 32 at a time, not 16.
_LONG_TILE = 512
# Keys that a row may multiply again: one of so many, or so many.
_DOUBTFUL_SHARE, _FEW_DOUBTFUL = 16, 256


class Listing(NamedTuple):
    """How the keys that may have weight are listed.

    Attributes:
        tops_shape: (B·H, queries at a time, tiles, 2), float32: the largest scores of each tile.
        some_shape: (B·H, programs, tiles and more), int32: which tiles have to be looked at again,
        doubts_shape: (B·H, programs, threads of a row · rows), int32: and by which rows.
        blocks: for each block of queries the launches of `tile_tops`, `list_keys` and `list_doubted`.
    """

    tops_shape: tuple[int, ...]
    some_shape: tuple[int, ...]
    doubts_shape: tuple[int, ...]
    blocks: tuple[tuple[ReadyLaunch, ReadyLaunch, ReadyLaunch], ...]


def _width_of_tiles(kind: AttentionKind) -> int:
    """Four times the keys of a tile."""
    return 64 * power_of_two(blocks_of(kind.keys, 16 * kind.tuning.most_tiles))


@functools.lru_cache(maxsize=LAUNCHES)
def listing(kind: AttentionKind) -> Listing:
    """Keys and scores of the lists, by blocks of queries."""
    tuning, queries = kind.tuning, kind.queries
    wide = _width_of_tiles(kind)
    # Whole blocks of a product are written.
    tiles = blocks_of(kind.keys, max(tuning.columns, wide)) * max(tuning.columns // wide, 1) * 4
    all_tiles = power_of_two(tiles)
    together = max(1, tuning.bytes_of_tops // (kind.all_heads * tiles * 8) // tuning.rows) * tuning.rows
    together = min(together, blocks_of(queries, tuning.rows) * tuning.rows)
    size = min(together, queries)
    return Listing(
        (kind.all_heads, size, tiles, 2),
        (kind.all_heads, blocks_of(size, _LISTED_TOGETHER), all_tiles),
        (kind.all_heads, blocks_of(size, _LISTED_TOGETHER), _threads_of_a_row(all_tiles) * _LISTED_TOGETHER),
        tuple(
            _listing_of_block(kind, wide, tiles, begin, min(begin + together, queries))
            for begin in range(0, queries, together)
        ),
    )


def _listing_of_block(
    kind: AttentionKind, wide: int, tiles: int, begin: int, last: int
) -> tuple[ReadyLaunch, ReadyLaunch, ReadyLaunch]:
    """Three launches, for queries from `begin` on and before `last`, and tiles of `wide` // 4 keys."""
    tuning, options, strides = kind.tuning, kind.options, _joined(kind.strides[:2])
    all_tiles = power_of_two(tiles)
    many = all_tiles > _MANY_TOPS
    most = max(max(kind.keys // _DOUBTFUL_SHARE, _FEW_DOUBTFUL) // (wide // 4), 4)
    # Fewer registers make room for more programs; masks and float32 need more than these.
    is_exact = kind.dtype == torch.float32
    is_plain = not (is_exact or options["HAS_MASK"] or options["HAS_BIAS"])
    shared = (kind.keys, kind.last_key, kind.heads, kind.group, kind.scale)
    powers = kind.powers
    tops = _launch(
        kind,
        tile_tops,
        (blocks_of(last - begin, tuning.rows), kind.all_heads),
        (begin, last, tiles, tuning.tops_abreast, *shared, kind.epsilon, *strides, *kind.places),
        {"PER_HEAD": powers["PER_HEAD"], **options, **kind.widths}
        | {"ROWS": tuning.rows, "COLUMNS": tuning.columns, "WIDE": wide},
        tuning.warps,
        tuning.registers if is_plain else None,
        tuning.tile_stages if wide == tuning.columns else tuning.stages,
    )
    grid = (blocks_of(last - begin, _LISTED_TOGETHER), kind.all_heads)
    sizes = {"R": _LISTED_TOGETHER, "T": all_tiles, "P": _threads_of_a_row(all_tiles), "WIDE": wide}
    sizes["CAPACITY"] = LIST_CAPACITY
    keys = _launch(
        kind,
        list_keys,
        grid,
        (begin, last, 2 * tiles, most, kind.queries, *shared, kind.epsilon),
        {**powers, **{name: options[name] for name in ("CAUSAL", "HAS_BIAS", "HAS_LENGTHS")}, **sizes},
        tuning.list_warps * (2 if many else 1),
        tuning.many_registers if many else tuning.list_registers,
    )
    doubted = _launch(
        kind,
        list_doubted,
        grid,
        (begin, last, tiles, kind.queries, *shared, *strides, *kind.places),
        {**options, "EXACT": is_exact, **kind.widths, **sizes, "TOGETHER": 32 if wide >= _LONG_TILE else 16},
        1,
        tuning.doubted_registers,
        tuning.doubted_stages,
    )
    return tops, keys, doubted


def _threads_of_a_row(tiles: int) -> int:
    """Of a program that lists keys; each looks at 32 tiles or fewer."""
    return min(_THREADS_OF_A_ROW * (2 if tiles > _MANY_TOPS else 1), tiles)


@functools.lru_cache(maxsize=LAUNCHES)
def listed_means(kind: AttentionKind) -> ReadyLaunch:
    """Means of the values by lists."""
    rows = kind.tuning.listed_rows
    last_bits = _width_of_tiles(kind) // 4 * 2.0**-22  # of a score and of the largest
    return _launch(
        kind,
        attend_listed,
        (blocks_of(kind.queries, rows), kind.all_heads),
        (kind.queries, kind.heads, kind.group, kind.epsilon, last_bits, *kind.strides[2]),
        {**kind.powers, "C": kind.value_channels, "WIDTH": kind.value_widths["VALUE_WIDTH"]}
        | {"R": rows, "CAPACITY": LIST_CAPACITY},
        1,
        kind.tuning.listed_registers,
    )


@functools.lru_cache(maxsize=LAUNCHES)
def dense_means(kind: AttentionKind, has_lists: bool, needs_gradient: bool) -> tuple[ReadyLaunch, ReadyLaunch]:
    """Thresholds, then means of the values, of dense blocks: all, where there are no lists."""
    tuning = kind.tuning
    grid = (blocks_of(kind.queries, DENSE_ROWS), kind.all_heads)
    numbers = (*kind.sizes, kind.scale, kind.epsilon)
    last = {"COLUMNS": tuning.dense_columns, "HAS_LISTS": has_lists}
    solve = _launch(
        kind,
        solve_dense,
        grid,
        (*numbers, *_joined(kind.strides[:2]), *kind.places),
        {**kind.powers, **kind.options, **kind.widths, **last},
        tuning.dense_warps,
        tuning.dense_registers,
        tuning.dense_stages,
    )
    attend = _launch(
        kind,
        attend_dense,
        grid,
        (*numbers, *_joined(kind.strides), *kind.places),
        {**kind.powers, "NEEDS_MEANS": needs_gradient, **kind.options, **kind.widths, **kind.value_widths, **last},
        tuning.dense_warps,
        stages=tuning.dense_stages,
    )
    return solve, attend


@functools.lru_cache(maxsize=LAUNCHES)
def dense_gradients(
    kind: AttentionKind, cotangent: tuple[int, ...], has_lists: bool, needs_alpha: bool
) -> tuple[ReadyLaunch, ReadyLaunch]:
    """Gradients of queries, then of keys and values, from dense blocks; strides of the cotangent but for the last."""
    tuning = kind.tuning
    numbers = (*kind.sizes, kind.scale, kind.epsilon, *_joined(kind.strides), *cotangent, *kind.places)
    row_blocks = blocks_of(kind.queries, DENSE_ROWS)
    shared: dict[str, Any] = {**kind.powers, **kind.options, **kind.widths, **kind.value_widths}
    shared |= {"COLUMNS": tuning.dense_columns, "HAS_LISTS": has_lists}
    of_queries = _launch(
        kind,
        dense_queries_backward,
        (row_blocks, kind.all_heads),
        numbers,
        {**shared, "NEEDS_ALPHA": needs_alpha},
        tuning.dense_warps,
        tuning.dense_registers,
        tuning.dense_stages,
        contracts=True,
    )
    of_keys = _launch(
        kind,
        dense_keys_backward,
        (blocks_of(kind.keys, tuning.dense_columns), kind.all_groups),
        numbers,
        {**shared, "BLOCKS": power_of_two(row_blocks), "KEY_BLOCK": _KEY_BLOCK},
        tuning.dense_warps,
        stages=tuning.dense_stages,
    )
    return of_queries, of_keys


class ListedGradients(NamedTuple):
    """How gradients are found by lists.

    Attributes:
        cells_shape: (B·G, blocks of the rows of a group, blocks of keys), int32: how many entries have both.
        rank: launch of `rank_entries`,
        queries: of `listed_queries_backward`,
        keys: and of `listed_keys_backward`.
    """

    cells_shape: tuple[int, ...]
    rank: ReadyLaunch
    queries: ReadyLaunch
    keys: ReadyLaunch


@functools.lru_cache(maxsize=LAUNCHES)
def listed_gradients(kind: AttentionKind, cotangent: tuple[int, ...], needs_alpha: bool) -> ListedGradients:
    """Gradients by lists; strides of the cotangent but for the last."""
    tuning, rows = kind.tuning, kind.tuning.gradient_rows
    row_blocks, key_blocks = blocks_of(kind.queries, DENSE_ROWS), blocks_of(kind.keys, _KEY_BLOCK)
    of_lists = {"CAPACITY": LIST_CAPACITY, "KEY_BLOCK": _KEY_BLOCK}
    rank = _launch(kind, rank_entries, (row_blocks, kind.all_heads), (kind.queries, key_blocks), of_lists, 1)
    numbers = (kind.queries, kind.heads, kind.group, kind.scale, kind.epsilon)
    of_queries = _launch(
        kind,
        listed_queries_backward,
        (blocks_of(kind.queries, rows), kind.all_heads),
        (*numbers, *_joined(kind.strides[1:]), *cotangent, key_blocks),
        {**kind.powers, "NEEDS_ALPHA": needs_alpha, **kind.widths, **kind.value_widths, "R": rows, **of_lists},
        1,
        tuning.gradient_registers,
        contracts=True,
    )
    cells = kind.group * row_blocks
    sizes = (tuning.abreast, kind.queries, kind.keys, kind.heads, kind.group, cells)
    of_keys = _launch(
        kind,
        listed_keys_backward,
        (key_blocks, kind.all_groups),
        (*sizes, kind.scale, *kind.strides[0], *cotangent),
        {**kind.widths, **kind.value_widths, "GROUPED": kind.group > 1}
        | {"KEY_BLOCK": _KEY_BLOCK, "TOGETHER": tuning.together},
        tuning.key_warps,
        stages=tuning.key_stages,
    )
    return ListedGradients((kind.all_groups, cells, key_blocks), rank, of_queries, of_keys)


def _launch(
    kind: AttentionKind,
    kernel: Any,
    grid: tuple[int, ...],
    numbers: tuple[int | float, ...],
    constants: dict[str, Any],
    warps: int,
    registers: int | None = None,
    stages: int | None = None,
    contracts: bool = False,
) -> ReadyLaunch:
    """A launch for the tensors of a kind, whose dtypes and device are known."""
    return ReadyLaunch(Launch(kernel, grid, numbers, constants, warps, registers, stages, contracts), kind.device)


def _joined(strides: tuple[tuple[int, ...], ...]) -> tuple[int, ...]:
    return tuple(step for each in strides for step in each)
