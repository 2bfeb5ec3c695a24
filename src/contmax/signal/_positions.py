"""Where observations stand: where the caller says, or at the centres of equal cells of the unit interval or cube."""

import warnings
import weakref
from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor

from contmax._eager import is_eager_cpu
from contmax.basis import Basis

# Bases that were warned about: once is enough.
_warned: "weakref.WeakSet[Basis]" = weakref.WeakSet()
# Functions this much smaller than where the basis stands add nothing to a fit.
_NEGLIGIBLE = 1e-6


class Sites(NamedTuple):
    """Where the observations of a signal were made, as far as it differs from the default."""

    positions: Tensor | None
    grid: tuple[int, ...] | None
    mask: Tensor | None

    def points(self, values: Tensor) -> Tensor:
        """The positions of values (*batch, L, D), in float64."""
        like = values.new_empty(0, dtype=torch.float64)
        return observation_positions(values.shape[-2], self.positions, self.grid, self.mask, like)

    def mapped(self, change: Callable[[Tensor], Tensor]) -> "Sites":
        """The same with its tensors changed."""
        positions, mask = (None if part is None else change(part) for part in (self.positions, self.mask))
        return Sites(positions, self.grid, mask)


def observation_positions(
    length: int, positions: Tensor | None, grid: tuple[int, ...] | None, mask: Tensor | None, like: Tensor
) -> Tensor:
    """The given positions, or else the centres of the grid's cells, or of L cells of the unit interval.

    Args:
        length: L.
        positions: returned unchanged if given.
        grid: sizes of a grid, row-major.
        mask: boolean, (L,) or (*batch, L): only observations that are True take a cell of the unit interval.
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
    """Centres of the cells of a regular grid over the unit cube, row-major: (L, N), L the product of the sizes.

    A grid with one axis is the line: (L,).
    """
    if len(grid) == 1:
        return _on_interval(grid[0], None, like)
    lines = [_on_interval(n, None, like) for n in grid]
    return torch.stack(torch.meshgrid(*lines, indexing="ij"), -1).reshape(-1, len(grid))


def finite_where_masked(positions: Tensor, mask: Tensor, dim: int) -> Tensor:
    """Positions with 0 where no sequence may look, so that a NaN there reaches neither result nor gradient."""
    axes = positions.dim() - (dim > 1)
    seen = mask.flatten(0, mask.dim() - axes - 1).any(0) if mask.dim() > axes else mask
    return torch.where(seen if dim == 1 else seen.unsqueeze(-1), positions, 0)


def warn_if_far_outside(positions: Tensor, design: Tensor, basis: Basis, mask: Tensor | None) -> None:
    """Say once for a basis that observations lie where all its functions vanish; looks at values on the CPU only.

    Args:
        positions: t, (…, L), or (…, L, N) for N > 1.
        design: ψ(t), (…, L, K).
        basis: ψ.
        mask: what counts, broadcastable to (…, L).
    """
    if not is_eager_cpu(positions, design, mask, *basis.buffers(), *basis.parameters()) or basis in _warned:
        return
    low, high = (corner.detach().double() for corner in basis.bounds)
    if not is_eager_cpu(low, high):
        return
    points, span = positions.detach().double(), high - low
    outside = (points < low - span) | (points > high + span)
    outside = outside if basis.event_dim == 1 else outside.any(-1)
    if not bool(outside.any()):
        return
    with torch.no_grad():
        height = basis(((low + high) / 2).unsqueeze(0)).abs().amax()
    lost = outside & (design.detach().abs().amax(-1) <= _NEGLIGIBLE * height)
    lost = lost if mask is None else lost & mask
    if bool(lost.any()):
        _warned.add(basis)
        warnings.warn(
            f"{int(lost.sum())} of {lost.numel()} positions lie far outside the basis, which covers [{_shown(low)}, "
            f"{_shown(high)}]: the signal is 0 there. Make a basis that covers the observations, with "
            f"contmax.basis.{type(basis).__name__}.spanning(positions, …) or low=…, high=…, or rescale the positions.",
            stacklevel=3,
        )


def _shown(corner: Tensor) -> str:
    numbers = ", ".join(f"{x:g}" for x in corner.reshape(-1).tolist())
    return numbers if corner.dim() == 0 else f"({numbers})"
