r"""Closed forms on segments where the score f is linear, for every α > 0; finite sums on nodes.

Where f − A falls linearly from u_t (top) to u_b (bottom), the density p falls from :math:`p_t` to :math:`p_b`. With
:math:`d = \ln(p_b/p_t) \le 0`, ε = α − 1 and :math:`E(y) = (e^y-1)/y`, the mean of a power of p over the segment is

.. math:: \frac1{u_t-u_b}\int_{u_b}^{u_t} \exp_{2-\alpha}(u)^c\,du = p_t^c\,\frac{E((c+\varepsilon)d)}{E(\varepsilon d)}

since :math:`du = p^{\varepsilon-1}dp`. On a segment of length one, c = 1 gives the mass S, and c = 2 − α gives −dS/dA.
The formula has no cancellation on flat segments (d → 0), at α = 1 (ε → 0), or on segments that end at the threshold
(d → −∞).
"""

from collections.abc import Callable
from dataclasses import dataclass, fields
from functools import partial
from typing import ClassVar

import torch
from torch import Size, Tensor
from torch.types import _size

from contmax._typing import Bool, Float
from contmax.deformed import expm1_over, log1p_over
from contmax.domains import Knots, Nodes
from contmax.maps._entmax import entmax_map
from contmax.numerics import graded_rule
from contmax.prediction._live_parts import bucket
from contmax.prediction._normalizer import (
    UnitMeasure,
    bracket_of,
    carry_gradient,
    normalizer_at_best,
    normalizer_on_nodes,
    solve_normalizer,
)
from contmax.prediction._prediction import LinePrediction, Prediction, log_exp
from contmax.prediction._regularized_prediction import Score, checked_alpha, read_score, register_prediction

# e^{−_DEEP} is 0 in float64.
_DEEP = 1000.0
# Nodes per segment, for expectations that have no closed form.
_NODES = 20


@dataclass(frozen=True)
class Segments:
    """Segments of a linear score, each from its higher end down to its lower end or, if higher, the threshold."""

    alpha: Tensor
    log_peak: Float[Tensor, "..."]  # ln p_t, at the higher end
    drop: Float[Tensor, "..."]
    """d = ln(p_b/p_t); if the segment is cut off at the threshold, a number so low that e^{εd} and e^{(c+ε)d} are 0."""
    length: Float[Tensor, "..."]  # length of the live part, where p > 0
    falls: Bool[Tensor, "..."]  # whether the higher end is the left end
    live: Bool[Tensor, "..."]
    infinite: Bool[Tensor, "..."]  # whether the density has a pole on the segment: α < 1 and A too small

    @classmethod
    def between(cls, start: Tensor, stop: Tensor, length: Tensor, alpha: Tensor) -> "Segments":
        """Segments on which f − A runs from start to stop; arguments broadcast. An end at −inf means no mass."""
        known = (start > -torch.inf) & (stop > -torch.inf)
        start, stop = torch.where(known, start, 0), torch.where(known, stop, 0)
        falls = start >= stop
        high, low = torch.where(falls, start, stop), torch.where(falls, stop, start)
        epsilon = alpha - 1
        defined = 1 + epsilon * high > 0
        live, infinite = known & defined & (length > 0), known & ~defined & (epsilon < 0)
        high, low = torch.where(live, high, 0), torch.where(live, low, 0)
        truncated = 1 + epsilon * low <= 0
        above = (1 + epsilon * high) / torch.where(truncated, epsilon * (high - low), 1)
        reach = torch.where(live, length * torch.where(truncated, above, 1), torch.where(infinite, length, 0))
        log_peak = log_exp(high, alpha)
        bottom = -_DEEP * (1 + 1 / torch.where(truncated, epsilon, 1)).detach()
        drop = torch.where(truncated, bottom, log_exp(torch.where(truncated, high, low), alpha) - log_peak)
        return cls(alpha, log_peak, drop, reach, falls, live, infinite)

    def map(self, function: Callable[[Tensor], Tensor]) -> "Segments":
        """The segments with a function applied to every field, such as a change of shape."""
        return Segments(*(function(getattr(self, field.name)) for field in fields(self)))

    def mean_power(self, c: float | Tensor) -> Float[Tensor, "..."]:
        """Mean of p^c over the live part; 0 without live part, ∞ with a pole. Needs c + α > 1."""
        epsilon = self.alpha - 1
        ratio = expm1_over((c + epsilon) * self.drop) / expm1_over(epsilon * self.drop)
        return torch.where(self.live, (c * self.log_peak).exp() * ratio, torch.where(self.infinite, torch.inf, 0))

    @property
    def mass(self) -> Float[Tensor, "..."]:
        """∫p over the segment."""
        return self.length * self.mean_power(1.0)

    def descend(self, share: Float[Tensor, "..."], order: Float[Tensor, "..."]) -> tuple[Tensor, Tensor]:
        """The depth at which p^order has made a `share` of its total change from the higher to the lower end.

        For order α, a `share` of the mass lies between the higher end and this depth.

        Returns:
            The depth as a fraction of the live part, 0 at the higher end, and ln(p/p_t) at this depth.
        """
        epsilon, slope = self.alpha - 1, share * expm1_over(order * self.drop)
        fall = slope * order * self.drop
        short = fall > -1
        portion = slope * log1p_over(torch.where(short, fall, 0))
        log_ratio = portion * self.drop
        depth = portion * expm1_over(epsilon * log_ratio) / expm1_over(epsilon * self.drop)
        # If share is 1 and e^{order·d} underflows, the formulas fail. The result is then the lower end, at depth 1.
        return torch.where(short, depth, 1), torch.where(short, log_ratio, -torch.inf)

    def position(self, depth: Float[Tensor, "..."], start: Tensor, stop: Tensor) -> Float[Tensor, "..."]:
        """The point at fraction `depth` of the live part, from the higher end, of the segment [start, stop]."""
        return torch.where(self.falls, start + depth * self.length, stop - depth * self.length)


@register_prediction(Knots)
def predict_on_knots(score: Score, domain: Knots, alpha: float | int | Tensor) -> "KnotsPrediction":
    """The prediction on Knots; see :func:`contmax.regularized_prediction`."""
    index = checked_alpha(alpha, domain.points.device)
    values, dtype = read_score(score, domain.points, domain, index)
    knots = domain.points.double()
    length = knots[-1] - knots[0]
    unit = (knots - knots[0]) / length
    form = UnitMeasure.of(values, length, index)
    scaled = form.scaled(values)
    return KnotsPrediction(alpha, form, knots, scaled, _normalizer(scaled, unit, index), dtype)


def _normalizer(scores: Float[Tensor, "*batch n"], unit: Float[Tensor, "n"], alpha: Tensor) -> Float[Tensor, "*batch"]:
    """Ã (see `_normalizer.py`) for scores f̃ at the knots `unit` of [0, 1]; differentiable in all arguments."""
    given, pad = (scores, unit, alpha), torch.nn.functional.pad
    fixed, places, index = (tensor.detach() for tensor in given)
    known, lengths = fixed > -torch.inf, places.diff()
    start = normalizer_on_nodes(fixed, (pad(lengths, (1, 0)) + pad(lengths, (0, 1))) / 2, index)
    finite = torch.where(known, fixed, 0)
    bracket = bracket_of(finite, finite, ((known[..., 1:] & known[..., :-1]) * lengths).sum(-1), index)
    solution = solve_normalizer(partial(_mass_and_slope, fixed, places, index), start, bracket, index)
    return carry_gradient(partial(_mass_and_slope, *given), solution, *given)


def _mass_and_slope(scores: Tensor, unit: Tensor, alpha: Tensor, normalizer: Tensor) -> tuple[Tensor, Tensor]:
    segments = _segments(scores, normalizer, unit.diff(), alpha)
    return segments.mass.sum(-1), (segments.length * segments.mean_power(2 - segments.alpha)).sum(-1)


def _segments(scores: Tensor, normalizer: Tensor, gaps: Tensor, alpha: Tensor) -> Segments:
    excess = scores - normalizer[..., None]
    return Segments.between(excess[..., :-1], excess[..., 1:], gaps, alpha[..., None])


class KnotsPrediction(LinePrediction):
    """A prediction for a piecewise-linear score, see :class:`Prediction`; density and cdf are closed forms."""

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
        self._segments = _segments(self._scores, self._unit_normalizer, self._unit.diff(), self._index)

    def _rule(self) -> tuple[Tensor, Tensor, Tensor]:
        """Nodes, masses and densities of a graded rule in s = p^{α/4} on each segment, where mass is ∝ s³ds.

        The nodes of a segment therefore lie where its mass does, however steep the segment is.
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

    def _locate(self, points: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Segment of each point, f̃ − Ã (−inf if f is −inf at an end of the segment), and coordinate in [0, 1]."""
        unit = (points - self._knots[0]) / self._length
        segment = torch.searchsorted(self._unit[1:-1].detach(), unit.detach().contiguous(), right=True)
        left, right = self._take(self._scores, segment), self._take(self._scores, segment + 1)
        known = (left > -torch.inf) & (right > -torch.inf)
        left, right = torch.where(known, left, 0), torch.where(known, right, 0)
        share = (unit - self._unit[segment]) / self._unit.diff()[segment]
        excess = left + (right - left) * share - self._unit_normalizer
        return segment, torch.where(known, excess, -torch.inf), unit

    def _excess(self, points: Tensor) -> tuple[Tensor, Tensor]:
        _, excess, unit = self._locate(points)
        return excess, (unit >= 0) & (unit <= 1) & (excess > -torch.inf)

    def _cdf(self, points: Tensor) -> Tensor:
        segment, excess, unit = self._locate(points.clamp(self._knots[0], self._knots[-1]))
        start = self._take(self._scores, segment) - self._unit_normalizer
        piece = Segments.between(start, excess, unit - self._unit[segment], self._index)
        return self._take(self._before, segment) + piece.mass

    @property
    def _before(self) -> Float[Tensor, "*batch S"]:
        """Mass to the left of each segment."""
        return self._segments.mass.cumsum(-1) - self._segments.mass

    def _icdf(self, share: Tensor) -> Tensor:
        """The quantile, differentiable in the probability, in the score and in α."""
        mass = self._segments.mass
        segment = bucket(mass, share)
        chosen = self._segments.map(lambda field: self._take(field.expand(mass.shape), segment))
        own = self._take(mass, segment)
        part = ((share - self._take(self._before, segment)) / torch.where(own > 0, own, 1)).clamp(0, 1)
        # The quantile of 1 must be the end of the support, even if the cumulated masses are rounded.
        part = torch.where(share == 1, 1, part)
        depth, _ = chosen.descend(torch.where(chosen.falls, part, 1 - part), self._index)
        points = self._place(chosen.position(depth, self._unit[segment], self._unit[segment + 1]))
        return torch.where(own > 0, points, torch.nan)

    @property
    def mode(self) -> Float[Tensor, "*batch"]:
        """The knot of highest score; the leftmost of several."""
        return self._round(self._knots[self._scores.argmax(-1)])

    def _live(self) -> Bool[Tensor, "*batch P"]:
        return self._segments.live

    def _bends(self) -> Float[Tensor, "m"]:
        return self._knots

    def _pieces(self) -> tuple[Float[Tensor, "*batch P"], Float[Tensor, "*batch P"]]:
        # The left end of a live part is its higher end where the score falls, else its lower end.
        falls = self._segments.falls.double()
        first, last = (self._segments.position(depth, self._unit[:-1], self._unit[1:]) for depth in (1 - falls, falls))
        return self._place(first), self._place(last)


@register_prediction(Nodes)
def predict_on_nodes(score: Score, domain: Nodes, alpha: float | int | Tensor) -> "NodesPrediction":
    """The prediction on Nodes; see :func:`contmax.regularized_prediction`."""
    index = checked_alpha(alpha, domain.points.device)
    values, dtype = read_score(score, domain.points, domain, index)
    weights = domain.weights.double()
    form = UnitMeasure.of(values, torch.ones((), dtype=torch.float64, device=values.device), index)
    scaled = form.scaled(values)
    density = entmax_map(scaled, index[..., None] if isinstance(alpha, Tensor) else float(alpha), -1, weights)
    return NodesPrediction(alpha, form, domain, values, normalizer_at_best(scaled, density, index), density, dtype)


class NodesPrediction(Prediction):
    r"""A prediction on a weighted set of points, see :class:`Prediction`.

    ``density`` is relative to the weights, :math:`\sum_i w_i p_i = 1`, and 0 between the points; ``probabilities``
    are :math:`w_i p_i`. Entropies are relative to the weights too.
    """

    has_rsample = False
    _batched: ClassVar = {**Prediction._batched, "_scores": 1}

    def __init__(
        self,
        alpha: float | int | Tensor,
        form: UnitMeasure,
        domain: Nodes,
        scores: Float[Tensor, "*batch n"],
        partition: Float[Tensor, "*batch"],
        density: Float[Tensor, "*batch n"],
        dtype: torch.dtype,
    ) -> None:
        super().__init__(alpha, form, partition, domain.points.shape[1:], dtype)
        self._places, self._scores = domain.points.double(), scores
        self._set_rule(
            self._places.expand(*density.shape, *self.event_shape), domain.weights.double() * density, density
        )

    @property
    def probabilities(self) -> Float[Tensor, "*batch n"]:
        """w p, the mass of each point."""
        return self._round(self._masses)

    def _is_at(self, points: Tensor) -> Bool[Tensor, "... n"]:
        """Whether each point equals each of the n nodes."""
        same = points.unsqueeze(points.dim() - len(self.event_shape)) == self._places
        return same.all(-1) if self.event_shape else same

    def _score(self, points: Tensor) -> Tensor:
        return self._nan_at_nan(points, torch.where(self._is_at(points), self._scores, -torch.inf).amax(-1))

    def _log_density(self, points: Tensor) -> Tensor:
        same = self._is_at(points)
        count = same.sum(-1)
        height = (same * self._heights).sum(-1) / count.clamp(min=1)
        inside = height > 0
        return torch.where(inside, torch.where(inside, height, 1).log(), -torch.inf)

    @property
    def _sorted(self) -> tuple[Tensor, Tensor]:
        """Nodes on the line in ascending order, and their masses."""
        if self.event_shape:
            raise NotImplementedError("cdf and icdf need points on a line; these have several coordinates.")
        order = self._places.argsort()
        return self._places[order], self._masses[..., order]

    def cdf(self, value: Float[Tensor, "..."]) -> Float[Tensor, "..."]:
        """P(T ≤ t), a step function; arguments as ``log_prob``."""
        places, masses = self._sorted
        points = self._points(value)
        reached = (masses * (places <= points[..., None])).sum(-1)
        return self._nan_at_nan(points, reached).to(self._result_dtype(value))

    def icdf(self, value: Float[Tensor, "..."]) -> Float[Tensor, "..."]:
        """The first point at which the cdf reaches a probability in [0, 1], NaN elsewhere."""
        places, masses = self._sorted
        probability = self._points(value)
        probability = probability.expand(torch.broadcast_shapes(probability.shape, self.batch_shape))
        # Lower the probability a little, so that a sum of masses that is smaller by rounding counts as reaching it.
        slack = torch.finfo(self._result_dtype(value)).eps + 64 * torch.finfo(probability.dtype).eps
        found = self._nonempty(places[bucket(masses, probability * (1 - slack))])
        return torch.where((probability >= 0) & (probability <= 1), found, torch.nan).to(self._result_dtype(value))

    @torch.no_grad()
    def sample(self, sample_shape: _size = Size()) -> Tensor:  # noqa: B008
        """Points drawn with their probabilities; shape ``sample_shape + batch_shape + event_shape``."""
        shape = Size(sample_shape) + self.batch_shape
        probability = torch.rand(shape, dtype=torch.float64, device=self._masses.device)
        return self._round(self._nonempty(self._places[bucket(self._masses, probability)]))

    def _nonempty(self, points: Tensor) -> Tensor:
        """`points`, with NaN for batch members without mass."""
        some = self._masses.detach().sum(-1) > 0
        return torch.where(some.reshape(some.shape + (1,) * len(self.event_shape)), points, torch.nan)

    @property
    def mode(self) -> Tensor:
        """The point of highest density; the first of several."""
        return self._round(self._places[self._heights.argmax(-1)])

    @property
    def live_cells(self) -> Bool[Tensor, "*batch n"]:
        """Which points have mass."""
        return self._heights > 0
