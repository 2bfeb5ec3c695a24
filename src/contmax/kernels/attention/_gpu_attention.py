"""Attention by α-entmax, α in (1, 2]: forward and backward."""

from typing import Any

import torch
from torch import Tensor

from contmax.kernels.attention._gpu_call import AttentionCall, with_near_rows
from contmax.kernels.attention._gpu_launches import (
    ListedGradients,
    dense_gradients,
    dense_means,
    listed_gradients,
    listed_means,
    listing,
)
from contmax.kernels.attention._gpu_memory import AttentionLists, empty_attention_lists
from contmax.kernels.attention._options import AttentionOptions


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
    out = query.new_empty((*query.shape[:3], value.shape[3]))
    has_lists = not lists.are_empty
    if has_lists:
        _list(call, lists)
        listed_means(call.kind)(
            call.value, call.alpha, lists.keys, lists.weights, lists.counts, lists.starts, lists.dense, out
        )  # fmt: skip
    solve, attend = dense_means(call.kind, has_lists, needs_gradient)
    given = (call.mask, call.bias, call.lengths, call.alpha)
    solved = (lists.starts, lists.dense, lists.shifts, lists.marks)
    solve(call.query, call.key, *given, *solved)
    attend(call.query, call.key, call.value, *given, *solved, lists.states, lists.means, out)
    return out, lists


def _list(call: AttentionCall, lists: AttentionLists) -> None:
    """Fill in keys and scores, which lie where weights will."""
    plan = listing(call.kind)
    real: dict[str, Any] = {"dtype": torch.float32, "device": call.query.device}
    whole: dict[str, Any] = {"dtype": torch.int32, "device": call.query.device}
    tops, some = torch.empty(plan.tops_shape, **real), torch.empty(plan.some_shape, **whole)
    numbers, doubts = torch.empty(plan.some_shape[:2], **whole), torch.empty(plan.doubts_shape, **whole)
    bounds = torch.empty((call.kind.all_heads, call.kind.queries), **real)
    found = (some, numbers, doubts, bounds, *lists[:6])
    given = (call.query, call.key, call.mask, call.bias, call.lengths)
    for find_tops, list_keys, list_doubted in plan.blocks:
        find_tops(*given, call.alpha, tops)
        list_keys(call.lengths, call.alpha, tops, *found)
        list_doubted(*given, tops, *found)


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
    d_query, d_key, d_value = (x.new_empty(x.shape) for x in (query, key, value))
    real: dict[str, Any] = {"dtype": torch.float32, "device": query.device}
    d_alpha = torch.empty(query.shape[:3] if needs_alpha else (1,), **real)
    if lists.are_empty:
        _dense(call, lists, g, (d_query, d_alpha), (g, g, g, d_key, d_value), needs_alpha)
    else:
        launches = listed_gradients(call.kind, g.stride()[:3], needs_alpha)
        places, pairs, offsets = _listed_queries(call, launches, lists, g, d_query, d_alpha)
        dense_key, dense_value = (torch.empty(x.shape, **real) for x in (d_key, d_value))
        of_keys = (offsets, dense_key, dense_value, d_key, d_value)
        _dense(call, lists, g, (d_query, d_alpha), of_keys, needs_alpha)
        launches.keys(call.query, g, places, pairs, offsets, lists.marks, *of_keys[1:])
    return d_query, d_key, d_value, d_alpha if needs_alpha else None


def _listed_queries(
    call: AttentionCall, launches: ListedGradients, lists: AttentionLists, g: Tensor, d_query: Tensor, d_alpha: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """Gradients of queries by lists; and all entries of the lists in the order of the keys, with where each begins."""
    cells = torch.zeros(launches.cells_shape, dtype=torch.int32, device=g.device)
    ranks = torch.empty(lists.keys.shape, dtype=torch.int16, device=g.device)
    launches.rank(lists.keys, lists.counts, lists.dense, ranks, cells)
    # By blocks of keys, and for each by blocks of rows.
    offsets = cells.transpose(1, 2).reshape(-1).cumsum(0, dtype=torch.int32)
    del cells
    slopes, places = torch.empty_like(lists.weights), torch.empty_like(lists.keys)
    pairs = call.query.new_empty((*places.shape, 2))
    launches.queries(
        call.key, call.value, g, call.alpha, lists.keys, lists.weights, lists.counts, lists.starts, ranks, offsets,
        lists.dense, slopes, places, pairs, d_query, d_alpha,
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
    queries, keys = dense_gradients(call.kind, g.stride()[:3], not lists.are_empty, needs_alpha)
    queries(*tensors, *solved, lists.means, *of_queries)
    keys(*tensors, *solved, *of_keys)
