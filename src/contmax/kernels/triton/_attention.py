"""Launchers of attention by α-entmax, α in (1, 2]: forward and backward."""

from typing import Any

import torch
from torch import Tensor

from contmax.kernels._attention_options import AttentionOptions
from contmax.kernels.triton._attention_call import AttentionCall, with_near_rows
from contmax.kernels.triton._attention_columns import listed_keys_backward, rank_entries
from contmax.kernels.triton._attention_dense import attend_dense, solve_dense
from contmax.kernels.triton._attention_dense_backward import dense_keys_backward, dense_queries_backward
from contmax.kernels.triton._attention_doubted import list_doubted
from contmax.kernels.triton._attention_lists import list_keys
from contmax.kernels.triton._attention_memory import (
    DENSE_ROWS,
    LIST_CAPACITY,
    AttentionLists,
    empty_attention_lists,
)
from contmax.kernels.triton._attention_rows import attend_listed, listed_queries_backward
from contmax.kernels.triton._attention_tops import tile_tops
from contmax.kernels.triton._counting import blocks_of, power_of_two
from contmax.kernels.triton._launch import device_of

# Tiles of a row at most, so that their tops take little memory; and bytes of tops that are there at a time.
_MOST_TILES, _BYTES_OF_TOPS = 512, 2**29
# Keys of a block in the backward pass.
_KEY_BLOCK = 64
# Rows of a program that lists keys, and threads that share one of so many tops.
_LISTED_TOGETHER, _THREADS_OF_A_ROW, _MANY_TOPS = 16, 8, 256
# Neighbours of a tile whose keys are multiplied again 32 at a time, not 16.
_LONG_TILE = 512
# Keys that a row may multiply again: one of so many, or so many.
_DOUBTFUL_SHARE, _FEW_DOUBTFUL = 16, 256


def entmax_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    alpha: float | Tensor,
    options: AttentionOptions,
    needs_gradient: bool,
) -> tuple[Tensor, AttentionLists]:
    """Means of the values, and what `entmax_attention_backward` needs.

    Args:
        query: (B, H, Q, d), float32 or half precision.
        key: (B, G, L, d), G dividing H.
        value: (B, G, L, c).
        alpha: α in (1, 2], or one for each head, (H,).
        options: masks, bias, lengths, causality and scale.
        needs_gradient: whether there will be a backward pass.
    """
    call = AttentionCall(query, key, value, alpha, options)
    lists = empty_attention_lists(query, key, value, alpha, needs_gradient)
    out = query.new_empty((call.batch, call.heads, call.queries, call.value_channels))
    with device_of(query):
        if not lists.are_empty:
            _list(call, lists)
            _attend_listed(call, lists, out)
        _attend_dense(call, lists, out, needs_gradient)
    return out, lists


def _attend_listed(call: AttentionCall, lists: AttentionLists, out: Tensor) -> None:
    """Means of the values by lists."""
    rows = call.tuning.listed_rows
    attend_listed[(blocks_of(call.queries, rows), call.all_heads)](
        call.value, call.alpha, lists.keys, lists.weights, lists.counts, lists.starts, lists.dense, out,
        call.queries, call.heads, call.group, call.epsilon, *call.strides(call.value),
        **call.powers, C=call.value_channels, WIDTH=call.value_widths["VALUE_WIDTH"], R=rows,
        CAPACITY=LIST_CAPACITY, num_warps=1, maxnreg=call.tuning.listed_registers,
    )  # fmt: skip


def _attend_dense(call: AttentionCall, lists: AttentionLists, out: Tensor, needs_gradient: bool) -> None:
    """Means of the values of dense blocks: all, where there are no lists."""
    blocks = (blocks_of(call.queries, DENSE_ROWS), call.all_heads)
    solve_dense[blocks](
        call.query, call.key, call.mask, call.bias, call.lengths, call.alpha, lists.starts, lists.dense,
        lists.shifts, lists.marks, *call.sizes, call.scale, call.epsilon, *call.strides(call.query, call.key),
        *call.places, **call.powers, **call.kinds, **call.widths, HAS_LISTS=not lists.are_empty, **call.tuning.dense,
        maxnreg=call.tuning.dense_registers,
    )  # fmt: skip
    attend_dense[blocks](
        call.query, call.key, call.value, call.mask, call.bias, call.lengths, call.alpha, lists.starts, lists.dense,
        lists.shifts, lists.marks, lists.states, lists.means, out, *call.sizes, call.scale, call.epsilon,
        *call.strides(call.query, call.key, call.value), *call.places,
        **call.powers, NEEDS_MEANS=needs_gradient, **call.kinds, **call.widths, **call.value_widths,
        HAS_LISTS=not lists.are_empty, **call.tuning.dense,
    )  # fmt: skip


def _list(call: AttentionCall, lists: AttentionLists) -> None:
    """Fill in keys and scores, which lie where weights will, by blocks of queries."""
    wide = 64 * power_of_two(blocks_of(call.keys, 16 * _MOST_TILES))
    # Whole blocks of a product are written.
    tiles = blocks_of(call.keys, max(call.tuning.columns, wide)) * max(call.tuning.columns // wide, 1) * 4
    all_tiles = power_of_two(tiles)
    stages = call.tuning.tile_stages if wide == call.tuning.columns else call.tuning.stages
    many = all_tiles > _MANY_TOPS
    threads = min(_THREADS_OF_A_ROW * (2 if many else 1), all_tiles)
    most = max(max(call.keys // _DOUBTFUL_SHARE, _FEW_DOUBTFUL) // (wide // 4), 4)
    # Fewer registers make room for more programs; masks and float32 need more than these.
    is_plain = call.query.dtype != torch.float32 and not (call.kinds["HAS_MASK"] or call.kinds["HAS_BIAS"])
    bytes_per_query = call.all_heads * tiles * 8
    together = max(1, _BYTES_OF_TOPS // bytes_per_query // call.tuning.rows) * call.tuning.rows
    together = min(together, blocks_of(call.queries, call.tuning.rows) * call.tuning.rows)
    size = min(together, call.queries)
    programs = blocks_of(size, _LISTED_TOGETHER)
    real: dict[str, Any] = {"dtype": torch.float32, "device": call.query.device}
    whole: dict[str, Any] = {"dtype": torch.int32, "device": call.query.device}
    tops = torch.empty((call.all_heads, size, tiles, 2), **real)
    some = torch.empty((call.all_heads, programs, all_tiles), **whole)
    numbers = torch.empty((call.all_heads, programs), **whole)
    bounds = torch.empty((call.all_heads, call.queries, 2), **real)
    found = (some, numbers, bounds, *lists[:6])
    sizes = {"R": _LISTED_TOGETHER, "T": all_tiles, "WIDE": wide, "CAPACITY": LIST_CAPACITY}
    for begin in range(0, call.queries, together):
        last = min(begin + together, call.queries)
        arguments = (call.keys, call.diagonal, call.heads, call.group, call.scale)
        tile_tops[(blocks_of(last - begin, call.tuning.rows), call.all_heads)](
            call.query, call.key, call.mask, call.bias, call.lengths, call.alpha, tops, begin, last, tiles,
            call.tuning.tops_abreast, *arguments, call.epsilon, *call.strides(call.query, call.key), *call.places,
            PER_HEAD=call.powers["PER_HEAD"], **call.kinds, **call.widths,
            ROWS=call.tuning.rows, COLUMNS=call.tuning.columns, WIDE=wide,
            num_warps=call.tuning.warps, num_stages=stages, maxnreg=call.tuning.registers if is_plain else None,
        )  # fmt: skip
        grid = (blocks_of(last - begin, _LISTED_TOGETHER), call.all_heads)
        list_keys[grid](
            call.lengths, call.alpha, tops, *found, begin, last, 2 * tiles, most, call.queries, *arguments,
            call.epsilon, **call.powers, **{name: call.kinds[name] for name in ("CAUSAL", "HAS_BIAS", "HAS_LENGTHS")},
            **sizes, P=threads, num_warps=call.tuning.list_warps * (2 if many else 1),
            maxnreg=call.tuning.many_registers if many else call.tuning.list_registers,
        )  # fmt: skip
        list_doubted[grid](
            call.query, call.key, call.mask, call.bias, call.lengths, tops, *found, begin, last, tiles, call.queries,
            *arguments, *call.strides(call.query, call.key), *call.places, **call.kinds,
            EXACT=call.query.dtype == torch.float32, **call.widths, **sizes, TOGETHER=32 if wide >= _LONG_TILE else 16,
            num_warps=1, num_stages=call.tuning.doubted_stages, maxnreg=call.tuning.doubted_registers,
        )  # fmt: skip


def entmax_attention_backward(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    alpha: float | Tensor,
    options: AttentionOptions,
    lists: AttentionLists,
    cotangent: Tensor,
    needs_alpha: bool,
) -> tuple[Tensor, Tensor, Tensor, Tensor | None]:
    """Gradients of query, key and value, and of α for each query, (B, H, Q), where it is needed."""
    call = AttentionCall(query, key, value, alpha, options)
    g = with_near_rows(cotangent)
    d_query = query.new_empty((call.batch, call.heads, call.queries, call.channels))
    d_key = query.new_empty((call.batch, call.groups, call.keys, call.channels))
    d_value = query.new_empty((call.batch, call.groups, call.keys, call.value_channels))
    real: dict[str, Any] = {"dtype": torch.float32, "device": query.device}
    d_alpha = torch.empty(query.shape[:3] if needs_alpha else (1,), **real)
    with device_of(query):
        if lists.are_empty:
            _dense(call, lists, g, (d_query, d_alpha), (g, g, g, d_key, d_value), needs_alpha)
            return d_query, d_key, d_value, d_alpha if needs_alpha else None
        places, pairs, offsets = _listed_queries(call, lists, g, d_query, d_alpha, needs_alpha)
        dense_key, dense_value = (torch.empty(x.shape, **real) for x in (d_key, d_value))
        of_keys = (offsets, dense_key, dense_value, d_key, d_value)
        _dense(call, lists, g, (d_query, d_alpha), of_keys, needs_alpha)
        row_blocks = blocks_of(call.queries, DENSE_ROWS)
        listed_keys_backward[(blocks_of(call.keys, _KEY_BLOCK), call.batch * call.groups)](
            call.query, g, places, pairs, offsets, lists.marks, dense_key, dense_value, d_key, d_value,
            call.tuning.abreast, call.queries, call.keys, call.heads, call.group, call.group * row_blocks, call.scale,
            *call.strides(call.query, g), **call.widths, **call.value_widths,
            GROUPED=call.group > 1, KEY_BLOCK=_KEY_BLOCK, TOGETHER=call.tuning.together,
            num_warps=call.tuning.key_warps, num_stages=call.tuning.key_stages,
        )  # fmt: skip
    return d_query, d_key, d_value, d_alpha if needs_alpha else None


def _listed_queries(
    call: AttentionCall, lists: AttentionLists, g: Tensor, d_query: Tensor, d_alpha: Tensor, needs_alpha: bool
) -> tuple[Tensor, Tensor, Tensor]:
    """Gradients of queries by lists; and all entries of the lists in the order of the keys, with where each begins."""
    whole: dict[str, Any] = {"dtype": torch.int32, "device": call.query.device}
    row_blocks, key_blocks = blocks_of(call.queries, DENSE_ROWS), blocks_of(call.keys, _KEY_BLOCK)
    cells = torch.zeros((call.batch * call.groups, call.group * row_blocks, key_blocks), **whole)
    ranks = torch.empty(lists.keys.shape, dtype=torch.int16, device=call.query.device)
    rank_entries[(row_blocks, call.all_heads)](
        lists.keys, lists.counts, lists.dense, ranks, cells, call.queries, key_blocks,
        CAPACITY=LIST_CAPACITY, KEY_BLOCK=_KEY_BLOCK, num_warps=1,
    )  # fmt: skip
    # By blocks of keys, and for each by blocks of rows.
    offsets = cells.transpose(1, 2).reshape(-1).cumsum(0, dtype=torch.int32)
    del cells
    slopes, places = torch.empty_like(lists.weights), torch.empty_like(lists.keys)
    pairs = call.query.new_empty((*places.shape, 2))
    rows = call.tuning.gradient_rows
    listed_queries_backward[(blocks_of(call.queries, rows), call.all_heads)](
        call.key, call.value, g, call.alpha, lists.keys, lists.weights, lists.counts, lists.starts, ranks, offsets,
        lists.dense, slopes, places, pairs, d_query, d_alpha, call.queries, call.heads, call.group, call.scale,
        call.epsilon, *call.strides(call.key, call.value, g), key_blocks,
        **call.powers, NEEDS_ALPHA=needs_alpha, **call.widths, **call.value_widths, R=rows, CAPACITY=LIST_CAPACITY,
        KEY_BLOCK=_KEY_BLOCK, num_warps=1, maxnreg=call.tuning.gradient_registers,
    )  # fmt: skip
    return places, pairs, offsets


def _dense(
    call: AttentionCall,
    lists: AttentionLists,
    g: Tensor,
    of_queries: tuple[Tensor, Tensor],
    of_keys: tuple[Tensor, ...],
    needs_alpha: bool,
) -> None:
    """Gradients from dense blocks.

    Those of keys and values are written where lists have no part in them, and elsewhere put down in float32 until they
    have: `of_keys` are the offsets of the entries of the lists, both in float32, and both gradients. Where there are no
    lists the first three are not used.
    """
    along = torch.empty(lists.states.shape[:2], dtype=torch.float32, device=g.device)
    tensors = (call.query, call.key, call.value, call.mask, call.bias, g, call.lengths, call.alpha)
    solved = (lists.dense, lists.states, along, lists.shifts, lists.marks)
    strides = (*call.strides(call.query, call.key, call.value, g), *call.places)
    kinds: dict[str, Any] = {**call.powers, **call.kinds, **call.widths, **call.value_widths, **call.tuning.dense}
    kinds["HAS_LISTS"] = not lists.are_empty
    dense_queries_backward[(blocks_of(call.queries, DENSE_ROWS), call.all_heads)](
        *tensors, *solved, lists.means, *of_queries, *call.sizes, call.scale, call.epsilon, *strides,
        **kinds, NEEDS_ALPHA=needs_alpha, maxnreg=call.tuning.dense_registers,
    )  # fmt: skip
    dense_keys_backward[(blocks_of(call.keys, call.tuning.dense_columns), call.batch * call.groups)](
        *tensors, *solved, *of_keys, *call.sizes, call.scale, call.epsilon, *strides,
        **kinds, BLOCKS=power_of_two(blocks_of(call.queries, DENSE_ROWS)), KEY_BLOCK=_KEY_BLOCK,
    )  # fmt: skip
