"""The operators of attention on a GPU: buffers for each call, and the launches that fill them."""

import torch
from torch import Tensor

from contmax.kernels.attention._gpu_call import AttentionCall as AttentionCall
from contmax.kernels.attention._gpu_call import with_near_rows
from contmax.kernels.attention._gpu_launches import (
    Decoding,
    decoding,
    dense_gradients,
    dense_means,
    listed_gradients,
    listed_means,
    listing,
    page_launches,
)
from contmax.kernels.attention._operators import (
    AttentionGradients,
    AttentionLists,
    AttentionOptions,
    Boxes,
    empty_attended,
)
from contmax.kernels.attention._sizes import DecodingSizes, decoding_sizes


def attend(
    query: Tensor, key: Tensor, value: Tensor, alpha: float | Tensor, options: AttentionOptions, needs_gradient: bool
) -> list[Tensor]:
    """Run the operator `attention`: average over candidate lists, if keys are many; then attend in other blocks."""
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
    maxima, bounds = call.empty(torch.float32, plan.maxima_shape, (call.kind.all_heads, call.kind.queries))
    tiles, tile_counts, bits = call.empty(torch.int32, plan.tiles_shape, plan.tiles_shape[:2], plan.bits_shape)
    found = (tiles, tile_counts, bits, bounds, *lists[:6])
    given = (call.query, call.key, call.mask, call.bias, call.limits)
    for find_maxima, list_keys, list_undecided in plan.blocks:
        find_maxima(*given, call.alpha, maxima)
        list_keys(call.limits, call.alpha, maxima, *found)
        list_undecided(*given, maxima, *found)


def attend_backward(
    call: AttentionCall, lists: AttentionLists, cotangent: Tensor, needs_alpha: bool
) -> AttentionGradients:
    """Run the operator `attention_backward`: gradients of query, key, value and α."""
    g = with_near_rows(cotangent)
    d_query, d_key, d_value = (x.new_empty(x.shape) for x in (call.query, call.key, call.value))
    sizes = (call.query.shape[:3] if needs_alpha else (1,), lists.states.shape[:2])
    d_alpha, along = call.empty(torch.float32, *sizes)
    offsets = dense_key = dense_value = g  # placeholders, which kernels read only if there are lists
    if not lists.are_empty:
        cells_shape, rank, of_queries, of_keys = listed_gradients(call.kind, g.stride()[:3], needs_alpha)
        cells = torch.zeros(cells_shape, dtype=torch.int32, device=g.device)
        ranks = torch.empty(lists.keys.shape, dtype=torch.int16, device=g.device)
        rank(lists.keys, lists.counts, lists.dense, ranks, cells)
        # `cells` counts the listed entries of each cell, a pair of a block of rows and a block of keys. `_gpu_listed`
        # sorts entries by block of keys, then by block of rows, so cumulative counts are where a cell's entries end.
        offsets = cells.transpose(1, 2).reshape(-1).cumsum(0, dtype=torch.int32)
        del cells
        slopes, places = torch.empty_like(lists.weights), torch.empty_like(lists.keys)
        pairs = call.query.new_empty((*places.shape, 2))
        of_queries(
            call.key, call.value, g, call.alpha, lists.keys, lists.weights, lists.counts, lists.starts, ranks, offsets,
            lists.dense, slopes, places, pairs, d_query, d_alpha,
        )  # fmt: skip
        del ranks, slopes
        dense_key, dense_value = call.empty(torch.float32, d_key.shape, d_value.shape)
    # In key heads with dense rows, `dense_keys` writes the whole gradient of a block of keys that is in no list. For
    # any other block of keys it writes the sum over dense rows to a buffer, and `of_keys` adds the sum over lists.
    of_blocks = (offsets, dense_key, dense_value, d_key, d_value)
    tensors = (call.query, call.key, call.value, call.mask, call.bias, g, call.limits, call.alpha)
    solved = (lists.dense, lists.states, along, lists.shifts, lists.marks)
    dense_queries, dense_keys = dense_gradients(call.kind, g.stride()[:3], not lists.are_empty, needs_alpha)
    dense_queries(*tensors, *solved, lists.means, d_query, d_alpha)
    dense_keys(*tensors, *solved, *of_blocks)
    if not lists.are_empty:
        of_keys(call.query, g, places, pairs, offsets, lists.marks, *of_blocks[1:])
    return AttentionGradients(d_query, d_key, d_value, d_alpha.sum((0, 2)) if needs_alpha else d_alpha.new_empty(0))


def decode(call: AttentionCall) -> Tensor:
    """Run the operator `decoding`: the means of the values for few queries."""
    plan = decoding(call.kind, _decoding_sizes(call))
    scores, maxima = call.empty(torch.float32, plan.scores_shape, plan.maxima_shape)
    plan.score(call.query, call.key, call.mask, call.bias, call.limits, scores, maxima)
    return _decoded(call, plan, scores, maxima)


def decode_by_pages(call: AttentionCall, boxes: Boxes) -> list[Tensor]:
    """Run the operator `decoding_by_pages`: decoding that reads only some pages of keys."""
    sizes, pages = _decoding_sizes(call, boxes.size), boxes.low.shape[2]
    low, high = with_near_rows(boxes.low), with_near_rows(boxes.high)
    if high.stride() != low.stride():
        low, high = low.contiguous(), high.contiguous()
    plan = decoding(call.kind, sizes, skips=True)
    budget = 0 if boxes.budget is None else boxes.budget
    of_pages = page_launches(call.kind, sizes, boxes.size, pages, budget, low.stride()[:3])
    rows = call.query.shape[:3]
    bounds, thresholds, firsts = call.empty(torch.float32, (*rows, pages), (*rows, 1), of_pages.firsts_shape)
    (chosen,) = call.empty(torch.uint8, bounds.shape)
    scores, maxima = call.empty(torch.float32, plan.scores_shape, plan.maxima_shape)
    given, written = (call.query, call.key, call.mask, call.bias, call.limits), (firsts, scores, maxima)
    of_pages.bound(*given, low, high, bounds, chosen, *written)
    if boxes.budget is not None:
        of_pages.choose(bounds, chosen)
    of_pages.score(*given, call.alpha, bounds, chosen, thresholds, *written)
    if boxes.budget is not None:
        of_pages.threshold(call.alpha, maxima, thresholds)
    return [_decoded(call, plan, scores, maxima), bounds, chosen, thresholds]


def _decoding_sizes(call: AttentionCall, *page: int) -> DecodingSizes:
    kind = call.kind
    item = call.query.element_size()
    return decoding_sizes(kind.group * kind.queries, kind.keys, kind.all_groups, kind.block_width, item, *page)


def _decoded(call: AttentionCall, plan: Decoding, scores: Tensor, maxima: Tensor) -> Tensor:
    """The means of the values, (B, H, Q, c), from all scores and tile maxima."""
    kind = call.kind
    out = call.query.new_empty((kind.batch, kind.heads, kind.queries, kind.value_channels))
    tiles, keys, finished = call.empty(torch.int32, *[plan.candidates_shape] * 2, plan.finished_shape)
    listed, states = call.empty(torch.float32, plan.candidates_shape, (plan.scores_shape[0], 2))
    parts, totals = call.empty(torch.float32, plan.parts_shape, plan.parts_shape[:2])
    plan.solve(call.value, call.limits, call.alpha, scores, maxima, tiles, keys, listed, states, finished, out)
    plan.average(call.value, call.limits, call.alpha, scores, states, finished, parts, totals, out)
    return out
