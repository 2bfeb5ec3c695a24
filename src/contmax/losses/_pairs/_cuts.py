"""Where to cut the line before integrating against a density: ends of its support, its centre, steps of its width."""

import math
from typing import Any, TypeGuard

import torch
from torch import Tensor
from torch.distributions import Distribution, LogNormal, TransformedDistribution

from contmax._typing import Float

# With 32 graded nodes in each piece these resolve Gaussian, exponential and algebraic tails to 1e-14; what lies beyond
# the last step is mapped to a bounded piece.
_STEPS = (-16.0, -8.0, -4.0, -2.0, -1.0, 1.0, 2.0, 4.0, 8.0, 16.0)
# A transform may stretch the ends of a bounded base without limit, so the base is also cut near them.
_MARGINS = tuple(10.0**-k for k in range(1, 13))


def ends(target: Distribution) -> tuple[Tensor, Tensor]:
    """The ends of the support in float64, ∓∞ where it has none; those of a mixture enclose its components."""
    component: Any = getattr(target, "component_distribution", None)
    if component is not None:
        low, high = ends(component)
        return low.amin(-1), high.amax(-1)
    if _is_transformed(target):
        # The codomain of the last transform says nothing about the support of the base.
        moved = torch.stack([_transformed(target, end) for end in ends(target.base_dist)])
        return moved.amin(0), moved.amax(0)
    support: Any = target.support
    bounds: list[Any] = [getattr(support, "lower_bound", -math.inf), getattr(support, "upper_bound", math.inf)]
    return _as_double(bounds[0], target), _as_double(bounds[1], target)


def cuts(target: Distribution) -> Float[Tensor, "m *batch"]:
    """Finite points between which a density is smooth and of one scale.

    Only those where it may have a kink or a jump carry a gradient, its mean and the ends of its support: an integral
    does not depend on the others.
    """
    component: Any = getattr(target, "component_distribution", None)
    if component is not None:
        return cuts(component).movedim(-1, 1).flatten(0, 1)
    if _is_transformed(target):
        inner = cuts(target.base_dist)
        low, high = (end.expand(inner.shape[1:]) for end in ends(target.base_dist))
        return _transformed(target, torch.cat([inner, *_between(inner), _margins(low, high)]))
    low, high = ends(target)
    centre, width = _frame(target)
    mode = _attribute(target, "mode")
    points = [centre, *(centre.detach() + step * width for step in _STEPS)]
    points += [torch.where(torch.isfinite(end), end, centre) for end in (low, high)]
    if mode is not None:
        usable = torch.isfinite(mode) & (mode != centre)
        points.append(torch.where(usable, mode.detach(), centre))
    shape = torch.broadcast_shapes(*(point.shape for point in points))
    return torch.stack([torch.minimum(torch.maximum(point.expand(shape), low), high) for point in points])


def _frame(target: Distribution) -> tuple[Tensor, Tensor]:
    """A centre, with gradient, and a width: mean and standard deviation, or else location and scale."""
    variance, scale = _attribute(target, "variance"), _attribute(target, "scale")
    deviation = None if variance is None else variance.detach().sqrt()
    centre = _where_finite(_attribute(target, "mean"), _attribute(target, "loc"))
    width = _where_finite(deviation, None if scale is None else scale.detach())
    if centre is None or width is None:
        raise NotImplementedError(
            f"{type(target).__name__} has neither mean and variance nor loc and scale, so its mass cannot be located. "
            "Pass samples as Empirical, or register_fenchel_young the pair."
        )
    return torch.where(torch.isfinite(centre), centre, 0.0), torch.where(torch.isfinite(width), width, 1.0)


def _where_finite(first: Tensor | None, second: Tensor | None) -> Tensor | None:
    """The first of two, with the second where it is not finite, as far as they are known."""
    if first is None or second is None:
        return second if first is None else first
    return torch.where(torch.isfinite(first), first, second)


def _attribute(target: Distribution, name: str) -> Tensor | None:
    """A property in float64, or None where the distribution does not know it."""
    try:
        value = getattr(target, name, None)
    except NotImplementedError:
        return None
    return value.double() if isinstance(value, Tensor) else None


def _between(points: Float[Tensor, "m *batch"]) -> list[Float[Tensor, "n *batch"]]:
    """Cuts of every piece into four: where a transform is steep, what was of one scale no longer is."""
    ordered = points.detach().sort(0).values
    return [ordered[:-1] + share * ordered.diff(dim=0) for share in (0.25, 0.5, 0.75)]


def _margins(low: Tensor, high: Tensor) -> Tensor:
    length = high - low
    bounded = torch.isfinite(length)
    start, span = torch.where(bounded, low, 0.0).detach(), torch.where(bounded, length, 0.0).detach()
    return torch.stack([start + span * share for margin in _MARGINS for share in (margin, 1 - margin)])


def _is_transformed(target: Distribution) -> TypeGuard[TransformedDistribution]:
    """Whether the base says where the mass lies; torch's other subclasses transform the interval (0, 1)."""
    return type(target) in (TransformedDistribution, LogNormal)


def _transformed(target: TransformedDistribution, points: Tensor) -> Tensor:
    for transform in target.transforms:
        points = transform(points)
    return points


def _as_double(value: float | Tensor, target: Distribution) -> Tensor:
    if isinstance(value, Tensor):
        return value.double()
    like = next(v for v in (_attribute(target, "mean"), _attribute(target, "loc"), torch.zeros(())) if v is not None)
    return torch.full((), float(value), dtype=torch.float64, device=like.device)
