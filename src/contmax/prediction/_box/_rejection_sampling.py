"""Exact draws from a density on a box: a cell of a fine grid, a uniform point in it, kept with probability p/bound."""

from dataclasses import dataclass

import torch
from torch import Tensor

from contmax._typing import Float
from contmax.deformed import exp_beta
from contmax.numerics import legendre_slope
from contmax.prediction._box._box_support import highest_point, live_box, negligible
from contmax.prediction._box._interpolant import Interpolant
from contmax.prediction._quantile import take

# Cells of the fine grid per axis, over the part of the box that holds the mass.
_FINE_CELLS = {1: 256, 2: 64, 3: 24}


@dataclass(frozen=True)
class Envelope:
    """An upper bound of the density, constant on each cell of a fine grid over the mass."""

    low: Float[Tensor, "*batch N"]
    step: Float[Tensor, "*batch N"]
    bound: Float[Tensor, "*batch M"]
    """M = Gᴺ cells, the first axis fastest."""

    @classmethod
    def over(cls, interpolant: Interpolant, partition: Float[Tensor, "*batch"], alpha: Tensor) -> "Envelope":
        """From values at cell centres and bounds on the slopes of the polynomials around them."""
        count = _FINE_CELLS[interpolant.axes]
        ranges = live_box(interpolant, negligible(partition, alpha, interpolant.axes), interpolant.axes)
        low, step = torch.stack([a for a, _ in ranges], -1), torch.stack([(b - a) / count for a, b in ranges], -1)
        centre = torch.arange(count, dtype=torch.float64, device=low.device) + 0.5
        centre = centre.reshape((-1,) + (1,) * (low.dim() - 1))
        grids = [low[..., axis] + centre * step[..., axis] for axis in range(interpolant.axes)]
        height = interpolant.on_grid(grids)
        top, _ = interpolant.score(highest_point(interpolant))
        peak = torch.maximum(height.flatten(0, interpolant.axes - 1).amax(0), top)
        for axis in range(interpolant.axes):
            slope = _around(_slope_bound(interpolant, axis), interpolant.axes)
            height = height + _constant(slope, interpolant).on_grid(grids) * step[..., axis] / 2
        # Beside a dead cell a centre says nothing about its surroundings; the highest value there is does.
        beside = _constant(_around(interpolant.alive.double(), interpolant.axes), interpolant).on_grid(grids) > 0
        height = torch.where((height == -torch.inf) & beside, peak, torch.minimum(height, peak))
        bound = exp_beta(height - partition, 2 - alpha)
        return cls(low, step, bound.flatten(0, interpolant.axes - 1).movedim(0, -1))

    def propose(self, count: int) -> tuple[Float[Tensor, "S *batch N"], Float[Tensor, "S *batch"]]:
        """Points drawn from the envelope, and the bound at each."""
        *batch, axes = self.low.shape
        reached = self.bound.cumsum(-1).reshape(-1, self.bound.shape[-1])
        level = torch.rand(len(reached), count, dtype=torch.float64, device=reached.device) * reached[:, -1:]
        cell = torch.searchsorted(reached, level, right=True).clamp(max=reached.shape[-1] - 1).T.reshape(count, *batch)
        bound, coordinates = take(self.bound, cell, self.low.shape[:-1]), []
        for _ in range(axes):
            coordinates.append(cell % _FINE_CELLS[axes])
            cell = cell // _FINE_CELLS[axes]
        place = torch.stack(coordinates, -1)
        return self.low + self.step * (place + torch.rand(place.shape, dtype=torch.float64, device=place.device)), bound


def draw(
    interpolant: Interpolant, partition: Float[Tensor, "*batch"], alpha: Tensor, count: int
) -> Float[Tensor, "S *batch N"]:
    """Points of the unit box with density exp_{2−α}(f − A); NaN where there is no mass to draw from."""
    envelope = Envelope.over(interpolant, partition, alpha)
    empty = envelope.bound.sum(-1) == 0
    points, bound = envelope.propose(count)
    waiting = _rejected(points, bound, interpolant, partition, alpha) & ~empty
    while bool(waiting.any()):
        # All members of the batch propose as long as one of them waits; each keeps its own first success.
        again = waiting.flatten(1).any(1).nonzero()[:, 0] if waiting.dim() > 1 else waiting.nonzero()[:, 0]
        points_again, bound_again = envelope.propose(len(again))
        failed = _rejected(points_again, bound_again, interpolant, partition, alpha)
        chosen = waiting[again] & ~failed
        points[again] = torch.where(chosen[..., None], points_again, points[again])
        waiting[again] = waiting[again] & failed
    return points.masked_fill(empty[..., None], torch.nan)


def _rejected(points: Tensor, bound: Tensor, interpolant: Interpolant, partition: Tensor, alpha: Tensor) -> Tensor:
    score, alive = interpolant.score(points)
    density = torch.where(alive, exp_beta(score - partition, 2 - alpha), 0)
    return torch.rand(bound.shape, dtype=torch.float64, device=bound.device) * bound >= density


def _slope_bound(interpolant: Interpolant, axis: int) -> Tensor:
    """Largest derivative along an axis in each cell, (*rows, C, …, C): coefficients bound a Legendre series."""
    table = legendre_slope(interpolant.table.movedim(axis - interpolant.axes, -1))
    return 2 * interpolant.cells * table.flatten(-interpolant.axes).abs().sum(-1)


def _around(field: Tensor, axes: int) -> Tensor:
    """Largest value in each cell and its neighbours."""
    pool = (torch.nn.functional.max_pool1d, torch.nn.functional.max_pool2d, torch.nn.functional.max_pool3d)[axes - 1]
    flat = field.reshape(-1, 1, *field.shape[field.dim() - axes :])
    return pool(flat, kernel_size=3, stride=1, padding=1).reshape(field.shape)


def _constant(field: Tensor, interpolant: Interpolant) -> Interpolant:
    """An interpolant with one value per cell."""
    return Interpolant(
        field.reshape(field.shape + (1,) * interpolant.axes), torch.ones_like(interpolant.alive), interpolant.axes
    )
