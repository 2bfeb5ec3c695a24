"""Observations: checks that values, positions, grid and mask fit each other, and default positions.

The default positions are the centres of equal cells of the unit interval, or of the cells of a grid on the unit cube.
"""

import math
import warnings
import weakref
from collections.abc import Iterable, Sequence
from typing import Any

import torch
from torch import Tensor

from contmax._eager import is_eager_cpu, require_float64
from contmax._mask import require_boolean
from contmax.basis import Basis, SineBasis
from contmax.basis._basis import rounding_warning

# Bases that have caused each of two warnings, and bases that were compared with the unit cube: none warns twice.
_warned_of_distance: "weakref.WeakSet[Basis]" = weakref.WeakSet()
_warned_of_rounding: "weakref.WeakSet[Basis]" = weakref.WeakSet()
_compared_with_unit_cube: "weakref.WeakSet[Basis]" = weakref.WeakSet()
# A basis reaches a point if max_j |ψ_j| there is at least this share of max_j |ψ_j| at the centre of the basis.
_REACHED = 1e-3
# A basis lies mostly outside the unit cube if at least this share of a side of its box lies outside [0, 1].
_MOST_OUTSIDE = 0.5
# Where all |ψ_j| are at most this share of their largest value at the centre of the basis, the signal is practically 0.
_NEGLIGIBLE = 1e-6


def as_grid(grid: Any) -> tuple[int, ...] | None:
    """The sizes of a grid as a tuple; raises TypeError or ValueError unless all are positive whole numbers."""
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


def check_observations(values: Tensor, dim: int, positions: Tensor | None, mask: Tensor | None) -> None:
    """Raise an error if values, positions and mask do not fit each other or the `dim` dimensions of the basis."""
    if values.dim() < 2 or not values.is_floating_point():
        raise ValueError(
            f"values must be floating-point of shape (*batch, L, D); got {values.dtype}, {tuple(values.shape)}. "
            "Pass values[:, None] for one channel."
        )
    require_float64(values.device, "A signal")
    check_positions(values.shape[:-1], dim, positions)
    check_mask(values.shape[:-1], mask)


def check_positions(observations: torch.Size, dim: int, positions: Tensor | None) -> None:
    """Raise ValueError unless there is a position in `dim` dimensions for each of the observations, (*batch, L)."""
    if positions is None:
        return
    shape = positions.shape if dim == 1 else positions.shape[:-1]
    if (dim > 1 and positions.shape[-1] != dim) or not _one_for_each(shape, observations):
        length, axes = observations[-1], "" if dim == 1 else f", {dim}"
        raise ValueError(
            f"positions of shape {tuple(positions.shape)} do not fit observations of shape {tuple(observations)} in "
            f"{dim} dimensions: pass positions of shape ({length}{axes or ','}) or (*batch, {length}{axes})."
        )


def check_mask(observations: torch.Size, mask: Tensor | None) -> None:
    """Raise TypeError or ValueError unless a mask has a boolean for each of the observations, (*batch, L)."""
    if mask is None:
        return
    require_boolean(mask)
    if not _one_for_each(mask.shape, observations):
        raise ValueError(
            f"mask must have shape (L,) or (*batch, L), True = may be attended; got {tuple(mask.shape)} for "
            f"observations of shape {tuple(observations)}."
        )


def check_grid(observations: torch.Size, dim: int, positions: Tensor | None, grid: tuple[int, ...] | None) -> None:
    """Raise ValueError if L = 0, or if a grid in `dim` dimensions does not fit the observations or is missing."""
    length = observations[-1]
    if length == 0:
        raise ValueError(f"values of {tuple(observations)} positions hold no observation: L = 0. Skip such inputs.")
    if grid is None:
        if positions is None and dim > 1:
            raise ValueError(
                f"A domain of dimension {dim} needs a grid of {dim} sizes, or positions of shape (L, {dim}); got "
                "neither. Pass grid=(…) when the attention is made or called, or positions=."
            )
    elif torch.Size(grid).numel() != length or len(grid) != dim or positions is not None:
        other = f", or make the head with dim={len(grid)} and a basis of that dimension" if len(grid) != dim else ""
        raise ValueError(
            f"grid {tuple(grid)} does not fit: it has {len(grid)} axes and {torch.Size(grid).numel()} cells, but the "
            f"basis or head has dimension {dim} and there are {length} observations. Pass {dim} sizes with product "
            f"{length}{other}. With a grid, positions must be None."
        )


def require_penalty(penalty: float) -> None:
    """Raise ValueError for a ridge penalty that is negative, infinite or NaN."""
    if not 0 <= penalty < math.inf:
        raise ValueError(f"penalty must be finite and not negative; got {penalty}. 0.01 is a good start.")


def _one_for_each(shape: torch.Size, observations: torch.Size) -> bool:
    """Whether `shape` ends in L and broadcasts over the batch of the observations, (*batch, L)."""
    pairs = zip(shape[-2::-1], observations[-2::-1], strict=False)
    return shape[-1:] == observations[-1:] and all(n == m or 1 in (n, m) for n, m in pairs)


def observation_positions(
    length: int, positions: Tensor | None, grid: Sequence[int] | None, mask: Tensor | None, like: Tensor
) -> Tensor:
    """The given positions, or else the centres of the grid's cells, or of L cells of the unit interval.

    Args:
        length: L.
        positions: returned unchanged if given.
        grid: sizes of a grid, row-major; a grid with one axis is the line.
        mask: boolean, (L,) or (*batch, L): only observations that are True take a cell of the unit interval.
        like: a tensor whose dtype and device the result has.
    """
    if positions is not None:
        return positions
    if grid is None or len(grid) == 1:
        return _on_interval(length, mask if grid is None else None, like)
    lines = [_on_interval(n, None, like) for n in grid]
    return torch.stack(torch.meshgrid(*lines, indexing="ij"), -1).reshape(-1, len(grid))


def _on_interval(length: int, mask: Tensor | None, like: Tensor) -> Tensor:
    """(rank + ½)/n over the n unmasked observations: (L,) without a mask, (*batch, L) with one.

    A masked observation, whose weight is 0, gets the position of the next unmasked one, or after the last (n + ½)/n.
    """
    if mask is None:
        return (torch.arange(length, dtype=like.dtype, device=like.device) + 0.5) / length
    count = mask.sum(-1, keepdim=True).clamp(min=1)
    rank = mask.cumsum(-1) - mask.to(torch.int64)
    return (rank.to(like.dtype) + 0.5) / count


def unmasked(values: Tensor, mask: Tensor | None) -> Tensor:
    """Values (*batch, L, D) with 0 at masked positions, where they may be NaN; the mask is (L,) or (*batch, L)."""
    return values if mask is None else torch.where(mask.unsqueeze(-1), values, 0)


def design_at(positions: Tensor, basis: Basis, mask: Tensor | None) -> tuple[Tensor, Tensor]:
    """Positions in float64, 0 if masked in all sequences that share them; and ψ there, (…, L, K), 0 where masked."""
    where = positions.double()
    if mask is not None:
        # Replace positions that are masked in all sequences: NaN there must reach neither result nor gradient.
        axes = where.dim() - (basis.event_dim > 1)
        seen = mask.flatten(0, mask.dim() - axes - 1).any(0) if mask.dim() > axes else mask
        where = torch.where(seen if basis.event_dim == 1 else seen.unsqueeze(-1), where, 0)
    design = basis(where)
    _warn_of_positions(positions.dtype, where, design, basis, mask)
    return where, unmasked(design, mask)


def _warn_of_positions(
    dtype: torch.dtype, positions: Tensor, design: Tensor, basis: Basis, mask: Tensor | None
) -> None:
    """Warn if `dtype` is too coarse for the spacing of the functions, or all functions vanish at some positions."""
    sides = _sides_on_cpu(basis)
    if sides is None:
        return
    if dtype != torch.float64 and basis not in _warned_of_rounding:
        each = max(1, round(basis.num_functions ** (1 / basis.event_dim)))
        messages = [rounding_warning(low, high, each, dtype) for low, high in sides if low < high]
        message = next(filter(None, messages), None)
        if message is not None:
            _warned_of_rounding.add(basis)
            warnings.warn(message, stacklevel=4)
    if basis in _warned_of_distance or not is_eager_cpu(positions, design, mask):
        return
    points = positions.detach().unsqueeze(-1) if basis.event_dim == 1 else positions.detach()
    low, high = torch.tensor(sides, dtype=torch.float64, device="cpu").unbind(-1)
    outside = ((points < 2 * low - high) | (points > 2 * high - low)).any(-1)
    if not bool(outside.any()):
        return
    height = _heights(basis, ((low + high) / 2).unsqueeze(0))
    lost = outside & (design.detach().abs().amax(-1) <= _NEGLIGIBLE * height)
    lost = lost if mask is None else lost & mask
    if bool(lost.any()):
        _warned_of_distance.add(basis)
        warnings.warn(
            f"{int(lost.sum())} of {lost.numel()} positions lie far outside the basis, which covers {_shown(sides)}: "
            "the signal is 0 there. Make a basis that covers the observations, with "
            f"contmax.basis.{type(basis).__name__}.spanning(positions, …) or low=…, high=…, or rescale the positions.",
            stacklevel=4,
        )


def warn_if_not_on_unit_cube(basis: Basis) -> None:
    """Warn if the basis does not reach all of the unit cube, or mostly lies outside it; a basis on a GPU is skipped."""
    # Skip sines and cosines, which cover every interval.
    if torch.compiler.is_compiling() or isinstance(basis, SineBasis) or basis in _compared_with_unit_cube:
        return
    sides = _sides_on_cpu(basis)
    if sides is None:
        return
    _compared_with_unit_cube.add(basis)
    single = all(low == high and 0 <= low <= 1 for low, high in sides)
    idle = any(min(high, 1.0) - max(low, 0.0) <= (1 - _MOST_OUTSIDE) * (high - low) for low, high in sides)
    contains = all(low <= 0 and high >= 1 for low, high in sides)
    if (idle and not single) or not (contains or _reaches_ends(basis, sides)):
        warnings.warn(
            "No positions were given, so the observations are spread over [0, 1], but the basis covers "
            f"{_shown(sides)}. Pass positions=…, or make a basis for [0, 1].",
            stacklevel=4,
        )


def _reaches_ends(basis: Basis, sides: list[tuple[float, float]]) -> bool:
    """Whether the basis reaches the centre of each face of the unit cube, in the sense of `_REACHED`."""
    middle = torch.tensor([(low + high) / 2 for low, high in sides], dtype=torch.float64, device="cpu")
    shifts = torch.eye(len(middle), dtype=torch.float64, device="cpu") / 2
    heights = _heights(basis, torch.cat([middle.unsqueeze(0), 0.5 - shifts, 0.5 + shifts]))
    return bool((heights[1:] >= _REACHED * heights[0]).all())


def _heights(basis: Basis, points: Tensor) -> Tensor:
    """max_j |ψ_j| at points: (P, N) → (P,)."""
    with torch.no_grad():
        height: Tensor = basis(points.squeeze(-1) if basis.event_dim == 1 else points).abs().amax(-1)
    return height


def _shown(sides: list[tuple[float, float]]) -> str:
    return " × ".join(f"[{low:g}, {high:g}]" for low, high in sides)


def _sides_on_cpu(basis: Basis) -> list[tuple[float, float]] | None:
    """Both ends of each axis of the box that a basis covers; None where reading them would wait for a device."""
    if not is_eager_cpu(*basis.buffers(), *basis.parameters()):
        return None
    low, high = basis.bounds
    if not is_eager_cpu(low, high):
        return None
    return list(zip(low.reshape(-1).tolist(), high.reshape(-1).tolist(), strict=True))
