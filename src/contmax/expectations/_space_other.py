"""Gaussian bases in several dimensions under other densities: products, and any density.

=================================  ==================================================================================
independent coordinates            the product of what the coordinates expect (diagonal Σ_j); Gaussians exactly
any other, N ≤ 3                   32 Gauss nodes per axis (float64: 48) where function and density meet: 1e-6 for
                                   densities that are smooth, on all of space or on a box; a few percent where a
                                   support of another form ends inside a function
=================================  ==================================================================================
"""

import torch
from torch import Tensor
from torch.distributions import (
    Distribution,
    Independent,
    LowRankMultivariateNormal,
    MixtureSameFamily,
    Normal,
)

from contmax.basis import GaussianBasis, MultivariateGaussianBasis
from contmax.densities import Mixture
from contmax.densities._unchecked import unchecked
from contmax.expectations._expectation import expectation, register_expectation, working_dtype
from contmax.expectations._mixture import mixture
from contmax.expectations._space_gaussian import gaussian
from contmax.expectations._space_nodes import within_support
from contmax.numerics import gauss_legendre

_NODES = {torch.float32: 32, torch.float64: 48}
_LARGEST_DIM = 3

for _kind in (MixtureSameFamily, Mixture):
    register_expectation(_kind, MultivariateGaussianBasis)(mixture)


@register_expectation(LowRankMultivariateNormal, MultivariateGaussianBasis)
def low_rank_normal(density: LowRankMultivariateNormal, basis: MultivariateGaussianBasis) -> Tensor:
    """r_j = N(μ; μ_j, Σ + Σ_j)."""
    return gaussian(density.loc, density.scale_tril, basis)


@register_expectation(Independent, MultivariateGaussianBasis)
def independent(density: Independent, basis: MultivariateGaussianBasis) -> Tensor:
    """A Gaussian if the coordinates are, else Π_n E[ψ_jn(t_n)] where the functions are products too."""
    base = density.base_dist
    if isinstance(base, Normal):
        return gaussian(base.loc, torch.diag_embed(base.scale), basis)
    if not basis.is_diagonal or density.reinterpreted_batch_ndims != 1 or base.event_shape:
        return by_nodes(density, basis)
    widths = basis.scale_tril.diagonal(dim1=-2, dim2=-1)
    line = GaussianBasis.of_known(basis.loc.T.reshape(-1), widths.T.reshape(-1))
    # Every coordinate meets the factors of all axes; the diagonal holds those of its own.
    factors = expectation(base, line)
    own = factors.reshape(*factors.shape[:-1], basis.event_dim, -1).diagonal(dim1=-3, dim2=-2)
    return own.prod(-1)


@register_expectation(Distribution, MultivariateGaussianBasis)
def by_nodes(density: Distribution, basis: MultivariateGaussianBasis) -> Tensor:
    """A product rule over the box in which a function and the density are not negligible.

    A density of numbers, without an axis for their one coordinate, has the rules of a basis on the line.

    Raises:
        NotImplementedError: in more than three dimensions.
    """
    if not density.event_shape:
        return expectation(density, GaussianBasis.of_known(basis.loc[:, 0], basis.scale_tril[:, 0, 0]))
    dim = basis.event_dim
    if dim > _LARGEST_DIM:
        raise NotImplementedError(
            f"there is no rule to integrate a {type(density).__name__} in {dim} dimensions; in up to {_LARGEST_DIM} "
            "every density has one. Register a rule with contmax.expectations.register_expectation."
        )
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
    # The points in front of the batch, as a density expects them.
    p = unchecked(density).log_prob(t.movedim((-3, -2), (0, 1))).exp().movedim((0, 1), (-2, -1))
    result: Tensor = (p * functions * weight).sum(-1) * half.prod(-1) / volume
    return result


def _windows(density: Distribution, basis: MultivariateGaussianBasis, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """Middle and half-length of the box of each pair, (*batch, K, N).

    An end that cuts off nothing does not move with the parameters; the end of a support does.
    """
    reach = 5.5 if dtype == torch.float32 else 7.0
    with torch.no_grad():
        mean, spread = (x.to(dtype).unsqueeze(-2) for x in (density.mean, 1.6 * reach * density.variance.sqrt()))
        width = reach * basis.covariance_matrix.diagonal(dim1=-2, dim2=-1).sqrt().to(dtype)
        centre = basis.loc.to(dtype)
        low, high = torch.maximum(mean - spread, centre - width), torch.minimum(mean + spread, centre + width)
    low, high = within_support(density, low, high)
    return (low + high) / 2, (high - low) / 2
