"""What comes with the logits and targets of a loss, in one piece for all who pass it on."""

from typing import NamedTuple

from torch import Tensor


class LossOptions(NamedTuple):
    """What comes with logits (*batch, n) and their targets.

    Attributes:
        alpha: α in (0, 2].
        mask: boolean, broadcastable to the logits, True for the allowed classes; None if all are.
        smoothing: the mass of q that is spread over the allowed classes.
    """

    alpha: float
    mask: Tensor | None
    smoothing: float
