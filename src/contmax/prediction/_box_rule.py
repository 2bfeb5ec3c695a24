r"""Quadrature on a box: graded nodes on each outer axis (all but the last), live parts (`_live_parts`) on the last.

Along an outer axis the rule spans the support. Near an end of the support, integrals over the inner axes behave like a
power of the distance to this end, which graded nodes resolve by clustering there. The ends and nodes move with the
score f, so the singularity stays in place relative to the nodes: sums over nodes can be differentiated like integrals.
"""

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from contmax._eager import carries_gradient
from contmax._typing import Float
from contmax.numerics import unit_gauss_legendre
from contmax.prediction._interpolant import Interpolant, negligible, support_ends
from contmax.prediction._live_parts import Lines, Parts, live_parts, mass_slope

# On an outer axis: panels per cell, by dimension of the box and number of unsliced axes; Gauss nodes per panel.
_PANELS_PER_CELL = {2: {2: 2.0}, 3: {3: 0.75, 2: 0.375}}
_NODES = {2: 12, 3: 8}
# Graded nodes per live part of a line, by the number of axes of the box.
_PART_NODES = {1: 20, 2: 16, 3: 12}


@dataclass(frozen=True)
class Ends:
    """Ends of the support of each row along the first axis of an interpolant, found without gradient."""

    points: Float[Tensor, "..."]
    """(2, *rows, N): points of the support with least and greatest first coordinate."""
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
        # Crossings of the threshold move with the score; ends of a dense support, the box or a dead cell do not.
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

    outer: list[Tensor]
    """Node coordinates on each outer axis: (M₁, *batch), then (M₂, M₁, *batch)."""
    weight: Tensor
    """Weight of each line, (…, M₂, M₁, *batch)."""
    lines: Lines
    part_nodes: int
    """Nodes per live part of a line."""

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
        return self.total(self.parts(normalizer, alpha).mass.flatten(-3).sum(-1))

    def mass_and_slope(self, normalizer: Tensor, alpha: Tensor) -> tuple[Tensor, Tensor]:
        """S = ∫ exp_{2−α}(f − A) over the box, and −dS/dA, with A = `normalizer`."""
        parts = self.parts(normalizer, alpha)
        return self.total(parts.mass.flatten(-3).sum(-1)), self.total(mass_slope(self.lines, parts, alpha))


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
    return SupportRule(outer, weight, interpolant.lines(), 3 * nodes // 2 if finer else nodes)
