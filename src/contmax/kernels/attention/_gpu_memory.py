"""What attention keeps for its backward pass."""

from typing import Any, NamedTuple

import torch
from torch import Tensor

from contmax.kernels.attention._gpu_tuning import most_keys_without_lists
from contmax.kernels.gpu._counting import blocks_of

# Entries of a list. Longer ones cost as much as a product of whole tiles.
LIST_CAPACITY = 128
# Rows that are left to dense products together, as in the kernels.
DENSE_ROWS = 64


class AttentionLists(NamedTuple):
    """What the backward pass needs: the support of each row, and the thresholds of dense blocks.

    Rows of few keys are all dense, and have no lists: keys, weights and counts are empty. Else shifts are.

    Attributes:
        keys: (B·H, Q, LIST_CAPACITY), int32; what is behind the count is not defined.
        weights: p there, float32.
        counts: (B·H, Q), int32; 0 in dense blocks.
        starts: (B·H, Q, 2), float32: the largest score, NaN where a row has one, and a lower bound of the
            partition, in dense blocks t.
        dense: (B·H, blocks of rows), int64: not 0 where the lists are not used; then which blocks of keys have mass.
        marks: (B·G,), int32: not 0 where a block is dense, or, where all are, has shifts.
        states: (B·H, Q, 4) and
        means: (B·H, Q, c), float32, defined for dense blocks.
        shifts: (B·H, Q), float32: what is taken from the scores of a row first, where they share a large number, or 0.
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
        """Whether there are no lists, as there are few keys."""
        return self.keys.shape[-1] == 0


def empty_attention_lists(
    query: Tensor, key: Tensor, value: Tensor, alpha: float | Tensor, needs_gradient: bool
) -> AttentionLists:
    """Memory for the lists of queries (B, H, Q, d); that of dense blocks is touched only where there are some."""
    batch, heads, queries = query.shape[:3]
    rows, width = (batch * heads, queries), value.shape[-1]
    listed, capacity, shifted, blank = rows, LIST_CAPACITY, (0, 0), torch.zeros
    if key.shape[2] <= most_keys_without_lists(alpha, query):
        listed, capacity, shifted, blank = (0, 0), 0, rows, torch.empty  # all blocks are dense, and will be written
    real: dict[str, Any] = {"dtype": torch.float32, "device": query.device}
    whole: dict[str, Any] = {"dtype": torch.int32, "device": query.device}
    return AttentionLists(
        torch.empty((*listed, capacity), **whole),
        torch.empty((*listed, capacity), **real),
        torch.empty(listed, **whole),
        torch.empty((*rows, 2), **real),
        blank((rows[0], blocks_of(queries, DENSE_ROWS)), dtype=torch.int64, device=query.device),
        torch.zeros(batch * key.shape[1], **whole),
        torch.empty((*rows, 4 if needs_gradient else 0), **real),
        torch.empty((*rows, width if needs_gradient else 0), **real),
        torch.empty(shifted, **real),
    )
