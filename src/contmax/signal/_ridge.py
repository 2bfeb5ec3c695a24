"""Ridge regression on a basis: the weights G with which observations become coefficients."""

from typing import NamedTuple

import torch
from torch import Tensor

from contmax._eager import is_eager_cpu, is_exporting_to_onnx
from contmax.numerics import eliminated


class RidgeFit(NamedTuple):
    r"""Ridge regression at given positions, factored: G = F (FᵀF + λ/V²·I)⁻¹ is not formed.

    A context needs G r for a single r, which takes one solution of K equations, where G would take L of them.

    Args:
        design: F = ψ(t_ℓ), (*batch, L, K), in float64.
        tril: Cholesky factor of FᵀF + λ/V²·I, (*batch, K, K).
    """

    design: Tensor
    tril: Tensor

    def weights(self, dtype: torch.dtype) -> Tensor:
        """G, (*batch, L, K)."""
        return _solved(self.tril, self.design.mT).mT.to(dtype)

    def observed(self, r: Tensor) -> Tensor:
        """G r: (*batch, Q, K) → (*batch, Q, L), in the dtype of r."""
        return (_solved(self.tril, r.double().mT).mT @ self.design.mT).to(r.dtype)

    def coefficients(self, values: Tensor) -> Tensor:
        """GᵀH: (*batch, L, D) → (*batch, K, D), in float64."""
        return _solved(self.tril, self.design.mT @ values.double())


def ridge_fit(design: Tensor, penalty: float, volume: Tensor | float) -> RidgeFit:
    r"""Factor FᵀF + λ/V²·I.

    Args:
        design: F = ψ(t_ℓ), (*batch, L, K); rows of zeros are observations that do not count.
        penalty: λ ≥ 0.
        volume: V of the basis.

    Returns:
        The fit in float64: radial basis functions are nearly dependent, and float32 would lose most digits.

    Raises:
        ValueError: if λ = 0 and the basis functions are linearly dependent at the positions.

    Reference: Martins et al. 2020, Eq. B_regression.
    """
    wide = design.double()
    return RidgeFit(wide, _factored(wide.mT @ wide, penalty, volume))


def ridge_weights(design: Tensor, penalty: float, volume: Tensor | float) -> Tensor:
    """G = F (FᵀF + λ/V²·I)⁻¹ of :func:`ridge_fit`, so that the coefficients of observations H are GᵀH, in float64."""
    return ridge_fit(design, penalty, volume).weights(torch.float64)


def solve_gram(gram: Tensor, right: Tensor, penalty: float, volume: Tensor | float) -> Tensor:
    """(FᵀF + λ/V²·I)⁻¹ right, by Cholesky."""
    return _solved(_factored(gram, penalty, volume), right)


def through_values(length: int, functions: int, channels: int, queries: int) -> bool:
    """Whether for one sequence H·(G r) takes no more multiplications than (H G)·r.

    Args:
        length: L, observations.
        functions: K, basis functions.
        channels: D.
        queries: densities of the sequence.
    """
    return queries * length * (functions + channels) <= functions * channels * (length + queries)


def explained_share(missed: Tensor, total: Tensor, least: Tensor) -> Tensor:
    """1 − missed/total, the share of a variance that a fit explains; 1 where the variance is at most `least`."""
    varies = total > least
    return torch.where(varies, 1 - missed / torch.where(varies, total, 1.0), 1.0)


def _factored(gram: Tensor, penalty: float, volume: Tensor | float) -> Tensor:
    """The Cholesky factor of FᵀF + λ/V²·I; for ONNX, which has no factors, the matrix itself."""
    eye = torch.eye(gram.shape[-1], dtype=gram.dtype, device=gram.device)
    # In float64, because in space V² would overflow in float32.
    volume = volume.double() if isinstance(volume, Tensor) else volume
    matrix = gram + penalty / volume**2 * eye
    if is_exporting_to_onnx():
        return matrix
    tril: Tensor
    tril, failed = torch.linalg.cholesky_ex(matrix)
    if is_eager_cpu(gram):
        # A dependent basis may still factor by rounding, with pivots of the size of the rounding. Not every LAPACK
        # calls NaN a failure: OpenBLAS goes on, and leaves NaN among the pivots.
        pivots = tril.diagonal(dim1=-2, dim2=-1)
        floor = 1e-7 * pivots.amax(-1, keepdim=True)
        broken = bool(failed.any()) or not bool(pivots.isfinite().all())
        if broken or (penalty == 0 and bool((pivots < floor).any())):
            if not bool(gram.isfinite().all()):
                raise ValueError(
                    "Some positions, or constants of the basis, are NaN or infinite: the basis functions have no "
                    "values there. Leave such observations out with mask=positions.isfinite()."
                )
            raise ValueError(
                f"The {gram.shape[-1]} basis functions are linearly dependent at the given positions: a fit with "
                f"penalty {penalty:g} is not unique. Pass penalty=0.01, fewer functions, or more positions."
            )
    return tril


def _solved(tril: Tensor, right: Tensor) -> Tensor:
    """(LLᵀ)⁻¹ right, from the result of `_factored`."""
    if is_exporting_to_onnx():
        return eliminated(tril, right)
    if tril.device.type == "cpu":
        return torch.cholesky_solve(right, tril)
    # On CUDA `cholesky_solve` cannot be captured in a graph.
    half = torch.linalg.solve_triangular(tril, right, upper=False)
    solution: Tensor = torch.linalg.solve_triangular(tril.mT, half, upper=True)
    return solution
