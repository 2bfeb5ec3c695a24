"""Arguments and results of the operators of attention: options, lists for the backward pass, gradients."""

from typing import Any, NamedTuple

import torch
from torch import Tensor

from contmax.kernels._counting import blocks_of
from contmax.kernels.attention._sizes import DENSE_ROWS, LIST_CAPACITY, most_keys_without_lists


class AttentionOptions(NamedTuple):
    """Arguments of attention beside queries, keys, values and α."""

    mask: Tensor | None  # boolean, broadcastable to (B, H, Q, L), or None
    # Added to the scores: broadcastable to (B, H, Q, L), one number per distance (`is_by_distance`), or None.
    bias: Tensor | None
    lengths: Tensor | None  # the number of keys of each sequence, (B, 1, …), or None
    diagonal: int | None  # query i may attend only keys j ≤ i + diagonal; None without a causal mask
    scale: float  # factor of the products ⟨q, k⟩, not negative
    # The first key that each query may attend, and the end of its keys: integers that broadcast to (B, H, Q, 2),
    # (0, 0) for queries without keys. None for all keys; with spans `lengths` and `diagonal` are None.
    spans: Tensor | None = None


class AttentionLists(NamedTuple):
    """The tensors that the backward pass needs. A row is a query of one head; its list holds the keys of its support.

    A block of DENSE_ROWS rows is dense if a list in it would be too long. With few keys all blocks are dense: `keys`,
    `weights` and `counts` are then empty. With many keys `shifts` is empty.
    """

    keys: Tensor  # (B·H, Q, LIST_CAPACITY), int32: the lists; undefined from the row's count on
    weights: Tensor  # p of these keys, float32
    counts: Tensor  # (B·H, Q), int32: lengths of the lists; 0 in dense blocks
    # (B·H, Q, 2), float32: the row's largest score, NaN if a score is NaN; then a lower bound of its normaliser
    # A, or in dense blocks t = 1 − (α − 1)A.
    starts: Tensor
    # (B·H, blocks of rows), int64: 0 for a block with lists. For a dense block first + 2³²·end: its mass lies in
    # the blocks of keys first … end − 1.
    dense: Tensor
    marks: Tensor  # (B·G,), int32: with lists, 1 if the key head has a dense block; without, 1 if it has a shift ≠ 0
    states: Tensor  # (B·H, Q, 4), float32: `_gpu_scores.state_of_rows` of the rows of dense blocks
    means: Tensor  # (B·H, Q, c), float32: for rows of dense blocks, means of the values with weights p^{2−α}
    # (B·H, Q), float32: a number, mostly 0, subtracted from all scores of a row (`_gpu_scores.shift_of_rows`).
    shifts: Tensor

    @property
    def are_empty(self) -> bool:
        """Whether there are no lists, because with few keys all rows are dense."""
        return self.keys.shape[-1] == 0


class AttentionGradients(NamedTuple):
    """Gradients of query, key and value, and of α: float32, (H,), or (0,) if it is not needed."""

    query: Tensor
    key: Tensor
    value: Tensor
    alpha: Tensor


class Bounded(NamedTuple):
    """What decides which pages of keys are read."""

    bounds: Tensor  # upper bounds of the scores in each page, (*batch, H, Q, pages), −∞ where no key may be attended
    chosen: Tensor  # whether a page is read first, (*batch, H, Q, pages)
    # Lower bounds of the thresholds τ, (*batch, H, Q, 1), from the scores in these pages: keys with scores up to
    # them have no weight.
    thresholds: Tensor


class Boxes(NamedTuple):
    """Boxes around pages of keys."""

    # `low`, `high`: the smallest and the largest number in each channel of a page, (B, G, pages, d).
    low: Tensor
    high: Tensor
    size: int  # keys per page
    first: int  # the number of pages that each query reads first
    reads_all: bool  # whether all other pages that may have weight are read afterwards


def is_by_distance(bias: Tensor, queries: int, keys: int) -> bool:
    """Whether a bias has one number per distance: (…, 1, Q + L − 1), that of query i and key j at index j − i + Q − 1.

    The result is False for one query: there such a bias has one number per key, which is the usual form.
    """
    if queries <= 1 or bias.dim() == 0 or bias.shape[-1] != queries + keys - 1:
        return False
    return bias.dim() == 1 or bias.shape[-2] == 1


def empty_attended(
    query: Tensor, key: Tensor, value: Tensor, alpha: float | Tensor, options: AttentionOptions, needs_gradient: bool
) -> list[Tensor]:
    """Buffers for the means, (B, H, Q, c), and `AttentionLists`; `marks`, and with lists `dense`, are filled with 0."""
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
