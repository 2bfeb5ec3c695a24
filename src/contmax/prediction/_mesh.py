r"""Cells fine enough for a score and its density: halved where samples say that they are too long."""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from contmax._typing import Bool, Float
from contmax.deformed import exp_beta
from contmax.maps._threshold import power_on_support
from contmax.numerics import gauss_legendre, legendre_coefficients, legendre_slope, legendre_sum

from ._lines import PART_NODES, Lines, level_of, live_parts
from ._partition import UnitMeasure, partition_on_nodes

# Mass that one cell may misplace. Halving stops at 2⁻³⁶ of a cell, where even a jump misplaces less than this.
_TOLERANCE = 1e-12
_MOST_HALVINGS = 36
_MOST_CELLS = 4096


@dataclass(frozen=True)
class Noise:
    """Relative precision of scores, and of points as a multiple of it in units of the domain's length."""

    scores: float
    points: float


def refined(
    read: Callable[[Tensor], Tensor], edges: Float[Tensor, "E"], count: int, volume: Tensor, alpha: Tensor, noise: Noise
) -> tuple[Float[Tensor, "F"], Float[Tensor, "*batch C q"]]:
    """Edges on [0, 1] and values at the Gauss nodes of the cells between them, after halving what is too coarse.

    Args:
        read: points on [0, 1] ↦ scores, (n,) ↦ (*batch, n).
        edges: edges to begin with.
        count: q, Gauss nodes per cell.
        volume: measure of the domain.
        alpha: α, broadcastable to the batch.
        noise: precision of scores and points, below which differences mean nothing.
    """
    left, right = edges[:-1], edges[1:]
    values = _read_cells(read, left, right, count)
    for _ in range(_MOST_HALVINGS):
        coarse = _too_coarse(values.detach(), right - left, volume, alpha, noise)
        if not bool(coarse.any()) or len(left) > _MOST_CELLS:
            break
        middle = (left + right)[coarse] / 2
        new_left, new_right = torch.cat([left[coarse], middle]), torch.cat([middle, right[coarse]])
        left, right = torch.cat([left[~coarse], new_left]), torch.cat([right[~coarse], new_right])
        values = torch.cat([values[..., ~coarse, :], _read_cells(read, new_left, new_right, count)], -2)
        order = left.argsort()
        left, right, values = left[order], right[order], values[..., order, :]
    return torch.cat([left, right[-1:]]), values


def _read_cells(read: Callable[[Tensor], Tensor], left: Tensor, right: Tensor, count: int) -> Tensor:
    local, _ = gauss_legendre(count, left.device)
    points = ((left + right)[:, None] + (right - left)[:, None] * local) / 2
    values: Tensor = read(points.reshape(-1)).unflatten(-1, (len(left), count))
    return values


def _too_coarse(
    values: Float[Tensor, "*batch C q"], length: Float[Tensor, "C"], volume: Tensor, alpha: Tensor, noise: Noise
) -> Bool[Tensor, "C"]:
    """Whether some score of the batch needs the cell halved: for the score itself, its extrema, or its density."""
    cells = len(length)
    masked = values == -torch.inf
    form = UnitMeasure.of(values.flatten(-2), volume, alpha)
    scores = form.scaled(values.flatten(-2)).unflatten(-1, (cells, -1))
    coefficients = legendre_coefficients(scores)
    lines = Lines.over(coefficients, ~masked.any(-1), length / 2)
    partition, escort = _rough_solution(scores.masked_fill(masked, -torch.inf), length, alpha)
    level = level_of(partition, alpha)[..., None]

    tail = coefficients[..., -2:].abs().sum(-1)
    highest = torch.maximum(scores.amax(-1), lines.heights.amax(-1))
    variation = highest - torch.minimum(scores.amin(-1), lines.heights.amin(-1))
    size = torch.where(masked, 0, values).abs().amax(-1) * ((alpha - 1) * form.log_volume).exp()[..., None]
    floor = 8 * noise.scores * (size + noise.points * variation / length)
    allowed = max(_TOLERANCE, 8 * noise.scores)
    may_live = highest + 2 * tail > level
    rough = may_live & (tail > floor) & (tail * escort > allowed)
    folded = may_live & (_turns(coefficients) > 1) & (variation > floor) & (variation * escort > allowed)
    peaked = _rule_error(lines, partition, alpha) > allowed
    edge = ~masked.all(-1) & (length > noise.scores * noise.points)
    split = torch.where(masked.any(-1), edge, rough | folded | peaked)
    return split.reshape(-1, cells).any(0)


def _rough_solution(
    scores: Float[Tensor, "*batch C q"], length: Float[Tensor, "C"], alpha: Tensor
) -> tuple[Float[Tensor, "*batch"], Float[Tensor, "*batch C"]]:
    """Ã from the samples alone, and the integral of p^{2−α} over each cell: how much an error there weighs."""
    _, rule = gauss_legendre(scores.shape[-1], scores.device)
    weights = length[:, None] * rule / 2
    partition = partition_on_nodes(scores.flatten(-2), weights.flatten(), alpha)
    density = exp_beta(scores - partition[..., None, None], 2 - alpha[..., None, None])
    escort = (weights * power_on_support(density, 2 - alpha[..., None, None])).sum(-1)
    # Where no node is live but the score may rise to the level in between, the average stands in.
    return partition, torch.where(escort > 0, escort, length * escort.sum(-1, keepdim=True))


def _rule_error(lines: Lines, partition: Tensor, alpha: Tensor) -> Float[Tensor, "*batch C"]:
    """How much mass the rule for live parts misplaces in each cell, against a rule with more nodes."""
    rules = [
        live_parts(lines, partition, alpha, nodes).mass.flatten(-2).sum(-1) for nodes in (PART_NODES, 2 * PART_NODES)
    ]
    return (rules[0] - rules[1]).abs()


def _turns(coefficients: Float[Tensor, "*batch C q"]) -> Tensor:
    """How often the derivative changes sign in a cell."""
    count = coefficients.shape[-1]
    grid = torch.linspace(-1, 1, count + 1, dtype=coefficients.dtype, device=coefficients.device)
    rises = legendre_sum(legendre_slope(coefficients)[..., None, :], grid) > 0
    return (rises[..., 1:] != rises[..., :-1]).sum(-1)
