"""α-entmax of rows by numba's kernels, for 0 < α ≤ 2: rows lie along the last axis of tensors that hold numbers."""

from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from contmax._backend import NUMBA_DTYPES, Backend
from contmax._eager import holds_numbers
from contmax.kernels.cpu._threads import over_rows
from contmax.kernels.rows._cpu_rows import backward_rows, forward_rows


def entmax_rows(x: Tensor, alpha: float | Tensor) -> tuple[Tensor, Tensor]:
    """(p, Ω* − max x) of scores x (*batch, n), shapes (*batch, n) and (*batch, 1), the second in float64.

    α is a number, or a tensor that broadcasts to (*batch, 1).
    """
    p = torch.empty_like(x, memory_format=torch.contiguous_format)
    matrix = _matrix(x)
    gain = np.empty(matrix.shape[0])
    over_rows(forward_rows, matrix, _numbers(alpha, x), _matrix(p), gain)
    return p, torch.from_numpy(gain.reshape(*x.shape[:-1], 1))


def entmax_rows_backward(p: Tensor, g: Tensor, alpha: float | Tensor, needs_alpha: bool) -> tuple[Tensor, Tensor]:
    """(gradient of the scores (*batch, n), gradient of α per row (*batch, 1), or empty (0,) where not needed)."""
    grad = torch.empty_like(p, memory_format=torch.contiguous_format)
    grad_alpha = p.new_empty((*p.shape[:-1], 1) if needs_alpha else (0,))
    arrays = (_matrix(p), _matrix(g), _numbers(alpha, p), _matrix(grad), grad_alpha.numpy().reshape(-1))
    over_rows(backward_rows, *arrays)
    return grad, grad_alpha


class ReadyRows(NamedTuple):
    """The map of rows for one α, for eager calls."""

    alpha: float
    backend: Backend = Backend.NUMBA

    def forward(self, x: Tensor) -> Tensor:
        """p of scores."""
        return entmax_rows(x, self.alpha)[0]

    def backward(self, p: Tensor, g: Tensor) -> Tensor | None:
        """The gradient of the scores, from p and its cotangent; None for tensors that kernels do not take."""
        # Hooks of users may bring back another p than was saved.
        if p.dtype not in NUMBA_DTYPES or not holds_numbers(g):
            return None
        return entmax_rows_backward(p, g, self.alpha, needs_alpha=False)[0]


def ready(x: Tensor, alpha: float, dtype: torch.dtype) -> ReadyRows | None:
    """The map of rows like x; None for other maps, and for tensors without numbers."""
    if not 0 < alpha <= 2 or alpha == 1 or x.dim() == 0 or x.numel() == 0 or not holds_numbers(x):
        return None
    return ReadyRows(alpha)


def _matrix(tensor: Tensor) -> Any:
    # Tensors that torch negates only when it reads them, and zeros without memory, become arrays only by force.
    return tensor.contiguous().numpy(force=True).reshape(-1, tensor.shape[-1])


def _numbers(alpha: float | Tensor, x: Tensor) -> Any:
    """α of each row, or one for all."""
    if not isinstance(alpha, Tensor):
        return np.array([alpha])
    return _matrix((alpha if alpha.numel() == 1 else alpha.expand(*x.shape[:-1], 1)).double()).reshape(-1)
