"""A score on a box as a tensor product of piecewise polynomials: values anywhere, and slices across its first axis."""

from dataclasses import dataclass

import torch
from torch import Tensor

from contmax._typing import Float
from contmax.numerics import legendre_basis, legendre_coefficients, legendre_slope
from contmax.prediction._live_parts import Lines
from contmax.prediction._quantile import take

# Roundings, all to one side, that a value may have met: one per polynomial of three axes, and a margin.
_ROUNDINGS = 64


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
    def through(cls, values: Float[Tensor, "*batch n"], alive: Tensor, axes: int, nodes: int) -> "Interpolant":
        """The interpolant of values at the Gauss nodes of a box, row-major; cells with a dead node are dead."""
        batch = values.shape[:-1]
        cells = round(values.shape[-1] ** (1 / axes)) // nodes
        # (C, q, C, q, …) → (C, C, …, q, q, …)
        order = [len(batch) + 2 * axis + part for part in (0, 1) for axis in range(axes)]
        order = [*range(len(batch)), *order]
        alive = alive.reshape(*batch, *(cells, nodes) * axes).permute(order).flatten(-axes).all(-1)
        table = values.reshape(*batch, *(cells, nodes) * axes).permute(order)
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
        """The same scores for more rows."""
        table = self.table.expand(*rows, *self.table.shape[len(self.rows) :])
        return Interpolant(table, self.alive.expand(*rows, *self.alive.shape[len(self.rows) :]), self.axes)

    def detach(self) -> "Interpolant":
        """The same scores without gradient."""
        return Interpolant(self.table.detach(), self.alive, self.axes)

    @property
    def measure(self) -> Tensor:
        """Share (*rows) of the box that has a score."""
        return self.alive.double().flatten(len(self.rows)).mean(-1)

    def bounds(self) -> tuple[Tensor, Tensor]:
        """Lower and upper bounds (*rows) of the scores: a Legendre polynomial is nowhere larger than one."""
        table = self.table.flatten(-self.axes)
        mean, reach = table[..., 0], table[..., 1:].abs().sum(-1)
        low, high = ((mean + side * reach).flatten(len(self.rows)) for side in (-1, 1))
        return low.amin(-1), high.amax(-1)

    def slope(self, axis: int) -> "Interpolant":
        """The derivative along an axis."""
        place = axis - self.axes
        table = 2 * self.cells * legendre_slope(self.table.movedim(place, -1)).movedim(-1, place)
        return Interpolant(table, self.alive, self.axes)

    def at(self, x: Float[Tensor, "..."]) -> "Interpolant":
        """The slice at a first coordinate x (*more, *rows): an interpolant with these rows and one axis less.

        The coordinate may have size one where all rows share it.
        """
        cell, basis = self._place(x)
        cell = cell.expand(*x.shape[: x.dim() - len(self.rows)], *self.rows)
        columns = take(self.table, cell, self.rows).movedim(-self.axes, -1)
        rest = columns.dim() - basis.dim()
        table = (columns * basis.reshape(basis.shape[:-1] + (1,) * rest + basis.shape[-1:])).sum(-1)
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

    def derivatives(self, points: Float[Tensor, "..."]) -> tuple[Tensor, list[Tensor], list[list[Tensor]]]:
        """Values f, slopes ∂f/∂tᵢ and curvatures ∂²f/∂tᵢ∂tⱼ at points (*more, *rows, N) of the unit box."""
        cell, bases = self._bases(points)
        table, axes = self._columns(cell), range(self.axes)
        # A derivative of the score is a sum over derivatives of the polynomials.
        slope = 2 * self.cells * legendre_slope(torch.eye(self.nodes, dtype=table.dtype, device=table.device)).T
        orders = [(basis, basis @ slope, basis @ slope @ slope) for basis in bases]

        def along(*axes_of_slopes: int) -> Tensor:
            return _contracted(table, [orders[axis][axes_of_slopes.count(axis)] for axis in axes])

        slopes = [along(axis) for axis in axes]
        mixed = {(i, j): along(i, j) for i in axes for j in axes if i <= j}
        return along(), slopes, [[mixed[min(i, j), max(i, j)] for j in axes] for i in axes]

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
