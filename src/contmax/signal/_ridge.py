"""Ridge regression on a basis: the weights G with which observations become coefficients."""

import weakref
from collections import OrderedDict
from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor

from contmax._eager import is_eager, is_eager_cpu
from contmax.basis import Basis

# Weights for the default positions depend on nothing but these few things; a handful of lengths is what a model meets.
_CACHED_LENGTHS = 16
_cache: "weakref.WeakKeyDictionary[Basis, OrderedDict[Any, _Cached]]" = weakref.WeakKeyDictionary()


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
    basis: Basis, positions: Callable[[], Tensor], key: tuple[Any, ...], penalty: float, values: Tensor
) -> Tensor:
    """Weights for positions that are determined by `key`: computed once for a basis that is not being learned."""
    constants = (*basis.buffers(), *basis.parameters())
    dtype = torch.promote_types(values.dtype, torch.float32)
    fixed = is_eager(values) and all(is_eager(c) and not c.is_inference() for c in constants)
    if basis.needs_gradient or not fixed:
        return ridge_weights(basis(positions()), penalty).to(dtype)
    versions = tuple((c.data_ptr(), c._version) for c in constants)
    full_key = (key, penalty, dtype, values.device, versions)
    known = _cache.setdefault(basis, OrderedDict())
    if full_key in known:
        known.move_to_end(full_key)
        return known[full_key].weights
    # What inference mode makes could not be trained with later.
    with torch.inference_mode(False), torch.no_grad():
        weights = ridge_weights(basis(positions().clone()), penalty).to(dtype)
        known[full_key] = _Cached(weights, tuple(c.detach() for c in constants))
    while len(known) > _CACHED_LENGTHS:
        known.popitem(last=False)
    return weights


class _Cached(NamedTuple):
    """Weights, and the constants they were made from: as long as these live, nothing else gets their address."""

    weights: Tensor
    constants: tuple[Tensor, ...]
