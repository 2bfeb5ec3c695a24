r"""r = E_p[ψ] of Gaussian bases on the plane and in any dimension, under Gaussians and β-Gaussians.

One rule serves every α, every dimension and every ratio of scales: a β-Gaussian is a mixture of Gaussians over the
scale, on a path in the complex plane for α > 1 (:mod:`contmax.expectations._scale_mean`), and the expectation of a
Gaussian function under each Gaussian has a closed form. Dtype and number of nodes do not depend on tensors' values:

=====================================  ================================================  ============================
N = 2, 1.03 ≤ α ≤ 2 a number           the dtype of the arguments; 12 nodes in float32,  error 1e-6 (float32), 1e-13
                                       40 in float64                                     (float64) of the largest r
any other N or α, tensor α             float64 inside; 12 to 32 nodes for float32        rounding (float32), 1e-11
                                       arguments, 40 to 80 for float64                   (float64) of the largest r
α = 1 a number, MultivariateNormal     closed form, one Gaussian                         rounding
=====================================  ================================================  ============================
"""

import math
from functools import partial

import torch
from torch import Tensor
from torch.distributions import LowRankMultivariateNormal, MultivariateNormal

from contmax._backend import Backend, backend_of
from contmax._eager import require_float64
from contmax.basis import MultivariateGaussianBasis
from contmax.densities import MultivariateBetaGaussian
from contmax.expectations._chunks import Fewest, in_chunks
from contmax.expectations._expectation import FORMULAS, Formula, expectation_by, register_expectation, working_dtype
from contmax.expectations._gaussian_forms import Form, MatrixForm, plane_form
from contmax.expectations._scale_mean import mean_over_scales, scale_order
from contmax.kernels import means

# The ν = `scale_order` for which float32 suffices: for smaller ν (α > 2) rounding spoils the phases on the path, for
# larger ν the exponents.
_SINGLE_ORDERS = 3.0, 32.0
# While gradients are computed, a pair of a density and a function takes up to 0.4 kB, or 4 kB if α is a tensor.
_FEWEST_PAIRS = Fewest(on_cpu=2**16, elsewhere=2**18, saved=2**8)
_FEWEST_PAIRS_OF_INDEX = Fewest(on_cpu=2**12, elsewhere=2**15, saved=2**12)


@register_expectation(MultivariateNormal, MultivariateGaussianBasis)
@register_expectation(LowRankMultivariateNormal, MultivariateGaussianBasis)
@register_expectation(MultivariateBetaGaussian, MultivariateGaussianBasis)
def beta_gaussian(
    density: MultivariateBetaGaussian | MultivariateNormal | LowRankMultivariateNormal, basis: MultivariateGaussianBasis
) -> Tensor:
    """r_j = N(μ; μ_j, Σ + Σ_j) if α is the number 1, else the mean of N(μ; μ_j, Σ_j + V/s) over the scale s."""
    return expectation_in_space(density.loc, density.scale_tril, getattr(density, "alpha", 1.0), basis)


def expectation_in_space(loc: Tensor, tril: Tensor, alpha: float | Tensor, basis: MultivariateGaussianBasis) -> Tensor:
    """r of β-Gaussians with location μ and Σ = LLᵀ: by Triton's kernels on the plane, else by torch."""
    dim = basis.event_dim
    index, number = (alpha, 0.0) if isinstance(alpha, Tensor) else (None, alpha)
    k = plane_order(number) if index is None and dim == 2 else None
    if k is not None:
        dtype = working_dtype(loc, tril, basis.loc)
        mu, factor, centre, basis_tril = (x.to(dtype) for x in (loc, tril, basis.loc, basis.scale_tril))
        if backend_of(mu, factor, centre, basis_tril) is Backend.TRITON:
            r = expectation_by(means.PLANE, k, mu, factor, None, centre, basis_tril)
            return r.to(torch.promote_types(loc.dtype, basis.loc.dtype))
    batch = torch.broadcast_shapes(loc.shape[:-1], tril.shape[:-2])
    densities = (loc.expand(*batch, dim), tril.expand(*batch, dim, dim), None if index is None else index.expand(batch))
    reference = partial(_reference, number=number, diagonal=basis.is_diagonal)
    fewest = _FEWEST_PAIRS if index is None else _FEWEST_PAIRS_OF_INDEX
    return in_chunks(reference, densities, (basis.loc, basis.scale_tril), len(batch), fewest)


def plane_order(alpha: float) -> float | None:
    """k = 1/(α−1) for the kernels on the plane, ∞ for the Gaussian; None for an α that needs float64."""
    if alpha == 1:
        return math.inf
    return 1 / (alpha - 1) if _fits_float32(alpha, 2) else None


def _reference(
    loc: Tensor, tril: Tensor, index: Tensor | None, centre: Tensor, basis_tril: Tensor, number: float, diagonal: bool
) -> Tensor:
    """r by torch, differentiable to every order; α is `index`, or `number` if `index` is None."""
    alpha, dim = number if index is None else index, centre.shape[-1]
    result_dtype = torch.promote_types(loc.dtype, centre.dtype)
    if index is None and number == 1:
        return _closed_form(loc, tril, centre, basis_tril, diagonal).to(result_dtype)
    single = working_dtype(loc, tril, centre) == torch.float32
    dtype = working_dtype(loc, tril) if _fits_float32(alpha, dim) else torch.float64
    if dtype == torch.float64:
        require_float64(loc.device, "This expectation")
    wide_loc, wide_tril = loc.to(dtype), tril.to(dtype)
    wide = MultivariateBetaGaussian(wide_loc, scale_tril=wide_tril, alpha=alpha, validate_args=False)
    factor = wide_tril * wide.variance_factor.sqrt()[..., None, None]
    form, size = _form(wide_loc, factor, centre, basis_tril, diagonal)
    return (mean_over_scales(form, alpha, dim, single) * size).to(result_dtype)


def _reference_of_order(
    loc: Tensor, tril: Tensor, index: None, centre: Tensor, basis_tril: Tensor, number: float
) -> Tensor:
    """`_reference` on the plane for α = 1 + 1/k, k = `number`: the reference of Triton's kernels for PLANE."""
    return _reference(loc, tril, index, centre, basis_tril, 1 + 1 / number, diagonal=False)


def _fits_float32(alpha: float | Tensor, dim: int) -> bool:
    """Whether float32 is accurate enough: on the plane, for a fixed α with ν in `_SINGLE_ORDERS`."""
    if isinstance(alpha, Tensor) or dim != 2:
        return False
    return _SINGLE_ORDERS[0] <= scale_order(alpha, dim) <= _SINGLE_ORDERS[1]


def _form(loc: Tensor, tril: Tensor, centre: Tensor, basis_tril: Tensor, diagonal: bool) -> tuple[Form, Tensor]:
    """For every pair, the Gaussian N(μ; μ_j, Σ_j + V/s) as a function of the scale s: a `Form`, and the constant factor
    that the form omits. V = ``tril`` ``tril``ᵀ.
    """
    dtype = working_dtype(loc, centre)
    tril, offset, basis_tril = _pairs(loc, tril, centre, basis_tril, dtype)
    if centre.shape[-1] == 2:
        return plane_form(tril, offset, basis_tril, diagonal)
    if diagonal:
        widths = basis_tril.diagonal(dim1=-2, dim2=-1)
        white, y = tril / widths.unsqueeze(-1), offset / widths
    else:
        white = torch.linalg.solve_triangular(basis_tril, tril, upper=False)
        y = torch.linalg.solve_triangular(basis_tril, offset.unsqueeze(-1), upper=False).squeeze(-1)
    matrix = white @ white.mT
    pairs = torch.broadcast_shapes(matrix.shape[:-2], y.shape[:-1])
    form = MatrixForm(matrix.expand(*pairs, -1, -1), y.expand(*pairs, -1))
    return form, torch.exp(-_log_volume(basis_tril))


def _closed_form(loc: Tensor, tril: Tensor, centre: Tensor, basis_tril: Tensor, diagonal: bool) -> Tensor:
    """N(μ; μ_j, LLᵀ + Σ_j): on the plane without any factorisation, elsewhere with one Cholesky factor in float64."""
    if centre.shape[-1] == 2:
        parts = _pairs(loc, tril, centre, basis_tril, working_dtype(loc, centre))
        plane, size = plane_form(*parts, diagonal)
        return size * torch.exp(-0.5 * (plane.near + plane.far))
    require_float64(loc.device, "This expectation")
    tril, offset, basis_tril = _pairs(loc, tril, centre, basis_tril, torch.float64)
    total, _ = torch.linalg.cholesky_ex(tril @ tril.mT + basis_tril @ basis_tril.mT)
    white = torch.linalg.solve_triangular(total, offset.unsqueeze(-1), upper=False).squeeze(-1)
    return torch.exp(-0.5 * white.square().sum(-1) - _log_volume(total))


def _pairs(
    loc: Tensor, tril: Tensor, centre: Tensor, basis_tril: Tensor, dtype: torch.dtype
) -> tuple[Tensor, Tensor, Tensor]:
    """`tril`, (*batch, 1, N, N), μ − μ_j, (*batch, K, N), and the Cholesky factors L_j, (K, N, N), in `dtype`."""
    offset = loc.to(dtype).unsqueeze(-2) - centre.to(dtype)
    return tril.to(dtype).unsqueeze(-3), offset, basis_tril.to(dtype)


def _log_volume(tril: Tensor) -> Tensor:
    """½ ln|2πLLᵀ|."""
    diagonal = tril.diagonal(dim1=-2, dim2=-1)
    return diagonal.log().sum(-1) + diagonal.shape[-1] / 2 * math.log(2 * math.pi)


FORMULAS[means.PLANE] = Formula(_reference_of_order)
