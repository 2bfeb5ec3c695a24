"""Where a density on the line begins, bends, ends and has its mass: all that a quadrature rule asks of it."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, TypeGuard

import torch
from torch import Tensor
from torch.distributions import Distribution, Laplace, LogNormal, TransformedDistribution

from contmax._typing import Float
from contmax.numerics import float64_of

# With 32 graded nodes in each piece these steps resolve Gaussian, exponential and algebraic tails to 1e-14; what lies
# beyond the last of them is mapped to a bounded piece.
_STEPS = (-16.0, -8.0, -4.0, -2.0, -1.0, 1.0, 2.0, 4.0, 8.0, 16.0)
# A transform may stretch the ends of a bounded base without limit, so the base is also cut near them.
_MARGINS = tuple(10.0**-k for k in range(1, 13))


@dataclass(frozen=True)
class Landmarks:
    """Where a density on the line begins, bends, ends and has its mass, in float64.

    Only points at which the density is not smooth need to carry a gradient: an integral does not depend on the others.

    Attributes:
        low: lower end of the support, ``(*batch)``; −∞ where it has none.
        high: upper end of the support, ``(*batch)``; +∞ where it has none.
        centre: a point inside the support, where most of the mass is, ``(*batch)``.
        width: how far from the centre the density changes, without gradient, ``(*batch)``.
        bends: points at which the score is not smooth, ``(m, *batch)``; m may be 0.
        cuts: points between which the density is smooth and of one scale, in any order, ``(n, *batch)``.
        bounded: whether both ends are known to be finite without looking at them, so that no rule plans for tails.
    """

    low: Float[Tensor, "*batch"]
    high: Float[Tensor, "*batch"]
    centre: Float[Tensor, "*batch"]
    width: Float[Tensor, "*batch"]
    bends: Float[Tensor, "m *batch"]
    cuts: Float[Tensor, "n *batch"]
    bounded: bool = False


def landmarks_of(density: Distribution) -> Landmarks:
    """The landmarks of a density on the line, from this library or from torch.

    Raises:
        NotImplementedError: if the distribution is discrete, or tells neither its moments nor a location and a scale.
    """
    support: Any = density.support
    if support is not None and support.is_discrete:
        raise NotImplementedError(
            f"{type(density).__name__} is discrete, so it has no density. Pass Empirical(points, weights)."
        )
    own: Any = getattr(density, "landmarks", None)
    if callable(own):
        landmarks: Landmarks = own()
        return landmarks
    component: Any = getattr(density, "component_distribution", None)
    if component is not None:
        return union(landmarks_of(component))
    if _is_transformed(density):
        return _transformed_landmarks(density)
    if isinstance(density, Laplace):
        loc, scale = density.loc.double(), density.scale.double()
        # Both tails are exponentials, which one bounded piece each resolves: there is nothing else to cut.
        return Landmarks(loc - math.inf, loc + math.inf, loc, 8 * scale.detach(), loc[None], loc[None])
    return general_landmarks(density)


def general_landmarks(density: Distribution) -> Landmarks:
    """From the ends of the support, mean and variance (or location and scale), and the mode."""
    low, high = _ends(density)
    centre, width = _centre_and_width(density)
    mode = _attribute(density, "mode")
    extra = []
    if mode is not None:
        usable = torch.isfinite(mode) & (mode != centre)
        extra.append(torch.where(usable, mode.detach(), centre))
    bends = [torch.where(torch.isfinite(end), end, centre) for end in (low, high)]
    return stepped(low, high, centre, width, [centre, *bends], extra)


def stepped(
    low: Tensor, high: Tensor, centre: Tensor, width: Tensor, bends: Sequence[Tensor], extra: Sequence[Tensor] = ()
) -> Landmarks:
    """Landmarks with cuts at the bends, at further points, and at steps of the width around the centre."""
    points = [*bends, *extra, centre, *(centre.detach() + step * width.detach() for step in _STEPS)]
    shape = torch.broadcast_shapes(*(point.shape for point in (low, high, *points)))
    cuts = torch.stack([torch.minimum(torch.maximum(point.expand(shape), low), high) for point in points])
    low, high, centre, width = (part.expand(shape) for part in (low, high, centre, width.detach()))
    return Landmarks(low, high, centre, width, cuts[: len(bends)], cuts)


def union(components: Landmarks) -> Landmarks:
    """The landmarks of a mixture whose components lie along the last batch dimension."""
    return Landmarks(
        components.low.amin(-1),
        components.high.amax(-1),
        components.centre[..., 0],
        components.width.amax(-1),
        components.bends.movedim(-1, 1).flatten(0, 1),
        components.cuts.movedim(-1, 1).flatten(0, 1),
        components.bounded,
    )


def _transformed_landmarks(density: TransformedDistribution) -> Landmarks:
    """Those of the base, moved; what was of one scale no longer is where a transform is steep, so there are more."""
    base = landmarks_of(density.base_dist)
    ends = torch.stack([_moved(density, end) for end in (base.low, base.high)])
    cuts = _moved(density, torch.cat([base.cuts, *_quarters(base.cuts), _margins(base.low, base.high)]))
    finite = torch.where(torch.isfinite(cuts), cuts, _moved(density, base.centre))
    width = 0.5 * (finite.amax(0) - finite.amin(0)).detach()
    return Landmarks(
        ends.amin(0), ends.amax(0), _moved(density, base.centre), width, _moved(density, base.bends), finite
    )


def _ends(density: Distribution) -> tuple[Tensor, Tensor]:
    """The ends of the support, ∓∞ where it has none."""
    support: Any = density.support
    known = (_attribute(density, name) for name in ("mean", "loc"))
    like = next((value for value in known if value is not None), torch.zeros(()))
    low, high = getattr(support, "lower_bound", -math.inf), getattr(support, "upper_bound", math.inf)
    return float64_of(low, like).expand(density.batch_shape), float64_of(high, like).expand(density.batch_shape)


def _centre_and_width(density: Distribution) -> tuple[Tensor, Tensor]:
    """A centre, with gradient, and a width: mean and standard deviation, or else location and scale."""
    variance, scale = _attribute(density, "variance"), _attribute(density, "scale")
    deviation = None if variance is None else variance.detach().sqrt()
    centre = _where_finite(_attribute(density, "mean"), _attribute(density, "loc"))
    width = _where_finite(deviation, None if scale is None else scale.detach())
    if centre is None or width is None:
        raise NotImplementedError(
            f"{type(density).__name__} has neither mean and variance nor loc and scale, so its mass cannot be located. "
            "Give it a method landmarks() that returns contmax.densities.Landmarks, or pass samples as Empirical."
        )
    return torch.where(torch.isfinite(centre), centre, 0.0), torch.where(torch.isfinite(width), width, 1.0)


def _where_finite(first: Tensor | None, second: Tensor | None) -> Tensor | None:
    """The first of two, with the second where it is not finite, as far as they are known."""
    if first is None or second is None:
        return second if first is None else first
    return torch.where(torch.isfinite(first), first, second)


def _attribute(density: Distribution, name: str) -> Tensor | None:
    """A property in float64, or None where the distribution does not know it."""
    try:
        value = getattr(density, name, None)
    except NotImplementedError:
        return None
    return value.double() if isinstance(value, Tensor) else None


def _quarters(points: Float[Tensor, "m *batch"]) -> list[Float[Tensor, "n *batch"]]:
    """Cuts of every piece between the points into four."""
    ordered = points.detach().sort(0).values
    return [ordered[:-1] + share * ordered.diff(dim=0) for share in (0.25, 0.5, 0.75)]


def _margins(low: Tensor, high: Tensor) -> Tensor:
    """Points ever closer to both ends of a bounded support."""
    length = high - low
    bounded = torch.isfinite(length)
    start, span = torch.where(bounded, low, 0.0).detach(), torch.where(bounded, length, 0.0).detach()
    return torch.stack([start + span * share for margin in _MARGINS for share in (margin, 1 - margin)])


def _is_transformed(density: Distribution) -> TypeGuard[TransformedDistribution]:
    """Whether the base says where the mass lies; torch's other subclasses transform the interval (0, 1)."""
    return type(density) in (TransformedDistribution, LogNormal)


def _moved(density: TransformedDistribution, points: Tensor) -> Tensor:
    for transform in density.transforms:
        points = transform(points)
    return points
