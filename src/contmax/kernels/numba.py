"""Compiled CPU kernels (numba): α-entmax of the rows of a tensor.

For α-entmax the last axis holds the distribution; all others are rows. These functions take real tensors only.
"""

import numpy as np
import torch
from torch import Tensor

from contmax.kernels._numba_kernels import (
    backward_kernel,
    forward_kernel,
)
from contmax.kernels.attention._cpu_attention import add_listed_gradients as add_listed_gradients
from contmax.kernels.attention._cpu_attention import listed_means as listed_means
from contmax.kernels.attention._cpu_attention import listed_products as listed_products
from contmax.kernels.attention._cpu_attention import listed_weights as listed_weights
from contmax.kernels.cpu._threads import over_rows


def regularized_max_rows(x: Tensor, alpha: float | Tensor) -> tuple[Tensor, Tensor]:
    """(p, Ω* − max x) of scores x (*batch, n), shapes (*batch, n) and (*batch, 1), the second in float64.

    α: one, or one per row.
    """
    p = torch.empty_like(x, memory_format=torch.contiguous_format)
    matrix = _matrix(x)
    gain = np.empty(matrix.shape[0])
    over_rows(forward_kernel, matrix, _numbers(alpha), _matrix(p), gain)
    return p, torch.from_numpy(gain.reshape(*x.shape[:-1], 1))


def pull_back_rows(p: Tensor, cotangent: Tensor, alpha: float | Tensor, needs_alpha: bool) -> tuple[Tensor, Tensor]:
    """(gradient of the scores (*batch, n), gradient of α per row (*batch, 1), or empty (0,) where not needed)."""
    grad = torch.empty_like(p, memory_format=torch.contiguous_format)
    grad_alpha = p.new_empty((*p.shape[:-1], 1) if needs_alpha else (0,))
    arrays = (_matrix(p), _matrix(cotangent), _numbers(alpha), _matrix(grad), grad_alpha.numpy().reshape(-1))
    over_rows(backward_kernel, *arrays)
    return grad, grad_alpha


def _vector(tensor):  # type: ignore[no-untyped-def]
    # What torch negates only when it reads it, and zeros that it has no memory for, have no array unless by force.
    return tensor.contiguous().numpy(force=True)


def _matrix(tensor: Tensor):  # type: ignore[no-untyped-def]
    return _vector(tensor).reshape(-1, tensor.shape[-1])


def _numbers(alpha: float | Tensor):  # type: ignore[no-untyped-def]
    return _vector(alpha.double()).reshape(-1) if isinstance(alpha, Tensor) else np.array([alpha])
