"""Compiled CPU kernels (numba): α-entmax of the rows of a tensor, forward and backward.

The last axis holds the distribution; all others are rows. Plain tensors go straight to the kernels. Everything that is
not a plain tensor (a tracer of torch.compile, a fake or a vmapped tensor) goes through two opaque torch operators with
shape and batching rules, which end in the same kernels.
"""

import numpy as np
import torch
from torch import Tensor

from contmax.kernels.cpu._rows import backward_rows, forward_rows
from contmax.kernels.cpu._threads import over_rows

_Batched = tuple[int | None, ...]


def forward(x: Tensor, alpha: float | Tensor) -> tuple[Tensor, Tensor]:
    """(p, Ω*) of scores x (*batch, n), of shapes (*batch, n) and (*batch, 1), in x's dtype; α: one, or one per row."""
    p, conjugate = x.new_empty(x.shape), x.new_empty((*x.shape[:-1], 1))
    over_rows(forward_rows, _matrix(x), _numbers(alpha), _matrix(p), conjugate.numpy().reshape(-1))
    return p, conjugate


def backward(p: Tensor, cotangent: Tensor, alpha: float | Tensor, needs_alpha: bool) -> tuple[Tensor, Tensor]:
    """(gradient of the scores (*batch, n), gradient of α per row (*batch, 1), or empty (0,) where not needed)."""
    grad, grad_alpha = p.new_empty(p.shape), p.new_empty((*p.shape[:-1], 1) if needs_alpha else (0,))
    arrays = (_matrix(p), _matrix(cotangent), _numbers(alpha), _matrix(grad), grad_alpha.numpy().reshape(-1))
    over_rows(backward_rows, *arrays)
    return grad, grad_alpha


def _matrix(tensor: Tensor):  # type: ignore[no-untyped-def]
    return tensor.detach().contiguous().numpy().reshape(-1, tensor.shape[-1])


def _numbers(alpha: float | Tensor):  # type: ignore[no-untyped-def]
    return alpha.detach().numpy().astype(np.float64) if isinstance(alpha, Tensor) else np.array([alpha])


@torch.library.custom_op("contmax::entmax_forward", mutates_args=())
def forward_op(x: Tensor, alpha: Tensor) -> tuple[Tensor, Tensor]:
    """`forward` as an operator that tracers see as one opaque node."""
    return forward(x, alpha)


@forward_op.register_fake
def _(x: Tensor, alpha: Tensor) -> tuple[Tensor, Tensor]:
    return x.new_empty(x.shape), x.new_empty((*x.shape[:-1], 1))


@forward_op.register_vmap
def _(info, in_dims: _Batched, x: Tensor, alpha: Tensor):  # type: ignore[no-untyped-def]
    x = _with_batch(x, in_dims[0], info.batch_size)
    return forward_op(x, _with_batch_per_row(alpha, in_dims[1], x)), (0, 0)


@torch.library.custom_op("contmax::entmax_backward", mutates_args=())
def backward_op(p: Tensor, cotangent: Tensor, alpha: Tensor, needs_alpha: bool) -> tuple[Tensor, Tensor]:
    """`backward` as an operator that tracers see as one opaque node."""
    return backward(p, cotangent, alpha, needs_alpha)


@backward_op.register_fake
def _(p: Tensor, cotangent: Tensor, alpha: Tensor, needs_alpha: bool) -> tuple[Tensor, Tensor]:
    return p.new_empty(p.shape), p.new_empty((*p.shape[:-1], 1) if needs_alpha else (0,))


@backward_op.register_vmap
def _(info, in_dims: _Batched, p: Tensor, cotangent: Tensor, alpha: Tensor, needs_alpha: bool):  # type: ignore[no-untyped-def]
    p, cotangent = (_with_batch(t, d, info.batch_size) for t, d in zip((p, cotangent), in_dims, strict=False))
    results = backward_op(p, cotangent, _with_batch_per_row(alpha, in_dims[2], p), needs_alpha)
    return results, (0, 0 if needs_alpha else None)


def _with_batch(tensor: Tensor, batch_dim: int | None, size: int) -> Tensor:
    """The tensor with vmap's axis in front."""
    return tensor.expand(size, *tensor.shape) if batch_dim is None else tensor.movedim(batch_dim, 0)


def _with_batch_per_row(alpha: Tensor, batch_dim: int | None, x: Tensor) -> Tensor:
    """α for each row of x, whose first axis is vmap's; a single one where it is the same for all."""
    if batch_dim is None and alpha.numel() == 1:
        return alpha
    rows = x.shape[1:-1].numel()
    return _with_batch(alpha, batch_dim, x.shape[0]).expand(x.shape[0], rows).reshape(-1)
