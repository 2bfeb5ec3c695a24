"""The Ω_α-map of a piecewise-linear score, in closed form between its knots."""

from typing import ClassVar

import torch
from torch import Size, Tensor
from torch.types import _size

from contmax._eager import carries_gradient
from contmax._typing import Float
from contmax.domains import Knots
from contmax.numerics import graded_rule
from contmax.prediction._partition import UnitMeasure, bracket_of, carry_gradient, partition_on_nodes, solve_partition
from contmax.prediction._prediction import LinePrediction
from contmax.prediction._quantile import bucket, take
from contmax.prediction._regularized_prediction import register_prediction
from contmax.prediction._score import Score, broadcast_alpha, checked_alpha, read_score
from contmax.prediction._segments import Segments
from contmax.prediction._support_intervals import joined

# Nodes per segment, for expectations that have no closed form.
_NODES = 20


@register_prediction(Knots)
def predict_on_knots(score: Score, domain: Knots, alpha: float | int | Tensor) -> "KnotsPrediction":
    """The prediction; see :func:`contmax.regularized_prediction`."""
    index = checked_alpha(alpha, domain.points.device)
    values, dtype = read_score(score, domain.points, domain)
    values = broadcast_alpha(values, index)
    knots = domain.points.double()
    length = knots[-1] - knots[0]
    unit = (knots - knots[0]) / length
    form = UnitMeasure.of(values, length, index)
    known = values > -torch.inf
    scaled = torch.where(known, form.scaled(values), -torch.inf)
    return KnotsPrediction(alpha, form, knots, scaled, _partition(scaled, unit, index), dtype)


def _partition(scores: Float[Tensor, "*batch n"], unit: Float[Tensor, "n"], alpha: Tensor) -> Float[Tensor, "*batch"]:
    """Ã with its derivatives."""
    gaps, fixed, index, lengths = unit.diff(), scores.detach(), alpha.detach(), unit.detach().diff()
    weights = torch.nn.functional.pad(lengths, (1, 0)) / 2 + torch.nn.functional.pad(lengths, (0, 1)) / 2
    known = fixed > -torch.inf
    both = known[..., 1:] & known[..., :-1]
    start = partition_on_nodes(fixed, weights, index)
    bracket = bracket_of(
        torch.where(known, fixed, 0).amin(-1), torch.where(known, fixed, 0).amax(-1), (both * lengths).sum(-1), index
    )

    def mass_and_slope(partition: Tensor) -> tuple[Tensor, Tensor]:
        segments = _segments(fixed, partition, lengths, index)
        return segments.mass.sum(-1), (segments.length * segments.mean_power(2 - segments.alpha)).sum(-1)

    solution = solve_partition(mass_and_slope, start, bracket, index)
    if not carries_gradient(scores, unit, alpha):
        return solution
    _, slope = mass_and_slope(solution)
    return carry_gradient(lambda partition: _segments(scores, partition, gaps, alpha).mass.sum(-1), solution, slope)


def _segments(scores: Tensor, partition: Tensor, gaps: Tensor, alpha: Tensor) -> Segments:
    excess = scores - partition[..., None]
    return Segments.between(excess[..., :-1], excess[..., 1:], gaps, alpha[..., None])


class KnotsPrediction(LinePrediction):
    """A prediction for a piecewise-linear score, see :class:`Prediction`; density and cdf are closed forms."""

    has_rsample = True
    _batched: ClassVar = {**LinePrediction._batched, "_scores": 1}

    def __init__(
        self,
        alpha: float | int | Tensor,
        form: UnitMeasure,
        knots: Float[Tensor, "n"],
        scores: Float[Tensor, "*batch n"],
        partition: Float[Tensor, "*batch"],
        dtype: torch.dtype,
    ) -> None:
        super().__init__(alpha, form, partition, Size(), dtype)
        self._knots, self._length = knots, knots[-1] - knots[0]
        self._scores = scores
        self._rebind()
        self._set_rule(*self._rule())

    def _rebind(self) -> None:
        self._unit = (self._knots - self._knots[0]) / self._length
        self._segments = _segments(self._scores, self._partition, self._unit.diff(), self._index)

    def _rule(self) -> tuple[Tensor, Tensor, Tensor]:
        """Nodes, equidistant up to their grading in p^{α/4}: the mass, a cubic, and t are smooth in it.

        However steep a segment is, its nodes lie where its mass does.
        """
        share, weight = graded_rule(_NODES, self._knots.device)
        each = self._segments.map(lambda field: field[..., None])
        order = each.alpha / 4
        depth, log_ratio = each.descend(share, order)
        points = each.position(depth, self._unit[:-1, None], self._unit[1:, None])
        weight = weight * (3 * order * log_ratio).exp()
        mass = self._segments.mass[..., None] * weight / weight.sum(-1, keepdim=True)
        height = torch.where(each.live, (each.log_peak + log_ratio).exp() / self._length, 0)
        return self._place(points).flatten(-2), mass.flatten(-2), height.flatten(-2)

    def _place(self, unit: Tensor) -> Tensor:
        return self._knots[0] + self._length * unit

    def _take(self, field: Tensor, index: Tensor) -> Tensor:
        return take(field, index, self.batch_shape)

    def _locate(self, points: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Segment of each point, its excess f − A there (−inf on dead segments), and its unit coordinate."""
        unit = (points - self._knots[0]) / self._length
        unit = unit.expand(torch.broadcast_shapes(unit.shape, self.batch_shape))
        segment = torch.searchsorted(self._unit[1:-1].detach(), unit.detach().contiguous(), right=True)
        left, right = self._take(self._scores, segment), self._take(self._scores, segment + 1)
        known = (left > -torch.inf) & (right > -torch.inf)
        left, right = torch.where(known, left, 0), torch.where(known, right, 0)
        share = (unit - self._unit[segment]) / self._unit.diff()[segment]
        excess = left + (right - left) * share - self._partition
        return segment, torch.where(known, excess, -torch.inf), unit

    def _excess(self, points: Tensor) -> tuple[Tensor, Tensor]:
        _, excess, unit = self._locate(points)
        return excess, (unit >= 0) & (unit <= 1) & (excess > -torch.inf)

    def cdf(self, value: Float[Tensor, "..."]) -> Float[Tensor, "..."]:
        """P(T ≤ t) in closed form; arguments as ``log_prob``."""
        points = self._points(value).clamp(self._knots[0], self._knots[-1])
        segment, excess, unit = self._locate(points)
        start = self._take(self._scores, segment) - self._partition
        piece = Segments.between(start, excess, unit - self._unit[segment], self._index)
        reached = self._take(self._before, segment) + piece.mass
        return self._nan_at_nan(points, reached).to(self._result_dtype(value))

    @property
    def _before(self) -> Float[Tensor, "*batch S"]:
        """Mass to the left of each segment."""
        return self._segments.mass.cumsum(-1) - self._segments.mass

    def icdf(self, value: Float[Tensor, "..."]) -> Float[Tensor, "..."]:
        """The quantile of a probability in [0, 1] in closed form, NaN elsewhere."""
        level = self._points(value)
        level = level.expand(torch.broadcast_shapes(level.shape, self.batch_shape))
        mass = self._segments.mass
        segment = bucket(mass, level)
        chosen = self._segments.map(lambda field: self._take(field.expand(mass.shape), segment))
        own = self._take(mass, segment)
        share = ((level - self._take(self._before, segment)) / torch.where(own > 0, own, 1)).clamp(0, 1)
        # Rounding of the masses before it must not keep the last probability from the end of the support.
        share = torch.where(level == 1, 1, share)
        depth, _ = chosen.descend(torch.where(chosen.falls, share, 1 - share), self._index)
        points = self._place(chosen.position(depth, self._unit[segment], self._unit[segment + 1]))
        return torch.where((level >= 0) & (level <= 1) & (own > 0), points, torch.nan).to(self._result_dtype(value))

    def rsample(self, sample_shape: _size = Size()) -> Tensor:  # noqa: B008
        """Draws by the inverse cdf, with gradients to the score and α; shape ``sample_shape + batch_shape``."""
        shape = self._extended_shape(Size(sample_shape))
        return self._round(self.icdf(torch.rand(shape, dtype=torch.float64, device=self._partition.device)))

    @property
    def mode(self) -> Float[Tensor, "*batch"]:
        """The knot of highest score; the leftmost of several."""
        return self._round(self._knots[self._scores.argmax(-1)])

    @property
    def live_cells(self) -> Float[Tensor, "*batch M 2"]:
        """The disjoint intervals of the support, left to right; shorter lists of a batch are padded with NaN."""
        start, stop = self._pieces()
        return self._round(joined(start, stop, self._segments.live))

    def _bends(self) -> Float[Tensor, "m"]:
        return self._knots

    def _pieces(self) -> tuple[Float[Tensor, "*batch P"], Float[Tensor, "*batch P"]]:
        segments = self._segments
        ends = (self._unit[:-1], self._unit[1:])
        first = torch.where(segments.falls, ends[0], ends[1] - segments.length)
        last = torch.where(segments.falls, ends[0] + segments.length, ends[1])
        return self._place(first), self._place(last)
