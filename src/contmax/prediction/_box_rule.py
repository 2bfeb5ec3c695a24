r"""The panels of an outer axis of a box, and how their edges move with the score.

Where a component of the support begins or ends, at a point with :math:`f = \lambda` and no slope across, integrals
over the inner axes behave like a power of the distance. Panels end at such points. If edges and the nodes between
them follow the points when the score changes, the integrand keeps its singularity at the edge and sums over the nodes
can be differentiated as often as the integrals.
"""

import math
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from contmax._eager import carries_gradient
from contmax._typing import Bool, Float
from contmax.numerics import gauss_legendre, graded_rule
from contmax.prediction._interpolant import Interpolant, change_points, fractions, live_box, negligible, outermost
from contmax.prediction._live_parts import Lines, Parts, live_parts, mass_slope

# Panels per cell of the domain along an outer axis, by axes of the box and axes left, and nodes per half panel.
_PANELS_PER_CELL = {2: {2: 1.0}, 3: {3: 0.75, 2: 0.375}}
_NODES = {2: 12, 3: 8}
# Newton steps from a point found on grids to where score and slopes meet their conditions.
_POLISH_STEPS = 4
_POLISH_REACH = 1e-2
# Graded nodes per live part of a line, by the number of axes of the box.
_PART_NODES = {1: 20, 2: 16, 3: 12}


@dataclass(frozen=True)
class Panels:
    """Edges of panels along the first axis of an interpolant, found without gradient."""

    points: Float[Tensor, "..."]
    """(E, *rows, N): the first coordinates are the edges; where one moves, the rest is the point that it follows."""
    moves: Bool[Tensor, "..."]
    """(E, *rows)"""
    rough: Bool[Tensor, "..."]
    """(E − 1, *rows): panels on which the integrand is not smooth."""
    nodes: int
    """Nodes per panel."""

    @classmethod
    def around(cls, interpolant: Interpolant, partition: Tensor, alpha: Tensor, axes: int) -> "Panels":
        """For the density exp_{2−α}(f − A) of each row; nothing may require a gradient."""
        level, sparse = negligible(partition, alpha, axes), (alpha > 1).expand(interpolant.rows)
        ranges = live_box(interpolant, level, axes)
        low, high = (outermost(interpolant, level, ranges, axes, end) for end in (0, 1))
        panels = math.ceil(_PANELS_PER_CELL[axes][interpolant.axes] * interpolant.cells)
        points = low + (high - low) * fractions(panels + 1, low)
        changed = torch.zeros_like(points[1:, ..., 0], dtype=torch.bool)
        if interpolant.axes == 2:
            cuts, changed = change_points(interpolant, level, points[..., 0], ranges[1])
            points = torch.cat([torch.stack([points[:-1], cuts], 1).flatten(0, 1), points[-1:]])
            changed = torch.stack([torch.zeros_like(changed), changed], 1).flatten(0, 1)
        # An edge moves, and the panels on both sides of it and next to those are rough, at a change and at both ends.
        moves = torch.cat([sparse[None], changed[1:] & sparse, sparse[None]])
        points, moves = _polished(interpolant, level, points, moves)
        changed = torch.cat([sparse[None], changed[1:], sparse[None]])
        return cls(points, moves, _beside(changed), _NODES[axes])

    def edges(self, interpolant: Interpolant, level: Float[Tensor, "..."]) -> Float[Tensor, "..."]:
        """The edges (E, *rows), differentiable in the score and the level.

        Two chord steps on the conditions leave the values alone and are exact to second order.
        """
        points = self.points
        if not carries_gradient(interpolant.table, level):
            return points[..., 0]
        jacobian = _conditions(interpolant.detach(), level.detach(), points, self.moves)[1]
        for _ in range(2):
            residual, _ = _conditions(interpolant, level, points, self.moves)
            step = torch.linalg.solve(jacobian, residual - residual.detach())
            points = points - torch.where(self.moves[..., None], step, 0)
        return points[..., 0]

    def nodes_between(self, edges: Float[Tensor, "..."]) -> tuple[Float[Tensor, "..."], Float[Tensor, "..."]]:
        """Nodes and weights (M, *rows) on the panels: graded on rough ones, else Gauss."""
        shape = (1, -1) + (1,) * (edges.dim() - 1)
        graded, graded_weight = (table.reshape(shape) for table in graded_rule(self.nodes, edges.device, power=2))
        local, local_weight = (table.reshape(shape) / 2 for table in gauss_legendre(self.nodes, edges.device))
        start, length, rough = edges[:-1, None], edges.diff(dim=0)[:, None], self.rough[:, None]
        x = start + length * torch.where(rough, graded, local + 0.5)
        return x.flatten(0, 1), (length * torch.where(rough, graded_weight, local_weight)).flatten(0, 1)


def _beside(changed: Bool[Tensor, "..."]) -> Bool[Tensor, "..."]:
    """Panels (E − 1, *rows) that have a change among the edges (E, *rows) at their ends, or one panel further."""
    padded = torch.nn.functional.pad(changed.movedim(0, -1), (1, 1)).movedim(-1, 0)
    return padded[:-3] | padded[1:-2] | padded[2:-1] | padded[3:]


def _conditions(interpolant: Interpolant, level: Tensor, points: Tensor, moves: Tensor) -> tuple[Tensor, Tensor]:
    """Residuals (E, *rows, N) of f = level and ∂f/∂tⱼ = 0 across, and their Jacobian, the identity where fixed.

    A coordinate on the boundary of the box stays there.
    """
    axes = interpolant.axes
    pinned = (points <= 0) | (points >= 1) | ~moves[..., None]
    value, slopes, curvatures = interpolant.derivatives(points)
    residual = [value - level, *slopes[1:]]
    rows = [torch.stack(each, -1) for each in (slopes, *curvatures[1:])]
    jacobian = torch.where(
        pinned[..., None], torch.eye(axes, dtype=points.dtype, device=points.device), torch.stack(rows, -2)
    )
    return torch.where(pinned, 0, torch.stack(residual, -1)), jacobian


def _polished(interpolant: Interpolant, level: Tensor, points: Tensor, moves: Tensor) -> tuple[Tensor, Tensor]:
    """Points that meet the conditions to rounding, and which edges have one; the others keep their place."""
    moves = moves & (points[..., 0] > 0) & (points[..., 0] < 1)
    exact = points
    for _ in range(_POLISH_STEPS):
        residual, jacobian = _conditions(interpolant, level, exact, moves)
        step, info = torch.linalg.solve_ex(jacobian, residual)
        moves = moves & (info == 0) & step.isfinite().all(-1)
        exact = torch.where(moves[..., None], (exact - step).clamp(0, 1), points)
    residual, jacobian = _conditions(interpolant, level, exact, moves)
    size = jacobian.abs().amax((-1, -2)).clamp(min=1)
    met = (residual.abs().amax(-1) < 1e-9 * size) & ((exact - points).abs().amax(-1) < _POLISH_REACH)
    before, here, after = points[:-2, ..., 0], exact[1:-1, ..., 0], points[2:, ..., 0]
    ordered = torch.cat([met[:1], (before < here) & (here < after), met[-1:]])
    moves = moves & met & ordered
    return torch.where(moves[..., None], exact, points), moves


@dataclass(frozen=True)
class SupportRule:
    """Outer nodes and the lines through them, with rows (*outer, *batch)."""

    outer: list[Tensor]
    """Coordinates of the outer axes: (M₁, *batch), then (M₂, M₁, *batch)."""
    weight: Tensor
    """Weight of each line, (…, M₂, M₁, *batch)."""
    lines: Lines
    part_nodes: int
    """Nodes per live part of a line."""

    def parts(self, partition: Float[Tensor, "*batch"], alpha: Tensor) -> Parts:
        """Live parts of all lines, for A of each member of the batch."""
        partition = partition.expand(self.weight.shape)
        least = negligible(partition, alpha, len(self.outer) + 1)
        return live_parts(self.lines, partition, alpha, self.part_nodes, least)

    def total(self, per_line: Float[Tensor, "..."]) -> Float[Tensor, "*batch"]:
        """Weighted sum over the lines."""
        weighted = self.weight * per_line
        return weighted.flatten(0, len(self.outer) - 1).sum(0) if self.outer else weighted

    def mass(self, partition: Float[Tensor, "*batch"], alpha: Tensor) -> Float[Tensor, "*batch"]:
        """∫ exp_{2−α}(f − A)."""
        return self.total(self.parts(partition, alpha).mass.flatten(-3).sum(-1))

    def mass_and_slope(self, partition: Tensor, alpha: Tensor) -> tuple[Tensor, Tensor]:
        """∫ exp_{2−α}(f − A), and −d/dA of it."""
        parts = self.parts(partition, alpha)
        return self.total(parts.mass.flatten(-3).sum(-1)), self.total(mass_slope(self.lines, parts, alpha))


def find_panels(interpolant: Interpolant, partition: Float[Tensor, "*batch"], alpha: Tensor) -> list[Panels]:
    """Panels of all outer axes of a box, first to last; nothing may require a gradient."""
    axes, panels = interpolant.axes, []
    while interpolant.axes > 1:
        panels.append(Panels.around(interpolant, partition, alpha, axes))
        interpolant = interpolant.at(panels[-1].nodes_between(panels[-1].points[..., 0])[0])
    return panels


def fit_rule(
    interpolant: Interpolant, panels: list[Panels], partition: Float[Tensor, "*batch"], alpha: Tensor
) -> SupportRule:
    """The rule on these panels for the density exp_{2−α}(f − A); its nodes move with score, A and α."""
    level = negligible(partition, alpha, interpolant.axes)
    outer: list[Tensor] = []
    weight = torch.ones_like(partition)
    for each in panels:
        x, share = each.nodes_between(each.edges(interpolant, level))
        outer, weight, interpolant = [*outer, x], weight * share, interpolant.at(x)
    return SupportRule(outer, weight, interpolant.lines(), _PART_NODES[len(panels) + 1])


def with_more_nodes(
    interpolant: Interpolant, panels: list[Panels], partition: Float[Tensor, "*batch"], alpha: Tensor
) -> SupportRule:
    """A rule on these panels with half as many nodes again along the last two axes: the difference estimates the error.

    The first of three axes keeps its nodes, because the panels of the second belong to them.
    """
    last = [replace(each, nodes=3 * each.nodes // 2) for each in panels[-1:]]
    rule = fit_rule(interpolant, [*panels[:-1], *last], partition, alpha)
    return replace(rule, part_nodes=3 * rule.part_nodes // 2)
