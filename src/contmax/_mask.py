"""The checks of a mask that every layer makes."""

import torch
from torch import Tensor


def require_boolean(mask: Tensor | None) -> None:
    """Refuse a mask of numbers, such as the integer attention_mask of tokenizers.

    Raises:
        TypeError: if the mask is not boolean.
    """
    if mask is not None and mask.dtype != torch.bool:
        raise TypeError(f"mask must be boolean, True = may be attended; got {mask.dtype}. Pass mask.bool().")


def has_shape(x: Tensor, *shapes: tuple[int, ...]) -> bool:
    """Whether x has one of these shapes.

    Numbers of axes are compared first. To compare (B, L) with (L,) Python compares B with L, which an exported program
    would take for a promise that they differ.
    """
    return any(
        x.dim() == len(shape) and all(n == size for n, size in zip(x.shape, shape, strict=True)) for shape in shapes
    )
