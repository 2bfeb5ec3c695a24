"""A density in the plane for pictures: ellipses that hold a share of its mass, heights on a grid."""

import math
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.distributions import Distribution

from contmax._typing import Float
from contmax.densities._density import unchecked
from contmax.numerics import principal_axes
from contmax.viz._arguments import Index, drawable, members, require_density, scaled, selected

# The shares of the mass whose ellipses are drawn; a bounded density is drawn by its support and half of the mass.
BOUNDED_SHARES = (0.5, 1.0)
UNBOUNDED_SHARES = (0.5, 0.9)


@dataclass(frozen=True)
class MassEllipse:
    """An ellipse that holds a share of the mass.

    Attributes:
        share: of the mass, 1 for the support.
        centre: in the order of the coordinates of the density.
        axis: the unit vector of the longer half axis, in that order too.
        half_axes: their lengths, the longer first.
        weight: of the mixture's component that it shows, relative to the largest.
    """

    share: float
    centre: tuple[float, float]
    axis: tuple[float, float]
    half_axes: tuple[float, float]
    weight: float = 1.0

    @property
    def reach(self) -> tuple[float, float]:
        """How far it extends from the centre along each coordinate."""
        (u, v), (a, b) = self.axis, self.half_axes
        return math.hypot(a * u, b * v), math.hypot(a * v, b * u)

    def swapped(self) -> "MassEllipse":
        """The ellipse with its coordinates in the other order."""
        (x, y), (u, v) = self.centre, self.axis
        return MassEllipse(self.share, (y, x), (v, u), self.half_axes, self.weight)


def mass_ellipses(density: Distribution, index: Index = ()) -> list[list[MassEllipse]] | None:
    """Ellipses of each member at an index, of a mixture those of its components; None for other shapes."""
    require_plane(density)
    component: Any = getattr(density, "component_distribution", density)
    if not all(hasattr(component, name) for name in ("loc", "scale_tril")):
        return None
    places = members(density, index)
    if component is density:
        return [_ellipses_of(density, place) for place in places]
    mixture: Any = density
    count = component.batch_shape[-1]
    weights = scaled(mixture.mixture_distribution.probs.expand(component.batch_shape).reshape(-1, count)).tolist()
    return [
        [
            ellipse
            for number, weight in enumerate(weights[place])
            if weight > 0
            for ellipse in _ellipses_of(component, place * count + number, weight)
        ]
        for place in places
    ]


@torch.no_grad()
def _ellipses_of(density: Any, place: int, weight: float = 1.0) -> list[MassEllipse]:
    batch = density.batch_shape
    loc = density.loc.expand(*batch, 2).reshape(-1, 2)[place].double().cpu()
    tril = density.scale_tril.expand(*batch, 2, 2).reshape(-1, 2, 2)[place].double().cpu()
    if not bool(loc.isfinite().all() & tril.isfinite().all()):
        raise ValueError(f"{type(density).__name__} has a NaN or infinite parameter, so it cannot be drawn.")
    turned = tril @ principal_axes(tril)
    lengths = turned.norm(dim=0).tolist()
    axis = (turned[:, 0] / lengths[0]).tolist()
    index, radius, threshold = _profile_of(density, place)
    shares = BOUNDED_SHARES if math.isfinite(radius) else UNBOUNDED_SHARES
    found = []
    # The outer ellipse is first, so that the inner one is drawn on it.
    for share in reversed(shares):
        scale = radius_of_share(share, index, radius, threshold)
        half_axes = (scale * lengths[0], scale * lengths[1])
        found.append(MassEllipse(share, tuple(loc.tolist()), tuple(axis), half_axes, weight))
    return found


def _profile_of(density: Any, place: int) -> tuple[float, float, float]:
    """α, R and λ; those of a Gaussian for torch's own."""
    if not hasattr(density, "radius"):
        return 1.0, math.inf, -math.inf
    wide: Any = unchecked(density, torch.float64)

    def number(value: float | Tensor) -> float:
        if not isinstance(value, Tensor):
            return value
        return float(value.expand(density.batch_shape).flatten()[place])

    return number(wide.alpha), number(wide.radius), number(wide.threshold)


def radius_of_share(share: float, alpha: float, radius: float, threshold: float) -> float:
    r"""The Mahalanobis radius r within which a β-Gaussian in the plane has a share q of its mass.

    In the plane the mass outside of radius r is :math:`(p(r)/p(0))^\alpha` for every α, hence

    .. math:: r^2 = -2\lambda\,\big(1 - (1-q)^{(\alpha-1)/\alpha}\big), \qquad
              r^2 = -2\ln(1-q) \text{ for } \alpha = 1, \qquad r^2 = R^2 q \text{ for } \alpha = \infty

    Args:
        share: q; 1 only if the support is bounded.
        alpha: α > 1/2.
        radius: R, that of the support; +∞ for α ≤ 1.
        threshold: λ, −R²/2 where α > 1; read where α < 1 only.

    Example:
        >>> round(radius_of_share(1.0, 2.0, 1.5, -1.125), 3), round(radius_of_share(0.5, 1.0, math.inf, -math.inf), 3)
        (1.5, 1.177)
    """
    if alpha == math.inf:
        return radius * math.sqrt(share)
    outside = math.log1p(-share) if share < 1 else -math.inf
    if alpha == 1:
        return math.sqrt(-2 * outside)
    square = radius * radius if alpha > 1 else -2 * threshold
    return math.sqrt(square * -math.expm1(outside * (alpha - 1) / alpha))


def require_plane(density: Distribution) -> None:
    """Refuse anything but a density in the plane."""
    require_density(density)
    if tuple(density.event_shape) != (2,):
        raise TypeError(
            f"density must lie in the plane; got {type(density).__name__} with event shape "
            f"{tuple(density.event_shape)}. Pass e.g. contmax.densities.TruncatedParaboloid."
        )


@torch.no_grad()
def grid_heights(
    density: Distribution, first: Float[Tensor, "m"], second: Float[Tensor, "n"], index: Index = ()
) -> list[Float[Tensor, "m n"]]:
    """p at all pairs of two coordinates, for each member at an index."""
    require_plane(density)
    batch = density.batch_shape
    points = torch.stack(torch.meshgrid(first, second, indexing="ij"), -1).to(density.mean.device)
    spread = points.reshape(-1, *(1 for _ in batch), 2)
    heights = drawable(unchecked(density, torch.float64).log_prob(spread).exp().expand(len(spread), *batch), density)
    return list(selected(heights.movedim(0, -1), batch, index, "density").reshape(-1, len(first), len(second)))


def plane_view(density: Distribution) -> tuple[tuple[float, float], tuple[float, float]]:
    """Limits of both coordinates that show nearly all of every member."""
    ellipses = [ellipse for own in mass_ellipses(density) or () for ellipse in own]
    if ellipses:
        spans = [
            [(e.centre[axis] - e.reach[axis], e.centre[axis] + e.reach[axis]) for e in ellipses] for axis in (0, 1)
        ]
        # An unbounded density extends beyond the ellipse that holds nine tenths.
        margin = 0.1 if all(e.share in BOUNDED_SHARES for e in ellipses) else 0.4
    else:
        mean, reach = (part.double().cpu().reshape(-1, 2) for part in (density.mean, 3 * density.variance.sqrt()))
        spans = [torch.stack([mean - reach, mean + reach], -1)[:, axis].tolist() for axis in (0, 1)]
        margin = 0.0
    ends = [(min(low for low, _ in span), max(high for _, high in span)) for span in spans]
    (a, b), (c, d) = ((low - margin * (high - low), high + margin * (high - low)) for low, high in ends)
    return (a, b), (c, d)
