"""Ridge regression on a basis: the weights G with which observations become coefficients."""

import weakref
from collections import OrderedDict
from typing import Any

import torch
from torch import Tensor

from contmax._eager import is_eager, is_eager_cpu
from contmax.basis import Basis

# Weights for the default positions depend on nothing but these few things; a handful of lengths is what a model meets.
_CACHED_LENGTHS = 16
_cache: "weakref.WeakKeyDictionary[Basis, OrderedDict[Any, Tensor]]" = weakref.WeakKeyDictionary()


def ridge_weights(design: Tensor, penalty: float) -> Tensor:
    r"""G = F (FᵀF + λI)⁻¹, so that the coefficients of observations H are GᵀH.

    Args:
        design: F = ψ(t_ℓ), (*batch, L, K); rows of zeros are observations that do not count.
        penalty: λ ≥ 0.

    Returns:
        G, (*batch, L, K), in float64: radial basis functions are nearly dependent, and float32 would lose most digits.

    Raises:
        ValueError: if λ = 0 and the basis functions are linearly dependent at the positions.

    Reference: Martins et al. 2020, Eq. B_regression.
    """
    wide = design.double()
    return solve_gram(wide.mT @ wide, wide.mT, penalty).mT


def solve_gram(gram: Tensor, right: Tensor, penalty: float) -> Tensor:
    """(FᵀF + λI)⁻¹ right, by Cholesky."""
    eye = torch.eye(gram.shape[-1], dtype=gram.dtype, device=gram.device)
    tril, failed = torch.linalg.cholesky_ex(gram + penalty * eye)
    if is_eager_cpu(gram):
        # A dependent basis may still factor by rounding, with pivots of the size of the rounding.
        pivots = tril.diagonal(dim1=-2, dim2=-1)
        floor = 1e-7 * pivots.amax(-1, keepdim=True)
        if bool(failed.any()) or (penalty == 0 and bool((pivots < floor).any())):
            raise ValueError(
                f"the {gram.shape[-1]} basis functions are linearly dependent at the given positions: a fit with "
                f"penalty {penalty:g} is not unique. Pass penalty=0.01, fewer functions, or more positions."
            )
    return torch.cholesky_solve(right, tril)


def cached_ridge_weights(
    basis: Basis, positions: Tensor, key: tuple[Any, ...], penalty: float, dtype: torch.dtype
) -> Tensor:
    """Weights for positions that are determined by `key`: computed once for a basis that is not being learned."""
    if basis.needs_gradient or not is_eager(positions):
        return ridge_weights(basis(positions), penalty).to(dtype)
    versions = tuple((b.data_ptr(), b._version) for b in basis.buffers())
    full_key = (key, penalty, dtype, positions.device, versions)
    known = _cache.setdefault(basis, OrderedDict())
    if full_key in known:
        known.move_to_end(full_key)
        return known[full_key]
    with torch.no_grad():
        known[full_key] = ridge_weights(basis(positions), penalty).to(dtype)
    while len(known) > _CACHED_LENGTHS:
        known.popitem(last=False)
    return known[full_key]
