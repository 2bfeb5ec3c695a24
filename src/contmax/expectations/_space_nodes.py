r"""E_p[ψ] in several dimensions for pairs of a density and a basis without a closed form, by fixed nodes.

=================================  ==================================================================================
β-Gaussians, MultivariateNormal    radii times directions, 40 × 64 on the plane, 40 × 24 × 48 in space: 1e-9 for
                                   functions that change over a standard deviation, 1e-5 over half of one
any other, N ≤ 3                   a product rule of 96 nodes on each axis of the plane, 40 in space, over the box of
                                   the support or eight standard deviations about the mean: 1e-6 for densities that
                                   are smooth on either side of their mean; a few percent for a support that ends
                                   inside the box and is no box
any other, Gaussian functions      32 Gauss nodes per axis (float64: 48) where function and density overlap: 1e-6 for
                                   smooth densities; independent coordinates by products, Gaussians exactly
=================================  ==================================================================================

Radii r of a β-Gaussian whose support has radius R have a coordinate ξ with 1 − r²/R² = exp(−(α−1)ξ²/2α). Their density
in ξ is exp(−ξ²/2) times a function that is smooth for every α, so that Gauss nodes in ξ serve every α.
"""

import math

import torch
from torch import Tensor
from torch.distributions import Distribution, Independent, MultivariateNormal, Normal, constraints

from contmax.basis import Basis, GaussianBasis, MultivariateGaussianBasis
from contmax.deformed import expm1_over
from contmax.densities import MultivariateBetaGaussian
from contmax.densities._density import unchecked
from contmax.expectations._expectation import expectation, register_expectation, working_dtype
from contmax.expectations._line_any import any_basis
from contmax.expectations._space_gaussian import expectation_in_space
from contmax.numerics import float64_of, gauss_legendre, unit_gauss_legendre

_RADII, _REACH = 40, 8.5
_DIRECTIONS = {2: 64, 3: 48}
_PER_AXIS, _DEVIATIONS = {2: 96, 3: 40}, 8.0
# Nodes per axis in `by_nodes`.
_NODES = {torch.float32: 32, torch.float64: 48}


@register_expectation(MultivariateNormal, Basis)
@register_expectation(MultivariateBetaGaussian, Basis)
def by_radii(density: MultivariateBetaGaussian | MultivariateNormal, basis: Basis) -> Tensor:
    """E_p[ψ] by a rule of radii times directions, in units of the covariance's Cholesky factor; a normal has α = 1."""
    dim = _known_dim(basis, "β-Gaussian")
    loc, tril, alpha = density.loc, density.scale_tril, getattr(density, "alpha", 1.0)
    if isinstance(density, MultivariateBetaGaussian):
        tril = tril * density.variance_factor.sqrt()[..., None, None]
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
    """Unit vectors, (n, N), and weights that sum to one, (n,), in float64: a quadrature rule on the sphere."""
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
    """E_p[ψ] by a product rule over a box that holds the mass of the density.

    Raises:
        NotImplementedError: in more than three dimensions, or if the density has no variance.
    """
    dim = _known_dim(basis, type(density).__name__)
    dtype = working_dtype(density.mean)
    with torch.no_grad():
        mean, spread = density.mean.to(dtype), _DEVIATIONS * density.variance.sqrt().to(dtype)
        low, high = mean - spread, mean + spread
    low, high = within_support(density, low, high)
    nodes, weights = (x.to(dtype) for x in unit_gauss_legendre(_PER_AXIS[dim] // 2, low.device))
    # Each axis has two parts that meet at the mean, where densities such as Laplace's have a kink.
    ends = torch.stack([low, mean.maximum(low).minimum(high), high], -1)
    lengths = ends.diff(dim=-1).unsqueeze(-1)
    places, shares = (ends[..., :2, None] + lengths * nodes).flatten(-2), (lengths * weights).flatten(-2)
    grid = torch.cartesian_prod(*[torch.arange(places.shape[-1], device=low.device)] * dim)
    t, weight = (torch.stack([x[..., n, grid[:, n]] for n in range(dim)], -1) for x in (places, shares))
    mass = unchecked(density).log_prob(t.movedim(-2, 0)).exp().movedim(0, -1) * weight.prod(-1)
    result: Tensor = (mass.unsqueeze(-1) * basis(t)).sum(-2)
    return result


def within_support(density: Distribution, low: Tensor, high: Tensor) -> tuple[Tensor, Tensor]:
    """A box, (*batch, …, N), clipped to the support if the support is a box, differentiably in the support's ends."""
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


@register_expectation(Distribution, Basis)
def any_pair(density: Distribution, basis: Basis) -> Tensor:
    """E_p[ψ] by `any_basis` on the line, by `by_box` on the plane and in space."""
    return any_basis(density, basis) if basis.event_dim == 1 else by_box(density, basis)


@register_expectation(Independent, MultivariateGaussianBasis)
def independent(density: Independent, basis: MultivariateGaussianBasis) -> Tensor:
    """Closed form for normal coordinates; Π_n E[ψ_jn(t_n)] if functions are products over coordinates; else nodes."""
    base = density.base_dist
    if isinstance(base, Normal):
        return expectation_in_space(base.loc, torch.diag_embed(base.scale), 1.0, basis)
    if not basis.is_diagonal or density.reinterpreted_batch_ndims != 1 or base.event_shape:
        return by_nodes(density, basis)
    widths = basis.scale_tril.diagonal(dim1=-2, dim2=-1)
    line = GaussianBasis.of_known(basis.loc.T.reshape(-1), widths.T.reshape(-1))
    # `expectation` pairs each coordinate t_n with the factors ψ_jm of all axes m; only m = n is needed.
    factors = expectation(base, line)
    own = factors.reshape(*factors.shape[:-1], basis.event_dim, -1).diagonal(dim1=-3, dim2=-2)
    return own.prod(-1)


@register_expectation(Distribution, MultivariateGaussianBasis)
def by_nodes(density: Distribution, basis: MultivariateGaussianBasis) -> Tensor:
    """E_p[ψ] by a product rule over the box in which both a function and the density are not negligible.

    For a density of event shape (), the basis is converted to a basis on the line.

    Raises:
        NotImplementedError: in more than three dimensions.
    """
    if not density.event_shape:
        return expectation(density, GaussianBasis.of_known(basis.loc[:, 0], basis.scale_tril[:, 0, 0]))
    dim = 1 if basis.event_dim == 1 else _known_dim(basis, type(density).__name__)
    dtype = working_dtype(density.mean, basis.loc)
    middle, half = _windows(density, basis, dtype)
    nodes, weights = (x.to(dtype) for x in gauss_legendre(_NODES[dtype], basis.loc.device))
    grid = torch.cartesian_prod(*[nodes] * dim)
    weight = torch.cartesian_prod(*[weights] * dim).prod(-1)
    t = middle.unsqueeze(-2) + half.unsqueeze(-2) * grid
    white = torch.linalg.solve_triangular(
        basis.scale_tril.to(dtype), (t - basis.loc.to(dtype).unsqueeze(-2)).mT, upper=False
    )
    volume = ((2 * torch.pi) ** 0.5 * basis.scale_tril.diagonal(dim1=-2, dim2=-1)).prod(-1)
    functions = torch.exp(-0.5 * white.square().sum(-2))
    # `log_prob` takes the dimensions of functions and nodes in front of the batch.
    p = unchecked(density).log_prob(t.movedim((-3, -2), (0, 1))).exp().movedim((0, 1), (-2, -1))
    result: Tensor = (p * functions * weight).sum(-1) * half.prod(-1) / volume
    return result


def _windows(density: Distribution, basis: MultivariateGaussianBasis, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """Middle and half-length of the box of each pair, (*batch, K, N).

    Ends of boxes are constants in derivatives, except where they are ends of the support.
    """
    reach = 5.5 if dtype == torch.float32 else 7.0
    with torch.no_grad():
        mean, spread = (x.to(dtype).unsqueeze(-2) for x in (density.mean, 1.6 * reach * density.variance.sqrt()))
        width = reach * basis.covariance_matrix.diagonal(dim1=-2, dim2=-1).sqrt().to(dtype)
        centre = basis.loc.to(dtype)
        low, high = torch.maximum(mean - spread, centre - width), torch.minimum(mean + spread, centre + width)
    low, high = within_support(density, low, high)
    return (low + high) / 2, (high - low) / 2
