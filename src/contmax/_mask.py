"""Checks of masks that all parts of the library share."""

import torch
from torch import Tensor
from torch.compiler import is_compiling


def require_boolean(mask: Tensor | None) -> None:
    """Refuse a mask of numbers, such as the integer attention_mask of tokenizers.

    Raises:
        TypeError: if the mask is not boolean.
    """
    if mask is not None and mask.dtype != torch.bool:
        raise TypeError(f"mask must be boolean, True = may be attended; got {mask.dtype}. Pass mask.bool().")


def require_mask(mask: Tensor | None, shape: torch.Size, of: str = "scores") -> None:
    """Refuse a mask that is not boolean, or does not broadcast to the masked tensor.

    Args:
        mask: boolean, or None.
        shape: shape of the masked tensor.
        of: name of its elements, in the plural, for the message.

    Raises:
        TypeError: if the mask is not boolean.
        ValueError: if the shapes do not fit.
    """
    require_boolean(mask)
    # Skip the check in a trace, where it would add guards on sizes: later operations refuse a wrong shape anyway.
    if mask is None or is_compiling() or mask.shape == shape:
        return
    if not all(n == m or 1 in (n, m) for n, m in zip(mask.shape[::-1], shape[::-1], strict=False)):
        raise ValueError(
            f"mask of shape {tuple(mask.shape)} does not broadcast to the {of}, of shape {tuple(shape)}. Pass one "
            f"entry for each of the {of}, or size 1 where an axis shares them: mask[:, None] for (B, L) beside "
            "(B, Q, L). True = may be attended."
        )


def broadcasts_to(x: Tensor, shape: tuple[int, ...]) -> bool:
    """Whether x broadcasts to a shape. Compares by ``==``: ``in`` may miss equal symbolic sizes of a traced program."""
    return x.dim() <= len(shape) and all(
        n == 1 or n == size for n, size in zip(reversed(x.shape), reversed(shape), strict=False)
    )


def has_shape(x: Tensor, *shapes: tuple[int, ...]) -> bool:
    """Whether x has one of these shapes.

    Numbers of axes are compared first: Python's comparison of (B, L) with (L,) would compare B with L, and torch.export
    would record that B and L always differ.
    """
    return any(
        x.dim() == len(shape) and all(n == size for n, size in zip(x.shape, shape, strict=True)) for shape in shapes
    )
