"""The one check of a mask that every layer makes."""

import torch
from torch import Tensor


def require_boolean(mask: Tensor | None) -> None:
    """Refuse a mask of numbers, such as the integer attention_mask of tokenizers.

    Raises:
        TypeError: if the mask is not boolean.
    """
    if mask is not None and mask.dtype != torch.bool:
        raise TypeError(f"mask must be boolean, True = may be attended; got {mask.dtype}. Pass mask.bool().")
