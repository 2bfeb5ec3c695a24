"""What comes with queries, keys and values, in one piece for all who pass it on."""

from typing import NamedTuple

from torch import Tensor


class AttentionOptions(NamedTuple):
    """What comes with queries, keys and values.

    Attributes:
        mask: boolean, broadcastable to (B, H, Q, L), or None.
        bias: likewise, to be added to the scores.
        lengths: keys of each sequence, (B,), or None.
        diagonal: query i meets keys up to i + diagonal; None if all.
        scale: factor of the scores, not negative.
    """

    mask: Tensor | None
    bias: Tensor | None
    lengths: Tensor | None
    diagonal: int | None
    scale: float
