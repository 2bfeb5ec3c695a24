"""Maps and losses over rows by triton's kernels: called as they are, or as opaque operators in a trace or under vmap.

Rows lie along the last axis. α is a number, or a tensor (*batch, 1); operators take it as a tensor, or, where that is
None, as the number after it.
"""

from typing import Any

import torch
from torch import Tensor

from contmax._eager import all_eager

_Batched = tuple[int | None, ...]


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


def class_loss_fused(
    z: Tensor, target: Tensor | None, alpha: float, mask: Tensor | None, smoothing: float
) -> tuple[Tensor, Tensor]:
    """Ω*(z) − ⟨z, q⟩ of logits (*batch, n), or Ω*(z) without a target, in float64; and what the backward needs of it.

    q = (1−s)·e_y + s·(uniform on what the mask allows); α ≤ 2.
    """
    if all_eager(z, target, mask):
        return _class_loss(z, target, alpha, mask, smoothing)
    result: tuple[Tensor, Tensor] = class_loss_op(z, target, alpha, mask, smoothing)
    return result


def class_loss_fused_backward(
    z: Tensor, target: Tensor | None, alpha: float, mask: Tensor | None, smoothing: float, cut: Tensor, g: Tensor
) -> Tensor:
    """The gradient of the logits from that of the losses, (*batch)."""
    if all_eager(z, target, mask, cut, g):
        return _class_loss_backward(z, target, alpha, mask, smoothing, cut, g)
    result: Tensor = class_loss_backward_op(z, target, alpha, mask, smoothing, cut, g)
    return result


def _entmax(x: Tensor, alpha: float | Tensor, mask: Tensor | None, dtype: torch.dtype) -> Tensor:
    from contmax.kernels import triton

    return triton.entmax_rows(x, alpha, mask, dtype, needs_omega=False)[0]


def _entmax_backward(
    p: Tensor, cotangent: Tensor, alpha: float | Tensor, dtype: torch.dtype, needs_alpha: bool
) -> tuple[Tensor, Tensor | None]:
    from contmax.kernels import triton

    return triton.entmax_rows_backward(p, cotangent, alpha, dtype, needs_alpha)


def _class_loss(
    z: Tensor, target: Tensor | None, alpha: float, mask: Tensor | None, smoothing: float
) -> tuple[Tensor, Tensor]:
    from contmax.kernels import triton

    return triton.row_losses(z, target, alpha, mask, smoothing)


def _class_loss_backward(
    z: Tensor, target: Tensor | None, alpha: float, mask: Tensor | None, smoothing: float, cut: Tensor, g: Tensor
) -> Tensor:
    from contmax.kernels import triton

    return triton.row_losses_backward(z, target, alpha, mask, smoothing, cut, g)


@torch.library.custom_op("contmax::entmax", mutates_args=())
def entmax_op(x: Tensor, alpha: Tensor | None, fixed_alpha: float, mask: Tensor | None, dtype: torch.dtype) -> Tensor:
    """`entmax_fused` as one opaque node."""
    return _entmax(x, fixed_alpha if alpha is None else alpha, mask, dtype)


@entmax_op.register_fake
def _(x: Tensor, alpha: Tensor | None, fixed_alpha: float, mask: Tensor | None, dtype: torch.dtype) -> Tensor:
    return x.new_empty(x.shape, dtype=dtype)


@entmax_op.register_vmap
def _(
    info: Any,
    in_dims: _Batched,
    x: Tensor,
    alpha: Tensor | None,
    fixed_alpha: float,
    mask: Tensor | None,
    dtype: torch.dtype,
) -> Any:
    x, alpha, mask = batch_first(info, (x, alpha, mask), (in_dims[0], in_dims[1], in_dims[3]))
    return entmax_op(x, alpha, fixed_alpha, mask, dtype), 0


@torch.library.custom_op("contmax::entmax_backward", mutates_args=())
def entmax_backward_op(
    p: Tensor, cotangent: Tensor, alpha: Tensor | None, fixed_alpha: float, dtype: torch.dtype, needs_alpha: bool
) -> tuple[Tensor, Tensor]:
    """`entmax_fused_backward` as one opaque node; where it is not needed, the gradient of α is empty, (0,)."""
    grad, grad_alpha = _entmax_backward(p, cotangent, fixed_alpha if alpha is None else alpha, dtype, needs_alpha)
    return grad, p.new_empty(0, dtype=torch.float32) if grad_alpha is None else grad_alpha


@entmax_backward_op.register_fake
def _(
    p: Tensor, cotangent: Tensor, alpha: Tensor | None, fixed_alpha: float, dtype: torch.dtype, needs_alpha: bool
) -> tuple[Tensor, Tensor]:
    slopes = (*p.shape[:-1], 1) if needs_alpha else (0,)
    return p.new_empty(p.shape, dtype=dtype), p.new_empty(slopes, dtype=torch.float32)


@entmax_backward_op.register_vmap
def _(
    info: Any,
    in_dims: _Batched,
    p: Tensor,
    cotangent: Tensor,
    alpha: Tensor | None,
    fixed_alpha: float,
    dtype: torch.dtype,
    needs_alpha: bool,
) -> Any:
    p, cotangent, alpha = batch_first(info, (p, cotangent, alpha), in_dims[:3])
    results = entmax_backward_op(p, cotangent, alpha, fixed_alpha, dtype, needs_alpha)
    return results, (0, 0 if needs_alpha else None)


@torch.library.custom_op("contmax::class_loss", mutates_args=())
def class_loss_op(
    z: Tensor, target: Tensor | None, alpha: float, mask: Tensor | None, smoothing: float
) -> tuple[Tensor, Tensor]:
    """`class_loss_fused` as one opaque node."""
    return _class_loss(z, target, alpha, mask, smoothing)


@class_loss_op.register_fake
def _(z: Tensor, target: Tensor | None, alpha: float, mask: Tensor | None, smoothing: float) -> tuple[Tensor, Tensor]:
    from contmax.kernels import triton

    batch, width = z.shape[:-1], triton.cut_width(z.shape[-1])
    return z.new_empty(batch, dtype=torch.float64), z.new_empty((*batch, width), dtype=torch.float32)


@class_loss_op.register_vmap
def _(
    info: Any,
    in_dims: _Batched,
    z: Tensor,
    target: Tensor | None,
    alpha: float,
    mask: Tensor | None,
    smoothing: float,
) -> Any:
    z, target, mask = batch_first(info, (z, target, mask), (in_dims[0], in_dims[1], in_dims[3]))
    return class_loss_op(z, target, alpha, mask, smoothing), (0, 0)


@torch.library.custom_op("contmax::class_loss_backward", mutates_args=())
def class_loss_backward_op(
    z: Tensor, target: Tensor | None, alpha: float, mask: Tensor | None, smoothing: float, cut: Tensor, g: Tensor
) -> Tensor:
    """`class_loss_fused_backward` as one opaque node."""
    return _class_loss_backward(z, target, alpha, mask, smoothing, cut, g)


@class_loss_backward_op.register_fake
def _(
    z: Tensor, target: Tensor | None, alpha: float, mask: Tensor | None, smoothing: float, cut: Tensor, g: Tensor
) -> Tensor:
    return z.new_empty(z.shape)


@class_loss_backward_op.register_vmap
def _(
    info: Any,
    in_dims: _Batched,
    z: Tensor,
    target: Tensor | None,
    alpha: float,
    mask: Tensor | None,
    smoothing: float,
    cut: Tensor,
    g: Tensor,
) -> Any:
    places = (in_dims[0], in_dims[1], in_dims[3], in_dims[5], in_dims[6])
    z, target, mask, cut, g = batch_first(info, (z, target, mask, cut, g), places)
    return class_loss_backward_op(z, target, alpha, mask, smoothing, cut, g), 0


def batch_first(info: Any, tensors: tuple[Any, ...], places: _Batched) -> tuple[Any, ...]:
    """Tensors with vmap's axis in front; those without it are expanded, None stays None."""
    moved = []
    for tensor, place in zip(tensors, places, strict=True):
        if tensor is None or place is not None:
            moved.append(None if tensor is None else tensor.movedim(place, 0))
        else:
            moved.append(tensor.expand(info.batch_size, *tensor.shape))
    return tuple(moved)


def tensor_or_number(alpha: float | Tensor) -> tuple[Tensor | None, float]:
    """α as operators take it: a number on the device would have to be waited for."""
    return (alpha, 0.0) if isinstance(alpha, Tensor) else (None, alpha)
