r"""Supports as sets, all in float64: unions of intervals, ellipsoids and boxes, and how far two of them agree.

In the plane the area that an ellipse shares with another ellipse or with a box has a closed form but for the roots of a
quartic. Both are seen in coordinates in which the first ellipse is the unit disk. A box is there a parallelogram, and
by Green's theorem each of its edges adds a triangle and two sectors of the disk. Of a second ellipse the boundary of
the overlap takes the arcs inside the disk, and of the circle those inside the ellipse. Where the circle crosses the
ellipse with centre (p, q) and semi-axes a, b along the coordinates is a quartic in disguise,

.. math:: g(\theta) = \Big(\frac{\cos\theta-p}a\Big)^2 + \Big(\frac{\sin\theta-q}b\Big)^2 - 1 = 0

whose closed form loses all digits near a tangency. Brackets do not. Since
:math:`\tfrac12 g' = (\tfrac1{b^2}-\tfrac1{a^2})\sin\theta\cos\theta + \tfrac p{a^2}\sin\theta - \tfrac
q{b^2}\cos\theta`, the quotient :math:`g'/(\sin\theta\cos\theta)` is monotone between the quarters of the circle and the
two angles with :math:`\tan^3\theta = -qa^2/(pb^2)`: in each of these six intervals g has at most one extremum, between
these it is monotone, and each root is found by dividing intervals, and one step of Newton's method.
"""

import math
from dataclasses import dataclass, replace

import torch
from torch import Tensor
from torch.distributions import Distribution, Independent, Uniform

from contmax._typing import Bool, Float
from contmax.numerics import gauss_legendre, principal_axes, sign_change

# Plane sections of a body: the first number finds the range of the overlap, the second integrates over it.
_LOOK, _SECTIONS = 32, 48
# Twelve divisions into five parts lead from a quarter of the circle to 6e-9; then one step of Newton's method suffices.
_PARTS, _ROUNDS = 5, 12
# Boundaries closer than this, relative to their size, count once, as the boundary of the first set.
_COINCIDENT = 1e-11
# Shares of the disk up to this are rounding errors.
_ROUNDING = 1e-15


@dataclass(frozen=True)
class Intervals:
    """A union of intervals on the line; one that does not end after it begins is empty.

    Attributes:
        low: lower ends, ``(*batch, M)``; −∞ of an unbounded interval.
        high: upper ends, ``(*batch, M)``; +∞ of an unbounded interval.
    """

    low: Float[Tensor, "*batch M"]
    high: Float[Tensor, "*batch M"]

    @property
    def bounded(self) -> Bool[Tensor, "*batch"]:
        """Where the union is bounded."""
        return (self.low.isfinite() & self.high.isfinite()).all(-1)

    def volume(self) -> Float[Tensor, "*batch"]:
        """The length of the union; +∞ where it is unbounded."""
        return torch.where(self.bounded, _lengths(self, self)[1], math.inf)

    def holds(self, points: Float[Tensor, "... P"]) -> Bool[Tensor, "... P"]:
        """Which points belong to the union."""
        at = points.unsqueeze(-2)
        inside: Tensor = (self.low.unsqueeze(-1) <= at) & (at <= self.high.unsqueeze(-1))
        return inside.any(-2)

    def finite(self) -> "Intervals":
        """Empty intervals in place of unbounded ones, whose infinite ends have no difference."""
        bounded = self.low.isfinite() & self.high.isfinite() & (self.high > self.low)
        return Intervals(torch.where(bounded, self.low, 0.0), torch.where(bounded, self.high, 0.0))


@dataclass(frozen=True)
class EllipsoidRegion:
    """The ellipsoid {c + Fu : ‖u‖ ≤ 1}.

    Attributes:
        center: c, ``(*batch, N)``.
        factor: F, lower triangular, ``(*batch, N, N)``; arbitrary where unbounded.
        bounded: false where the region is all of space, ``(*batch)``.
    """

    center: Float[Tensor, "*#batch N"]
    factor: Float[Tensor, "*#batch N N"]
    bounded: Bool[Tensor, "*#batch"]

    def volume(self) -> Float[Tensor, "*batch"]:
        """Length, area or volume; +∞ where unbounded."""
        half = self.factor.shape[-1] / 2
        log_ball = half * math.log(math.pi) - math.lgamma(half + 1)
        log_volume = self.factor.diagonal(dim1=-2, dim2=-1).log().sum(-1) + log_ball
        return torch.where(self.bounded, log_volume.exp(), math.inf)

    def semi_axes(self) -> Float[Tensor, "*batch N"]:
        """Lengths of the semi-axes, the longest first; +∞ where unbounded."""
        lengths = torch.linalg.vector_norm(self.factor @ principal_axes(self.factor), dim=-2)
        return torch.where(self.bounded.unsqueeze(-1), lengths, math.inf)

    @property
    def reach(self) -> Float[Tensor, "*batch"]:
        """How far it extends from the centre along the first coordinate."""
        return self.factor[..., 0, 0]

    def sections(self, at: Float[Tensor, "*batch n"]) -> "EllipsoidRegion":
        """Ellipsoids of one dimension less, of batch ``(*batch, n)``: the first coordinate is fixed at these values."""
        height = ((at - self.center[..., :1]) / self.reach.unsqueeze(-1)).clamp(-1, 1)
        radius = ((1 - height) * (1 + height)).sqrt()
        center = self.center[..., None, 1:] + self.factor[..., None, 1:, 0] * height.unsqueeze(-1)
        factor = self.factor[..., None, 1:, 1:] * radius[..., None, None]
        return EllipsoidRegion(center, factor, self.bounded.unsqueeze(-1))


@dataclass(frozen=True)
class BoxRegion:
    """The box of all points that differ from c by at most h in each coordinate, empty unless h ≥ 0.

    Attributes:
        center: c, ``(*batch, N)``.
        half: h, ``(*batch, N)``.
    """

    center: Float[Tensor, "*#batch N"]
    half: Float[Tensor, "*#batch N"]

    @property
    def bounded(self) -> Bool[Tensor, "*batch"]:
        """Where it is bounded."""
        return self.half.isfinite().all(-1)

    def volume(self) -> Float[Tensor, "*batch"]:
        """Length, area or volume."""
        return (2 * self.half).clamp(min=0).prod(-1)

    @property
    def reach(self) -> Float[Tensor, "*batch"]:
        """How far it extends from the centre along the first coordinate."""
        return self.half[..., 0]

    def sections(self, at: Float[Tensor, "*batch n"]) -> "BoxRegion":
        """Boxes of one dimension less, of batch ``(*batch, 1)``: they do not depend on the first coordinate."""
        return BoxRegion(self.center[..., None, 1:], self.half[..., None, 1:])


Region = Intervals | EllipsoidRegion | BoxRegion


def given_region(other: object) -> Region | None:
    """The support of torch's ``Uniform`` or ``Independent(Uniform, 1)``, or a domain with two corners, or None."""
    event_dims = 0
    if isinstance(other, Independent) and other.reinterpreted_batch_ndims == 1:
        other, event_dims = other.base_dist, 1
    if isinstance(other, Distribution) and not isinstance(other, Uniform):
        return None
    low, high = (getattr(other, name, None) for name in ("low", "high"))
    if not isinstance(low, Tensor) or not isinstance(high, Tensor):
        return None
    low, high = torch.broadcast_tensors(low.double(), high.double())
    # The corners of a domain have no batch: their only dimension is that of the coordinates.
    if low.dim() and (event_dims or not isinstance(other, Distribution)):
        return BoxRegion(0.5 * (low + high), 0.5 * (high - low))
    return Intervals(low.unsqueeze(-1), high.unsqueeze(-1))


def intersection_over_union(first: Region, second: Region) -> Float[Tensor, "..."]:
    """|A ∩ B| / |A ∪ B|, of the broadcast batch; 0 where one of them is unbounded or both are empty.

    Args:
        first: intervals, or an ellipsoid in up to three dimensions.
        second: of the same dimension; intervals, an ellipsoid or a box.
    """
    first, second = _on_the_line_if_one(first), _on_the_line_if_one(second)
    if isinstance(first, Intervals) and isinstance(second, Intervals):
        shared, union = _lengths(first, second)
    elif isinstance(first, EllipsoidRegion) and not isinstance(second, Intervals):
        with torch.no_grad():
            shared = _shared_volume(first, second)
            union = first.volume() + second.volume() - shared
    else:
        raise TypeError(f"a {type(first).__name__} cannot be compared with a {type(second).__name__}.")
    bounded = first.bounded & second.bounded
    alive = bounded & (union > 0)
    return torch.where(alive, shared / torch.where(alive, union, 1.0), 0.0).clamp(0, 1)


def _on_the_line_if_one(region: Region) -> Region:
    """Ellipsoids and boxes in one dimension are intervals."""
    if isinstance(region, Intervals) or region.center.shape[-1] > 1:
        return region
    reach = torch.where(region.bounded, region.reach, torch.inf).unsqueeze(-1)
    return Intervals(region.center - reach, region.center + reach)


def _lengths(first: Intervals, second: Intervals) -> tuple[Tensor, Tensor]:
    """Lengths of intersection and union, exactly, with their gradients; without unbounded intervals."""
    first, second = first.finite(), second.finite()
    batch = torch.broadcast_shapes(first.low.shape[:-1], second.low.shape[:-1])
    ends = [side.expand(*batch, -1) for side in (first.low, first.high, second.low, second.high)]
    points = torch.cat(ends, -1).sort(-1).values
    middle = 0.5 * (points[..., 1:] + points[..., :-1])
    steps, in_first, in_second = points.diff(dim=-1), first.holds(middle), second.holds(middle)
    return (steps * (in_first & in_second)).sum(-1), (steps * (in_first | in_second)).sum(-1)


def _shared_volume(first: EllipsoidRegion, second: EllipsoidRegion | BoxRegion) -> Tensor:
    """The area or volume of the intersection."""
    dim = first.center.shape[-1]
    if dim == 2:
        return _plane_overlap(first, second)
    if dim != 3:
        raise NotImplementedError(
            f"the overlap of supports is implemented in up to three dimensions; got {dim}. Compare draws instead: "
            "density.support.check(other.sample((1000,)))."
        )
    # Coordinates begin at the centre of the first: far from zero, those across a small body would round to one.
    second = replace(second, center=second.center - first.center)
    first = replace(first, center=torch.zeros_like(first.center))
    low = torch.maximum(-first.reach, second.center[..., 0] - second.reach)
    high = torch.maximum(low, torch.minimum(first.reach, second.center[..., 0] + second.reach))
    step = (torch.arange(_LOOK, dtype=low.dtype, device=low.device) + 0.5) / _LOOK
    at = low.unsqueeze(-1) + (high - low).unsqueeze(-1) * step
    found = _plane_overlap(first.sections(at), second.sections(at)) > 0
    # The intersection is convex: it ends less than one step beyond the last section that meets it.
    start = (torch.where(found, step, 1.0).amin(-1) - 1 / _LOOK).clamp(0, 1)
    stop = (torch.where(found, step, 0.0).amax(-1) + 1 / _LOOK).clamp(0, 1)
    span = (high - low) * (stop - start).clamp(min=0)
    nodes, weights = gauss_legendre(_SECTIONS, low.device)
    at = (low + (high - low) * start).unsqueeze(-1) + span.unsqueeze(-1) * (0.5 + 0.5 * nodes)
    return 0.5 * span * (weights * _plane_overlap(first.sections(at), second.sections(at))).sum(-1)


def _plane_overlap(ellipse: EllipsoidRegion, other: EllipsoidRegion | BoxRegion) -> Float[Tensor, "*batch"]:
    """The area of the intersection, to about 1e-10 of the larger of the two areas, for bounded sets."""
    area, other_area = ellipse.volume(), other.volume()
    empty = (area <= 0) | (other_area <= 0)
    ellipse = _or_disk(ellipse, empty)
    if isinstance(other, BoxRegion):
        share = _disk_and_box(ellipse, other)
    else:
        share = _disk_and_ellipse(ellipse, _or_disk(other, empty))
    share = torch.where(share > _ROUNDING, share / math.pi, 0.0).clamp(max=1)
    return torch.where(empty, 0.0, torch.minimum(area * share, other_area))


def _or_disk(ellipse: EllipsoidRegion, empty: Tensor) -> EllipsoidRegion:
    """The ellipse, or the unit disk where it has no area and so defines no coordinates."""
    factor = torch.eye(2, dtype=ellipse.factor.dtype, device=ellipse.factor.device)
    factor = torch.where(empty[..., None, None], factor, ellipse.factor)
    return EllipsoidRegion(ellipse.center, factor, ellipse.bounded)


def _whitened(ellipse: EllipsoidRegion, offset: Float[Tensor, "... 2"]) -> Float[Tensor, "... 2"]:
    """F⁻¹d."""
    factor = ellipse.factor
    first = offset[..., 0] / factor[..., 0, 0]
    return torch.stack([first, (offset[..., 1] - factor[..., 1, 0] * first) / factor[..., 1, 1]], -1)


def _disk_and_box(ellipse: EllipsoidRegion, box: BoxRegion) -> Tensor:
    """The area of the overlap, in units in which the ellipse is the unit disk."""
    offset, half = box.center - ellipse.center, box.half.clamp(min=0)
    corners = [torch.stack([x * half[..., 0], y * half[..., 1]], -1) for x, y in ((-1, -1), (1, -1), (1, 1), (-1, 1))]
    white = [_whitened(ellipse, offset + corner) for corner in corners]
    area = torch.zeros_like(white[0][..., 0])
    inside = torch.ones_like(area, dtype=torch.bool)
    for start, stop in zip(white, white[1:] + white[:1], strict=True):
        area = area + _edge(start, stop)
        inside = inside & (start.square().sum(-1) <= 1)
    # The area of a small box inside the disk would be lost in the rounding of the triangles.
    scale = ellipse.factor[..., 0, 0] * ellipse.factor[..., 1, 1]
    return torch.where(inside, (box.volume() / scale).clamp(min=2 * _ROUNDING), area)


def _edge(start: Tensor, stop: Tensor) -> Tensor:
    """The signed area that the unit disk shares with the triangle of the origin and an edge."""
    along = stop - start
    length, shift = along.square().sum(-1), (start * along).sum(-1)
    alive = length > 0
    length = torch.where(alive, length, 1.0)
    # Squared distance of the line from the origin; no digits cancel in a cross product.
    distance = _cross(start, stop).square() / length
    root = (length * (1 - distance)).clamp(min=0).sqrt()
    enter, leave = ((-shift + sign * root) / length for sign in (-1, 1))
    first, last = (start + s.clamp(0, 1).unsqueeze(-1) * along for s in (enter, leave))
    through = _sector(start, first) + 0.5 * _cross(first, last) + _sector(last, stop)
    return torch.where(alive, torch.where(distance < 1, through, _sector(start, stop)), 0.0)


def _cross(first: Tensor, second: Tensor) -> Tensor:
    return first[..., 0] * second[..., 1] - first[..., 1] * second[..., 0]


def _sector(first: Tensor, second: Tensor) -> Tensor:
    """The area of the sector of the unit disk between two directions."""
    return 0.5 * torch.atan2(_cross(first, second), (first * second).sum(-1))


def _disk_and_ellipse(disk: EllipsoidRegion, other: EllipsoidRegion) -> Tensor:
    """The area of the overlap, in units in which the first ellipse is the unit disk."""
    factor = torch.stack([_whitened(disk, column) for column in other.factor.unbind(-1)], -1)
    offset = _whitened(disk, other.center - disk.center)
    turned = factor @ principal_axes(factor)
    axes = torch.linalg.vector_norm(turned, dim=-2)
    center = ((turned / axes.unsqueeze(-2)).mT @ offset.unsqueeze(-1)).squeeze(-1)
    on_circle = _arcs_inside(axes, center, _COINCIDENT)
    on_ellipse = _arcs_inside(1 / axes, -center / axes, -_COINCIDENT)
    circle, ellipse = (arcs[1] - arcs[0] for arcs in (on_circle, on_ellipse))
    start, stop = (
        torch.cat([_unit(on_circle[i]), center.unsqueeze(-2) + axes.unsqueeze(-2) * _unit(on_ellipse[i])], -2)
        for i in (0, 1)
    )
    width = torch.cat([circle, ellipse], -1)
    # Triangles get a corner in the middle of the overlap: ends of arcs that should meet miss each other slightly.
    total = width.sum(-1)[..., None, None]
    middle = (width.unsqueeze(-1) * 0.5 * (start + stop)).sum(-2, keepdim=True) / torch.where(total > 0, total, 1.0)
    product = axes.prod(-1)
    bulge = torch.cat([_less_sine(circle), product.unsqueeze(-1) * _less_sine(ellipse)], -1)
    area = 0.5 * (_cross(start - middle, stop - middle) + bulge).sum(-1)
    # The area of a small ellipse inside the disk would be lost in the rounding of the triangles.
    swallowed = (circle.sum(-1) == 0) & (ellipse.sum(-1) > 2 * math.pi - 1e-9)
    return torch.where(swallowed, (math.pi * product).clamp(min=2 * _ROUNDING), area)


def _unit(angle: Tensor) -> Tensor:
    return torch.stack([angle.cos(), angle.sin()], -1)


def _less_sine(angle: Tensor) -> Tensor:
    """x − sin x, of small angles by its series."""
    square = angle.square()
    series = 1 / 6 - square * (1 / 120 - square * (1 / 5040 - square * (1 / 362880 - square / 39916800)))
    return torch.where(angle < 0.5, angle * square * series, angle - angle.sin())


def _arcs_inside(axes: Float[Tensor, "*batch 2"], center: Float[Tensor, "*batch 2"], slack: float) -> list[Tensor]:
    """Arcs of the unit circle with g ≤ slack: starts and stops, ``(*batch, 12)`` each; some arcs have no length."""
    # Weights relative to the larger of 1/a² and 1/b², whose squares might overflow.
    weight = (axes.amin(-1, keepdim=True) / axes).square()
    pull = weight * center

    def excess(angle: Tensor) -> Tensor:
        square = ((_unit(angle) - center.unsqueeze(-2)) / axes.unsqueeze(-2)).square()
        return square.sum(-1) - (1 + slack)

    def slope(angle: Tensor) -> Tensor:
        x, y = angle.cos(), angle.sin()
        bend = (weight[..., 1] - weight[..., 0]).unsqueeze(-1)
        return bend * x * y + pull[..., :1] * y - pull[..., 1:] * x

    ends = _between_extrema(pull)
    start, stop = ends[..., :-1], ends[..., 1:]
    extrema = sign_change(slope, start, stop, slope(start) < 0, parts=_PARTS, rounds=_ROUNDS)
    ends = torch.cat([ends, extrema], -1).sort(-1).values
    start, stop = ends[..., :-1], ends[..., 1:]
    before = excess(start)
    in_first, in_last = before <= 0, excess(stop) <= 0
    root = sign_change(excess, start, stop, before < 0, parts=_PARTS, rounds=_ROUNDS)
    # A step of Newton's method, unless it is longer than the interval that the search has left.
    steepness = 2 * slope(root) / axes.amin(-1, keepdim=True).square()
    step = excess(root) / torch.where(steepness == 0, 1.0, steepness)
    root = torch.where((steepness != 0) & (step.abs() < 1e-8), root - step, root)
    root = torch.maximum(start, torch.minimum(stop, root))
    return [
        torch.where(in_first, start, torch.where(in_last, root, start)),
        torch.where(in_first, torch.where(in_last, stop, root), torch.where(in_last, stop, start)),
    ]


def _between_extrema(pull: Float[Tensor, "*batch 2"]) -> Float[Tensor, "*batch 7"]:
    """Angles from 0 to 2π between which g has at most one extremum: the quarters, and tan³θ = −(q/b²)/(p/a²)."""
    roots = pull.sign() * pull.abs() ** (1 / 3)
    bend = torch.atan2(-roots[..., 1], roots[..., 0]).remainder(math.pi)
    quarters = torch.arange(5, dtype=pull.dtype, device=pull.device) * (math.pi / 2)
    quarters = quarters.expand(*pull.shape[:-1], 5)
    return torch.cat([quarters, bend.unsqueeze(-1), bend.unsqueeze(-1) + math.pi], -1).sort(-1).values
