r"""Supports as sets in float64 (a union of intervals, an ellipsoid or a box), and intersection over union of two sets.

In the plane the area that an ellipse shares with another ellipse or with a box has a closed form up to the roots of a
quartic. In coordinates in which the first ellipse is the unit disk, the boundary of the other set is divided where it
crosses the unit circle. By Green's theorem each piece inside the disk adds its triangle with the origin and the area
between piece and chord; each piece outside adds a sector of the disk. An error in a crossing changes the sum in second
order only. The crossings of an ellipse with centre (p, q) and semi-axes a, b along the coordinates are the roots of a
quartic in tan(θ/2),

.. math:: g(\theta) = (p + a\cos\theta)^2 + (q + b\sin\theta)^2 - 1 = 0

The closed form of these roots loses all digits near a tangency; bracketing loses none. Since
:math:`\tfrac12 g' = (b^2-a^2)\sin\theta\cos\theta - ap\sin\theta + bq\cos\theta`, the quotient
:math:`g'/(\sin\theta\cos\theta)` is monotone between multiples of π/2 and the two angles with
:math:`\tan^3\theta = -bq/(ap)`: in each of these six intervals g has at most one extremum, and `sign_change` finds
first the extremum, then the roots on either side of it. An arc between two consecutive points of this subdivision
subtends less than π at the origin.
"""

import math
from dataclasses import dataclass, replace

import torch
from torch import Tensor
from torch.distributions import Distribution, Independent, Uniform

from contmax._typing import Bool, Float
from contmax.numerics import gauss_legendre, principal_axes, sign_change

# Numbers of plane sections of two bodies: _LOOK sections locate their overlap, _SECTIONS integrate over it.
_LOOK, _SECTIONS = 32, 48
# Overlaps of at most this area with the unit disk are rounding errors.
_ROUNDING = 1e-14


@dataclass(frozen=True)
class Intervals:
    """A union of M intervals on the line; an interval with high ≤ low is empty."""

    low: Float[Tensor, "*batch M"]  # lower ends, ``(*batch, M)``; −∞ where unbounded
    high: Float[Tensor, "*batch M"]  # upper ends, ``(*batch, M)``; +∞ where unbounded

    @property
    def bounded(self) -> Bool[Tensor, "*batch"]:
        """Whether the union is bounded."""
        return (self.low.isfinite() & self.high.isfinite()).all(-1)

    def volume(self) -> Float[Tensor, "*batch"]:
        """The length of the union; +∞ where it is unbounded."""
        return torch.where(self.bounded, _lengths(self, self)[1], math.inf)

    def finite(self) -> "Intervals":
        """The union with unbounded intervals made empty, since differences of infinite ends are NaN."""
        bounded = self.low.isfinite() & self.high.isfinite() & (self.high > self.low)
        return Intervals(torch.where(bounded, self.low, 0.0), torch.where(bounded, self.high, 0.0))


@dataclass(frozen=True)
class EllipsoidRegion:
    """The ellipsoid {c + Fu : ‖u‖ ≤ 1}."""

    center: Float[Tensor, "*#batch N"]  # c, ``(*batch, N)``
    factor: Float[Tensor, "*#batch N N"]  # F, lower triangular, ``(*batch, N, N)``; arbitrary where unbounded
    bounded: Bool[Tensor, "*#batch"]  # false where the region is all of space, ``(*batch)``

    def volume(self) -> Float[Tensor, "*batch"]:
        """Length, area or volume of the ellipsoid; +∞ where unbounded."""
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
        """Half the extent of the ellipsoid along the first coordinate."""
        return self.factor[..., 0, 0]

    def sections(self, at: Float[Tensor, "*batch n"]) -> "EllipsoidRegion":
        """The sections with first coordinate ``at``: ellipsoids in N − 1 dimensions, of batch ``(*batch, n)``."""
        height = ((at - self.center[..., :1]) / self.reach.unsqueeze(-1)).clamp(-1, 1)
        radius = ((1 - height) * (1 + height)).sqrt()
        center = self.center[..., None, 1:] + self.factor[..., None, 1:, 0] * height.unsqueeze(-1)
        factor = self.factor[..., None, 1:, 1:] * radius[..., None, None]
        return EllipsoidRegion(center, factor, self.bounded.unsqueeze(-1))


@dataclass(frozen=True)
class BoxRegion:
    """The box of all points that differ from c by at most h in each coordinate, empty unless h ≥ 0."""

    center: Float[Tensor, "*#batch N"]  # c, ``(*batch, N)``
    half: Float[Tensor, "*#batch N"]  # h, ``(*batch, N)``

    @property
    def bounded(self) -> Bool[Tensor, "*batch"]:
        """Whether the box is bounded."""
        return self.half.isfinite().all(-1)

    def volume(self) -> Float[Tensor, "*batch"]:
        """Length, area or volume of the box."""
        return (2 * self.half).clamp(min=0).prod(-1)

    @property
    def reach(self) -> Float[Tensor, "*batch"]:
        """Half the extent of the box along the first coordinate."""
        return self.half[..., 0]

    def sections(self, at: Float[Tensor, "*batch n"]) -> "BoxRegion":
        """The section, equal at every first coordinate: a box in N − 1 dimensions, of batch ``(*batch, 1)``."""
        return BoxRegion(self.center[..., None, 1:], self.half[..., None, 1:])


Region = Intervals | EllipsoidRegion | BoxRegion


def given_region(other: object) -> Region | None:
    """The region of torch's ``Uniform``, ``Independent(Uniform, 1)`` or a domain with two corners; else None."""
    event_dims = 0
    if isinstance(other, Independent) and other.reinterpreted_batch_ndims == 1:
        other, event_dims = other.base_dist, 1
    if isinstance(other, Distribution) and not isinstance(other, Uniform):
        return None
    low, high = (getattr(other, name, None) for name in ("low", "high"))
    if not isinstance(low, Tensor) or not isinstance(high, Tensor):
        return None
    low, high = torch.broadcast_tensors(low.double(), high.double())
    # Domains have no batch, so a domain whose `low` has a dimension is a Box.
    if low.dim() and (event_dims or not isinstance(other, Distribution)):
        return BoxRegion(0.5 * (low + high), 0.5 * (high - low))
    return Intervals(low.unsqueeze(-1), high.unsqueeze(-1))


def intersection_over_union(first: Region, second: Region) -> Float[Tensor, "..."]:
    """|A ∩ B| / |A ∪ B|, of the broadcast batch; 0 where A or B is unbounded or both are empty.

    Args:
        first: A: intervals, or an ellipsoid in up to three dimensions.
        second: B, in as many dimensions as A: intervals, an ellipsoid or a box.
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
    """The region; an ellipsoid or a box in one dimension becomes an interval."""
    if isinstance(region, Intervals) or region.center.shape[-1] > 1:
        return region
    reach = torch.where(region.bounded, region.reach, torch.inf).unsqueeze(-1)
    return Intervals(region.center - reach, region.center + reach)


def _lengths(first: Intervals, second: Intervals) -> tuple[Tensor, Tensor]:
    """Exact, differentiable lengths of intersection and union; unbounded intervals count as empty."""
    first, second = first.finite(), second.finite()
    batch = torch.broadcast_shapes(first.low.shape[:-1], second.low.shape[:-1])
    ends = [side.expand(*batch, -1) for side in (first.low, first.high, second.low, second.high)]
    points = torch.cat(ends, -1).sort(-1).values
    steps, middle = points.diff(dim=-1), (0.5 * (points[..., 1:] + points[..., :-1])).unsqueeze(-2)
    in_first, in_second = (
        ((part.low.unsqueeze(-1) <= middle) & (middle <= part.high.unsqueeze(-1))).any(-2) for part in (first, second)
    )
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
    # Move the origin to the centre of `first`: far from the origin, coordinates of a small body round to one number.
    second = replace(second, center=second.center - first.center)
    first = replace(first, center=torch.zeros_like(first.center))
    low = torch.maximum(-first.reach, second.center[..., 0] - second.reach)
    high = torch.maximum(low, torch.minimum(first.reach, second.center[..., 0] + second.reach))
    step = (torch.arange(_LOOK, dtype=low.dtype, device=low.device) + 0.5) / _LOOK
    at = low.unsqueeze(-1) + (high - low).unsqueeze(-1) * step
    found = _plane_overlap(first.sections(at), second.sections(at)) > 0
    # The intersection is convex: it ends less than one step outside of the first and the last section that meet it.
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
    disk = _or_disk(ellipse, empty)
    # Map the ellipse to the unit disk and divide the boundary of `other` into m pieces that do not cross the circle.
    # `boundary`: m + 1 ends, counterclockwise, a point in each piece, and twice the area between each and its chord.
    boundary = _box_in(disk, other) if isinstance(other, BoxRegion) else _ellipse_in(disk, _or_disk(other, empty))
    ends, middles, bulges = boundary
    start, stop = ends[..., :-1, :], ends[..., 1:, :]
    cross, dot = _cross(start, stop), (start * stop).sum(-1)
    inside = middles.square().sum(-1) <= 1
    share = 0.5 * torch.where(inside, cross + bulges, torch.atan2(cross, dot)).sum(-1)
    share = torch.where(share > _ROUNDING, share / math.pi, 0.0).clamp(max=1)
    # If `other` lies inside the disk, take its own area, because the sum of triangles would round a small area away.
    shared = torch.where(inside.all(-1), other_area, area * share)
    return torch.where(empty, 0.0, torch.minimum(torch.minimum(shared, area), other_area))


def _or_disk(ellipse: EllipsoidRegion, empty: Tensor) -> EllipsoidRegion:
    """The ellipse, with F replaced by the identity where ``empty``: the F of an ellipse without area has no inverse."""
    factor = torch.eye(2, dtype=ellipse.factor.dtype, device=ellipse.factor.device)
    factor = torch.where(empty[..., None, None], factor, ellipse.factor)
    return EllipsoidRegion(ellipse.center, factor, ellipse.bounded)


def _whitened(ellipse: EllipsoidRegion, offset: Float[Tensor, "... 2"]) -> Float[Tensor, "... 2"]:
    """F⁻¹d for an offset d: the coordinates in which the ellipse is a unit disk."""
    factor = ellipse.factor
    first = offset[..., 0] / factor[..., 0, 0]
    return torch.stack([first, (offset[..., 1] - factor[..., 1, 0] * first) / factor[..., 1, 1]], -1)


def _cross(first: Tensor, second: Tensor) -> Tensor:
    return first[..., 0] * second[..., 1] - first[..., 1] * second[..., 0]


def _box_in(disk: EllipsoidRegion, box: BoxRegion) -> tuple[Tensor, Tensor, Tensor]:
    """The boundary of a box for :func:`_plane_overlap`; each edge gives three pieces: before, in and after the disk."""
    offset, half = box.center - disk.center, box.half.clamp(min=0)
    corners = [torch.stack([x * half[..., 0], y * half[..., 1]], -1) for x, y in ((-1, -1), (1, -1), (1, 1), (-1, 1))]
    white = [_whitened(disk, offset + corner) for corner in corners]
    points = []
    for start, stop in zip(white, white[1:] + white[:1], strict=True):
        along = stop - start
        length, shift = along.square().sum(-1), (start * along).sum(-1)
        length = torch.where(length > 0, length, 1.0)
        # Squared distance of the edge's line from the origin, by a cross product, which loses no digits.
        distance = _cross(start, stop).square() / length
        root = (length * (1 - distance)).clamp(min=0).sqrt()
        enter, leave = (((-shift + sign * root) / length).clamp(0, 1).unsqueeze(-1) for sign in (-1, 1))
        points += [start, start + enter * along, start + leave * along]
    ends = torch.stack([*points, white[0]], -2)
    middles = 0.5 * (ends[..., :-1, :] + ends[..., 1:, :])
    return ends, middles, torch.zeros_like(middles[..., 0])


def _ellipse_in(disk: EllipsoidRegion, other: EllipsoidRegion) -> tuple[Tensor, Tensor, Tensor]:
    """The boundary of an ellipse for :func:`_plane_overlap`: arcs that do not cross the circle."""
    factor = torch.stack([_whitened(disk, column) for column in other.factor.unbind(-1)], -1)
    offset = _whitened(disk, other.center - disk.center)
    turned = factor @ principal_axes(factor)
    axes: Tensor = torch.linalg.vector_norm(turned, dim=-2)
    center = ((turned / axes.unsqueeze(-2)).mT @ offset.unsqueeze(-1)).squeeze(-1)
    # Coefficients of g'/(2a²), a the longer semi-axis; they are made from ratios, since a² might overflow.
    ratio = axes / axes[..., :1]
    pull, bend = ratio * center / axes[..., :1], ratio[..., 1:].square() - 1

    def on_ellipse(angle: Tensor) -> Tensor:
        return center.unsqueeze(-2) + axes.unsqueeze(-2) * _unit(angle)

    def excess(angle: Tensor) -> Tensor:
        return on_ellipse(angle).square().sum(-1) - 1

    def slope(angle: Tensor) -> Tensor:
        x, y = _unit(angle).unbind(-1)
        return bend * x * y + pull[..., 1:] * x - pull[..., :1] * y

    # Angles kπ/2 and the two with tan³θ = −bq/(ap), `pull` ∝ (ap, bq): g has at most one extremum between neighbours.
    roots = pull.sign() * pull.abs() ** (1 / 3)
    turn = torch.atan2(-roots[..., 1:], roots[..., :1]).remainder(math.pi)
    quarters = torch.arange(5, dtype=pull.dtype, device=pull.device) * (math.pi / 2)
    ends = torch.cat([quarters.expand(*pull.shape[:-1], 5), turn, turn + math.pi], -1).sort(-1).values
    for function in (slope, excess):
        start, stop = ends[..., :-1], ends[..., 1:]
        ends = torch.cat([ends, sign_change(function, start, stop, function(start) < 0)], -1).sort(-1).values
    steps = ends.diff(dim=-1)
    bulges = axes.prod(-1, keepdim=True) * (steps - steps.sin())
    return on_ellipse(ends), on_ellipse(ends[..., :-1] + 0.5 * steps), bulges


def _unit(angle: Tensor) -> Tensor:
    """(cos θ, sin θ), with exact zeros at multiples of π/2, where rounding could change the sign of g'."""
    point = torch.stack([angle.cos(), angle.sin()], -1)
    return torch.where(point.abs() < 4e-16, 0.0, point)
