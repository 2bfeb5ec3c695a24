"""A quadrature rule fitted to the support of a density on a box: exact along lines, panels across them."""

from dataclasses import dataclass

import torch
from torch import Tensor

from contmax._typing import Float

from ._frame import Frame
from ._lines import Lines, Parts, live_parts, mass_slope
from ._search import negligible
from ._sheet import Sheet

# Graded nodes per live part of a line, by the number of axes of the box.
_PART_NODES = {1: 20, 2: 16, 3: 12}


@dataclass(frozen=True)
class FittedRule:
    """Outer nodes and the lines through them, with rows (*outer, *batch)."""

    outer: list[Tensor]
    """Coordinates of the outer axes: (M₁, *batch), then (M₂, M₁, *batch)."""
    weight: Tensor
    """Weight of each line, (…, M₂, M₁, *batch)."""
    lines: Lines

    def parts(self, partition: Float[Tensor, "*batch"], alpha: Tensor) -> Parts:
        """Live parts of all lines, for A of each member of the batch."""
        nodes = _PART_NODES[len(self.outer) + 1]
        return live_parts(self.lines, partition.expand(self.weight.shape), alpha, nodes)

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


def find_frames(sheet: Sheet, partition: Float[Tensor, "*batch"], alpha: Tensor) -> list[Frame]:
    """Frames of all outer axes of a box, first to last; nothing may require a gradient."""
    axes, frames = sheet.axes, []
    while sheet.axes > 1:
        frame = Frame.around(sheet, partition, alpha, axes)
        frames.append(frame)
        sheet = sheet.at(frame.nodes_between(frame.points[..., 0])[0])
    return frames


def fit_rule(sheet: Sheet, frames: list[Frame], partition: Float[Tensor, "*batch"], alpha: Tensor) -> FittedRule:
    """The rule on these frames for the density exp_{2−α}(f − A); its nodes move with score, A and α."""
    level = negligible(partition, alpha, sheet.axes)
    outer: list[Tensor] = []
    weight = torch.ones_like(partition)
    for frame in frames:
        x, share = frame.nodes_between(frame.edges(sheet, level))
        outer, weight, sheet = [*outer, x], weight * share, sheet.at(x)
    return FittedRule(outer, weight, sheet.lines())
