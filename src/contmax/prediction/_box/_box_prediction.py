"""The Ω_α-map of a score on a box of one to three dimensions."""

from functools import partial
from typing import ClassVar

import torch
from torch import Size, Tensor
from torch.types import _size

from contmax._eager import carries_gradient, is_eager_cpu
from contmax._typing import Bool, Float
from contmax.domains import Box
from contmax.numerics import gauss_legendre
from contmax.prediction._box._box_check import BoxCheck
from contmax.prediction._box._box_support import highest_point
from contmax.prediction._box._interpolant import Interpolant
from contmax.prediction._box._panels import Panels
from contmax.prediction._box._rejection_sampling import draw
from contmax.prediction._box._support_rule import SupportRule, find_panels, fit_rule
from contmax.prediction._live_parts import level_of
from contmax.prediction._partition import UnitMeasure, bracket_of, carry_gradient, partition_on_nodes, solve_partition
from contmax.prediction._prediction import ContinuousPrediction
from contmax.prediction._regularized_prediction import register_prediction
from contmax.prediction._score import Score, broadcast_alpha, checked_alpha, read_score

# The rule is fitted to the support, the equation solved, and again: the first guess is good to a few digits. Each time
# so many steps are taken where values cannot be looked at; where they can, a solution that has moved by less than this
# would have the same rule to all digits that count.
_FITS, _FITTED = (4, 4, 12), 1e-7
# How far from the edge of a cell its score there is read, as a share of the cell.
_INSET = 1e-9


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
