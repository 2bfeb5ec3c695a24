"""Ridge regression on a basis: the weights G with which observations become coefficients."""

import torch
from torch import Tensor

from contmax._eager import is_eager_cpu
from contmax.numerics import eliminated


def require_float64(device: torch.device) -> None:
    """Refuse a device that has no float64, in which every fit is computed.

    Raises:
        NotImplementedError: on Apple's GPUs.
    """
    if device.type == "mps":
        raise NotImplementedError(
            "A signal is fitted in float64, which mps devices do not have. Fit it on the CPU and move it: "
            'fit_signal(values.cpu(), basis.cpu(), …).to("mps").'
        )


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
    """(FᵀF + λI)⁻¹ right, by Cholesky; in a graph for ONNX, which has none, by elimination."""
    eye = torch.eye(gram.shape[-1], dtype=gram.dtype, device=gram.device)
    if torch.onnx.is_in_onnx_export():
        return eliminated(gram + penalty * eye, right)
    tril, failed = torch.linalg.cholesky_ex(gram + penalty * eye)
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
    if gram.device.type == "cpu":
        return torch.cholesky_solve(right, tril)
    # On CUDA `cholesky_solve` cannot be captured in a graph.
    half = torch.linalg.solve_triangular(tril, right, upper=False)
    solution: Tensor = torch.linalg.solve_triangular(tril.mT, half, upper=True)
    return solution
