"""What can be fitted: observations, positions, a grid and a mask that fit each other."""

import math
from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor

from contmax._mask import require_boolean
from contmax.basis import Basis
from contmax.signal._ridge import require_float64


def as_grid(grid: Any) -> tuple[int, ...] | None:
    """The sizes of a grid.

    Raises:
        TypeError: if they are no whole numbers.
        ValueError: if one is not positive.
    """
    if grid is None:
        return None
    sizes: tuple[Any, ...] = tuple(grid) if isinstance(grid, Iterable) else (grid,)
    for size in sizes:
        if not hasattr(size, "__index__"):
            raise TypeError(f"grid must have whole numbers for sizes, such as (14, 14); got {sizes}.")
        if size <= 0:
            raise ValueError(f"grid must have positive sizes, such as (14, 14); got {sizes}.")
    whole: list[Any] = [n if isinstance(n, int | torch.SymInt) else n.__index__() for n in sizes]
    return tuple(whole)


def check_observations(
    values: Tensor,
    basis: Basis,
    positions: Tensor | None,
    grid: tuple[int, ...] | None,
    mask: Tensor | None,
    penalty: float,
) -> None:
    """Refuse what :func:`contmax.fit_signal` cannot fit; nothing here looks at numbers.

    Raises:
        ValueError: if shapes do not fit each other, there is no observation, or λ is negative or not finite.
        TypeError: if the mask is not boolean.
        NotImplementedError: on a device without float64.
    """
    check_places(values, basis, positions, mask)
    require_penalty(penalty)
    length = values.shape[-2]
    if length == 0:
        raise ValueError(f"values of shape {tuple(values.shape)} hold no observation: L = 0. Skip such inputs.")
    if grid is not None:
        size = torch.Size(grid).numel()
        if size != length or len(grid) != basis.event_dim or positions is not None:
            raise ValueError(
                f"grid {tuple(grid)} does not fit: it has {len(grid)} axes and {size} cells, but the basis has "
                f"dimension {basis.event_dim} and there are {length} observations. With a grid, positions must be None."
            )
    elif positions is None and basis.event_dim > 1:
        raise ValueError(
            f"A basis of dimension {basis.event_dim} needs grid=(…) or positions of shape (L, {basis.event_dim})."
        )


def check_places(values: Tensor, basis: Basis, positions: Tensor | None, mask: Tensor | None) -> None:
    """Values, their positions and their mask fit each other and the dimension of the basis.

    Raises:
        ValueError: if not.
        TypeError: if the mask is not boolean.
        NotImplementedError: on a device without float64.
    """
    if values.dim() < 2 or not values.is_floating_point():
        raise ValueError(
            f"values must be floating-point of shape (*batch, L, D); got {values.dtype}, {tuple(values.shape)}. "
            "Pass values[:, None] for one channel."
        )
    require_float64(values.device)
    batch = values.shape[:-1]
    if positions is not None:
        shape = positions.shape if basis.event_dim == 1 else positions.shape[:-1]
        fits = basis.event_dim == 1 or positions.shape[-1] == basis.event_dim
        if not fits or not _counts(shape, batch):
            axes = "" if basis.event_dim == 1 else f", {basis.event_dim}"
            wanted = f"({batch[-1]}{axes or ','}) or (*batch, {batch[-1]}{axes})"
            raise ValueError(
                f"positions of shape {tuple(positions.shape)} do not fit values of shape {tuple(values.shape)} and a "
                f"basis of dimension {basis.event_dim}: pass positions of shape {wanted}."
            )
    require_boolean(mask)
    if mask is not None and not _counts(mask.shape, batch):
        raise ValueError(
            f"mask must have shape (L,) or (*batch, L), True = may be attended; got {tuple(mask.shape)} for values of "
            f"shape {tuple(values.shape)}."
        )


def require_penalty(penalty: float) -> None:
    """Refuse a ridge penalty that is negative, infinite or NaN.

    Raises:
        ValueError: if it is.
    """
    if not 0 <= penalty < math.inf:
        raise ValueError(f"penalty must be finite and not negative; got {penalty}. 0.01 is a good start.")


def _counts(shape: torch.Size, observations: torch.Size) -> bool:
    """Whether something of this shape says one thing about each observation, (*batch, L)."""
    pairs = zip(shape[-2::-1], observations[-2::-1], strict=False)
    return shape[-1:] == observations[-1:] and all(n == m or 1 in (n, m) for n, m in pairs)
