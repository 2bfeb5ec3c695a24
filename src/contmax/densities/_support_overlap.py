r"""How far two supports agree: the measure of their intersection over that of their union.

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
these it is monotone, and each root is found by cutting intervals, and one step of Newton's.
"""

import math
from collections.abc import Callable

import torch
from torch import Tensor

from contmax._typing import Float
from contmax.densities._region import BoxRegion, EllipsoidRegion, Intervals, Region
from contmax.numerics import gauss_legendre, principal_axes

# Sections of a body: a first look finds where the overlap is, a second integrates over it.
_LOOK, _SECTIONS = 32, 48
# Twelve times into five parts: from a quarter of the circle to 6e-9, from where one step of Newton's does the rest.
_CUTS, _ROUNDS = 4, 12
# Where two boundaries coincide up to this, in units of their size, only that of the first counts.
_COINCIDENT = 1e-11
# Shares of the disk that are no more than rounding.
_ROUNDING = 1e-15


def intersection_over_union(first: Region, second: Region) -> Float[Tensor, "..."]:
    """|A ∩ B| / |A ∪ B|, of the broadcast batch; 0 where one of them is unbounded or both are empty.

    Args:
        first: intervals, or an ellipsoid in up to three dimensions.
        second: of the same dimension; intervals, an ellipsoid or a box.
    """
    first, second = _on_the_line_if_one(first), _on_the_line_if_one(second)
    if isinstance(first, Intervals) and isinstance(second, Intervals):
        shared, union = _on_the_line(first, second)
    elif isinstance(first, EllipsoidRegion) and not isinstance(second, Intervals):
        batch = torch.broadcast_shapes(first.bounded.shape, second.bounded.shape)
        first, second = first.expand(batch), second.expand(batch)
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
    if isinstance(region, EllipsoidRegion) and region.center.shape[-1] == 1:
        reach = torch.where(region.bounded, region.factor[..., 0, 0], torch.inf).unsqueeze(-1)
        return Intervals(region.center - reach, region.center + reach)
    if isinstance(region, BoxRegion) and region.low.shape[-1] == 1:
        return Intervals(region.low, region.high)
    return region


def _on_the_line(first: Intervals, second: Intervals) -> tuple[Tensor, Tensor]:
    """Lengths of intersection and union, exactly, with their gradients."""
    first, second = first.finite(), second.finite()
    batch = torch.broadcast_shapes(first.low.shape[:-1], second.low.shape[:-1])
    ends = [side.expand(*batch, -1) for side in (first.low, first.high, second.low, second.high)]
    points = torch.cat(ends, -1).sort(-1).values
    steps, in_first, in_second = points.diff(dim=-1), first.holds(points), second.holds(points)
    return (steps * (in_first & in_second)).sum(-1), (steps * (in_first | in_second)).sum(-1)


def _shared_volume(first: EllipsoidRegion, second: EllipsoidRegion | BoxRegion) -> Tensor:
    """The area or volume of the intersection."""
    dim = first.center.shape[-1]
    if dim == 2:
        return plane_overlap(first, second)
    if dim != 3:
        raise NotImplementedError(
            f"the overlap of supports is implemented in up to three dimensions; got {dim}. Compare draws instead: "
            "density.support.check(other.sample((1000,)))."
        )
    # Seen from the centre of the first: far from zero, levels across a small body would round to one.
    first, second = first.shifted(-first.center), second.shifted(-first.center)
    low, high = _common_extent(first, second)
    step = (torch.arange(_LOOK, dtype=low.dtype, device=low.device) + 0.5) / _LOOK
    found = _sections(first, second, low.unsqueeze(-1) + (high - low).unsqueeze(-1) * step) > 0
    # The intersection is convex: it ends less than one step beyond where it was seen.
    start = (torch.where(found, step, 1.0).amin(-1) - 1 / _LOOK).clamp(0, 1)
    stop = (torch.where(found, step, 0.0).amax(-1) + 1 / _LOOK).clamp(0, 1)
    span = (high - low) * (stop - start).clamp(min=0)
    nodes, weights = gauss_legendre(_SECTIONS, low.device)
    levels = (low + (high - low) * start).unsqueeze(-1) + span.unsqueeze(-1) * (0.5 + 0.5 * nodes)
    return 0.5 * span * (weights * _sections(first, second, levels)).sum(-1)


def _common_extent(first: EllipsoidRegion, second: EllipsoidRegion | BoxRegion) -> tuple[Tensor, Tensor]:
    """The range of the first coordinate in both, empty as a point."""
    (low, high), (other_low, other_high) = first.extent(), second.extent()
    low = torch.maximum(low, other_low)
    return low, torch.maximum(low, torch.minimum(high, other_high))


def _sections(first: EllipsoidRegion, second: EllipsoidRegion | BoxRegion, levels: Tensor) -> Tensor:
    """Areas of the intersection in planes across the first coordinate, ``(*batch, n)``."""
    ellipse = first.unsqueeze().expand(levels.shape).section(levels)
    return plane_overlap(ellipse, second.unsqueeze().expand(levels.shape).section(levels))


def plane_overlap(ellipse: EllipsoidRegion, other: EllipsoidRegion | BoxRegion) -> Float[Tensor, "*batch"]:
    """The area of the intersection, to about 1e-10 of the larger of the two areas; without gradient.

    Args:
        ellipse: bounded, ``(*batch, 2)``.
        other: bounded, of the same batch.
    """
    with torch.no_grad():
        area, other_area = ellipse.volume(), other.volume()
        empty = (area <= 0) | (other_area <= 0)
        ellipse = _or_disk(ellipse, empty)
        if isinstance(other, BoxRegion):
            share = _disk_and_box(ellipse, other)
        else:
            share = _disk_and_ellipse(ellipse, _or_disk(other, empty))
        share = torch.where(share > _ROUNDING, share / math.pi, 0.0).clamp(max=1)
        shared = torch.minimum(area * share, other_area)
        return torch.where(empty, 0.0, shared)


def _or_disk(ellipse: EllipsoidRegion, empty: Tensor) -> EllipsoidRegion:
    """The unit disk in place of what has no area, which has no coordinates of its own."""
    factor = torch.eye(2, dtype=ellipse.factor.dtype, device=ellipse.factor.device)
    factor = torch.where(empty[..., None, None], factor, ellipse.factor)
    return EllipsoidRegion(ellipse.center, factor, ellipse.bounded)


def _whitened(ellipse: EllipsoidRegion, offset: Float[Tensor, "... 2"]) -> Float[Tensor, "... 2"]:
    """F⁻¹d."""
    factor = ellipse.factor
    first = offset[..., 0] / factor[..., 0, 0]
    return torch.stack([first, (offset[..., 1] - factor[..., 1, 0] * first) / factor[..., 1, 1]], -1)


def _disk_and_box(ellipse: EllipsoidRegion, box: BoxRegion) -> Tensor:
    """The area of the overlap in units in which that of the disk is π."""
    low, high = box.low, torch.maximum(box.low, box.high)
    corners = [torch.stack([x[..., 0], y[..., 1]], -1) for x, y in ((low, low), (high, low), (high, high), (low, high))]
    white = [_whitened(ellipse, corner - ellipse.center) for corner in corners]
    area = torch.zeros_like(white[0][..., 0])
    inside = torch.ones_like(area, dtype=torch.bool)
    for start, stop in zip(white, white[1:] + white[:1], strict=True):
        area = area + _edge(start, stop)
        inside = inside & (start.square().sum(-1) <= 1)
    # A small box that is inside would be lost in the rounding of the triangles.
    scale = ellipse.factor[..., 0, 0] * ellipse.factor[..., 1, 1]
    return torch.where(inside, (box.volume() / scale).clamp(min=2 * _ROUNDING), area)


def _edge(start: Tensor, stop: Tensor) -> Tensor:
    """The signed area that the unit disk shares with the triangle of the origin and an edge."""
    along = stop - start
    length, shift = along.square().sum(-1), (start * along).sum(-1)
    alive = length > 0
    length = torch.where(alive, length, 1.0)
    # Squared distance of the line from the origin: with a cross product, which does not cancel.
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
    """The area of the overlap in units in which that of the disk is π."""
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
    # Triangles with a corner in the middle of the overlap: ends of arcs that should meet miss each other slightly.
    total = width.sum(-1)[..., None, None]
    middle = (width.unsqueeze(-1) * 0.5 * (start + stop)).sum(-2, keepdim=True) / torch.where(total > 0, total, 1.0)
    product = axes.prod(-1)
    bulge = torch.cat([_less_sine(circle), product.unsqueeze(-1) * _less_sine(ellipse)], -1)
    area = 0.5 * (_cross(start - middle, stop - middle) + bulge).sum(-1)
    # An ellipse that is wholly inside would be lost in the rounding of the triangles.
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
    """Arcs of the unit circle with g ≤ slack, from start to stop, ``(*batch, 12)`` each; some have no length."""
    # Divided by the larger of 1/a² and 1/b², whose squares might overflow.
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
    extrema = _sign_change(slope, ends[..., :-1], ends[..., 1:])
    ends = torch.cat([ends, extrema], -1).sort(-1).values
    start, stop = ends[..., :-1], ends[..., 1:]
    in_first, in_last = excess(start) <= 0, excess(stop) <= 0
    root = _sign_change(excess, start, stop)
    root = _polished(root, excess(root), 2 * slope(root) / axes.amin(-1, keepdim=True).square())
    root = torch.maximum(start, torch.minimum(stop, root))
    return [
        torch.where(in_first, start, torch.where(in_last, root, start)),
        torch.where(in_first, torch.where(in_last, stop, root), torch.where(in_last, stop, start)),
    ]


def _polished(root: Tensor, value: Tensor, slope: Tensor) -> Tensor:
    """A step of Newton's, unless it is longer than what the search has left open."""
    step = value / torch.where(slope == 0, 1.0, slope)
    return torch.where((slope != 0) & (step.abs() < 1e-8), root - step, root)


def _between_extrema(pull: Float[Tensor, "*batch 2"]) -> Float[Tensor, "*batch 7"]:
    """Angles from 0 to 2π between which g has at most one extremum: the quarters, and tan³θ = −(q/b²)/(p/a²)."""
    roots = pull.sign() * pull.abs() ** (1 / 3)
    bend = torch.atan2(-roots[..., 1], roots[..., 0]).remainder(math.pi)
    quarters = torch.arange(5, dtype=pull.dtype, device=pull.device) * (math.pi / 2)
    quarters = quarters.expand(*pull.shape[:-1], 5)
    return torch.cat([quarters, bend.unsqueeze(-1), bend.unsqueeze(-1) + math.pi], -1).sort(-1).values


def _sign_change(function: Callable[[Tensor], Tensor], low: Tensor, high: Tensor) -> Tensor:
    """Where a function changes its sign in an interval, if it does so once; else a point of the interval.

    Cuts many parts at once, a fixed number of times: nothing waits for a device, and a traced program stays short.
    """
    part = torch.arange(1, _CUTS + 1, dtype=low.dtype, device=low.device) / (_CUTS + 1)
    part = part.reshape(_CUTS, *(1 for _ in low.shape))
    negative = function(low) < 0
    for _ in range(_ROUNDS):
        width = high - low
        unchanged = ((function(low + width * part) < 0) == negative).to(low.dtype).cumprod(0).sum(0)
        low, high = low + width * (unchanged / (_CUTS + 1)), low + width * ((unchanged + 1) / (_CUTS + 1))
    return 0.5 * (low + high)
