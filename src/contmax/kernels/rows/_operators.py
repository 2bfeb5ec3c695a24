"""Maps over rows by triton's kernels: called as they are, or as opaque operators in a trace or under vmap.

Rows lie along the last axis. α is a number, or a tensor (*batch, 1); operators take it as a tensor, or, where that is
None, as the number after it.
"""

from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from contmax._backend import triton_kernels
from contmax._eager import all_eager
from contmax._vmapped import Places, batch_first

if TYPE_CHECKING:
    from contmax.kernels.triton import PlainRows


def entmax_fused(x: Tensor, alpha: float | Tensor, mask: Tensor | None, dtype: torch.dtype) -> Tensor:
    """p of scores (*batch, n) in a dtype; `mask` is boolean, of the shape of the scores."""
    if all_eager(x, alpha, mask):
        return _entmax(x, alpha, mask, dtype)
    result: Tensor = entmax_op(x, *tensor_or_number(alpha), mask, dtype)
    return result


def entmax_fused_backward(
    p: Tensor, cotangent: Tensor, alpha: float | Tensor, dtype: torch.dtype, needs_alpha: bool
) -> tuple[Tensor, Tensor | None]:
    """Gradients of the scores, in their dtype, and of α for each row, (*batch, 1), where it is needed."""
    if all_eager(p, alpha, cotangent):
        return _entmax_backward(p, cotangent, alpha, dtype, needs_alpha)
    grad, grad_alpha = entmax_backward_op(p, cotangent, *tensor_or_number(alpha), dtype, needs_alpha)
    return grad, grad_alpha if needs_alpha else None


def plain_rows_like(x: Tensor, alpha: float, dtype: torch.dtype) -> "PlainRows | None":
    """Maps of scores like these, which hold numbers now, to p in a dtype, without a mask; None where it takes more."""
    like: PlainRows | None = triton_kernels().plain_rows_like(
        x.shape, x.stride(), x.dtype, dtype, x.get_device(), alpha
    )
    return like


def _entmax(x: Tensor, alpha: float | Tensor, mask: Tensor | None, dtype: torch.dtype) -> Tensor:
    result: tuple[Tensor, Tensor | None] = triton_kernels().entmax_rows(x, alpha, mask, dtype, needs_omega=False)
    return result[0]


def _entmax_backward(
    p: Tensor, cotangent: Tensor, alpha: float | Tensor, dtype: torch.dtype, needs_alpha: bool
) -> tuple[Tensor, Tensor | None]:
    result: tuple[Tensor, Tensor | None] = triton_kernels().entmax_rows_backward(
        p, cotangent, alpha, dtype, needs_alpha
    )
    return result


@torch.library.custom_op("contmax::entmax", mutates_args=())
def entmax_op(x: Tensor, alpha: Tensor | None, fixed_alpha: float, mask: Tensor | None, dtype: torch.dtype) -> Tensor:
    """`entmax_fused` as one opaque node."""
    return _entmax(x, fixed_alpha if alpha is None else alpha, mask, dtype)


@entmax_op.register_fake
def _(x: Tensor, alpha: Tensor | None, fixed_alpha: float, mask: Tensor | None, dtype: torch.dtype) -> Tensor:
    return x.new_empty(x.shape, dtype=dtype)


@entmax_op.register_vmap
def _(info: Any, in_dims: Places, *arguments: Any) -> Any:
    return entmax_op(*batch_first(info, in_dims, arguments)), 0


@torch.library.custom_op("contmax::entmax_backward", mutates_args=())
def entmax_backward_op(
    p: Tensor, cotangent: Tensor, alpha: Tensor | None, fixed_alpha: float, dtype: torch.dtype, needs_alpha: bool
) -> tuple[Tensor, Tensor]:
    """`entmax_fused_backward` as one opaque node; where it is not needed, the gradient of α is empty, (0,)."""
    index = fixed_alpha if alpha is None else alpha
    grad, grad_alpha = _entmax_backward(p, cotangent, index, dtype, needs_alpha)
    return grad, p.new_empty(0, dtype=torch.float32) if grad_alpha is None else grad_alpha


@entmax_backward_op.register_fake
def _(
    p: Tensor, cotangent: Tensor, alpha: Tensor | None, fixed_alpha: float, dtype: torch.dtype, needs_alpha: bool
) -> tuple[Tensor, Tensor]:
    slopes = (*p.shape[:-1], 1) if needs_alpha else (0,)
    return p.new_empty(p.shape, dtype=dtype), p.new_empty(slopes, dtype=torch.float32)


@entmax_backward_op.register_vmap
def _(info: Any, in_dims: Places, *arguments: Any) -> Any:
    results = entmax_backward_op(*batch_first(info, in_dims, arguments))
    return results, (0, 0 if arguments[-1] else None)


def tensor_or_number(alpha: float | Tensor) -> tuple[Tensor | None, float]:
    """α as operators take it: a number on the device would have to be waited for."""
    return (alpha, 0.0) if isinstance(alpha, Tensor) else (None, alpha)
