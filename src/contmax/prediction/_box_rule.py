r"""The quadrature rule of a box: a fixed graded rule along each outer axis, live parts of lines along the last.

Along an outer axis the rule reaches from one end of the support to the other. There, integrals over the inner axes
behave like a power of the distance, which the grading resolves. If the ends follow the support when the score changes,
the integrand keeps its singularity in place, and sums over the nodes can be differentiated like the integrals.
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

# Panels per cell of the domain along an outer axis, by axes of the box and axes left, and Gauss nodes per panel.
_PANELS_PER_CELL = {2: {2: 2.0}, 3: {3: 0.75, 2: 0.375}}
_NODES = {2: 12, 3: 8}
# Graded nodes per live part of a line, by the number of axes of the box.
_PART_NODES = {1: 20, 2: 16, 3: 12}


@dataclass(frozen=True)
class Ends:
    """Where the support of each row begins and ends along the first axis of an interpolant, found without gradient."""

    points: Float[Tensor, "..."]
    """(2, *rows, N)"""
    rate: Float[Tensor, "..."]
    """(2, *rows): the reciprocal slope of the score along the axis; 0 where the end stays in its place."""
    panels: int

    @classmethod
    def of(cls, interpolant: Interpolant, threshold: Tensor, alpha: Tensor, axes: int) -> "Ends":
        """The ends for a threshold (*rows); nothing may require a gradient."""
        points, scale = support_ends(interpolant, threshold, axes)
        slope = interpolant.slopes(points)[0]
        step = (interpolant.score(points)[0] - threshold) / torch.where(slope == 0, 1, slope)
        width = points[1, ..., 0] - points[0, ..., 0]
        # The ends of a dense support are those of the box, and next to a masked cell the score is above the threshold.
        moves = (alpha > 1) & (step.abs() <= 1e-6 * width) & (slope.abs() * width > 1e-3 * scale)
        first = (points[..., 0] - torch.where(moves, step, 0)).clamp(0, 1)
        panels = math.ceil(_PANELS_PER_CELL[axes][interpolant.axes] * interpolant.cells)
        points = torch.cat([first[..., None], points[..., 1:]], -1)
        return cls(points, torch.where(moves, 1 / torch.where(moves, slope, 1), 0), panels)

    def rule(self, interpolant: Interpolant, threshold: Tensor, nodes: int) -> tuple[Tensor, Tensor]:
        """Nodes and weights (M, *rows), differentiable in the score and the threshold.

        An end moves like the threshold's crossing along the axis. To first order this is how the extremal point of the
        support moves, since the slopes across vanish there.
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
    """Outer nodes and the lines through them, with rows (*outer, *batch)."""

    outer: list[Tensor]
    """Coordinates of the outer axes: (M₁, *batch), then (M₂, M₁, *batch)."""
    weight: Tensor
    """Weight of each line, (…, M₂, M₁, *batch)."""
    lines: Lines
    part_nodes: int
    """Nodes per live part of a line."""

    def parts(self, normalizer: Float[Tensor, "*batch"], alpha: Tensor) -> Parts:
        """Live parts of all lines, for A of each member of the batch."""
        normalizer = normalizer.expand(self.weight.shape)
        least = negligible(normalizer, alpha, len(self.outer) + 1)
        return live_parts(self.lines, normalizer, alpha, self.part_nodes, least)

    def total(self, per_line: Float[Tensor, "..."]) -> Float[Tensor, "*batch"]:
        """Weighted sum over the lines."""
        weighted = self.weight * per_line
        return weighted.flatten(0, len(self.outer) - 1).sum(0) if self.outer else weighted

    def mass(self, normalizer: Float[Tensor, "*batch"], alpha: Tensor) -> Float[Tensor, "*batch"]:
        """∫ exp_{2−α}(f − A)."""
        return self.total(self.parts(normalizer, alpha).mass.flatten(-3).sum(-1))

    def mass_and_slope(self, normalizer: Tensor, alpha: Tensor) -> tuple[Tensor, Tensor]:
        """∫ exp_{2−α}(f − A), and −d/dA of it."""
        parts = self.parts(normalizer, alpha)
        return self.total(parts.mass.flatten(-3).sum(-1)), self.total(mass_slope(self.lines, parts, alpha))


def find_ends(interpolant: Interpolant, normalizer: Float[Tensor, "*batch"], alpha: Tensor) -> list[Ends]:
    """Ends of the support along all outer axes of a box, first to last; nothing may require a gradient."""
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
    """The rule between these ends for the density exp_{2−α}(f − A); its nodes move with score, A and α.

    A finer rule has half as many nodes again along the last two axes: the difference estimates the error. The first of
    three axes keeps its nodes, because the ends along the second belong to them.
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
