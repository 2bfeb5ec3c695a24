"""Operators of entmax attention by Triton's kernels, and their arguments and results: options, lists, gradients.

The operators are forward, backward, decoding, and decoding by pages. α is one number, or a tensor with one number per
head, (H,).
"""

from typing import Any, NamedTuple

import torch
from torch import Tensor

from contmax._operator import operator
from contmax.kernels import blocks_of
from contmax.kernels.attention._sizes import (
    DENSE_ROWS,
    LIST_CAPACITY,
    MOST_DECODED_ROWS,
    most_keys_of_decoding,
    most_keys_without_lists,
    widest_head,
)

# The most list entries, because their indices have 32 bits, and the most heads, which are an axis of CUDA's grids.
_MOST_ENTRIES, _MOST_HEADS = 2**31, 65535
# The most scores of a call of decoding, which holds them all in memory, 4 bytes each.
_MOST_SCORES = 2**31


class AttentionOptions(NamedTuple):
    """Arguments of attention beside queries, keys, values and α."""

    mask: Tensor | None  # boolean, broadcastable to (B, H, Q, L), or None
    # Added to the scores: broadcastable to (B, H, Q, L), or one number per distance (`is_by_distance`); or None.
    bias: Tensor | None
    lengths: Tensor | None  # the number of keys of each sequence, (B, 1, …), or None
    diagonal: int | None  # query i may attend only keys j ≤ i + diagonal; None without a causal mask
    scale: float  # factor of the products ⟨q, k⟩, not negative
    # The first key that each query may attend, and the end of its keys: integers that broadcast to (B, H, Q, 2),
    # (0, 0) for queries without keys. None for all keys; with spans `lengths` and `diagonal` are None.
    spans: Tensor | None = None


class AttentionLists(NamedTuple):
    """The tensors that the backward pass needs. A row is a query of one head; its list holds the keys of its support.

    A block of DENSE_ROWS rows is dense if its lists do not pay (`_gpu_candidates`), mostly because one overflows. With
    few keys all blocks are dense: `keys`, `weights` and `counts` are then empty. With many keys `shifts` is empty.
    """

    keys: Tensor  # (B·H, Q, LIST_CAPACITY), int32: the lists; undefined from the row's count on
    weights: Tensor  # p of these keys, float32
    counts: Tensor  # (B·H, Q), int32: lengths of the lists; 0 in dense blocks
    # (B·H, Q, 2), float32: the row's largest score less its shift, NaN if it is not finite; then a lower bound of
    # the normaliser A, or in dense blocks t = 1 − (α − 1)A.
    starts: Tensor
    # (B·H, blocks of rows), int64: 0 for a block with lists. For a dense block first + 2³²·end: its mass lies in
    # the blocks of keys first … end − 1.
    dense: Tensor
    # (B·G,), int32, 0 or 1. With lists: whether any row of the key head is in a dense block. Without lists: whether
    # any row of the key head has a shift ≠ 0.
    marks: Tensor
    states: Tensor  # (B·H, Q, 4), float32: turn scores of dense blocks into p (`_gpu_scores.state_of_rows`)
    means: Tensor  # (B·H, Q, c), float32: for rows of dense blocks, means of the values with weights p^{2−α}
    # (B·H, Q), float32: a number, mostly 0, subtracted from all scores of a row (`_gpu_scores.shift_of_rows`).
    shifts: Tensor

    @property
    def are_empty(self) -> bool:
        """Whether there are no lists, because with few keys all rows are dense."""
        return self.keys.shape[-1] == 0


class AttentionGradients(NamedTuple):
    """Gradients of query, key and value, in their shapes; and of α, float32, (H,), or (0,) if it is not needed."""

    query: Tensor
    key: Tensor
    value: Tensor
    alpha: Tensor


class Bounded(NamedTuple):
    """The numbers that decide which pages of keys are read."""

    bounds: Tensor  # upper bounds of the scores in each page, (*batch, H, Q, pages), −∞ where no key may be attended
    chosen: Tensor  # whether a page is read first, (*batch, H, Q, pages)
    # Lower bounds of the thresholds τ, (*batch, H, Q, 1), from the scores in the chosen pages. A key with a score up
    # to its row's bound has no weight.
    thresholds: Tensor


class Boxes(NamedTuple):
    """Boxes around pages of keys (runs of `size` neighbouring keys), and how many pages are read."""

    low: Tensor  # the smallest number in each channel of a page, (B, G, pages, d)
    high: Tensor  # the largest number in each channel of a page, (B, G, pages, d)
    size: int  # keys per page
    budget: int | None  # the number of pages that each query may choose to read; None: all that may have weight


def is_by_distance(bias: Tensor, queries: int, keys: int) -> bool:
    """Whether a bias (…, 1, Q + L − 1) has one number per distance j − i of key j and query i, at index j − i + Q − 1.

    The result is False for one query: there such a bias has one number per key, which is the usual form.
    """
    if queries <= 1 or bias.dim() == 0 or bias.shape[-1] != queries + keys - 1:
        return False
    return bias.dim() == 1 or bias.shape[-2] == 1


def empty_attended(
    query: Tensor, key: Tensor, value: Tensor, alpha: float | Tensor, options: AttentionOptions, needs_gradient: bool
) -> list[Tensor]:
    """Buffers for the means, (B, H, Q, c), then for the tensors of `AttentionLists`.

    They are uninitialised, except that `marks` is filled with 0, and so is `dense` if there are lists.
    """
    batch, heads, queries = query.shape[:3]
    rows, width = (batch * heads, queries), value.shape[-1]
    listed, capacity, shifted, blank = rows, LIST_CAPACITY, (0, 0), torch.zeros
    if key.shape[2] <= most_keys_without_lists(alpha, query):
        listed, capacity, shifted, blank = (0, 0), 0, rows, torch.empty  # `solve_dense` writes all of `dense`
    real: dict[str, Any] = {"dtype": torch.float32, "device": query.device}
    whole: dict[str, Any] = {"dtype": torch.int32, "device": query.device}
    return [
        query.new_empty((batch, heads, queries, width)),
        torch.empty((*listed, capacity), **whole),
        torch.empty((*listed, capacity), **real),
        torch.empty(listed, **whole),
        torch.empty((*rows, 2), **real),
        blank((rows[0], blocks_of(queries, DENSE_ROWS)), dtype=torch.int64, device=query.device),
        torch.zeros(batch * key.shape[1], **whole),
        torch.empty((*rows, 4 if needs_gradient else 0), **real),
        torch.empty((*rows, width if needs_gradient else 0), **real),
        torch.empty(shifted, **real),
    ]


def attention_fits(query: Tensor, key: Tensor, value: Tensor) -> bool:
    """Whether Triton's kernels take tensors of these sizes, (*batch, H, Q, d), (*batch, G, L, d) and (*batch, G, L, c).

    The kernels also need a number α in (1, 2] or a tensor of α in [1, 2], which this function does not check.
    """
    if 0 in (*query.shape, *key.shape, *value.shape):
        return False
    if query.shape[:-1].numel() * LIST_CAPACITY >= _MOST_ENTRIES or query.shape[:-2].numel() > _MOST_HEADS:
        return False
    return max(query.shape[-1], value.shape[-1]) <= widest_head(query)


def decoding_fits(query: Tensor, key: Tensor, value: Tensor, page: int = 128) -> bool:
    """Whether `decoding`, by blocks of at most `page` keys, takes tensors of which `attention_fits` is true."""
    width = max(query.shape[-1], value.shape[-1])
    return (
        key.shape[-2] <= most_keys_of_decoding(width, query.element_size(), page)
        and query.shape[:-1].numel() * key.shape[-2] <= _MOST_SCORES
    )


def pages_fit(query: Tensor, key: Tensor, value: Tensor, page: int) -> bool:
    """Whether `decoding_by_pages` takes these tensors and `page` keys per page, if `attention_fits` is true of them.

    All queries of a key head must be in one program, because only queries of one program share the pages that are read.
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
    """The means (B, H, Q, c), then the tensors of `AttentionLists`: `states` and `means` only if `needs_gradient`.

    The query is (B, H, Q, d), the key (B, G, L, d) and the value (B, G, L, c).
    """
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
    """The means of `decoding`, for which only some pages of keys are read; then the three tensors of `Bounded`."""
    from contmax.kernels.attention import _gpu_attention as gpu

    return gpu.decode_by_pages(gpu.AttentionCall(query, key, value, alpha, options), boxes)
