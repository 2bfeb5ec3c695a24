"""A quadrature rule fitted to the support of a density on a box: exact along lines, panels across them."""

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from contmax._typing import Float
from contmax.prediction._box._box_support import negligible
from contmax.prediction._box._interpolant import Interpolant
from contmax.prediction._box._panels import Panels
from contmax.prediction._live_parts import Lines, Parts, live_parts, mass_slope

# Graded nodes per live part of a line, by the number of axes of the box.
_PART_NODES = {1: 20, 2: 16, 3: 12}


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
        """The same, and −d/dA of it."""
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
    """The same rule with half as many nodes again along the last two axes, by which the error of the other is known.

    (Panels of a second axis belong to the nodes of the first, which stay.)
    """
    last = [replace(each, nodes=3 * each.nodes // 2) for each in panels[-1:]]
    rule = fit_rule(interpolant, [*panels[:-1], *last], partition, alpha)
    return replace(rule, part_nodes=3 * rule.part_nodes // 2)
