"""The Ω_α-map of a score on a box of one to three dimensions."""

from dataclasses import dataclass
from functools import partial
from typing import ClassVar

import torch
from torch import Size, Tensor
from torch.types import _size

from contmax._eager import carries_gradient, is_eager_cpu
from contmax._typing import Bool, Float
from contmax.deformed import exp_beta
from contmax.domains import Box
from contmax.numerics import gauss_legendre, legendre_slope
from contmax.prediction._box_rule import Panels, SupportRule, find_panels, fit_rule, with_more_nodes
from contmax.prediction._interpolant import Interpolant, highest_point, live_box, negligible
from contmax.prediction._live_parts import bucket, level_of, take
from contmax.prediction._normalizer import UnitMeasure, bracket_of, carry_gradient, partition_on_nodes, solve_partition
from contmax.prediction._prediction import ContinuousPrediction
from contmax.prediction._regularized_prediction import (
    Score,
    broadcast_alpha,
    checked_alpha,
    read_score,
    register_prediction,
)
from contmax.prediction._resolution import HeldOut, no_mass, refuse_if_lost, report, rounding_noise, spread_points

# Mass misplaced from which on a warning is given, by the dimension of the box: ten times what smooth scores have.
_WARNED = {1: 1e-8, 2: 1e-4, 3: 1e-2}
# Points at which the score is read again: all over the box, and where the density is.
_ALL_OVER, _OWN = 4096, 2048
# The rule is fitted to the support, the equation solved, and again: the first guess is good to a few digits. Each time
# so many steps are taken where values cannot be looked at; where they can, a solution that has moved by less than this
# would have the same rule to all digits that count.
_FITS, _FITTED = (4, 4, 12), 1e-7
# How far from the edge of a cell its score there is read, as a share of the cell.
_INSET = 1e-9
# Cells of the fine grid per axis, over the part of the box that holds the mass.
_FINE_CELLS = {1: 256, 2: 64, 3: 24}


@dataclass(frozen=True)
class BoxCheck:
    """Compares a score on a box with its interpolant; nothing here requires a gradient."""

    domain: Box
    form: UnitMeasure
    interpolant: Interpolant
    dtype: torch.dtype
    """The precision of points and scores."""

    def read_all_over(self, score: Score) -> HeldOut:
        """Score and interpolant at points all over the box."""
        rows = self.interpolant.rows
        with torch.no_grad():
            exact, points = self._read(score, spread_points(_ALL_OVER, self.domain.dimension, self.domain.low.device))
        return self._beside(exact, points.reshape(len(points), *(1,) * len(rows), -1).expand(-1, *rows, -1))

    def refuse_if_lost(self, between: HeldOut, partition: Float[Tensor, "*batch"]) -> None:
        """Refuses a score for which even the first guess of A shows that its interpolant means nothing."""
        misplaced = between.misplaced_by_guess(partition, self.form.alpha, 1 / _ALL_OVER)
        refuse_if_lost(misplaced, self.domain, self._advice)

    def report(
        self,
        score: Score,
        between: HeldOut,
        rule: tuple[Float[Tensor, "*batch n N"], Float[Tensor, "*batch n"]],
        panels: list[Panels],
        partition: Float[Tensor, "*batch"],
    ) -> None:
        """Warns of a density that is less accurate than stated, and refuses one that means nothing.

        Args:
            score: f, to be read where the density is.
            between: the score all over the box.
            rule: nodes and masses of the density.
            panels: panels of that rule.
            partition: Ã, without gradient.
        """
        alpha = self.form.alpha
        with torch.no_grad():
            own = self._read_own(score, *rule)
        finer = with_more_nodes(self.interpolant, panels, partition, alpha).mass(partition, alpha)
        errors = [
            between.misplaced(partition, alpha, 1 / _ALL_OVER),
            own.misplaced_of_own(partition, alpha),
            (finer - 1).abs(),
        ]
        worst = torch.where(self.form.empty, 0, torch.stack(errors).nan_to_num(torch.inf).amax(0))
        refuse_if_lost(worst, self.domain, self._advice)
        report(worst, _WARNED[self.domain.dimension], self.domain, self._advice)

    def no_mass(self, mass: Tensor, alpha: Tensor) -> ValueError:
        """The error where no A gives the interpolated density the mass one."""
        return no_mass(mass, alpha, self.domain, self._advice)

    @property
    def _advice(self) -> str:
        return (
            f"Steps, kinks and peaks narrower than a cell do this: raise resolution, now {self.domain.resolution}, "
            "or pass contmax.domains.Nodes with your own quadrature rule."
        )

    def _read_own(self, score: Score, nodes: Float[Tensor, "*batch n N"], masses: Float[Tensor, "*batch n"]) -> HeldOut:
        """Score and interpolant where each member of the batch has its mass, known at the nodes of a rule."""
        batch = masses.shape[:-1]
        count = -(-_OWN // max(1, batch.numel()))
        steps = torch.arange(count, dtype=torch.float64, device=masses.device)
        level = ((steps + 0.5) / count).reshape(-1, *(1,) * len(batch))
        points = take(nodes, bucket(masses, level * masses.sum(-1)), batch)
        exact, rounded = self._read(score, self._unit(points.reshape(-1, self.domain.dimension)))
        # Each score was read at the points of all others too.
        exact = exact.reshape(batch.numel(), count, batch.numel()).diagonal(dim1=0, dim2=2)
        return self._beside(exact.T.reshape(*batch, count), rounded.reshape(points.shape))

    def _unit(self, points: Tensor) -> Tensor:
        """Points of the box as points of the unit box."""
        low, length = self.domain.low.double(), (self.domain.high - self.domain.low).double()
        return ((points - low) / length).clamp(0, 1)

    def _read(self, score: Score, unit: Float[Tensor, "n N"]) -> tuple[Float[Tensor, "*batch n"], Float[Tensor, "n N"]]:
        """Scores at points of the unit box, and these points as they were after rounding."""
        low, length = self.domain.low.double(), (self.domain.high - self.domain.low).double()
        points = (low + length * unit).to(self.dtype)
        values = broadcast_alpha(read_score(score, points, self.domain)[0], self.form.alpha)
        return values, self._unit(points.double())

    def _beside(self, values: Float[Tensor, "*batch n"], points: Float[Tensor, "n *batch N"]) -> HeldOut:
        """Scores as read beside those of the interpolant at the same points."""
        score, alive = self.interpolant.score(points)
        slopes = [self.interpolant.slope(axis).score(points)[0].abs() for axis in range(self.interpolant.axes)]
        reach = torch.maximum(self.domain.low.abs(), self.domain.high.abs()) / (self.domain.high - self.domain.low)
        slope = (torch.stack(slopes, -1) * reach.clamp(min=1)).sum(-1).movedim(0, -1)
        dead = values == -torch.inf
        size = self.form.factor[..., None] * (torch.where(dead, 0, values).abs() + self.form.top.abs()[..., None])
        exact = self.form.scaled(values).masked_fill(dead, -torch.inf)
        interpolated = torch.where(alive, score, -torch.inf).movedim(0, -1)
        return HeldOut.between(exact, interpolated, rounding_noise(size, slope, torch.finfo(self.dtype).eps))


@register_prediction(Box)
def predict_on_box(score: Score, domain: Box, alpha: float | int | Tensor) -> "BoxPrediction":
    """The prediction; see :func:`contmax.regularized_prediction`."""
    index = checked_alpha(alpha, domain.low.device)
    values, dtype = read_score(score, domain.nodes, domain)
    values = broadcast_alpha(values, index)
    form = UnitMeasure.of(values, domain.volume.double(), index)
    alive = values != -torch.inf
    scaled = form.scaled(values)
    interpolant = Interpolant.through(scaled, alive, domain.dimension, domain.nodes_per_cell)
    weights = _sample_weights(domain)
    start = partition_on_nodes(scaled.detach().masked_fill(~alive, -torch.inf), weights, index.detach())
    check = BoxCheck(domain, form.detach(), interpolant.detach(), dtype)
    looked_at = not isinstance(score, Tensor) and is_eager_cpu(values, index)
    between = check.read_all_over(score) if looked_at else None
    if between is not None:
        check.refuse_if_lost(between, start)
    panels, found, solution = _fitted(interpolant.detach(), start, check)
    partition, rule = _partition(interpolant, panels, found, solution, index)
    prediction = BoxPrediction(alpha, form, interpolant, partition, rule, domain, dtype)
    if between is not None:
        check.report(score, between, (prediction._nodes, prediction._masses), panels, solution)
    return prediction


def _fitted(
    interpolant: Interpolant, start: Float[Tensor, "*batch"], check: BoxCheck
) -> tuple[list[Panels], SupportRule, Float[Tensor, "*batch"]]:
    """Panels fitted to the support, the rule on them, and Ã, all without gradient."""
    alpha = check.form.alpha
    bracket = bracket_of(*interpolant.bounds(), interpolant.measure, alpha)
    solution = start
    for steps in _FITS if interpolant.axes > 1 else _FITS[-1:]:
        guess = solution
        panels = find_panels(interpolant, guess, alpha)
        rule = fit_rule(interpolant, panels, guess, alpha)
        equation = partial(rule.mass_and_slope, alpha=alpha)
        solution = solve_partition(equation, guess, bracket, alpha, check.no_mass, steps=steps)
        if is_eager_cpu(solution) and not bool(((solution - guess).abs() > _FITTED).any()):
            break
    return panels, rule, solution


def _partition(
    interpolant: Interpolant, panels: list[Panels], rule: SupportRule, solution: Float[Tensor, "*batch"], alpha: Tensor
) -> tuple[Float[Tensor, "*batch"], SupportRule]:
    """Ã with its derivatives, and the rule fitted to its support, which was found without."""
    if not carries_gradient(interpolant.table, alpha):
        return solution, rule
    _, slope = rule.mass_and_slope(solution, alpha.detach())
    partition = carry_gradient(
        lambda guess: fit_rule(interpolant, panels, guess, alpha).mass(guess, alpha), solution, slope
    )
    return partition, fit_rule(interpolant, panels, partition, alpha)


def _sample_weights(domain: Box) -> Float[Tensor, "n"]:
    """Gauss weights of the domain's nodes, of total one."""
    _, rule = gauss_legendre(domain.nodes_per_cell, domain.low.device)
    axis = (rule / (2 * domain.resolution)).repeat(domain.resolution)
    total = axis
    for _ in range(domain.dimension - 1):
        total = (total[:, None] * axis).flatten()
    return total


class BoxPrediction(ContinuousPrediction):
    """A prediction on a box, see :class:`Prediction`: a vector-valued distribution, in one dimension too.

    The density is that of the interpolant of the score through its values at ``domain.nodes``. Unlike the other
    predictions it waits for an accelerator when it is made and when it is sampled.
    """

    has_rsample = False
    _batched: ClassVar = {**ContinuousPrediction._batched, "_nodes": 2}

    def __init__(
        self,
        alpha: float | int | Tensor,
        form: UnitMeasure,
        interpolant: Interpolant,
        partition: Float[Tensor, "*batch"],
        rule: SupportRule,
        domain: Box,
        dtype: torch.dtype,
    ) -> None:
        event = Size([domain.dimension])
        super().__init__(alpha, form, partition, event, dtype)
        self._low, self._lengths = domain.low.double(), (domain.high - domain.low).double()
        self._interpolant = interpolant
        parts = rule.parts(partition, form.alpha)
        left = (2 * torch.arange(interpolant.cells, device=partition.device) + 1)[:, None, None] * rule.lines.half[
            :, None, None
        ]
        inner = left + rule.lines.half[:, None, None] * parts.local
        outer = [x[..., None, None, None].expand_as(inner) for x in rule.outer]
        unit = torch.stack([self._batch_first(axis) for axis in (*outer, inner)], -1)
        mass = self._batch_first(rule.weight[..., None, None, None] * parts.mass)
        self._set_rule(self._low + self._lengths * unit, mass, self._batch_first(parts.density / self._lengths.prod()))

    def _batch_first(self, field: Tensor) -> Float[Tensor, "*batch n"]:
        """(*outer, *batch, C, 2, n) → (*batch, all nodes)."""
        for _ in range(self.event_shape[0] - 1):
            field = field.movedim(0, -4)
        return field.flatten(len(self.batch_shape))

    def _rebind(self) -> None:
        self._interpolant = self._interpolant.expand(self.batch_shape)

    def _excess(self, points: Tensor) -> tuple[Tensor, Tensor]:
        shape = torch.broadcast_shapes(points.shape[:-1], self.batch_shape)
        unit = ((points - self._low) / self._lengths).expand(*shape, -1)
        inside = ((unit >= 0) & (unit <= 1)).all(-1)
        score, alive = self._interpolant.score(unit.clamp(0, 1))
        return score - self._partition, inside & alive

    @property
    def mode(self) -> Float[Tensor, "*batch N"]:
        """The point of highest score, to about 1e-6 of a cell; not differentiated."""
        return self._round(self._low + self._lengths * highest_point(self._interpolant.detach()))

    @property
    def live_cells(self) -> Bool[Tensor, "..."]:
        """Which cells of the domain, ``resolution`` along each axis, reach into the support: (*batch, C, …, C)."""
        interpolant = self._interpolant.detach()
        # Edges are looked at from within: on them the next cell would answer.
        inner = torch.linspace(
            _INSET, 1 - _INSET, interpolant.nodes + 2, dtype=torch.float64, device=interpolant.table.device
        )
        grid = ((torch.arange(interpolant.cells, device=inner.device)[:, None] + inner) / interpolant.cells).flatten()
        grid = grid.reshape((-1,) + (1,) * len(interpolant.rows)).expand(-1, *interpolant.rows)
        values = interpolant.on_grid([grid] * interpolant.axes)
        live = values > level_of(self._partition.detach(), self._index.detach())
        for _ in range(interpolant.axes):
            # The last axis comes first; each turn moves one behind the batch and reduces it to cells.
            live = (
                live.unflatten(0, (interpolant.cells, -1))
                .any(1)
                .movedim(0, len(interpolant.rows) + interpolant.axes - 1)
            )
        live = live.permute(*range(len(interpolant.rows)), *reversed(range(len(interpolant.rows), live.dim())))
        return live | self._cells_with_mass(interpolant.cells)

    def _cells_with_mass(self, cells: int) -> Bool[Tensor, "..."]:
        """Which cells hold nodes of the rule, which was fitted to the support however small it is."""
        place = ((self._nodes.detach() - self._low) / self._lengths * cells).long().clamp(0, cells - 1)
        index = place[..., 0]
        for axis in range(1, place.shape[-1]):
            index = index * cells + place[..., axis]
        held = torch.zeros(*self.batch_shape, cells ** place.shape[-1], dtype=torch.float64, device=index.device)
        held = held.scatter_add(-1, index, self._masses.detach())
        return held.reshape(*self.batch_shape, *[cells] * place.shape[-1]) > 0

    @torch.no_grad()
    def sample(self, sample_shape: _size = Size()) -> Tensor:  # noqa: B008
        """Exact draws from the interpolated density, without gradient; shape ``sample_shape + batch_shape + (N,)``."""
        shape = self._extended_shape(Size(sample_shape))
        count = Size(sample_shape).numel()
        unit = draw(self._interpolant.detach(), self._partition.detach(), self._index.detach(), count)
        return self._round(self._low + self._lengths * unit.reshape(shape))


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
