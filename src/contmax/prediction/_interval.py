"""The Ω_α-map of a score f on an interval, by piecewise polynomials; `_normalizer` defines A, Ã and f̃."""

import math
from collections.abc import Callable
from functools import partial

import torch
from torch import Size, Tensor
from torch.types import _size

from contmax._eager import is_eager_cpu
from contmax._typing import Bool, Float
from contmax.deformed import exp_beta
from contmax.domains import Interval
from contmax.numerics import graded_rule, implicit_root, legendre_coefficients, legendre_slope, legendre_sum
from contmax.prediction._live_parts import (
    PART_NODES,
    Lines,
    live_parts,
    locate_quantile,
    mass_and_slope,
    mass_before,
    series_bounds,
)
from contmax.prediction._normalizer import UnitMeasure, bracket_of, carry_gradient, no_density, solve_normalizer
from contmax.prediction._prediction import LinePrediction
from contmax.prediction._regularized_prediction import Score, checked_alpha, read_score, register_prediction
from contmax.prediction._resolution import Noise, View, no_mass, refined, report

# Cells are halved down to this fraction of an initial cell. An initial cell is not longer than the domain, so jumps of
# the score are located to within this fraction of the domain.
_SLIVER = 2.0**-36
# Misplaced mass that triggers a warning, and the advice in the warning.
_WARNED = 1e-9
_ADVICE = (
    "Cells are halved until there are 4096, or 65536 divided by the number of scores: raise resolution, predict fewer "
    "scores at a time, or pass contmax.domains.Nodes with your own quadrature rule."
)
# For α < 1: _POLE_MASS is the largest mass that may lie on cells so short that the density could have a pole there, and
# _ROUNDINGS the greatest length of such cells, in units of the rounding error of a point.
_POLE_MASS, _ROUNDINGS = 1e-3, 256
# Rounding error of a cdf. Newton's method for quantiles stops where the density is below _LEAST_DENSITY times the
# uniform density.
_ROUNDING, _LEAST_DENSITY = 1e-14, 1e-9


@register_prediction(Interval)
def predict_on_interval(score: Score, domain: Interval, alpha: float | int | Tensor) -> "IntervalPrediction":
    """The prediction on an Interval; see :func:`contmax.regularized_prediction`."""
    index = checked_alpha(alpha, domain.low.device)
    edges, values, dtype, misplaced, start = _sampled(score, domain, index)
    form = UnitMeasure.of(values.flatten(-2), domain.volume.double(), index)
    alive = (values > -torch.inf).all(-1)
    scaled = torch.where(alive[..., None], form.scaled(values), 0)
    lines = Lines.over(legendre_coefficients(scaled), alive, edges.diff() / 2)
    fixed, constant = lines.detach(), index.detach()
    bracket = bracket_of(*series_bounds(fixed.coefficients), 2 * (alive * lines.half).sum(-1), constant)
    explain = partial(_no_mass, domain, misplaced)
    equation = partial(mass_and_slope, fixed, constant)
    solution = solve_normalizer(equation, start, bracket, constant, explain, slack=misplaced)
    if is_eager_cpu(solution, index) and bool((index < 1).any()):
        _require_no_pole(fixed, solution, constant, domain, explain)
    normalizer = carry_gradient(partial(mass_and_slope, lines, index), solution, lines.coefficients, index)
    return IntervalPrediction(alpha, form, lines, normalizer, domain, dtype)


def _sampled(score: Score, domain: Interval, alpha: Tensor) -> tuple[Tensor, Tensor, torch.dtype, float, Tensor]:
    """Cell edges in [0, 1], scores (*batch, C, q) at nodes, dtype of results, misplaced mass, and a first guess of Ã.

    The misplaced mass is 0 if refinement resolved the score, positive if it stopped at the limit of cells, and NaN
    without refinement (for a score given as a tensor, on a GPU or in a trace).
    """
    edges = torch.arange(domain.resolution + 1, dtype=torch.float64, device=domain.low.device) / domain.resolution
    low, high = domain.low.double(), domain.high.double()
    volume, alpha = domain.volume.double().detach(), alpha.detach()
    values, dtype = read_score(score, domain.nodes, domain, alpha)
    values = values.unflatten(-1, (domain.resolution, -1))
    if isinstance(score, Tensor) or not is_eager_cpu(values, alpha):
        return edges, values, dtype, math.nan, View.of(values.detach(), edges[:-1], edges[1:], volume, alpha).normalizer

    def at(unit: Tensor) -> Tensor:
        return read_score(score, (low + (high - low) * unit).to(dtype), domain, alpha)[0]

    noise = Noise(torch.finfo(dtype).eps, float(low / (high - low)))
    edges, values, misplaced, start = refined(at, edges, domain.nodes_per_cell, volume, alpha, noise)
    report(misplaced, _WARNED, domain, _ADVICE)
    return edges, values, dtype, float(misplaced.max()) if misplaced.numel() else 0.0, start


def _no_mass(domain: Interval, misplaced: float, mass: Tensor, alpha: Tensor) -> ValueError:
    """The error if no A gives mass one: no density exists, or the cells do not resolve the score."""
    fits = misplaced == 0 and bool((alpha < 1).any())
    return no_density(mass, alpha) if fits else no_mass(mass, alpha, domain, _ADVICE)


def _require_no_pole(
    lines: Lines, normalizer: Tensor, alpha: Tensor, domain: Interval, explain: Callable[[Tensor, Tensor], ValueError]
) -> None:
    """Raise `explain`'s error if, for α < 1, more than `_POLE_MASS` lies on the finest cells on which f is rough.

    Such mass lies beside a pole of the density, where its computed value depends on the quadrature.
    """
    by_cell = live_parts(lines, normalizer, alpha, 2 * PART_NODES).mass.flatten(-2).sum(-1)
    mass = by_cell.sum(-1)
    # `finest`: cells up to this length are not halved, because of rounding errors of points or the limit of halvings.
    edges = domain.low.double() / domain.volume.double() + torch.nn.functional.pad(2 * lines.half.cumsum(0), (1, 0))
    rounding = torch.finfo(domain.low.dtype).eps * edges.abs()
    finest = (_ROUNDINGS * torch.maximum(rounding[:-1], rounding[1:])).clamp(min=1.5 * _SLIVER / domain.resolution)
    # A cell is rough if the score does not look like a polynomial on it, or all its nodes were rounded to one point.
    variation = lines.heights.amax(-1) - lines.heights.amin(-1)
    rough = lines.coefficients[..., -2:].abs().sum(-1) >= 0.01 * variation
    known = mass - torch.where((2 * lines.half <= finest) & rough, by_cell, 0).sum(-1)
    if bool(((alpha < 1) & (mass > 0) & ~((known - 1).abs() < _POLE_MASS)).any()):
        raise explain(known, alpha)


class IntervalPrediction(LinePrediction):
    """A prediction on an interval, see :class:`Prediction`; cdf, quantiles and reparametrised draws included.

    The density is that of the piecewise-polynomial interpolant of the score through its values at the nodes.
    """

    def __init__(
        self,
        alpha: float | int | Tensor,
        form: UnitMeasure,
        lines: Lines,
        partition: Float[Tensor, "*batch"],
        domain: Interval,
        dtype: torch.dtype,
    ) -> None:
        super().__init__(alpha, form, partition, Size(), dtype)
        self._low, self._length = domain.low.double(), domain.volume.double()
        self._sliver = _SLIVER * self._length
        self._lines = lines
        self._rebind()
        points = self._at(torch.arange(len(lines.half), device=lines.half.device)[:, None, None], self._parts.local)
        self._set_rule(
            points.flatten(-3), self._parts.mass.flatten(-3), (self._parts.density / self._length).flatten(-3)
        )

    def _rebind(self) -> None:
        self._lines = self._lines.expand(self.batch_shape)
        self._parts = live_parts(self._lines, self._unit_normalizer, self._index, PART_NODES)

    @property
    def _left(self) -> Float[Tensor, "C"]:
        """Left edges of the cells, in [0, 1]."""
        return 2 * (self._lines.half.cumsum(0) - self._lines.half)

    def _at(self, cell: Tensor, local: Tensor) -> Tensor:
        """The point of `cell` with coordinate `local` in [−1, 1]."""
        return self._low + self._length * (self._left[cell] + self._lines.half[cell] * (1 + local))

    def _locate(self, points: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Cell of each point, its coordinate in the cell clamped to [−1, 1], and whether it is in the domain."""
        unit = (points - self._low) / self._length
        cell = torch.searchsorted(self._left, unit.detach().contiguous(), right=True).clamp(min=1) - 1
        local = (unit - self._left[cell]) / self._lines.half[cell] - 1
        return cell, local.clamp(-1, 1), (unit >= 0) & (unit <= 1)

    def _excess(self, points: Tensor) -> tuple[Tensor, Tensor]:
        cell, local, inside = self._locate(points)
        inside = inside & self._take(self._lines.alive, cell)
        return legendre_sum(self._take(self._lines.coefficients, cell), local) - self._unit_normalizer, inside

    def _cdf(self, points: Tensor) -> Tensor:
        cell, local, _ = self._locate(points)
        piece = 2 * cell + (local > self._take(self._lines.split, cell)).long()
        start, stop = (self._take(end.flatten(-2), piece) for end in (self._parts.start, self._parts.stop))
        # Where local = stop, as on the edge of a cell, take `local`, because its derivative gives the density.
        covered = (torch.where(local <= stop, local, stop) - start).clamp(min=0)[..., None]
        unit, weight = graded_rule(PART_NODES, points.device)
        score = legendre_sum(
            self._take(self._lines.coefficients, cell)[..., None, :], start[..., None] + covered * unit
        )
        density = exp_beta(score - self._unit_normalizer[..., None], 2 - self._index[..., None])
        density = torch.where((stop > start)[..., None], density, 0)
        return self._take(mass_before(self._parts), piece) + self._lines.half[cell] * (covered * weight * density).sum(
            -1
        )

    def _icdf(self, share: Tensor) -> Tensor:
        """The quantile, differentiable in the probability, in the score and in α."""

        def residual(points: Tensor) -> tuple[Tensor, Tensor]:
            # Slope 0 prevents Newton steps at ends of the support; residual 0 prevents steps due to rounding errors.
            density, excess = self._log_density(points).exp().detach(), self._cdf(points) - share
            settled = excess.detach().abs() < _ROUNDING
            slope = torch.where(density * self._length > _LEAST_DENSITY, density, 0)
            return excess - torch.where(settled, excess.detach(), 0), slope

        return implicit_root(self._rough_quantile(share), residual)

    def _rough_quantile(self, probability: Tensor) -> Tensor:
        """Quantiles to about 1e-9 of a cell's length, without gradient."""
        points = self._at(*locate_quantile(self._parts, probability)).detach()
        return torch.where(self._masses.detach().sum(-1) > 0, points, torch.nan)

    @torch.no_grad()
    def sample(self, sample_shape: _size = Size()) -> Tensor:  # noqa: B008
        """Draws by the inverse cdf, without gradient; shape ``sample_shape + batch_shape``."""
        shape = self._extended_shape(Size(sample_shape))
        return self._round(self._rough_quantile(torch.rand(shape, dtype=torch.float64, device=self._low.device)))

    @property
    def mode(self) -> Float[Tensor, "*batch"]:
        """The point of highest score; the leftmost of several."""
        lines = self._lines
        heights = lines.heights.masked_fill(~lines.alive[..., None], -torch.inf).flatten(-2)
        best = heights.argmax(-1)
        cell, end = best // 3, best % 3
        local = torch.stack([-torch.ones_like(lines.split), lines.split, torch.ones_like(lines.split)], -1)
        local = self._take(local.flatten(-2), best)
        slope = legendre_slope(self._take(lines.coefficients, cell))
        bend = legendre_slope(slope)

        def residual(local: Tensor) -> tuple[Tensor, Tensor]:
            # A maximum inside a cell moves with the zero of the derivative; a maximum on an edge does not move.
            return -legendre_sum(slope, local), torch.where(end == 1, -legendre_sum(bend, local), 0)

        return self._round(self._at(cell, implicit_root(local, residual)))

    def _live(self) -> Bool[Tensor, "*batch P"]:
        return self._parts.mass.detach().sum(-1).flatten(-2) > 0

    def _pieces(self) -> tuple[Float[Tensor, "*batch P"], Float[Tensor, "*batch P"]]:
        cells = torch.arange(len(self._lines.half), device=self._lines.half.device)[:, None]
        return self._at(cells, self._parts.start).flatten(-2), self._at(cells, self._parts.stop).flatten(-2)

    def _bends(self) -> Float[Tensor, "m"]:
        return torch.cat([self._low + self._length * self._left, (self._low + self._length)[None]])
