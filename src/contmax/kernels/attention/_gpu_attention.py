"""The operators of attention on a GPU, for α in (1, 2]: buffers for each call, and the launches that fill them."""

from typing import Any

import torch
from torch import Tensor

from contmax.kernels.attention._gpu_call import AttentionCall, with_near_rows
from contmax.kernels.attention._gpu_decoding_launches import Decoding, decoding, page_launches
from contmax.kernels.attention._gpu_launches import (
    dense_gradients,
    dense_means,
    listed_gradients,
    listed_means,
    listing,
)
from contmax.kernels.attention._sizes import DecodingSizes, decoding_sizes
from contmax.kernels.attention._tensors import (
    AttentionGradients,
    AttentionLists,
    AttentionOptions,
    Boxes,
    empty_attended,
)
from contmax.kernels.rows._gpu_solve import NOTHING


def attend(
    query: Tensor, key: Tensor, value: Tensor, alpha: float | Tensor, options: AttentionOptions, needs_gradient: bool
) -> list[Tensor]:
    """The operator `attention`: lists and their means where there are many keys, then dense blocks."""
    call = AttentionCall(query, key, value, alpha, options)
    out, *rest = empty_attended(query, key, value, alpha, options, needs_gradient)
    lists = AttentionLists(*rest)
    has_lists = not lists.are_empty
    if has_lists:
        _list(call, lists)
        listed_means(call.kind)(
            call.value, call.alpha, lists.keys, lists.weights, lists.counts, lists.starts, lists.dense, out
        )  # fmt: skip
    solve, average = dense_means(call.kind, has_lists, needs_gradient)
    given = (call.mask, call.bias, call.limits, call.alpha)
    solved = (lists.starts, lists.dense, lists.shifts, lists.marks)
    solve(call.query, call.key, *given, *solved)
    average(call.query, call.key, call.value, *given, *solved, lists.states, lists.means, out)
    return [out, *lists]


def _list(call: AttentionCall, lists: AttentionLists) -> None:
    """Write candidate keys to `lists.keys`, their scores to `lists.weights`, and bounds to `lists.starts`."""
    plan = listing(call.kind)
    real: dict[str, Any] = {"dtype": torch.float32, "device": call.query.device}
    whole: dict[str, Any] = {"dtype": torch.int32, "device": call.query.device}
    maxima, tiles = torch.empty(plan.maxima_shape, **real), torch.empty(plan.tiles_shape, **whole)
    tile_counts, bits = torch.empty(plan.tiles_shape[:2], **whole), torch.empty(plan.bits_shape, **whole)
    bounds = torch.empty((call.kind.all_heads, call.kind.queries), **real)
    found = (tiles, tile_counts, bits, bounds, *lists[:6])
    given = (call.query, call.key, call.mask, call.bias, call.limits)
    for find_maxima, list_keys, list_undecided in plan.blocks:
        find_maxima(*given, call.alpha, maxima)
        list_keys(call.limits, call.alpha, maxima, *found)
        list_undecided(*given, maxima, *found)


def attend_backward(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    alpha: float | Tensor,
    options: AttentionOptions,
    lists: AttentionLists,
    cotangent: Tensor,
    needs_alpha: bool,
) -> AttentionGradients:
    """The operator `attention_backward`."""
    call = AttentionCall(query, key, value, alpha, options)
    g = with_near_rows(cotangent)
    d_query, d_key, d_value = (x.new_empty(x.shape) for x in (query, key, value))
    real: dict[str, Any] = {"dtype": torch.float32, "device": query.device}
    d_alpha = torch.empty(query.shape[:3] if needs_alpha else (1,), **real)
    offsets = dense_key = dense_value = g  # placeholders, not read without lists
    if not lists.are_empty:
        cells_shape, rank, of_queries, of_keys = listed_gradients(call.kind, g.stride()[:3], needs_alpha)
        cells = torch.zeros(cells_shape, dtype=torch.int32, device=g.device)
        ranks = torch.empty(lists.keys.shape, dtype=torch.int16, device=g.device)
        rank(lists.keys, lists.counts, lists.dense, ranks, cells)
        # `_gpu_listed` sorts cells by block of keys, then by block of rows: their offsets are cumulative counts.
        offsets = cells.transpose(1, 2).reshape(-1).cumsum(0, dtype=torch.int32)
        del cells
        slopes, places = torch.empty_like(lists.weights), torch.empty_like(lists.keys)
        pairs = call.query.new_empty((*places.shape, 2))
        of_queries(
            call.key, call.value, g, call.alpha, lists.keys, lists.weights, lists.counts, lists.starts, ranks, offsets,
            lists.dense, slopes, places, pairs, d_query, d_alpha,
        )  # fmt: skip
        del ranks, slopes
        dense_key, dense_value = (torch.empty(x.shape, **real) for x in (d_key, d_value))
    # `dense_keys` finishes blocks of keys that are in no list. Of others it writes a part; `of_keys` adds the lists.
    of_blocks = (offsets, dense_key, dense_value, d_key, d_value)
    along = torch.empty(lists.states.shape[:2], **real)
    tensors = (call.query, call.key, call.value, call.mask, call.bias, g, call.limits, call.alpha)
    solved = (lists.dense, lists.states, along, lists.shifts, lists.marks)
    dense_queries, dense_keys = dense_gradients(call.kind, g.stride()[:3], not lists.are_empty, needs_alpha)
    dense_queries(*tensors, *solved, lists.means, d_query, d_alpha)
    dense_keys(*tensors, *solved, *of_blocks)
    if not lists.are_empty:
        of_keys(call.query, g, places, pairs, offsets, lists.marks, *of_blocks[1:])
    return AttentionGradients(d_query, d_key, d_value, d_alpha.sum((0, 2)) if needs_alpha else d_alpha.new_empty(0))


def decode(query: Tensor, key: Tensor, value: Tensor, alpha: float | Tensor, options: AttentionOptions) -> Tensor:
    """The operator `decoding`."""
    call = AttentionCall(query, key, value, alpha, options)
    plan = decoding(call.kind, _decoding_sizes(call))
    real: dict[str, Any] = {"dtype": torch.float32, "device": query.device}
    scores, maxima = torch.empty(plan.scores_shape, **real), torch.empty(plan.maxima_shape, **real)
    plan.score(call.query, call.key, call.mask, call.bias, call.limits, scores, maxima)
    return _decoded(call, plan, scores, maxima)


def decode_by_pages(
    query: Tensor, key: Tensor, value: Tensor, alpha: float | Tensor, options: AttentionOptions, boxes: Boxes
) -> list[Tensor]:
    """The operator `decoding_by_pages`."""
    call = AttentionCall(query, key, value, alpha, options)
    sizes, pages = _decoding_sizes(call, boxes.size), boxes.low.shape[2]
    low, high = with_near_rows(boxes.low), with_near_rows(boxes.high)
    if high.stride() != low.stride():
        low, high = low.contiguous(), high.contiguous()
    plan = decoding(call.kind, sizes, skips=True)
    of_pages = page_launches(call.kind, sizes, boxes.size, pages, boxes.first, low.stride()[:3])
    real: dict[str, Any] = {"dtype": torch.float32, "device": query.device}
    bounds = torch.empty((*query.shape[:3], pages), **real)
    thresholds = torch.empty((*query.shape[:3], 1), **real)
    chosen = torch.empty(bounds.shape, dtype=torch.uint8, device=query.device)
    # Keys that are not read look as if they were masked.
    scores, maxima = (torch.full(x, NOTHING.value, **real) for x in (plan.scores_shape, plan.maxima_shape))
    given = (call.mask, call.bias, call.limits)
    of_pages.bound(call.query, low, high, *given, bounds)
    of_pages.choose(bounds, chosen)
    pointers = (call.query, call.key, *given, bounds, chosen, thresholds, scores, maxima)
    of_pages.score_first(*pointers)
    of_pages.threshold(call.alpha, maxima, thresholds)
    if boxes.reads_all:
        of_pages.score_others(*pointers)
    return [_decoded(call, plan, scores, maxima), bounds, chosen, thresholds]


def _decoding_sizes(call: AttentionCall, *page: int) -> DecodingSizes:
    kind = call.kind
    item = call.query.element_size()
    return decoding_sizes(kind.group * kind.queries, kind.keys, kind.all_groups, kind.block_width, item, *page)


def _decoded(call: AttentionCall, plan: Decoding, scores: Tensor, maxima: Tensor) -> Tensor:
    """The means of the values, (B, H, Q, c), from all scores and tile maxima."""
    kind = call.kind
    out = call.query.new_empty((kind.batch, kind.heads, kind.queries, kind.value_channels))
    real: dict[str, Any] = {"dtype": torch.float32, "device": out.device}
    whole: dict[str, Any] = {"dtype": torch.int32, "device": out.device}
    tiles, keys = torch.empty(plan.candidates_shape, **whole), torch.empty(plan.candidates_shape, **whole)
    listed, parts = torch.empty(plan.candidates_shape, **real), torch.empty(plan.parts_shape, **real)
    finished = torch.empty(plan.finished_shape, **whole)
    states, totals = torch.empty((plan.scores_shape[0], 2), **real), torch.empty(plan.parts_shape[:2], **real)
    plan.solve(call.value, call.limits, call.alpha, scores, maxima, tiles, keys, listed, states, finished, out)
    plan.average(call.value, call.limits, call.alpha, scores, states, finished, parts, totals, out)
    return out
