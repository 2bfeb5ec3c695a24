"""Where observations stand when nobody says: the centres of equal cells of the unit interval or the unit square."""

import torch
from torch import Tensor


def observation_positions(
    length: int, positions: Tensor | None, grid: tuple[int, ...] | None, mask: Tensor | None, like: Tensor
) -> Tensor:
    """The positions that were given, or else the centres of the grid's cells, or of L cells of the unit interval.

    Args:
        length: L.
        positions: what was given; returned as it is.
        grid: sizes of a grid, row-major.
        mask: boolean, (L,) or (*batch, L): only what is True takes a cell of the unit interval.
        like: a tensor whose dtype and device the result has.
    """
    if positions is not None:
        return positions
    return _on_interval(length, mask, like) if grid is None else _on_grid(grid, like)


def _on_interval(length: int, mask: Tensor | None, like: Tensor) -> Tensor:
    """(rank + ½)/n over the n unmasked observations: (L,) without a mask, (*batch, L) with one.

    A masked observation gets the position of the next unmasked one; it carries no weight.
    """
    if mask is None:
        return (torch.arange(length, dtype=like.dtype, device=like.device) + 0.5) / length
    count = mask.sum(-1, keepdim=True).clamp(min=1)
    rank = mask.cumsum(-1) - mask.to(torch.int64)
    return (rank.to(like.dtype) + 0.5) / count


def _on_grid(grid: tuple[int, ...], like: Tensor) -> Tensor:
    """Centres of the cells of a regular grid over the unit cube, row-major: (L, N), L the product of the sizes."""
    lines = [_on_interval(n, None, like) for n in grid]
    return torch.stack(torch.meshgrid(*lines, indexing="ij"), -1).reshape(-1, len(grid))
