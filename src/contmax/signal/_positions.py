"""Where observations stand: where the caller says, or at the centres of equal cells of the unit interval or cube."""

import warnings
import weakref
from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor

from contmax._eager import is_eager_cpu
from contmax.basis import Basis, SineBasis
from contmax.basis._basis import rounding_message, rounds_away

# Bases that were warned about: once is enough.
_warned: "weakref.WeakSet[Basis]" = weakref.WeakSet()
_warned_of_rounding: "weakref.WeakSet[Basis]" = weakref.WeakSet()
# Bases that were compared with the unit cube, to warn or not.
_compared: "weakref.WeakSet[Basis]" = weakref.WeakSet()
# Where functions are below this share of their height a basis leaves out observations.
_REACHED = 1e-3
# Beyond this share of a basis outside of the unit interval its functions idle.
_MOST_OUTSIDE = 0.5
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


def warn_if_rounded(dtype: torch.dtype, basis: Basis) -> None:
    """Say once for a basis that a dtype cannot tell positions apart where it stands; looks at values on the CPU only.

    Args:
        dtype: of the positions as they were given.
        basis: ψ.
    """
    if dtype == torch.float64 or basis in _warned_of_rounding:
        return
    box = _box_on_cpu(basis)
    if box is None:
        return
    each = max(1, round(basis.num_functions ** (1 / basis.event_dim)))
    for low, high in zip(*box, strict=True):
        if low < high and rounds_away(low, high, each, dtype):
            _warned_of_rounding.add(basis)
            warnings.warn(rounding_message(low, high, dtype), stacklevel=4)
            return


def warn_if_not_on_unit_cube(basis: Basis) -> None:
    """Say once for a basis that the default positions are not where it stands; looks at values on the CPU only."""
    # Waves have no end.
    if torch.compiler.is_compiling() or isinstance(basis, SineBasis) or basis in _compared:
        return
    box = _box_on_cpu(basis)
    if box is None:
        return
    _compared.add(basis)
    sides = list(zip(*box, strict=True))
    single = all(low == high and 0 <= low <= 1 for low, high in sides)
    idle = any(min(high, 1.0) - max(low, 0.0) <= (1 - _MOST_OUTSIDE) * (high - low) for low, high in sides)
    contains = all(low <= 0 and high >= 1 for low, high in sides)
    if (idle and not single) or not (contains or _reaches_ends(basis, box)):
        shown = " × ".join(f"[{low:g}, {high:g}]" for low, high in sides)
        warnings.warn(
            f"No positions were given, so the observations are spread over [0, 1], but the basis covers {shown}. Pass "
            "positions=…, or make a basis for [0, 1].",
            stacklevel=4,
        )


def _reaches_ends(basis: Basis, box: tuple[list[float], list[float]]) -> bool:
    """Whether some function is not negligible at both ends of each axis of the unit cube."""
    middle = torch.tensor([(low + high) / 2 for low, high in zip(*box, strict=True)], dtype=torch.float64)
    ends = torch.full((2 * len(middle), len(middle)), 0.5, dtype=torch.float64)
    for axis in range(len(middle)):
        ends[2 * axis, axis], ends[2 * axis + 1, axis] = 0.0, 1.0
    points = torch.cat([middle.unsqueeze(0), ends])
    with torch.no_grad():
        heights = basis(points.squeeze(-1) if basis.event_dim == 1 else points).abs().amax(-1)
    return bool((heights[1:] >= _REACHED * heights[0]).all())


def _box_on_cpu(basis: Basis) -> tuple[list[float], list[float]] | None:
    """The corners of the box that a basis covers; None where they are not known without waiting."""
    if not is_eager_cpu(*basis.buffers(), *basis.parameters()):
        return None
    low, high = basis.bounds
    return (low.reshape(-1).tolist(), high.reshape(-1).tolist()) if is_eager_cpu(low, high) else None


def _shown(corner: Tensor) -> str:
    numbers = ", ".join(f"{x:g}" for x in corner.reshape(-1).tolist())
    return numbers if corner.dim() == 0 else f"({numbers})"
