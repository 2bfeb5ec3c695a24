r"""Closed forms on segments where the score is linear, for every α > 0.

Where the score falls from u_t to u_b (both less A), the density falls from :math:`p_t` to :math:`p_b`. With
:math:`d = \ln(p_b/p_t) \le 0`, ε = α − 1 and :math:`E(y) = (e^y-1)/y`, the mean of a power of p over the segment is

.. math:: \frac1{u_t-u_b}\int_{u_b}^{u_t} \exp_{2-\alpha}(u)^c\,du = p_t^c\,\frac{E((c+\varepsilon)d)}{E(\varepsilon d)}

since :math:`du = p^{\varepsilon-1}dp`: c = 1 gives the mass, c = 2 − α its derivative in A, c = α the negentropy.
Nothing cancels on flat segments (d → 0), at α = 1 (ε → 0), or where the segment is cut off at the threshold (d → −∞).
"""

from collections.abc import Callable
from dataclasses import dataclass, fields
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

# Nodes per segment, for expectations that have no closed form.
_NODES = 20


@dataclass(frozen=True)
class Segments:
    """Linear pieces of score, from the higher end down to the lower end or to the threshold."""

    alpha: Tensor
    log_peak: Float[Tensor, "..."]
    """ln p_t, at the higher end."""
    drop: Float[Tensor, "..."]
    """d = ln(p_b/p_t), used where the ratio is near one."""
    ratio: Float[Tensor, "..."]
    """e^{εd} = (1 + ε u_b)/(1 + ε u_t), 0 where the segment ends at the threshold."""
    length: Float[Tensor, "..."]
    """Length of the live part."""
    falls: Bool[Tensor, "..."]
    """Whether the higher end comes first."""
    live: Bool[Tensor, "..."]
    infinite: Bool[Tensor, "..."]
    """Whether the density has a pole on the segment: α < 1 and A too small."""

    @classmethod
    def between(cls, start: Tensor, stop: Tensor, length: Tensor, alpha: Tensor) -> "Segments":
        """Segments with scores (less A) from start to stop; all arguments broadcast. −inf at an end: no mass."""
        known = (start > -torch.inf) & (stop > -torch.inf)
        start, stop = torch.where(known, start, 0), torch.where(known, stop, 0)
        falls = start >= stop
        high, low = torch.where(falls, start, stop), torch.where(falls, stop, start)
        epsilon = alpha - 1
        defined = 1 + epsilon * high > 0
        live, infinite = known & defined & (length > 0), known & ~defined & (epsilon < 0)
        high = torch.where(live, high, 0)
        low = torch.where(live, low, 0)
        truncated = 1 + epsilon * low <= 0
        above = (1 + epsilon * high) / torch.where(truncated, epsilon * (high - low), 1)
        ratio = torch.where(truncated, 0, (1 + epsilon * torch.where(truncated, 0, low)) / (1 + epsilon * high))
        log_peak = log_exp(high, alpha)
        near = (ratio > 0.5) & (ratio < 2)
        drop = torch.where(near, log_exp(torch.where(near, low, high), alpha) - log_peak, 0)
        reach = torch.where(live, length * torch.where(truncated, above, 1), torch.where(infinite, length, 0))
        return cls(alpha, log_peak, drop, ratio, reach, falls, live, infinite)

    def map(self, function: Callable[[Tensor], Tensor]) -> "Segments":
        """These segments with a function applied to every field, such as a change of shape."""
        return Segments(*(function(getattr(self, field.name)) for field in fields(self)))

    @property
    def _near(self) -> Tensor:
        """Where E(εd) is taken from d; elsewhere from the ratio, whose powers are exact however deep the drop is."""
        return (self.ratio > 0.5) & (self.ratio < 2)

    def _far_power(self, exponent: Tensor) -> Tensor:
        """e^{(exponent)·d} = ratio^{exponent/ε} where the ratio is far from one, 0 elsewhere."""
        usable = ~self._near & (self.ratio > 0)
        base = torch.where(usable, self.ratio, 1).log()
        return torch.where(usable, (exponent / self._far_epsilon * base).exp(), 0)

    @property
    def _far_epsilon(self) -> Tensor:
        return torch.where(self._near, 1, self.alpha - 1)

    def mean_power(self, c: float | Tensor) -> Float[Tensor, "..."]:
        """Mean of p^c over the live part; 0 on dead segments. Needs c + α > 1."""
        order, epsilon = c + self.alpha - 1, self.alpha - 1
        near = expm1_over(order * self.drop) / expm1_over(epsilon * self.drop)
        far_ratio = torch.where(self._near, 0, self.ratio)
        far = (1 - self._far_power(order)) / (1 - far_ratio) * (self._far_epsilon / order)
        mean = (c * self.log_peak).exp() * torch.where(self._near, near, far)
        return torch.where(self.live, mean, torch.where(self.infinite, torch.inf, 0))

    @property
    def mass(self) -> Float[Tensor, "..."]:
        """∫p over the segment."""
        return self.length * self.mean_power(1.0)

    def descend(self, share: Float[Tensor, "..."], order: Float[Tensor, "..."]) -> tuple[Tensor, Tensor]:
        """How far down the live part p^order has covered a share of its way from the higher to the lower end.

        For order α this is where a share of the mass has been passed.

        Returns:
            The fraction of the live part, and ln(p/p_t) there.
        """
        epsilon = self.alpha - 1
        fall = share * torch.where(self._near, torch.expm1(order * self.drop), self._far_power(order) - 1)
        short = fall > -1
        log_ratio = torch.where(short, torch.log1p(torch.where(short, fall, 0)) / order, -torch.inf)
        near_log = torch.where(self._near & short, log_ratio, 0)
        portion = share * expm1_over(order * self.drop) * log1p_over(torch.where(self._near, fall, 0))
        near = portion * expm1_over(epsilon * near_log) / expm1_over(epsilon * self.drop)
        bottom = torch.where(self._near | ~short, 0, log_ratio)
        reached = torch.where(short, (self._far_epsilon * bottom).exp(), 0)
        far = (1 - reached) / (1 - torch.where(self._near, 0, self.ratio))
        return torch.where(self._near, near, far), log_ratio

    def position(self, depth: Float[Tensor, "..."], start: Tensor, stop: Tensor) -> Float[Tensor, "..."]:
        """The point at this fraction of the live part, for a segment of the line between start and stop."""
        return torch.where(self.falls, start + depth * self.length, stop - depth * self.length)


@register_prediction(Knots)
def predict_on_knots(score: Score, domain: Knots, alpha: float | int | Tensor) -> "KnotsPrediction":
    """The prediction; see :func:`contmax.regularized_prediction`."""
    index = checked_alpha(alpha, domain.points.device)
    values, dtype = read_score(score, domain.points, domain, index)
    knots = domain.points.double()
    length = knots[-1] - knots[0]
    unit = (knots - knots[0]) / length
    form = UnitMeasure.of(values, length, index)
    scaled = form.scaled(values)
    return KnotsPrediction(alpha, form, knots, scaled, _normalizer(scaled, unit, index), dtype)


def _normalizer(scores: Float[Tensor, "*batch n"], unit: Float[Tensor, "n"], alpha: Tensor) -> Float[Tensor, "*batch"]:
    """Ã with its derivatives."""
    fixed, index, lengths, pad = scores.detach(), alpha.detach(), unit.detach().diff(), torch.nn.functional.pad
    start = normalizer_on_nodes(fixed, (pad(lengths, (1, 0)) + pad(lengths, (0, 1))) / 2, index)
    known = fixed > -torch.inf
    finite = torch.where(known, fixed, 0)
    bracket = bracket_of(finite, finite, ((known[..., 1:] & known[..., :-1]) * lengths).sum(-1), index)

    def mass_and_slope(normalizer: Tensor) -> tuple[Tensor, Tensor]:
        segments = _segments(fixed, normalizer, lengths, index)
        return segments.mass.sum(-1), (segments.length * segments.mean_power(2 - segments.alpha)).sum(-1)

    def mass(normalizer: Tensor) -> Tensor:
        return _segments(scores, normalizer, unit.diff(), alpha).mass.sum(-1)

    solution = solve_normalizer(mass_and_slope, start, bracket, index)
    return carry_gradient(mass, solution, mass_and_slope, scores, unit, alpha)


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

    def _locate(self, points: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Segment of each point, its excess f − A there (−inf on dead segments), and its unit coordinate."""
        unit = (points - self._knots[0]) / self._length
        unit = self._spread(unit)
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

    def cdf(self, value: Float[Tensor, "..."]) -> Float[Tensor, "..."]:
        """P(T ≤ t) in closed form; arguments as ``log_prob``."""
        points = self._points(value).clamp(self._knots[0], self._knots[-1])
        segment, excess, unit = self._locate(points)
        start = self._take(self._scores, segment) - self._unit_normalizer
        piece = Segments.between(start, excess, unit - self._unit[segment], self._index)
        reached = self._take(self._before, segment) + piece.mass
        return self._nan_at_nan(points, reached).to(self._result_dtype(value))

    @property
    def _before(self) -> Float[Tensor, "*batch S"]:
        """Mass to the left of each segment."""
        return self._segments.mass.cumsum(-1) - self._segments.mass

    def _quantile(self, probability: Tensor) -> Tensor:
        mass = self._segments.mass
        segment = bucket(mass, probability)
        chosen = self._segments.map(lambda field: self._take(field.expand(mass.shape), segment))
        own = self._take(mass, segment)
        share = ((probability - self._take(self._before, segment)) / torch.where(own > 0, own, 1)).clamp(0, 1)
        # Rounding of the masses before it must not keep the last probability from the end of the support.
        share = torch.where(probability == 1, 1, share)
        depth, _ = chosen.descend(torch.where(chosen.falls, share, 1 - share), self._index)
        points = self._place(chosen.position(depth, self._unit[segment], self._unit[segment + 1]))
        return torch.where((probability >= 0) & (probability <= 1) & (own > 0), points, torch.nan)

    @property
    def mode(self) -> Float[Tensor, "*batch"]:
        """The knot of highest score; the leftmost of several."""
        return self._round(self._knots[self._scores.argmax(-1)])

    def _live(self) -> Bool[Tensor, "*batch P"]:
        return self._segments.live

    def _bends(self) -> Float[Tensor, "m"]:
        return self._knots

    def _pieces(self) -> tuple[Float[Tensor, "*batch P"], Float[Tensor, "*batch P"]]:
        segments = self._segments
        ends = (self._unit[:-1], self._unit[1:])
        first = torch.where(segments.falls, ends[0], ends[1] - segments.length)
        last = torch.where(segments.falls, ends[0] + segments.length, ends[1])
        return self._place(first), self._place(last)


@register_prediction(Nodes)
def predict_on_nodes(score: Score, domain: Nodes, alpha: float | int | Tensor) -> "NodesPrediction":
    """The prediction; see :func:`contmax.regularized_prediction`."""
    index = checked_alpha(alpha, domain.points.device)
    values, dtype = read_score(score, domain.points, domain, index)
    weights = domain.weights.double()
    density = entmax_map(values, index[..., None] if isinstance(alpha, Tensor) else float(alpha), -1, weights)
    normalizer = torch.where(density.amax(-1) > 0, normalizer_at_best(values, density, index), -torch.inf)
    return NodesPrediction(alpha, index, domain, values, normalizer, density, dtype)


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
        index: Tensor,
        domain: Nodes,
        scores: Float[Tensor, "*batch n"],
        normalizer: Float[Tensor, "*batch"],
        density: Float[Tensor, "*batch n"],
        dtype: torch.dtype,
    ) -> None:
        sparse = (index != 1) & (normalizer > -torch.inf)
        threshold = torch.where(sparse, normalizer - 1 / torch.where(sparse, index - 1, 1), -torch.inf)
        super().__init__(alpha, normalizer, threshold, domain.points.shape[1:], dtype)
        self._places, self._scores = domain.points.double(), scores
        self._set_rule(
            self._places.expand(*density.shape, *self.event_shape), domain.weights.double() * density, density
        )

    @property
    def probabilities(self) -> Float[Tensor, "*batch n"]:
        """w p, the mass of each point."""
        return self._round(self._masses)

    def _is_at(self, points: Tensor) -> Bool[Tensor, "... n"]:
        """Which of the places each point is."""
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
        """Points in order, and masses in that order."""
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
        # A sum of masses that falls short of the target by rounding has reached it.
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
        """The points, NaN where there is no mass to choose them."""
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
