"""What comes with queries, keys and values, in one piece for all who pass it on."""

from typing import NamedTuple

from torch import Tensor


class AttentionOptions(NamedTuple):
    """What comes with queries, keys and values.

    Attributes:
        mask: boolean, broadcastable to (B, H, Q, L), or None.
        bias: likewise, to be added to the scores; or one number for each distance (`is_by_distance`).
        lengths: keys of each sequence, (B,), or None.
        diagonal: query i meets keys up to i + diagonal; None if all.
        scale: factor of the scores, not negative.
    """

    mask: Tensor | None
    bias: Tensor | None
    lengths: Tensor | None
    diagonal: int | None
    scale: float


def is_by_distance(bias: Tensor, queries: int, keys: int) -> bool:
    """Whether a bias has one number per distance: (…, 1, Q + L − 1), that of query i and key j at j − i + Q − 1.

    With one query that is the bias itself.
    """
    if queries <= 1 or bias.dim() == 0 or bias.shape[-1] != queries + keys - 1:
        return False
    return bias.dim() == 1 or bias.shape[-2] == 1
