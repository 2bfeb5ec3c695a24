"""A score on a box as a tensor product of piecewise polynomials: values, slices, ends of its support."""

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from contmax._typing import Float
from contmax.deformed import log_beta
from contmax.numerics import legendre_basis, legendre_coefficients, legendre_slope
from contmax.prediction._live_parts import Lines, series_bounds, take

# Bound of the rounding of a value, in units of eps: one for each polynomial of three axes, and a margin.
_ROUNDINGS = 64
Range = tuple[Tensor, Tensor]

# Points of the search grid per axis, by the number of axes of the box.
_GRID = {1: 48, 2: 48, 3: 28}
# A density this small relative to the uniform one may be left out.
_NEGLIGIBLE = {1: 1e-16, 2: 1e-13, 3: 1e-8}
# Points per axis of the small grids that close in upon a point, and how many such grids follow each other.
_SMALL_GRID = 7
_END_STEPS, _PEAK_STEPS = 8, 18


@dataclass(frozen=True)
class Interpolant:
    """Scores on [0, 1]ᴺ, one per row; each axis has C equal cells and each cell q Legendre coefficients per axis."""

    table: Tensor
    """(*rows, C, …, C, q, …, q), N of each."""
    alive: Tensor
    """(*rows, C, …, C)"""
    axes: int
    """N."""

    @classmethod
    def through(cls, values: Float[Tensor, "*batch n"], axes: int, nodes: int) -> "Interpolant":
        """The interpolant of values at the Gauss nodes of a box, row-major; cells with −inf at a node are dead."""
        batch = values.shape[:-1]
        cells = round(values.shape[-1] ** (1 / axes)) // nodes
        # (C, q, C, q, …) → (C, C, …, q, q, …)
        order = [len(batch) + 2 * axis + part for part in (0, 1) for axis in range(axes)]
        table = values.reshape(*batch, *(cells, nodes) * axes).permute([*range(len(batch)), *order])
        alive = (table > -torch.inf).flatten(-axes).all(-1)
        table = torch.where(alive.reshape(alive.shape + (1,) * axes), table, 0)
        for axis in range(axes):
            table = legendre_coefficients(table.movedim(-1 - axis, -1)).movedim(-1, -1 - axis)
        return cls(table, alive, axes)

    @property
    def cells(self) -> int:
        """C."""
        return self.alive.shape[-1]

    @property
    def nodes(self) -> int:
        """q."""
        return self.table.shape[-1]

    @property
    def rows(self) -> torch.Size:
        """Shape in front of the axes."""
        return self.alive.shape[: self.alive.dim() - self.axes]

    def expand(self, rows: torch.Size) -> "Interpolant":
        """These scores for more rows."""
        table, alive = (part.expand(*rows, *part.shape[len(self.rows) :]) for part in (self.table, self.alive))
        return Interpolant(table, alive, self.axes)

    def detach(self) -> "Interpolant":
        """These scores without gradient."""
        return Interpolant(self.table.detach(), self.alive, self.axes)

    @property
    def measure(self) -> Tensor:
        """Share (*rows) of the box that has a score."""
        return self.alive.double().flatten(len(self.rows)).mean(-1)

    def cell_bounds(self) -> tuple[Tensor, Tensor]:
        """Lower and upper bounds (*rows, Cᴺ) of the scores on the cells, row-major."""
        return series_bounds(self.table.flatten(-self.axes).flatten(len(self.rows), -2))

    def at(self, x: Float[Tensor, "..."]) -> "Interpolant":
        """The slice at a first coordinate x (*more, *rows): an interpolant with these rows and one axis less.

        The coordinate may have size one where all rows share it.
        """
        cell, basis = self._place(x)
        cell = cell.expand(*x.shape[: x.dim() - len(self.rows)], *self.rows)
        table = _contracted(take(self.table, cell, self.rows).movedim(-self.axes, -1), [basis])
        return Interpolant(table, take(self.alive, cell, self.rows), self.axes - 1)

    def on_grid(self, grids: list[Float[Tensor, "..."]]) -> Tensor:
        """Values (G_N, …, G_1, *rows) at all combinations of coordinates, each (G, *rows); −inf where dead."""
        interpolant = self
        for axis, grid in enumerate(grids):
            interpolant = interpolant.at(grid.reshape(grid.shape[:1] + (1,) * axis + grid.shape[1:]))
        return torch.where(interpolant.alive, interpolant.table, -torch.inf)

    def lines(self) -> Lines:
        """The last remaining axis as lines."""
        half = torch.full((self.cells,), 0.5 / self.cells, dtype=torch.float64, device=self.table.device)
        return Lines.over(self.table, self.alive, half)

    def score(self, points: Float[Tensor, "..."]) -> tuple[Tensor, Tensor]:
        """Values at points (*more, *rows, N) of the unit box, and whether their cells are alive."""
        cell, bases = self._bases(points)
        return _contracted(self._columns(cell), bases), take(self.alive.flatten(len(self.rows)), cell, self.rows)

    def rounding(self, points: Float[Tensor, "..."]) -> Tensor:
        """By how much rounding may change values at points (*more, *rows, N) of the unit box, and their neighbours."""
        cell, _ = self._bases(points)
        return _ROUNDINGS * torch.finfo(self.table.dtype).eps * self._columns(cell).abs().flatten(-self.axes).sum(-1)

    def slopes(self, points: Float[Tensor, "..."]) -> Float[Tensor, "..."]:
        """Slopes ∂f/∂tᵢ (N, *more, *rows) at points (*more, *rows, N) of the unit box."""
        cell, bases = self._bases(points)
        # A derivative of the score is a sum over derivatives of the polynomials.
        rate = 2 * self.cells * legendre_slope(torch.eye(self.nodes, dtype=points.dtype, device=points.device)).T
        table = self._columns(cell)
        along = ([basis @ rate if i == axis else basis for i, basis in enumerate(bases)] for axis in range(self.axes))
        return torch.stack([_contracted(table, polynomials) for polynomials in along])

    def _columns(self, cell: Tensor) -> Tensor:
        """Coefficients of the cells at these places in a row-major list."""
        return take(self.table.flatten(len(self.rows), len(self.rows) + self.axes - 1), cell, self.rows)

    def _bases(self, points: Tensor) -> tuple[Tensor, list[Tensor]]:
        """Place of each point's cell in a row-major list, and the Legendre polynomials there, axis by axis."""
        cell, first = self._place(points[..., 0])
        bases = [first]
        for axis in range(1, self.axes):
            along, basis = self._place(points[..., axis])
            cell = cell * self.cells + along
            bases.append(basis)
        return cell, bases

    def _place(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Cell of each coordinate and the Legendre polynomials there."""
        scaled = x * self.cells
        cell = scaled.detach().floor().clamp(0, self.cells - 1)
        return cell.long(), legendre_basis(2 * (scaled - cell) - 1, self.nodes)


def _contracted(table: Tensor, bases: list[Tensor]) -> Tensor:
    """Sums of coefficients (…, q, …, q) times polynomials (…, q), last axis first."""
    for basis in reversed(bases):
        rest = table.dim() - basis.dim()
        table = (table * basis.reshape(basis.shape[:-1] + (1,) * rest + basis.shape[-1:])).sum(-1)
    return table


def negligible(normalizer: Float[Tensor, "..."], alpha: Tensor, axes: int) -> Float[Tensor, "..."]:
    """The score at which the density is small enough to be left out; for α > 1 about the threshold."""
    return normalizer + log_beta(torch.full_like(normalizer, _NEGLIGIBLE[axes]), 2 - alpha)


def support_ends(interpolant: Interpolant, threshold: Tensor, axes: int) -> tuple[Tensor, Tensor]:
    """Live points (2, *rows, N) with the smallest and the largest first coordinate, and the height (*rows) of a peak.

    A grid over the whole box finds the ranges of the coordinates, a grid over these ranges the first and the last live
    point along the first axis, and small grids close in upon each of them.
    """
    grids, values = _grid_over(interpolant, _whole(interpolant), _GRID[axes])
    ranges = []
    for axis, grid in enumerate(grids):
        low, _, _, high = _live_places(_highest_across(values, interpolant, axis)[0], threshold)
        ranges.append((_pick(grid, low), _pick(grid, high)))
    start = _grid_over(interpolant, ranges, _GRID[axes])
    peak = start[1].flatten(0, interpolant.axes - 1).amax(0)
    ends = []
    for end in (0, 1):
        grids, values = start
        for _ in range(_END_STEPS):
            height, place = _highest_across(values, interpolant, 0)
            low, first, last, high = _live_places(height, threshold)
            pair = (low, first) if end == 0 else (last, high)
            around = _around(grids[1:], _pick(place, pair[1 - end]))
            along = _pick(grids[0], pair[0]), _pick(grids[0], pair[1])
            grids, values = _grid_over(interpolant, [along, *around], _SMALL_GRID)
        ends.append(torch.stack([grids[0][-end], *(grid[len(grid) // 2] for grid in grids[1:])], -1))
    return torch.stack(ends), (peak - threshold).clamp(min=0)


def highest_point(interpolant: Interpolant) -> Float[Tensor, "..."]:
    """Coordinates (*rows, N) of the highest score; of several that are equal but for rounding, the most central."""
    grids, values = _grid_over(interpolant, _whole(interpolant), _GRID[interpolant.axes])
    for _ in range(_PEAK_STEPS):
        grids, values = _grid_over(interpolant, _around(grids, _highest(interpolant, grids, values)), _SMALL_GRID)
    return torch.stack([grid[len(grid) // 2] for grid in grids], -1)


def _whole(interpolant: Interpolant) -> list[Range]:
    zero = torch.zeros(interpolant.rows, dtype=torch.float64, device=interpolant.table.device)
    return [(zero, zero + 1)] * interpolant.axes


def _grid_over(interpolant: Interpolant, ranges: list[Range], count: int) -> tuple[list[Tensor], Tensor]:
    """Equidistant grids (G, *rows) over the ranges and the values there, (G_N, …, G_1, *rows)."""
    share = torch.linspace(0, 1, count, dtype=torch.float64, device=interpolant.table.device)
    share = share.reshape((-1,) + (1,) * len(interpolant.rows))
    grids = [low + (high - low) * share for low, high in ranges]
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
    """Along one axis, (G, *rows), the highest value over the others, and its place among them.

    Parabolas through the highest grid point and its neighbours show peaks between grid points, as of a thin support.
    """
    others = values.movedim(interpolant.axes - 1 - axis, 0)
    flat = others.flatten(1, interpolant.axes - 1)
    height, place = flat.max(1)
    peak = height
    for other in range(1, interpolant.axes):
        step = math.prod(others.shape[other + 1 : interpolant.axes])
        at = place // step % others.shape[other]
        inner = (at > 0) & (at < others.shape[other] - 1)
        near = [flat.gather(1, torch.where(inner, place + move, place)[:, None])[:, 0] for move in (-step, step)]
        bend = 2 * height - near[0] - near[1]
        known = inner & (bend > 0) & bend.isfinite()
        peak = peak + torch.where(known, (near[1] - near[0]).square() / (8 * torch.where(known, bend, 1)), 0)
    return peak, place


def _live_places(height: Float[Tensor, "..."], threshold: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """First and last live index of heights (G, *rows) between the indices just outside of them."""
    live = height > threshold
    # Where no grid point is live, the peak is taken to lie beside the highest one.
    live = (live | (~live.any(0) & (height == height.amax(0)))).to(torch.int8)
    first, last = live.argmax(0), len(live) - 1 - live.flip(0).argmax(0)
    return (first - 1).clamp(min=0), first, last, (last + 1).clamp(max=len(live) - 1)


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
