r"""Any density in up to three dimensions against any basis, by fixed nodes where the density is.

=================================  ==================================================================================
β-Gaussians, MultivariateNormal    radii times directions, 40 × 64 on the plane, 40 × 24 × 48 in space: 1e-9 for
                                   functions that change over a standard deviation, 1e-5 over half of one
any other, N ≤ 3                   a product rule of 96 nodes on each axis of the plane, 40 in space, over the box of
                                   the support or eight standard deviations about the mean: 1e-6 for densities that
                                   are smooth on either side of their mean; a few percent where a support of
                                   another form ends inside
=================================  ==================================================================================

In the coordinate ξ with 1 − r²/R² = exp(−(α−1)ξ²/2α) the law of the radius r of a β-Gaussian is exp(−ξ²/2) times a
function of ξ that is smooth for every α, so that Gauss nodes in ξ serve them all.
"""

import math

import torch
from torch import Tensor
from torch.distributions import Distribution, MultivariateNormal, constraints

from contmax.basis import Basis
from contmax.deformed import expm1_over
from contmax.densities import MultivariateBetaGaussian
from contmax.densities._unchecked import unchecked
from contmax.expectations._expectation import register_expectation, working_dtype
from contmax.numerics import float64_of, gauss_legendre, unit_gauss_legendre

_RADII, _REACH = 40, 8.5
_DIRECTIONS = {2: 64, 3: 48}
_PER_AXIS, _DEVIATIONS = {2: 96, 3: 40}, 8.0


@register_expectation(MultivariateNormal, Basis)
def normal_by_radii(density: MultivariateNormal, basis: Basis) -> Tensor:
    """Radii times directions at α = 1."""
    return _by_radii(density.loc, density.scale_tril, 1.0, basis)


@register_expectation(MultivariateBetaGaussian, Basis)
def beta_gaussian_by_radii(density: MultivariateBetaGaussian, basis: Basis) -> Tensor:
    """Radii times directions, the radius of the support or of the tail in the factor of the covariance."""
    tril = density.scale_tril * density.variance_factor.sqrt()[..., None, None]
    return _by_radii(density.loc, tril, density.alpha, basis)


def _by_radii(loc: Tensor, tril: Tensor, alpha: float | Tensor, basis: Basis) -> Tensor:
    """``tril`` is the factor of the covariance."""
    dim = _known_dim(basis, "β-Gaussian")
    dtype = working_dtype(loc)
    nodes, weights = gauss_legendre(_RADII, loc.device)
    xi = _REACH / 2 * (nodes + 1)
    inverse = 1 / float64_of(alpha, loc).unsqueeze(-1)
    ratio = expm1_over(-(1 - inverse) * xi * xi / 2)
    mass = weights * torch.exp(-xi * xi / 2) * xi ** (dim - 1) * ratio ** (dim / 2 - 1)
    radius = xi * (ratio * (dim / 2 + 1 - dim / 2 * inverse)).sqrt()
    directions, share = _sphere(dim, loc.device)
    offsets = (radius[..., :, None, None] * directions).flatten(-3, -2).to(dtype)
    # A sum of products, since autocast would round a matrix product to half precision.
    t = loc.to(dtype).unsqueeze(-2) + (tril.to(dtype).unsqueeze(-3) * offsets.unsqueeze(-2)).sum(-1)
    law = ((mass / mass.sum(-1, keepdim=True)).unsqueeze(-1) * share).flatten(-2).to(dtype)
    result: Tensor = (law.unsqueeze(-1) * basis(t)).sum(-2)
    return result


def _sphere(dim: int, device: torch.device) -> tuple[Tensor, Tensor]:
    """Directions, (n, N), and the share of each, (n,), float64."""
    count = _DIRECTIONS[dim]
    angle = torch.arange(count, dtype=torch.float64, device=device) * (2 * math.pi / count)
    circle = torch.stack([angle.cos(), angle.sin()], -1)
    if dim == 2:
        return circle, torch.full_like(angle, 1 / count)
    height, weight = gauss_legendre(count // 2, device)
    ring = (1 - height * height).sqrt()
    flat = ring[:, None, None] * circle
    tall = height[:, None, None].expand(-1, count, 1)
    return torch.cat([flat, tall], -1).flatten(0, 1), (weight / (2 * count)).repeat_interleave(count)


def by_box(density: Distribution, basis: Basis) -> Tensor:
    """A product rule over the box that holds the density.

    Raises:
        NotImplementedError: in more than three dimensions, or where the density has no variance to look at.
    """
    dim = _known_dim(basis, type(density).__name__)
    dtype = working_dtype(density.mean)
    with torch.no_grad():
        mean, spread = density.mean.to(dtype), _DEVIATIONS * density.variance.sqrt().to(dtype)
        low, high = mean - spread, mean + spread
    low, high = within_support(density, low, high)
    nodes, weights = (x.to(dtype) for x in unit_gauss_legendre(_PER_AXIS[dim] // 2, low.device))
    # Each axis in two parts that meet at the mean, where densities such as Laplace's bend.
    ends = torch.stack([low, mean.maximum(low).minimum(high), high], -1)
    lengths = ends.diff(dim=-1).unsqueeze(-1)
    places, shares = (ends[..., :2, None] + lengths * nodes).flatten(-2), (lengths * weights).flatten(-2)
    grid = torch.cartesian_prod(*[torch.arange(places.shape[-1], device=low.device)] * dim)
    t, weight = (torch.stack([x[..., n, grid[:, n]] for n in range(dim)], -1) for x in (places, shares))
    mass = unchecked(density).log_prob(t.movedim(-2, 0)).exp().movedim(0, -1) * weight.prod(-1)
    result: Tensor = (mass.unsqueeze(-1) * basis(t)).sum(-2)
    return result


def within_support(density: Distribution, low: Tensor, high: Tensor) -> tuple[Tensor, Tensor]:
    """A box, (*batch, …, N), cut where a support that is a box ends; that end moves with the parameters."""
    support = density.support
    while isinstance(support, type(constraints.real_vector)):
        support = support.base_constraint
    if isinstance(support, constraints._Interval):
        first, last = (float64_of(x, low).to(low.dtype) for x in (support.lower_bound, support.upper_bound))
        between = low.dim() - first.dim()
        if first.dim() and between > 0:
            first, last = first.unsqueeze(-2), last.unsqueeze(-2)
        low, high = torch.maximum(low, first), torch.minimum(high, last)
    return low, torch.maximum(high, low)


def _known_dim(basis: Basis, name: str) -> int:
    if basis.event_dim not in _DIRECTIONS:
        raise NotImplementedError(
            f"there is no rule to integrate a {name} against a {type(basis).__name__} in {basis.event_dim} dimensions; "
            "in up to three every pair has one. Register a rule with contmax.expectations.register_expectation."
        )
    return basis.event_dim
