"""How far two supports agree: the measure of their intersection over that of their union."""

import torch
from torch import Tensor

from contmax._typing import Float
from contmax.densities._plane_overlap import plane_overlap
from contmax.densities._region import BoxRegion, EllipsoidRegion, Intervals, Region
from contmax.numerics import gauss_legendre

# Sections of a body: a first look finds where the overlap is, a second integrates over it.
_LOOK, _SECTIONS = 32, 48


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
