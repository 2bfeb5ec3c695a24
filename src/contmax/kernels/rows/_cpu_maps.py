"""α-entmax of rows by numba's kernels, for 0 < α ≤ 2; rows lie along the last axis of eager tensors."""

from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from contmax._backend import NUMBA_DTYPES, Backend
from contmax._eager import holds_numbers
from contmax.kernels.cpu._threads import matrix_of, over_rows
from contmax.kernels.rows._cpu_rows import backward_rows, forward_rows


def entmax_rows(x: Tensor, alpha: float | Tensor) -> tuple[Tensor, Tensor]:
    """p, (*batch, n), and Ω* − max x, (*batch, 1) in float64, of scores x, (*batch, n).

    α is a number, or a tensor that broadcasts to (*batch, 1).
    """
    p = torch.empty_like(x, memory_format=torch.contiguous_format)
    matrix = matrix_of(x)
    gain = np.empty(matrix.shape[0])
    over_rows(forward_rows, matrix, _numbers(alpha, x), matrix_of(p), gain)
    return p, torch.from_numpy(gain.reshape(*x.shape[:-1], 1))


def entmax_rows_backward(p: Tensor, g: Tensor, alpha: float | Tensor, needs_alpha: bool) -> tuple[Tensor, Tensor]:
    """Gradients of scores from p and its cotangent g; and of α per row, (*batch, 1), or (0,) unless `needs_alpha`."""
    grad = torch.empty_like(p, memory_format=torch.contiguous_format)
    grad_alpha = p.new_empty((*p.shape[:-1], 1) if needs_alpha else (0,))
    arrays = (matrix_of(p), matrix_of(g), _numbers(alpha, p), matrix_of(grad), grad_alpha.numpy().reshape(-1))
    over_rows(backward_rows, *arrays)
    return grad, grad_alpha


class ReadyRows(NamedTuple):
    """α-entmax of the rows of eager tensors with one α, checked in advance by `ready`."""

    alpha: float
    backend: Backend = Backend.NUMBA

    def forward(self, x: Tensor) -> Tensor:
        """p of scores x, (*batch, n)."""
        return entmax_rows(x, self.alpha)[0]

    def backward(self, p: Tensor, g: Tensor) -> Tensor | None:
        """The gradient of the scores, from p and its cotangent; None for tensors that the kernels do not take."""
        # Saved-tensor hooks may return p with another dtype.
        if p.dtype not in NUMBA_DTYPES or not holds_numbers(g):
            return None
        return entmax_rows_backward(p, g, self.alpha, needs_alpha=False)[0]


def ready(x: Tensor, alpha: float, dtype: torch.dtype) -> ReadyRows | None:
    """`ReadyRows` for scores like x; None if α is 1 or > 2, or x is empty, a scalar or not eager."""
    if not 0 < alpha <= 2 or alpha == 1 or x.dim() == 0 or x.numel() == 0 or not holds_numbers(x):
        return None
    return ReadyRows(alpha)


def _numbers(alpha: float | Tensor, x: Tensor) -> Any:
    """α in float64: an array of one number per row, or of one number for all rows."""
    if not isinstance(alpha, Tensor):
        return np.array([alpha])
    return matrix_of((alpha if alpha.numel() == 1 else alpha.expand(*x.shape[:-1], 1)).double()).reshape(-1)
