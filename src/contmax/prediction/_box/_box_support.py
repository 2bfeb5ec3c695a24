"""Where on a box a score exceeds a level: ranges of its coordinates, and where the shape of the set changes.

All of this looks at values on grids and is not differentiated.
"""

import torch
from torch import Tensor

from contmax._typing import Float
from contmax.deformed import log_beta
from contmax.prediction._box._interpolant import Interpolant

Range = tuple[Tensor, Tensor]

# Points of the search grid per axis, by the number of axes of the box.
_GRID = {1: 48, 2: 48, 3: 28}
# A density this small relative to the uniform one may be left out.
_NEGLIGIBLE = {1: 1e-16, 2: 1e-13, 3: 1e-8}
# Small grids that close in upon a point; each shrinks its surroundings by the number of its intervals.
_SMALL_GRID = 7
_END_STEPS, _PEAK_STEPS = 4, 18
# Probes per panel and points across for counting live intervals, and bisections to where the count changes.
_PROBES, _ACROSS, _CHANGE_STEPS = 9, 128, 14


def negligible(partition: Float[Tensor, "..."], alpha: Tensor, axes: int) -> Float[Tensor, "..."]:
    """The score at which the density is small enough to be left out; for α > 1 as good as the threshold."""
    return partition + log_beta(torch.full_like(partition, _NEGLIGIBLE[axes]), 2 - alpha)


def fractions(count: int, like: Tensor) -> Tensor:
    """Equidistant fractions from 0 to 1 in front of the dimensions of another tensor."""
    unit = torch.linspace(0, 1, count, dtype=torch.float64, device=like.device)
    return unit.reshape((-1,) + (1,) * like.dim())


def live_box(interpolant: Interpolant, level: Tensor, axes: int) -> list[Range]:
    """Ranges (*rows) of all coordinates that enclose the live points of a grid over the whole box."""
    grids, values = _grid_over(interpolant, _whole(interpolant), _GRID[axes])
    ranges = []
    for axis, grid in enumerate(grids):
        height, _ = _highest_across(values, interpolant, axis)
        low, high = (_pick(grid, outside) for outside in _bracket(height, level)[1])
        ranges.append((low, high))
    return ranges


def outermost(
    interpolant: Interpolant, level: Tensor, ranges: list[Range], axes: int, end: int
) -> Float[Tensor, "..."]:
    """The live point with the smallest (end 0) or largest (end 1) first coordinate, (*rows, N)."""
    grids, values = _grid_over(interpolant, ranges, _GRID[axes])
    for _ in range(_END_STEPS):
        height, place = _highest_across(values, interpolant, 0)
        inside, outside = (pair[end] for pair in _bracket(height, level))
        ends = _pick(grids[0], outside), _pick(grids[0], inside)
        around = _around(grids[1:], _pick(place, inside))
        grids, values = _grid_over(interpolant, [(torch.minimum(*ends), torch.maximum(*ends)), *around], _SMALL_GRID)
    return torch.stack([grids[0][-end], *(grid[len(grid) // 2] for grid in grids[1:])], -1)


def highest_point(interpolant: Interpolant) -> Float[Tensor, "..."]:
    """Coordinates (*rows, N) of the highest score; of several that are equal but for rounding, the most central."""
    grids, values = _grid_over(interpolant, _whole(interpolant), _GRID[interpolant.axes])
    for _ in range(_PEAK_STEPS):
        grids, values = _grid_over(interpolant, _around(grids, _highest(interpolant, grids, values)), _SMALL_GRID)
    return torch.stack([grid[len(grid) // 2] for grid in grids], -1)


def change_points(
    interpolant: Interpolant, level: Tensor, edges: Float[Tensor, "..."], across: Range
) -> tuple[Tensor, Tensor]:
    """In each panel between edges (P + 1, *rows), where the number of live intervals across it first changes.

    There a component of the support appears, vanishes, splits or merges: the score across has an extremum at the level.

    Returns:
        The points (P, *rows, 2), in the middle of panels without a change, and whether there is one (P, *rows).
    """
    low, high = across
    grid = low + (high - low) * fractions(_ACROSS, low)
    probes = edges[:-1, None] + edges.diff(dim=0)[:, None] * fractions(_PROBES, edges[0])
    counts = _intervals(interpolant, probes.flatten(0, 1), grid, level).unflatten(0, (-1, _PROBES))
    changes = counts[:, 1:] != counts[:, :-1]
    first = changes.to(torch.int8).argmax(1, keepdim=True)
    left, right = (probes.gather(1, index)[:, 0] for index in (first, first + 1))
    before = counts.gather(1, first)[:, 0]
    for _ in range(_CHANGE_STEPS):
        middle = (left + right) / 2
        same = _intervals(interpolant, middle, grid, level) == before
        left, right = torch.where(same, middle, left), torch.where(same, right, middle)
    changed = changes.any(1)
    x = torch.where(changed, (left + right) / 2, (edges[1:] + edges[:-1]) / 2)
    return torch.stack([x, _extremum_at_level(interpolant, x, grid, level)], -1), changed


def _intervals(interpolant: Interpolant, x: Tensor, grid: Tensor, level: Tensor) -> Tensor:
    """How many intervals of the second axis are live at each x, (M, *rows)."""
    live = interpolant.on_grid([x, grid]) > level
    return (live[1:] & ~live[:-1]).sum(0) + live[0].long()


def _extremum_at_level(interpolant: Interpolant, x: Tensor, grid: Tensor, level: Tensor) -> Tensor:
    """Grid point across, (M, *rows), where the score has the extremum, or the end, closest to the level."""
    values = interpolant.on_grid([x, grid])
    rises = values.diff(dim=0) > 0
    ends = torch.ones_like(rises[:1])
    extremum = torch.cat([ends, rises[1:] != rises[:-1], ends])
    distance = torch.where(extremum & (values > -torch.inf), (values - level).abs(), torch.inf)
    return grid[:, None].expand(values.shape).gather(0, distance.argmin(0, keepdim=True))[0]


def _whole(interpolant: Interpolant) -> list[Range]:
    zero = torch.zeros(interpolant.rows, dtype=torch.float64, device=interpolant.table.device)
    return [(zero, zero + 1)] * interpolant.axes


def _grid_over(interpolant: Interpolant, ranges: list[Range], count: int) -> tuple[list[Tensor], Tensor]:
    """Grids (G, *rows) over the ranges and the values there, (G_N, …, G_1, *rows)."""
    grids = [low + (high - low) * fractions(count, low) for low, high in ranges]
    return grids, interpolant.on_grid(grids)


def _highest(interpolant: Interpolant, grids: list[Tensor], values: Tensor) -> Tensor:
    """Place (*rows) of the highest value on a grid, among all values flattened.

    Rounding of float64 has no say where scores are equal, as along a ridge: it differs from processor to processor and
    with the shape of the batch. Scores that were rounded to float32 are taken as they are.
    """
    values = values.flatten(0, interpolant.axes - 1)
    height, place = values.max(0)
    points = []
    for grid in grids:
        points.append(_pick(grid, place % len(grid)))
        place = place // len(grid)
    equal = values >= height - interpolant.rounding(torch.stack(points, -1))
    offset = values.new_zeros(1)
    for grid in grids:
        along = torch.arange(len(grid), dtype=values.dtype, device=values.device) - (len(grid) - 1) / 2
        offset = (along.square()[:, None] + offset).flatten()
    return torch.where(equal, offset.reshape((-1,) + (1,) * len(interpolant.rows)), torch.inf).argmin(0)


def _highest_across(values: Tensor, interpolant: Interpolant, axis: int) -> tuple[Tensor, Tensor]:
    """Along one axis, (G, *rows), the highest value over the others, and its place among them."""
    others = values.movedim(interpolant.axes - 1 - axis, 0)
    others = others.flatten(1, interpolant.axes - 1) if interpolant.axes > 1 else others[:, None]
    height, place = others.max(1)
    return height, place


def _bracket(height: Float[Tensor, "..."], level: Tensor) -> tuple[tuple[Tensor, Tensor], tuple[Tensor, Tensor]]:
    """First and last live index of heights (G, *rows), and the indices just outside of them."""
    live = height > level
    # Where no grid point is live, the peak is taken to lie beside the highest one.
    live = (live | (~live.any(0) & (height == height.amax(0)))).to(torch.int8)
    first, last = live.argmax(0), len(live) - 1 - live.flip(0).argmax(0)
    return (first, last), ((first - 1).clamp(min=0), (last + 1).clamp(max=len(live) - 1))


def _around(grids: list[Tensor], place: Tensor) -> list[Range]:
    """Ranges between the neighbours of a grid point, given by its place in values flattened last axis first."""
    ranges = []
    for grid in grids:
        at, place = place % len(grid), place // len(grid)
        ranges.append((_pick(grid, (at - 1).clamp(min=0)), _pick(grid, (at + 1).clamp(max=len(grid) - 1))))
    return ranges


def _pick(field: Tensor, index: Tensor) -> Tensor:
    """Entry of a field (G, *rows) for each row."""
    return field.gather(0, index[None])[0]
