r"""A score f on [0, 1]ᴺ as a tensor product of piecewise polynomials, and quadrature between the ends of its support.

The rule has graded nodes on each outer axis (all but the last). On the last axis it has nodes in live parts, where the
score exceeds the threshold (`_live_parts`). Along an outer axis the rule spans the support. Near an end of the support,
integrals over the inner axes behave like a power of the distance to this end, which graded nodes resolve by clustering
there. The ends and nodes move with the score f, so the singularity stays in place relative to the nodes: sums over
nodes can be differentiated like integrals.
"""

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from contmax._eager import carries_gradient
from contmax._typing import Float
from contmax.deformed import log_beta
from contmax.numerics import legendre_basis, legendre_coefficients, legendre_slope, unit_gauss_legendre
from contmax.prediction._live_parts import Lines, Parts, live_parts, mass_slope, series_bounds, take

# Upper bound of the rounding error of an interpolated value, in units of eps · Σ|coefficients|.
_ROUNDINGS = 64
Range = tuple[Tensor, Tensor]

# Points of the search grid per axis, by the number of axes of the box.
_GRID = {1: 48, 2: 48, 3: 28}
# A density below this multiple of the uniform density may be left out, by the number of axes of the box.
_NEGLIGIBLE = {1: 1e-16, 2: 1e-13, 3: 1e-8}
# Ends of the support and peaks are located by small grids with _SMALL_GRID points per axis, each finer than the last:
# _END_STEPS grids for an end, _PEAK_STEPS for a peak.
_SMALL_GRID = 7
_END_STEPS, _PEAK_STEPS = 8, 18
# Each outer axis has a composite Gauss rule. _PANELS_PER_CELL: its panels per cell, by the number of axes of the box
# and the number of axes that are not yet fixed at a node. _NODES: nodes per panel, by the number of axes of the box.
_PANELS_PER_CELL = {2: {2: 2.0}, 3: {3: 0.75, 2: 0.375}}
_NODES = {2: 12, 3: 8}
# Graded nodes per live part of a line, by the number of axes of the box.
_PART_NODES = {1: 20, 2: 16, 3: 12}


@dataclass(frozen=True)
class Interpolant:
    """Scores on [0, 1]ᴺ, one per row; each axis has C equal cells and each cell q Legendre coefficients per axis."""

    table: Tensor  # Legendre coefficients, (*rows, C, …, C, q, …, q) with N times C and N times q
    alive: Tensor  # whether a cell is alive, that is, has a finite score: (*rows, C, …, C)
    axes: int  # N

    @classmethod
    def through(cls, values: Float[Tensor, "*batch n"], axes: int, nodes: int) -> "Interpolant":
        """The interpolant of values at the Gauss nodes, row-major, q = `nodes`; cells with −inf at a node are dead."""
        batch = values.shape[:-1]
        cells = round(values.shape[-1] ** (1 / axes)) // nodes
        # Reorder the axes: (C, q, C, q, …) → (C, C, …, q, q, …).
        order = [len(batch) + 2 * axis + part for part in (0, 1) for axis in range(axes)]
        table = values.reshape(*batch, *(cells, nodes) * axes).permute([*range(len(batch)), *order])
        alive = (table > -torch.inf).flatten(-axes).all(-1)
        table = torch.where(alive.reshape(alive.shape + (1,) * axes), table, 0)
        for axis in range(axes):
            table = legendre_coefficients(table.movedim(-1 - axis, -1)).movedim(-1, -1 - axis)
        return cls(table, alive, axes)

    @property
    def cells(self) -> int:
        """C, the number of cells per axis."""
        return self.alive.shape[-1]

    @property
    def nodes(self) -> int:
        """q, the number of Legendre coefficients per axis."""
        return self.table.shape[-1]

    @property
    def rows(self) -> torch.Size:
        """The shape (*rows) of the dimensions before the axes."""
        return self.alive.shape[: self.alive.dim() - self.axes]

    def expand(self, rows: torch.Size) -> "Interpolant":
        """The interpolant with its rows expanded to `rows`."""
        table, alive = (part.expand(*rows, *part.shape[len(self.rows) :]) for part in (self.table, self.alive))
        return Interpolant(table, alive, self.axes)

    def detach(self) -> "Interpolant":
        """The interpolant without gradient."""
        return Interpolant(self.table.detach(), self.alive, self.axes)

    def cell_bounds(self) -> tuple[Tensor, Tensor]:
        """Lower and upper bounds (*rows, Cᴺ) of the scores on the cells, row-major."""
        return series_bounds(self.table.flatten(-self.axes).flatten(len(self.rows), -2))

    def at(self, x: Float[Tensor, "..."]) -> "Interpolant":
        """The slice at first coordinates x (*more, *rows): an interpolant with rows (*more, *rows) and one axis fewer.

        Dimensions of x may have size one where all rows share a coordinate.
        """
        cell, basis = self._place(x)
        cell = cell.expand(*x.shape[: x.dim() - len(self.rows)], *self.rows)
        table = _contracted(take(self.table, cell, self.rows).movedim(-self.axes, -1), [basis])
        return Interpolant(table, take(self.alive, cell, self.rows), self.axes - 1)

    def score(self, points: Float[Tensor, "..."]) -> tuple[Tensor, Tensor]:
        """Values at points (*more, *rows, N) of the unit box, and whether their cells are alive."""
        cell, bases = self._bases(points)
        return _contracted(self._columns(cell), bases), take(self.alive.flatten(len(self.rows)), cell, self.rows)

    def rounding(self, points: Float[Tensor, "..."]) -> Tensor:
        """Upper bound of the rounding error of values at points (*more, *rows, N) of the unit box."""
        cell, _ = self._bases(points)
        return _ROUNDINGS * torch.finfo(self.table.dtype).eps * self._columns(cell).abs().flatten(-self.axes).sum(-1)

    def slopes(self, points: Float[Tensor, "..."]) -> Float[Tensor, "..."]:
        """Slopes ∂f/∂tᵢ (N, *more, *rows) at points (*more, *rows, N) of the unit box."""
        cell, bases = self._bases(points)
        # To differentiate along an axis, replace the Legendre polynomials of this axis by their derivatives.
        rate = 2 * self.cells * legendre_slope(torch.eye(self.nodes, dtype=points.dtype, device=points.device)).T
        table = self._columns(cell)
        along = ([basis @ rate if i == axis else basis for i, basis in enumerate(bases)] for axis in range(self.axes))
        return torch.stack([_contracted(table, polynomials) for polynomials in along])

    def _columns(self, cell: Tensor) -> Tensor:
        """Coefficients of the cells with these row-major indices."""
        return take(self.table.flatten(len(self.rows), len(self.rows) + self.axes - 1), cell, self.rows)

    def _bases(self, points: Tensor) -> tuple[Tensor, list[Tensor]]:
        """Row-major index of each point's cell, and the Legendre polynomials at the point, axis by axis."""
        cell, first = self._place(points[..., 0])
        bases = [first]
        for axis in range(1, self.axes):
            along, basis = self._place(points[..., axis])
            cell = cell * self.cells + along
            bases.append(basis)
        return cell, bases

    def _place(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Cell index of each coordinate, and the q Legendre polynomials at the coordinate."""
        scaled = x * self.cells
        cell = scaled.detach().floor().clamp(0, self.cells - 1)
        return cell.long(), legendre_basis(2 * (scaled - cell) - 1, self.nodes)


def _contracted(table: Tensor, bases: list[Tensor]) -> Tensor:
    """Coefficients (…, q, …, q) contracted with the polynomials (…, q) of each axis, last axis first."""
    for basis in reversed(bases):
        rest = table.dim() - basis.dim()
        table = (table * basis.reshape(basis.shape[:-1] + (1,) * rest + basis.shape[-1:])).sum(-1)
    return table


def negligible(normalizer: Float[Tensor, "..."], alpha: Tensor, axes: int) -> Float[Tensor, "..."]:
    """The score, (*rows), at which the density has the value `_NEGLIGIBLE`; for α > 1 it is near the threshold."""
    return normalizer + log_beta(torch.full_like(normalizer, _NEGLIGIBLE[axes]), 2 - alpha)


def support_ends(interpolant: Interpolant, threshold: Tensor, axes: int) -> tuple[Tensor, Tensor]:
    """Points (2, *rows, N) of {f > threshold} with least and greatest first coordinate, and max f − threshold (*rows).

    A grid over the whole box finds the range of this set along each axis. A grid over these ranges finds the two
    points, and small grids zoom in on each point.
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
    """Coordinates (*rows, N) of the highest score; among scores equal up to rounding, of the most central point."""
    grids, values = _grid_over(interpolant, _whole(interpolant), _GRID[interpolant.axes])
    for _ in range(_PEAK_STEPS):
        grids, values = _grid_over(interpolant, _around(grids, _highest(interpolant, grids, values)), _SMALL_GRID)
    return torch.stack([grid[len(grid) // 2] for grid in grids], -1)


def _whole(interpolant: Interpolant) -> list[Range]:
    zero = torch.zeros(interpolant.rows, dtype=torch.float64, device=interpolant.table.device)
    return [(zero, zero + 1)] * interpolant.axes


def _grid_over(interpolant: Interpolant, ranges: list[Range], count: int) -> tuple[list[Tensor], Tensor]:
    """Equidistant grids (G, *rows) over the range of each axis, and the values (G, …, G, *rows) on their product.

    The first dimension of the values belongs to the last axis. Values are −inf on dead cells.
    """
    share = torch.linspace(0, 1, count, dtype=torch.float64, device=interpolant.table.device)
    share = share.reshape((-1,) + (1,) * len(interpolant.rows))
    grids = [low + (high - low) * share for low, high in ranges]
    for axis, grid in enumerate(grids):
        interpolant = interpolant.at(grid.reshape(grid.shape[:1] + (1,) * axis + grid.shape[1:]))
    return grids, torch.where(interpolant.alive, interpolant.table, -torch.inf)


def _highest(interpolant: Interpolant, grids: list[Tensor], values: Tensor) -> Tensor:
    """Index (*rows) of the highest value among the flattened values on a grid; of nearly equal ones the most central.

    On a ridge many values are equal up to float64 rounding, which differs between processors and batch shapes and must
    not decide which point is highest. The tolerance does not cover float32 rounding of the scores.
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
    """Maximum over the other axes at each grid point of `axis`, (G, *rows), and its index in the other axes, flattened.

    Parabolas through the highest grid point and its neighbours estimate maxima between grid points, for thin supports.
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
    """Indices of the first and last of the heights (G, *rows) above the threshold, with the index before and after."""
    live = height > threshold
    # Where no grid point is above the threshold, the highest grid point counts as live.
    live = (live | (~live.any(0) & (height == height.amax(0)))).to(torch.int8)
    first, last = live.argmax(0), len(live) - 1 - live.flip(0).argmax(0)
    return (first - 1).clamp(min=0), first, last, (last + 1).clamp(max=len(live) - 1)


def _around(grids: list[Tensor], place: Tensor) -> list[Range]:
    """Ranges between the neighbours of a grid point; `place` is its index in flattened values (G_N, …, G_1)."""
    ranges = []
    for grid in grids:
        at, place = place % len(grid), place // len(grid)
        ranges.append((_pick(grid, (at - 1).clamp(min=0)), _pick(grid, (at + 1).clamp(max=len(grid) - 1))))
    return ranges


def _pick(field: Tensor, index: Tensor) -> Tensor:
    """Entry `index` (*rows) of a field (G, *rows)."""
    return field.gather(0, index[None])[0]


@dataclass(frozen=True)
class Ends:
    """Ends of the support of each row along the first axis of an interpolant, found without gradient."""

    points: Float[Tensor, "..."]  # (2, *rows, N): points of the support with least and greatest first coordinate
    rate: Float[Tensor, "..."]
    """(2, *rows): 1/slope of the score along the first axis; 0 for an end that does not move with the score."""
    panels: int

    @classmethod
    def of(cls, interpolant: Interpolant, threshold: Tensor, alpha: Tensor, axes: int) -> "Ends":
        """Ends of {f > threshold}, threshold (*rows), in a box of `axes` axes; no argument may require a gradient."""
        points, scale = support_ends(interpolant, threshold, axes)
        slope = interpolant.slopes(points)[0]
        step = (interpolant.score(points)[0] - threshold) / torch.where(slope == 0, 1, slope)
        width = points[1, ..., 0] - points[0, ..., 0]
        # An end where the score crosses the threshold moves with the score. An end at an edge of the box or a dead cell
        # does not, nor does any end for α ≤ 1, where the density is positive everywhere.
        moves = (alpha > 1) & (step.abs() <= 1e-6 * width) & (slope.abs() * width > 1e-3 * scale)
        first = (points[..., 0] - torch.where(moves, step, 0)).clamp(0, 1)
        panels = math.ceil(_PANELS_PER_CELL[axes][interpolant.axes] * interpolant.cells)
        points = torch.cat([first[..., None], points[..., 1:]], -1)
        return cls(points, torch.where(moves, 1 / torch.where(moves, slope, 1), 0), panels)

    def rule(self, interpolant: Interpolant, threshold: Tensor, nodes: int) -> tuple[Tensor, Tensor]:
        """Nodes and weights (M, *rows) along the first axis, differentiable in the score and the threshold.

        An end moves as if the score crossed the threshold on a line along the first axis. This is exact to first order,
        because the slopes along the other axes vanish at the point of the support with extreme first coordinate.
        """
        ends = self.points[..., 0]
        if carries_gradient(interpolant.table, threshold):
            excess = interpolant.score(self.points)[0] - threshold
            ends = ends - self.rate * (excess - excess.detach())
        local, weight = unit_gauss_legendre(nodes, ends.device)
        place = torch.arange(self.panels, device=ends.device)[:, None] + local
        u = place.reshape(-1, *(1 for _ in threshold.shape)) / self.panels
        share = weight.repeat(self.panels).reshape(u.shape) / self.panels
        length = ends[1] - ends[0]
        return ends[0] + length * u * u * (3 - 2 * u), length * share * 6 * u * (1 - u)


@dataclass(frozen=True)
class SupportRule:
    """Nodes of the outer axes, and the lines along the last axis through these nodes, with rows (*outer, *batch)."""

    outer: list[Tensor]  # node coordinates on each outer axis: (M₁, *batch), then (M₂, M₁, *batch)
    weight: Tensor  # weight of each line, (…, M₂, M₁, *batch)
    lines: Lines
    part_nodes: int  # nodes per live part of a line

    def parts(self, normalizer: Float[Tensor, "*batch"], alpha: Tensor) -> Parts:
        """Live parts of all lines for A = `normalizer` of each batch member."""
        normalizer = normalizer.expand(self.weight.shape)
        least = negligible(normalizer, alpha, len(self.outer) + 1)
        return live_parts(self.lines, normalizer, alpha, self.part_nodes, least)

    def total(self, per_line: Float[Tensor, "..."]) -> Float[Tensor, "*batch"]:
        """Weighted sum over the lines of each batch member."""
        weighted = self.weight * per_line
        return weighted.flatten(0, len(self.outer) - 1).sum(0) if self.outer else weighted

    def mass(self, normalizer: Float[Tensor, "*batch"], alpha: Tensor) -> Float[Tensor, "*batch"]:
        """∫ exp_{2−α}(f − A) over the box, with A = `normalizer`."""
        return self.total(self.parts(normalizer, alpha).total)

    def mass_and_slope(self, normalizer: Tensor, alpha: Tensor) -> tuple[Tensor, Tensor]:
        """S = ∫ exp_{2−α}(f − A) over the box, and −dS/dA, with A = `normalizer`."""
        parts = self.parts(normalizer, alpha)
        return self.total(parts.total), self.total(mass_slope(self.lines, parts, alpha))


def find_ends(interpolant: Interpolant, normalizer: Float[Tensor, "*batch"], alpha: Tensor) -> list[Ends]:
    """Ends of the support along all outer axes of a box, first to last; no argument may require a gradient."""
    axes, ends = interpolant.axes, []
    threshold = negligible(normalizer, alpha, axes)
    while interpolant.axes > 1:
        rows = interpolant.rows
        ends.append(Ends.of(interpolant, threshold.expand(rows), alpha.expand(rows), axes))
        interpolant = interpolant.at(ends[-1].rule(interpolant, threshold.expand(rows), _NODES[axes])[0])
    return ends


def fit_rule(
    interpolant: Interpolant,
    ends: list[Ends],
    normalizer: Float[Tensor, "*batch"],
    alpha: Tensor,
    *,
    finer: bool = False,
) -> SupportRule:
    """The rule between `ends` for the density exp_{2−α}(f − A), A = `normalizer`; its nodes move with f, A and α.

    If `finer`, the last two axes have 1.5 times as many nodes: the difference in mass estimates the error. The nodes of
    the first of three axes stay, because the ends along the second axis were found at these nodes.
    """
    axes = interpolant.axes
    threshold = negligible(normalizer, alpha, axes)
    outer: list[Tensor] = []
    weight = torch.ones_like(normalizer)
    for place, each in enumerate(ends):
        more = finer and place == len(ends) - 1
        x, share = each.rule(
            interpolant, threshold.expand(interpolant.rows), (3 * _NODES[axes] // 2) if more else _NODES[axes]
        )
        outer, weight, interpolant = [*outer, x], weight * share, interpolant.at(x)
    nodes = _PART_NODES[axes]
    half = torch.full((interpolant.cells,), 0.5 / interpolant.cells, dtype=torch.float64, device=weight.device)
    lines = Lines.over(interpolant.table, interpolant.alive, half)
    return SupportRule(outer, weight, lines, 3 * nodes // 2 if finer else nodes)
