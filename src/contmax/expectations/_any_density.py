r"""E_p[ψ] by quadrature, for pairs of a density and a basis without a closed form; also of predictions and mixtures.

Accuracy on the line: in float64 1e-10 for bounded densities that are smooth between their landmarks (ends of the
support, mean and mode, of each component of a mixture), and 1e-9 for predictions; in float32 rounding, since the
computation is in float64. For predictions on other domains: on a finite set of points expectations are exact; for
functions no narrower than a cell, errors are 1e-5 on the plane and 1e-3 in space.

In several dimensions the number of nodes is fixed:

=================================  ==================================================================================
β-Gaussians, MultivariateNormal    radii times directions, 40 × 64 on the plane, 40 × 24 × 48 in space: 1e-9 for
                                   functions that change over a standard deviation, 1e-5 over half of one
any other, N ≤ 3                   a product rule of 96 nodes on each axis of the plane, 40 in space, over the box of
                                   the support or eight standard deviations about the mean: 1e-6 for densities that
                                   are smooth on either side of their mean; a few percent for a support that ends
                                   inside the box and is no box
any other, Gaussian functions      32 Gauss nodes per axis (float64: 48) where function and density overlap: 1e-6 for
                                   smooth densities; independent coordinates by products, or exactly if normal
=================================  ==================================================================================

Radii r of a β-Gaussian whose support has radius R have a coordinate ξ with 1 − r²/R² = exp(−(α−1)ξ²/2α). Their density
in ξ is exp(−ξ²/2) times a function that is smooth for every α, so that Gauss nodes in ξ serve every α.
"""

import functools
import math

import torch
from torch import Tensor
from torch.distributions import Distribution, Independent, MixtureSameFamily, MultivariateNormal, Normal, constraints

from contmax._eager import is_eager_cpu
from contmax.basis import Basis, GaussianBasis, MultivariateGaussianBasis
from contmax.deformed import expm1_over
from contmax.densities import Empirical, Mixture, MultivariateBetaGaussian
from contmax.densities._density import parameter_dtypes, unchecked
from contmax.densities._line_rule import LineRule, landmarks_of
from contmax.expectations._expectation import expectation, register_expectation, working_dtype
from contmax.expectations._space_gaussian import expectation_in_space
from contmax.numerics import float64_of, gauss_legendre, unit_gauss_legendre
from contmax.prediction import IntervalPrediction, KnotsPrediction, Prediction

# Nodes for functions of any form: in total, and the fewest and most in a piece (see `any_basis`).
_NODES, _LEAST, _MOST = 768, 32, 256
# For a Gaussian function: nodes per piece of its window, and the half-width of this window in standard deviations.
_WINDOW_NODES, _REACH = 96, 8.0
# The nodes of a prediction's piece (24, or 20 for knots) resolve functions whose standard deviation is at least this
# share of the piece.
_WIDE = 0.5
# In several dimensions: the number of radii, the largest ξ, and the number of directions on a circle; nodes per axis of
# a product rule, and half the side of its box in standard deviations.
_RADII, _XI_MAX = 40, 8.5
_DIRECTIONS = {2: 64, 3: 48}
_PER_AXIS, _DEVIATIONS = {2: 96, 3: 40}, 8.0
# Nodes per axis in `by_nodes`.
_NODES_PER_AXIS = {torch.float32: 32, torch.float64: 48}


def any_basis(density: Distribution, basis: Basis) -> Tensor:
    """E_p[ψ] on nodes that all functions share, in pieces between landmarks of the density and breakpoints of ψ."""
    wide = unchecked(density, torch.float64)
    landmarks, breakpoints = landmarks_of(wide), basis.breakpoints
    pieces = len(landmarks.cuts) + (0 if breakpoints is None else len(breakpoints))
    rule = LineRule(
        landmarks,
        density.batch_shape,
        None if breakpoints is None else breakpoints.double().reshape(-1, *(1 for _ in density.batch_shape)),
        count=min(max(_NODES // pieces, _LEAST), _MOST),
    )
    functions: Tensor = basis(rule.points)
    with torch.autocast(functions.device.type, enabled=False):
        result = torch.einsum("n...,n...k->...k", rule.masses(wide), functions.double())
    return result.to(_result_dtype(density, basis))


@register_expectation(Distribution, GaussianBasis)
def gaussian_basis(density: Distribution, basis: GaussianBasis) -> Tensor:
    """E_p[ψ] on separate nodes for each function, in the window where ψ_j is not negligible, however narrow it is."""
    wide = unchecked(density, torch.float64)
    batch = density.batch_shape
    centre, width = (x.double().reshape(-1, *(1 for _ in batch)) for x in (basis.loc, basis.scale))
    window = (centre - _REACH * width).detach(), (centre + _REACH * width).detach()
    shape = torch.Size((len(basis.loc), *batch))
    rule = LineRule(landmarks_of(wide), shape, count=_WINDOW_NODES, window=window)
    functions = torch.exp(-0.5 * ((rule.points - centre) / width).square()) / (math.sqrt(2 * math.pi) * width)
    return (rule.masses(wide) * functions).sum(0).movedim(0, -1).to(_result_dtype(density, basis))


def _result_dtype(density: Distribution, basis: Basis) -> torch.dtype:
    dtypes = [x.dtype for x in (*basis.parameters(), *basis.buffers()) if x.is_floating_point()]
    return functools.reduce(torch.promote_types, (*dtypes, *parameter_dtypes(density)), torch.float32)


@register_expectation(Prediction, Basis)
@register_expectation(Prediction, GaussianBasis)
@register_expectation(Prediction, MultivariateGaussianBasis)
def by_own_rule(density: Prediction, basis: Basis) -> Tensor:
    """E_p[ψ] by the prediction's own nodes, or by `any_basis` if ψ has breakpoints and the domain is the line."""
    if basis.breakpoints is not None and isinstance(density, IntervalPrediction | KnotsPrediction):
        return any_basis(density, basis)
    return density.expectation(basis)


@register_expectation(IntervalPrediction, GaussianBasis)
@register_expectation(KnotsPrediction, GaussianBasis)
def by_pieces(density: IntervalPrediction | KnotsPrediction, basis: GaussianBasis) -> Tensor:
    """E_p[ψ] by the prediction's own nodes if they resolve the functions, else by nodes in windows of functions."""
    pieces = density.pieces
    if is_eager_cpu(pieces, basis.scale) and bool(basis.scale.min() >= _WIDE * pieces.diff(dim=-1).max()):
        return density.expectation(basis)
    return gaussian_basis(density, basis)


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
    xi = _XI_MAX / 2 * (nodes + 1)
    inverse = 1 / float64_of(alpha, loc).unsqueeze(-1)
    ratio = expm1_over(-(1 - inverse) * xi * xi / 2)
    mass = weights * torch.exp(-xi * xi / 2) * xi ** (dim - 1) * ratio ** (dim / 2 - 1)
    radius = xi * (ratio * (dim / 2 + 1 - dim / 2 * inverse)).sqrt()
    directions, share = _sphere(dim, loc.device)
    offsets = (radius[..., :, None, None] * directions).flatten(-3, -2).to(dtype)
    # Multiply and sum, because autocast would round a matrix product to half precision.
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


@register_expectation(Distribution, Basis)
def by_box(density: Distribution, basis: Basis) -> Tensor:
    """E_p[ψ] by a product rule over a box that holds the mass of the density; on the line by `any_basis`.

    Raises:
        NotImplementedError: in more than three dimensions, or if the density has no variance.
    """
    if basis.event_dim == 1:
        return any_basis(density, basis)
    dim = _known_dim(basis, type(density).__name__)
    dtype = working_dtype(density.mean)
    with torch.no_grad():
        mean, spread = density.mean.to(dtype), _DEVIATIONS * density.variance.sqrt().to(dtype)
        low, high = mean - spread, mean + spread
    low, high = within_support(density, low, high)
    nodes, weights = (x.to(dtype) for x in unit_gauss_legendre(_PER_AXIS[dim] // 2, low.device))
    # Divide each axis into two parts at the mean, where densities such as Laplace's have a kink.
    ends = torch.stack([low, mean.maximum(low).minimum(high), high], -1)
    lengths = ends.diff(dim=-1).unsqueeze(-1)
    places, shares = (ends[..., :2, None] + lengths * nodes).flatten(-2), (lengths * weights).flatten(-2)
    grid = torch.cartesian_prod(*[torch.arange(places.shape[-1], device=low.device)] * dim)
    t, weight = (torch.stack([x[..., n, grid[:, n]] for n in range(dim)], -1) for x in (places, shares))
    mass = unchecked(density).log_prob(t.movedim(-2, 0)).exp().movedim(0, -1) * weight.prod(-1)
    result: Tensor = (mass.unsqueeze(-1) * basis(t)).sum(-2)
    return result


def within_support(density: Distribution, low: Tensor, high: Tensor) -> tuple[Tensor, Tensor]:
    """A box, (*batch, …, N), clipped to the support if the support is a box; differentiable in the support's ends."""
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


@register_expectation(Independent, MultivariateGaussianBasis)
def independent(density: Independent, basis: MultivariateGaussianBasis) -> Tensor:
    """E_p[ψ]: closed form if coordinates are normal; Π_n E[ψ_jn(t_n)] if functions are products; else by nodes."""
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
    """E_p[ψ] by a product rule, for each function over the box in which neither it nor the density is negligible.

    For a density of event shape (), the basis is converted to a basis on the line.

    Raises:
        NotImplementedError: in more than three dimensions.
    """
    if not density.event_shape:
        return expectation(density, GaussianBasis.of_known(basis.loc[:, 0], basis.scale_tril[:, 0, 0]))
    dim = 1 if basis.event_dim == 1 else _known_dim(basis, type(density).__name__)
    dtype = working_dtype(density.mean, basis.loc)
    middle, half = _windows(density, basis, dtype)
    nodes, weights = (x.to(dtype) for x in gauss_legendre(_NODES_PER_AXIS[dtype], basis.loc.device))
    grid = torch.cartesian_prod(*[nodes] * dim)
    weight = torch.cartesian_prod(*[weights] * dim).prod(-1)
    t = middle.unsqueeze(-2) + half.unsqueeze(-2) * grid
    white = torch.linalg.solve_triangular(
        basis.scale_tril.to(dtype), (t - basis.loc.to(dtype).unsqueeze(-2)).mT, upper=False
    )
    volume = ((2 * torch.pi) ** 0.5 * basis.scale_tril.diagonal(dim1=-2, dim2=-1)).prod(-1)
    functions = torch.exp(-0.5 * white.square().sum(-2))
    # Move the dimensions of functions and nodes in front of the batch, where `log_prob` expects sample dimensions.
    p = unchecked(density).log_prob(t.movedim((-3, -2), (0, 1))).exp().movedim((0, 1), (-2, -1))
    result: Tensor = (p * functions * weight).sum(-1) * half.prod(-1) / volume
    return result


def _windows(density: Distribution, basis: MultivariateGaussianBasis, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """Middle and half-length of the box of nodes of each pair of density and function, (*batch, K, N).

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


def mixture(density: MixtureSameFamily | Mixture, basis: Basis) -> Tensor:
    """Σ_m π_m E_{p_m}[ψ]."""
    parts = expectation(density.component_distribution, basis)
    return (density.mixture_distribution.probs.unsqueeze(-1) * parts).sum(-2)


def samples(density: Empirical, basis: Basis) -> Tensor:
    """r_j = Σ w_i ψ_j(t_i)."""
    # Drop an axis of size one for the coordinate: a basis on the line takes numbers.
    points = density.samples.squeeze(-1) if density.event_shape == (1,) else density.samples
    functions: Tensor = basis(points)
    weights = density.weights / density.weights.sum(-1, keepdim=True)
    with torch.autocast(functions.device.type, enabled=False):
        return torch.einsum("...n,...nk->...k", weights.to(functions.dtype), functions)


for _basis in (Basis, GaussianBasis, MultivariateGaussianBasis):
    register_expectation(Empirical, _basis)(samples)
    for _density in (MixtureSameFamily, Mixture):
        register_expectation(_density, _basis)(mixture)
