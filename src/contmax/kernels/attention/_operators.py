"""Operators of entmax attention by Triton's kernels: forward, backward, and decoding. α is a number or (H,)."""

from typing import Any

import torch
from torch import Tensor

from contmax._operator import operator
from contmax.kernels.attention._sizes import LIST_CAPACITY, MOST_DECODED_ROWS, most_keys_of_decoding, widest_head
from contmax.kernels.attention._tensors import (
    AttentionGradients,
    AttentionLists,
    AttentionOptions,
    Boxes,
    empty_attended,
)

# The most list entries, because their indices have 32 bits, and the most heads, which are an axis of CUDA's grids.
_MOST_ENTRIES, _MOST_HEADS = 2**31, 65535
# The most scores of a call of decoding, which holds them all in memory, 4 bytes each.
_MOST_SCORES = 2**31


def attention_fits(query: Tensor, key: Tensor, value: Tensor) -> bool:
    """Whether Triton's kernels take tensors of these sizes, (*batch, H, Q, d), (*batch, G, L, d) and (*batch, G, L, c).

    The kernels also need α in (1, 2], which this function does not check.
    """
    if 0 in (*query.shape, *key.shape, *value.shape):
        return False
    if query.shape[:-1].numel() * LIST_CAPACITY >= _MOST_ENTRIES or query.shape[:-2].numel() > _MOST_HEADS:
        return False
    return max(query.shape[-1], value.shape[-1]) <= widest_head(query)


def decoding_fits(query: Tensor, key: Tensor, value: Tensor, page: int = 128) -> bool:
    """Whether `decoding` takes tensors of these sizes, provided that `attention_fits` is true of them."""
    width = max(query.shape[-1], value.shape[-1])
    return (
        key.shape[-2] <= most_keys_of_decoding(width, query.element_size(), page)
        and query.shape[:-1].numel() * key.shape[-2] <= _MOST_SCORES
    )


def pages_fit(query: Tensor, key: Tensor, value: Tensor, page: int) -> bool:
    """Whether `decoding_by_pages` takes these tensors and `page` keys per page, if `attention_fits` is true of them.

    All queries of a key head must be in one program, because only the queries of a program share what is read.
    """
    rows = query.shape[-3] // key.shape[-3] * query.shape[-2]
    return rows <= MOST_DECODED_ROWS and decoding_fits(query, key, value, page)


def _empty_gradients(query: Tensor, key: Tensor, value: Tensor, *rest: Any) -> AttentionGradients:
    d_query, d_key, d_value = (x.new_empty(x.shape) for x in (query, key, value))
    d_alpha = query.new_empty(query.shape[1] if rest[-1] else 0, dtype=torch.float32)
    return AttentionGradients(d_query, d_key, d_value, d_alpha)


@operator("entmax_attention", like=empty_attended)
def attention(
    query: Tensor, key: Tensor, value: Tensor, alpha: float | Tensor, options: AttentionOptions, needs_gradient: bool
) -> list[Tensor]:
    """Means (B, H, Q, c), then `AttentionLists`; query is (B, H, Q, d), key (B, G, L, d) and value (B, G, L, c)."""
    from contmax.kernels.attention._gpu_attention import attend

    return attend(query, key, value, alpha, options, needs_gradient)


@operator("entmax_attention_backward", like=_empty_gradients)
def attention_backward(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    alpha: float | Tensor,
    options: AttentionOptions,
    lists: AttentionLists,
    cotangent: Tensor,
    needs_alpha: bool,
) -> AttentionGradients:
    """Gradients from `cotangent`, (B, H, Q, c), the cotangent of the means."""
    from contmax.kernels.attention import _gpu_attention as gpu

    return gpu.attend_backward(gpu.AttentionCall(query, key, value, alpha, options), lists, cotangent, needs_alpha)


@operator("entmax_decoding", like=lambda query, key, value, *_: query.new_empty((*query.shape[:3], value.shape[3])))
def decoding(query: Tensor, key: Tensor, value: Tensor, alpha: float | Tensor, options: AttentionOptions) -> Tensor:
    """The means of `attention`, (B, H, Q, c), for few queries and without gradients."""
    from contmax.kernels.attention import _gpu_attention as gpu

    return gpu.decode(gpu.AttentionCall(query, key, value, alpha, options))


def _empty_decoded(
    query: Tensor, key: Tensor, value: Tensor, alpha: float | Tensor, options: AttentionOptions, boxes: Boxes
) -> list[Tensor]:
    of_pages = (*query.shape[:3], boxes.low.shape[2])
    return [
        query.new_empty((*query.shape[:3], value.shape[3])),
        query.new_empty(of_pages, dtype=torch.float32),
        query.new_empty(of_pages, dtype=torch.uint8),
        query.new_empty((*query.shape[:3], 1), dtype=torch.float32),
    ]


@operator("entmax_decoding_by_pages", like=_empty_decoded)
def decoding_by_pages(
    query: Tensor, key: Tensor, value: Tensor, alpha: float | Tensor, options: AttentionOptions, boxes: Boxes
) -> list[Tensor]:
    """The means of `decoding`, reading only some pages of keys; then bounds, chosen and thresholds of `Bounded`."""
    from contmax.kernels.attention import _gpu_attention as gpu

    return gpu.decode_by_pages(gpu.AttentionCall(query, key, value, alpha, options), boxes)
