"""The tensors of a call of attention, in and out: options, lists for the backward pass, results and their gradients."""

from typing import Any, NamedTuple

import torch
from torch import Tensor

from contmax.kernels._counting import blocks_of
from contmax.kernels.attention._sizes import DENSE_ROWS, LIST_CAPACITY, most_keys_without_lists


class AttentionOptions(NamedTuple):
    """Arguments of attention beside queries, keys, values and α.

    Attributes:
        mask: boolean, broadcastable to (B, H, Q, L), or None.
        bias: real, broadcastable to (B, H, Q, L), to be added to the scores; or one number for each distance
            (`is_by_distance`); or None.
        lengths: keys of each sequence, (B, …) with further axes of size 1, or None.
        diagonal: query i meets keys up to i + diagonal; None if all.
        scale: factor of the scores, not negative.
    """

    mask: Tensor | None
    bias: Tensor | None
    lengths: Tensor | None
    diagonal: int | None
    scale: float


class AttentionLists(NamedTuple):
    """The tensors that the backward pass needs: the support of each row, and the thresholds of dense blocks of rows.

    With few keys all rows are dense: then keys, weights and counts are empty. With many keys shifts are empty.

    Attributes:
        keys: (B·H, Q, LIST_CAPACITY), int32; undefined from the row's count on.
        weights: p of these keys, float32.
        counts: (B·H, Q), int32; 0 in dense blocks.
        starts: (B·H, Q, 2), float32: the row's maximum, NaN where a score is NaN, and a lower bound of the normaliser
            A, replaced by t = 1 − (α − 1)A in dense blocks.
        dense: (B·H, blocks of rows), int64: 0 where lists are used. In a dense block: the first block of keys with
            mass, and in the upper 32 bits the end of those.
        marks: (B·G,), int32: not 0 where a block is dense, or, where all are, has shifts.
        states: (B·H, Q, 4), float32, `state_of_rows` in dense blocks.
        means: (B·H, Q, c), float32, means of the values by p^{2−α} in dense blocks.
        shifts: (B·H, Q), float32: a large number that all scores of a row share and that is subtracted first, or 0.
    """

    keys: Tensor
    weights: Tensor
    counts: Tensor
    starts: Tensor
    dense: Tensor
    marks: Tensor
    states: Tensor
    means: Tensor
    shifts: Tensor

    @property
    def are_empty(self) -> bool:
        """Whether all rows are dense, because there are few keys."""
        return self.keys.shape[-1] == 0


class AttentionGradients(NamedTuple):
    """Gradients of query, key and value, and of α, (H,), float32; the last has shape (0,) where it is not needed."""

    query: Tensor
    key: Tensor
    value: Tensor
    alpha: Tensor


def is_by_distance(bias: Tensor, queries: int, keys: int) -> bool:
    """Whether a bias has one number per distance: (…, 1, Q + L − 1), that of query i and key j at j − i + Q − 1.

    With one query these are the numbers of the keys: the bias in its usual form.
    """
    if queries <= 1 or bias.dim() == 0 or bias.shape[-1] != queries + keys - 1:
        return False
    return bias.dim() == 1 or bias.shape[-2] == 1


def empty_attended(
    query: Tensor, key: Tensor, value: Tensor, alpha: float | Tensor, options: AttentionOptions, needs_gradient: bool
) -> list[Tensor]:
    """Memory for the means, (B, H, Q, c), and for `AttentionLists`; that of dense blocks is touched only if needed."""
    batch, heads, queries = query.shape[:3]
    rows, width = (batch * heads, queries), value.shape[-1]
    listed, capacity, shifted, blank = rows, LIST_CAPACITY, (0, 0), torch.zeros
    if key.shape[2] <= most_keys_without_lists(alpha, query):
        listed, capacity, shifted, blank = (0, 0), 0, rows, torch.empty  # every dense block writes its own
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
