"""A density in the plane for pictures: ellipses that hold a share of its mass, heights on a grid."""

import math
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor
from torch.distributions import Distribution

from contmax._typing import Float
from contmax.densities._density import unchecked
from contmax.numerics import principal_axes
from contmax.viz._arguments import Index, drawable, members, require_density, scaled, selected

# Shares of the mass for which ellipses of bounded and of unbounded densities are drawn; share 1 is the support.
BOUNDED_SHARES = (0.5, 1.0)
UNBOUNDED_SHARES = (0.5, 0.9)


@dataclass(frozen=True)
class MassEllipse:
    """An ellipse that holds a share of the mass of a density, or of a component of a mixture."""

    share: float  # share of the mass, 1 for the support
    centre: tuple[float, float]  # the centre, in the coordinates of the density
    axis: tuple[float, float]  # unit vector along the longer half axis, in the coordinates of the density
    half_axes: tuple[float, float]  # lengths of the half axes, the longer first
    weight: float  # weight of the component divided by the largest weight; 1 without a mixture

    @property
    def angle(self) -> float:
        """The direction of the longer half axis, in degrees."""
        return math.degrees(math.atan2(self.axis[1], self.axis[0]))

    @property
    def reach(self) -> tuple[float, float]:
        """How far the ellipse extends from its centre along each coordinate."""
        (u, v), (a, b) = self.axis, self.half_axes
        return math.hypot(a * u, b * v), math.hypot(a * v, b * u)

    def swapped(self) -> "MassEllipse":
        """The ellipse with its two coordinates exchanged."""
        return replace(self, centre=self.centre[::-1], axis=self.axis[::-1])


def mass_ellipses(density: Distribution, index: Index = ()) -> list[list[MassEllipse]] | None:
    """The ellipses of each member at `index`, or of a mixture's components; None if densities are not elliptical."""
    require_density(density)
    if tuple(density.event_shape) != (2,):
        raise TypeError(
            f"density must lie in the plane; got {type(density).__name__} with event shape "
            f"{tuple(density.event_shape)}. Pass e.g. contmax.densities.TruncatedParaboloid."
        )
    component: Any = getattr(density, "component_distribution", density)
    if not all(hasattr(component, name) for name in ("loc", "scale_tril")):
        return None
    mixture: Any = getattr(density, "mixture_distribution", None)
    shares = torch.ones(1) if mixture is None else scaled(mixture.probs)
    weights = shares.expand(*density.batch_shape, shares.shape[-1]).reshape(-1, shares.shape[-1]).tolist()
    return [
        [
            ellipse
            for number, weight in enumerate(weights[place])
            if weight > 0
            for ellipse in _ellipses_of(component, place * len(weights[place]) + number, weight)
        ]
        for place in members(density, index)
    ]


@torch.no_grad()
def _ellipses_of(density: Any, place: int, weight: float) -> list[MassEllipse]:
    wide: Any = unchecked(density, torch.float64)

    def of(value: float | Tensor, *shape: int) -> Tensor:
        own = torch.as_tensor(value, dtype=torch.float64).cpu()
        return own.expand((*density.batch_shape, *shape)).reshape(-1, *shape)[place]

    loc, tril = of(wide.loc, 2), of(wide.scale_tril, 2, 2)
    if not bool(loc.isfinite().all() & tril.isfinite().all()):
        raise ValueError(f"{type(density).__name__} has a NaN or infinite parameter, so it cannot be drawn.")
    turned = tril @ principal_axes(tril)
    lengths = turned.norm(dim=0).tolist()
    u, v = (turned[:, 0] / lengths[0]).tolist()
    # Gaussians of torch have no attribute `alpha`: α is 1.
    alpha = float(of(getattr(wide, "alpha", 1.0)))
    threshold = float(of(getattr(wide, "threshold", -math.inf)))
    found = []
    # The outer ellipse comes first, so that the inner ellipse is drawn on top.
    for share in reversed(BOUNDED_SHARES if alpha > 1 else UNBOUNDED_SHARES):
        radius = radius_of_share(share, alpha, threshold)
        half_axes = (radius * lengths[0], radius * lengths[1])
        found.append(MassEllipse(share, tuple(loc.tolist()), (u, v), half_axes, weight))
    return found


def radius_of_share(share: float, alpha: float, threshold: float) -> float:
    r"""The Mahalanobis radius r within which a β-Gaussian in the plane has a share q of its mass.

    In the plane the mass outside of radius r is :math:`(p(r)/p(0))^\alpha` for every α, hence

    .. math:: r^2 = -2\lambda\,\big(1 - (1-q)^{1-1/\alpha}\big), \qquad r^2 = -2\ln(1-q) \text{ for } \alpha = 1

    Args:
        share: q; 1 only if the support is bounded.
        alpha: α > 1/2.
        threshold: λ, which is −R²/2 for α > 1 and support radius R; not used if α = 1.

    Example:
        >>> round(radius_of_share(1.0, 2.0, -1.125), 3), round(radius_of_share(0.5, 1.0, -math.inf), 3)
        (1.5, 1.177)
    """
    outside = math.log1p(-share) if share < 1 else -math.inf
    return math.sqrt(-2 * outside if alpha == 1 else 2 * threshold * math.expm1(outside * (1 - 1 / alpha)))


@torch.no_grad()
def grid_heights(
    density: Distribution, first: Float[Tensor, "m"], second: Float[Tensor, "n"], index: Index = ()
) -> list[Float[Tensor, "m n"]]:
    """p at all pairs of coordinates `first` × `second`, for each member at `index`."""
    batch = density.batch_shape
    points = torch.stack(torch.meshgrid(first, second, indexing="ij"), -1).to(density.mean.device)
    spread = points.reshape(-1, *(1 for _ in batch), 2)
    heights = drawable(unchecked(density, torch.float64).log_prob(spread).exp().expand(len(spread), *batch), density)
    return list(selected(heights.movedim(0, -1), batch, index, "density").reshape(-1, len(first), len(second)))


def plane_view(density: Distribution) -> tuple[tuple[float, float], tuple[float, float]]:
    """Limits (low, high) of both coordinates, between which nearly all mass of every batch member lies."""
    ellipses = [ellipse for own in mass_ellipses(density) or () for ellipse in own]
    if ellipses:
        middle, reach = torch.tensor([[e.centre, e.reach] for e in ellipses], dtype=torch.float64).unbind(1)
        # Take a wide margin for an unbounded density: it extends beyond the ellipse that holds 0.9 of its mass.
        margin = 0.1 if all(e.share in BOUNDED_SHARES for e in ellipses) else 0.4
    else:
        middle, reach = (part.double().cpu().reshape(-1, 2) for part in (density.mean, 3 * density.variance.sqrt()))
        margin = 0.0
    low, high = (middle - reach).amin(0), (middle + reach).amax(0)
    edge = margin * (high - low)
    (a, c), (b, d) = (low - edge).tolist(), (high + edge).tolist()
    return (a, b), (c, d)
