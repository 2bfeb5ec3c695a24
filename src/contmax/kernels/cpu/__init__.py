"""Compiled CPU kernels (numba): α-entmax of the rows of a matrix, forward and backward.

Plain tensors go straight to the kernels. Everything that is not a plain tensor (a tracer of torch.compile, a fake or
a vmapped tensor) goes through two opaque torch operators with shape and batching rules, which end in the same kernels.
"""

import torch
from torch import Tensor

from contmax.kernels.cpu._rows import backward_rows, forward_rows
from contmax.kernels.cpu._threads import over_rows

_Batched = tuple[int | None, ...]


def forward(x: Tensor, alpha: Tensor) -> tuple[Tensor, Tensor]:
    """(p (R, n), Ω* (R,) in float64) of scores x (R, n) with α of shape (R,) or (1,)."""
    rows, columns = x.shape
    p, conjugate = torch.empty_like(x, memory_format=torch.contiguous_format), x.new_empty(rows, dtype=torch.float64)
    over_rows(forward_rows, rows, columns, _array(x), _array(alpha), p.numpy(), conjugate.numpy())
    return p, conjugate


def backward(p: Tensor, cotangent: Tensor, alpha: Tensor, needs_alpha: bool) -> tuple[Tensor, Tensor]:
    """(gradient of the scores (R, n), gradient of α per row (R,) or empty)."""
    rows, columns = p.shape
    grad = torch.empty_like(p, memory_format=torch.contiguous_format)
    grad_alpha = p.new_empty(rows if needs_alpha else 0)
    arrays = (_array(p), _array(cotangent), _array(alpha), grad.numpy(), grad_alpha.numpy())
    over_rows(backward_rows, rows, columns, *arrays)
    return grad, grad_alpha


def _array(tensor: Tensor):  # type: ignore[no-untyped-def]
    return tensor.detach().contiguous().numpy()


@torch.library.custom_op("contmax::entmax_forward", mutates_args=())
def forward_op(x: Tensor, alpha: Tensor) -> tuple[Tensor, Tensor]:
    """`forward` as an operator that tracers see as one opaque node."""
    return forward(x, alpha)


@forward_op.register_fake
def _(x: Tensor, alpha: Tensor) -> tuple[Tensor, Tensor]:
    return torch.empty_like(x, memory_format=torch.contiguous_format), x.new_empty(x.shape[0], dtype=torch.float64)


@forward_op.register_vmap
def _(info, in_dims: _Batched, x: Tensor, alpha: Tensor):  # type: ignore[no-untyped-def]
    x, alpha = _with_batch(x, in_dims[0], info.batch_size), _with_batch(alpha, in_dims[1], info.batch_size)
    shape = x.shape
    p, conjugate = forward_op(x.flatten(0, 1), alpha.expand(shape[0], shape[1]).reshape(-1))
    return (p.view(shape), conjugate.view(shape[:2])), (0, 0)


@torch.library.custom_op("contmax::entmax_backward", mutates_args=())
def backward_op(p: Tensor, cotangent: Tensor, alpha: Tensor, needs_alpha: bool) -> tuple[Tensor, Tensor]:
    """`backward` as an operator that tracers see as one opaque node."""
    return backward(p, cotangent, alpha, needs_alpha)


@backward_op.register_fake
def _(p: Tensor, cotangent: Tensor, alpha: Tensor, needs_alpha: bool) -> tuple[Tensor, Tensor]:
    grad = torch.empty_like(p, memory_format=torch.contiguous_format)
    return grad, p.new_empty(p.shape[0] if needs_alpha else 0)


@backward_op.register_vmap
def _(info, in_dims: _Batched, p: Tensor, cotangent: Tensor, alpha: Tensor, needs_alpha: bool):  # type: ignore[no-untyped-def]
    p, cotangent, alpha = (
        _with_batch(t, d, info.batch_size) for t, d in zip((p, cotangent, alpha), in_dims, strict=False)
    )
    shape = p.shape
    grad, grad_alpha = backward_op(
        p.flatten(0, 1), cotangent.flatten(0, 1), alpha.expand(shape[0], shape[1]).reshape(-1), needs_alpha
    )
    return (grad.view(shape), grad_alpha.view(shape[0], -1)), (0, 0)


def _with_batch(tensor: Tensor, batch_dim: int | None, size: int) -> Tensor:
    """The tensor with vmap's axis in front."""
    return tensor.expand(size, *tensor.shape) if batch_dim is None else tensor.movedim(batch_dim, 0)
