"""The Ω_α-map of a score f on a box of one to three dimensions; `_normalizer` defines A, Ã and f̃."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import ClassVar

import torch
from torch import Size, Tensor
from torch.types import _size

from contmax._eager import is_eager_cpu
from contmax._typing import Bool, Float
from contmax.deformed import exp_beta
from contmax.domains import Box
from contmax.numerics import gauss_legendre, spread_points
from contmax.prediction._interpolant import Ends, Interpolant, SupportRule, find_ends, fit_rule, highest_point
from contmax.prediction._live_parts import bucket, take
from contmax.prediction._normalizer import (
    UnitMeasure,
    bracket_of,
    carry_gradient,
    normalizer_on_nodes,
    solve_normalizer,
)
from contmax.prediction._prediction import ContinuousPrediction
from contmax.prediction._regularized_prediction import Score, checked_alpha, read_score, register_prediction
from contmax.prediction._resolution import HeldOut, no_mass, report, rounding_noise

# Misplaced mass (the error of the density, see `_resolution`) that triggers a warning, by dimension. Smooth scores
# misplace about a tenth of it.
_WARNED = {1: 1e-8, 2: 1e-4, 3: 1e-2}
# To check the interpolant, the score is read again at `_ALL_OVER` points that fill the box, and at `_OWN` nodes in all
# (at least one for each batch member), chosen in proportion to their mass.
_ALL_OVER, _OWN = 4096, 2048
# Fitting the quadrature rule to the support alternates with solving for A, since the first guess of A is inaccurate.
# `_FITS`: Newton steps after each fit on a GPU or in a trace. On a CPU a change of A below `_FITTED` ends the loop.
_FITS, _FITTED = (4, 4, 12), 1e-7


@dataclass(frozen=True)
class BoxCheck:
    """Compares a score on a box with its interpolant at points between the nodes, without gradients."""

    domain: Box
    form: UnitMeasure
    interpolant: Interpolant
    dtype: torch.dtype  # dtype in which the score gets points and returns values

    def read_all_over(self, score: Score) -> HeldOut:
        """The score and its interpolant at `_ALL_OVER` points that fill the box evenly."""
        rows, low, high = self.interpolant.rows, self.domain.low.double(), self.domain.high.double()
        index = torch.arange(1, _ALL_OVER + 1, dtype=torch.float64, device=low.device)
        places = low + (high - low) * spread_points(index, self.domain.dimension)
        exact, points = self._read(score, places)
        return self._beside(exact, points.reshape(len(points), *(1,) * len(rows), -1).expand(-1, *rows, -1))

    def report(
        self,
        score: Score,
        between: HeldOut,
        rule: tuple[Float[Tensor, "*batch n N"], Float[Tensor, "*batch n"]],
        ends: list[Ends],
        normalizer: Float[Tensor, "*batch"],
    ) -> None:
        """Warn if more mass is misplaced than `_WARNED`; raise an error if more than a tenth of the mass is.

        Args:
            score: f, reread at points drawn from the density.
            between: the result of `read_all_over`.
            rule: quadrature nodes, and the mass of the density at each.
            ends: ends of the support along each outer axis, that is, each axis but the last.
            normalizer: Ã, without gradient.
        """
        alpha = self.form.alpha
        finer = fit_rule(self.interpolant, ends, normalizer, alpha, finer=True).mass(normalizer, alpha)
        errors = [
            between.misplaced(normalizer, alpha, 1 / _ALL_OVER),
            self._read_own(score, *rule).misplaced_by_draws(normalizer, alpha),
            (finer - 1).abs(),
        ]
        worst = torch.where(self.form.empty, 0, torch.stack(errors).nan_to_num(torch.inf).amax(0))
        report(worst, _WARNED[self.domain.dimension], self.domain, self.advice)

    @property
    def advice(self) -> str:
        """The advice in messages about a score that changes too fast."""
        return (
            f"Steps, kinks and peaks narrower than a cell do this: raise resolution, now {self.domain.resolution}, "
            "or pass contmax.domains.Nodes with your own quadrature rule."
        )

    def _read_own(self, score: Score, nodes: Float[Tensor, "*batch n N"], masses: Float[Tensor, "*batch n"]) -> HeldOut:
        """The score and its interpolant at nodes chosen for each batch member, in proportion to their masses."""
        batch = masses.shape[:-1]
        count = -(-_OWN // max(1, batch.numel()))
        steps = torch.arange(count, dtype=torch.float64, device=masses.device)
        share = ((steps + 0.5) / count).reshape(-1, *(1,) * len(batch))
        exact, points = self._read(score, take(nodes, bucket(masses, share * masses.sum(-1)), batch))
        # Each member's score was read at the points of all members: select each member's own points.
        exact = exact.reshape(batch.numel(), count, batch.numel()).diagonal(dim1=0, dim2=2)
        return self._beside(exact.T.reshape(*batch, count), points)

    @torch.no_grad()
    def _read(
        self, score: Score, points: Float[Tensor, "... N"]
    ) -> tuple[Float[Tensor, "*batch n"], Float[Tensor, "... N"]]:
        """Scores at `points` rounded to `self.dtype`, and the rounded points mapped to [0, 1]ᴺ."""
        low, high, points = self.domain.low.double(), self.domain.high.double(), points.to(self.dtype)
        exact, _ = read_score(score, points.reshape(-1, self.domain.dimension), self.domain, self.form.alpha)
        return exact, ((points.double() - low) / (high - low)).clamp(0, 1)

    def _beside(self, values: Float[Tensor, "*batch n"], points: Float[Tensor, "n *batch N"]) -> HeldOut:
        """Pairs scores `values`, read at `points` of [0, 1]ᴺ, with the interpolant there.

        Differences between them are reduced by the rounding error that they may contain.
        """
        score, alive = self.interpolant.score(points)
        slopes = self.interpolant.slopes(points).movedim(0, -1)
        reach = torch.maximum(self.domain.low.abs(), self.domain.high.abs()) / (self.domain.high - self.domain.low)
        slope = (slopes.abs() * reach.clamp(min=1)).sum(-1).movedim(0, -1)
        finite = torch.where(values > -torch.inf, values, 0)
        size = self.form.factor[..., None] * (finite.abs() + self.form.top.abs()[..., None])
        interpolated = torch.where(alive, score, -torch.inf).movedim(0, -1)
        noise = rounding_noise(size, slope, torch.finfo(self.dtype).eps)
        return HeldOut.between(self.form.scaled(values), interpolated, noise)


@register_prediction(Box)
def predict_on_box(score: Score, domain: Box, alpha: float | int | Tensor) -> "BoxPrediction":
    """The prediction on a Box; see :func:`contmax.regularized_prediction`."""
    index = checked_alpha(alpha, domain.low.device)
    values, dtype = read_score(score, domain.nodes, domain, index)
    form = UnitMeasure.of(values, domain.volume.double(), index)
    scaled = form.scaled(values)
    interpolant = Interpolant.through(scaled, domain.dimension, domain.nodes_per_cell)
    _, gauss = gauss_legendre(domain.nodes_per_cell, domain.low.device)
    axis = (gauss / (2 * domain.resolution)).repeat(domain.resolution)
    weights = torch.cartesian_prod(*[axis] * domain.dimension).reshape(-1, domain.dimension).prod(-1)
    start = normalizer_on_nodes(scaled.detach(), weights, index.detach())
    check = BoxCheck(domain, form.detach(), interpolant.detach(), dtype)
    looked_at = not isinstance(score, Tensor) and is_eager_cpu(values, index)
    between = check.read_all_over(score) if looked_at else None
    if between is not None:
        # Raise the error before solving for A if the first guess of A shows that over a tenth of the mass is misplaced.
        guessed = between.misplaced(start, check.form.alpha, 1 / _ALL_OVER).nan_to_num(0)
        report(guessed, torch.inf, domain, check.advice)
    normalizer, rule, ends = _solved(interpolant, start, index, partial(no_mass, domain=domain, advice=check.advice))
    prediction = BoxPrediction(alpha, form, interpolant, normalizer, rule, domain, dtype)
    if between is not None:
        known = prediction._nodes.detach(), prediction._masses.detach()
        check.report(score, between, known, ends, normalizer.detach())
    return prediction


def _solved(
    interpolant: Interpolant, start: Float[Tensor, "*batch"], alpha: Tensor, explain: Callable[..., ValueError]
) -> tuple[Float[Tensor, "*batch"], SupportRule, list[Ends]]:
    """Ã and the quadrature rule fitted to the support, both differentiable, and the ends of the support."""
    fixed, index, solution = interpolant.detach(), alpha.detach(), start
    alive_share = fixed.alive.double().flatten(len(fixed.rows)).mean(-1)
    bracket = bracket_of(*fixed.cell_bounds(), alive_share, index)
    for steps in _FITS if fixed.axes > 1 else _FITS[-1:]:
        guess = solution
        ends = find_ends(fixed, guess, index)
        rule = fit_rule(fixed, ends, guess, index)
        solution = solve_normalizer(
            partial(rule.mass_and_slope, alpha=index), guess, bracket, index, explain, steps=steps
        )
        if is_eager_cpu(solution) and not bool(((solution - guess).abs() > _FITTED).any()):
            break

    def refitted(normalizer: Tensor) -> tuple[Tensor, Tensor]:
        return fit_rule(interpolant, ends, normalizer, alpha).mass_and_slope(normalizer, alpha)

    normalizer = carry_gradient(refitted, solution, interpolant.table, alpha)
    return normalizer, fit_rule(interpolant, ends, normalizer, alpha), ends


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
        cells = torch.arange(interpolant.cells, device=partition.device)[:, None, None]
        inner = (2 * cells + 1 + parts.local) / (2 * interpolant.cells)
        outer = [x[..., None, None, None].expand_as(inner) for x in rule.outer]
        unit = torch.stack([self._batch_first(axis) for axis in (*outer, inner)], -1)
        mass = self._batch_first(rule.weight[..., None, None, None] * parts.mass)
        self._set_rule(self._low + self._lengths * unit, mass, self._batch_first(parts.density / self._lengths.prod()))

    def _batch_first(self, field: Tensor) -> Float[Tensor, "*batch n"]:
        """A field (*outer, *batch, C, 2, n) of values at nodes, reshaped to (*batch, number of nodes)."""
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
        return score - self._unit_normalizer, inside & alive

    @property
    def mode(self) -> Float[Tensor, "*batch N"]:
        """The point of highest score, to about 1e-6 of a cell; not differentiated."""
        return self._round(self._low + self._lengths * highest_point(self._interpolant.detach()))

    @property
    def live_cells(self) -> Bool[Tensor, "..."]:
        """Whether each cell of the domain meets the support: (*batch, C, …, C) with C = ``resolution``."""
        interpolant, batch = self._interpolant, len(self.batch_shape)
        alive = interpolant.alive.flatten(batch)
        place = ((self._nodes.detach() - self._low) / self._lengths * interpolant.cells).long()
        index = torch.zeros_like(place[..., 0])
        for along in place.clamp(0, interpolant.cells - 1).unbind(-1):
            index = index * interpolant.cells + along
        # The rule is fitted to the support, so even a tiny support contains nodes.
        mass = torch.zeros_like(alive, dtype=torch.float64).scatter_add(-1, index, self._masses.detach())
        live: Tensor = (mass > 0) | (alive & (self._index.detach()[..., None] <= 1))
        return live.reshape(interpolant.alive.shape)

    @torch.no_grad()
    def sample(self, sample_shape: _size = Size()) -> Tensor:  # noqa: B008
        """Exact draws from the interpolated density, without gradient; shape ``sample_shape + batch_shape + (N,)``."""
        shape = self._extended_shape(Size(sample_shape))
        count = Size(sample_shape).numel()
        unit = _draw(self._interpolant.detach(), self._unit_normalizer.detach(), self._index.detach(), count)
        return self._round(self._low + self._lengths * unit.reshape(shape))


def density_bounds(
    interpolant: Interpolant, normalizer: Float[Tensor, "*batch"], alpha: Tensor
) -> Float[Tensor, "*batch M"]:
    """Upper bounds of exp_{2−α}(f − A) on all M cells, row-major, from Legendre coefficients and the maximum of f."""
    rows = len(interpolant.rows)
    top, _ = interpolant.score(highest_point(interpolant))
    height = torch.minimum(interpolant.cell_bounds()[1], top[..., None])
    bound = exp_beta(height - normalizer[..., None], 2 - alpha[..., None])
    return torch.where(interpolant.alive.flatten(rows), bound, 0)


def _draw(
    interpolant: Interpolant, normalizer: Float[Tensor, "*batch"], alpha: Tensor, count: int
) -> Float[Tensor, "S *batch N"]:
    """`count` draws from the density exp_{2−α}(f − A) on the unit box by rejection; NaN for members without mass."""
    rows, axes, cells = interpolant.rows, interpolant.axes, interpolant.cells
    bound = density_bounds(interpolant, normalizer, alpha)
    total = bound.sum(-1)
    points = torch.full((count, *rows, axes), torch.nan, dtype=torch.float64, device=bound.device)
    waiting = (total > 0).repeat(count, *(1 for _ in rows))
    while bool(waiting.any()):
        # Repeat a draw for all batch members while any member waits; each member stores the first point it accepts.
        again = waiting.reshape(count, -1).any(1).nonzero()[:, 0]
        share, height = torch.rand(2, len(again), *rows, dtype=torch.float64, device=bound.device)
        cell = bucket(bound, share * total)
        place = torch.stack(torch.unravel_index(cell, (cells,) * axes), -1)
        proposed = (place + torch.rand(place.shape, dtype=torch.float64, device=bound.device)) / cells
        score, alive = interpolant.score(proposed)
        accepted = waiting[again] & alive & (height * take(bound, cell, rows) < exp_beta(score - normalizer, 2 - alpha))
        points[again] = torch.where(accepted[..., None], proposed, points[again])
        waiting[again] = waiting[again] & ~accepted
    return points
