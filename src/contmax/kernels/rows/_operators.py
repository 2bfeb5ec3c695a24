"""Losses over rows by triton's kernels: called as they are, or as opaque operators in a trace or under vmap.

Rows lie along the last axis. α is a number, or a tensor (*batch, 1); operators take it as a tensor, or, where that is
None, as the number after it.
"""

from typing import Any

import torch
from torch import Tensor

from contmax._backend import triton_kernels, triton_takes
from contmax._eager import all_eager, is_exporting
from contmax._vmapped import Places, batch_first
from contmax.kernels.losses._options import LossOptions


def rows_are_fused(x: Tensor) -> bool:
    """Whether Triton's kernels take rows as they come, in half precision and with a mask."""
    return triton_takes(x) and not is_exporting()


def class_loss_fused(z: Tensor, target: Tensor | None, options: LossOptions) -> tuple[Tensor, Tensor]:
    """Ω*(z) − ⟨z, q⟩ of logits (*batch, n), or Ω*(z) without a target, in float64; and what the backward needs of it.

    q = (1−s)·e_y + s·(uniform on what the mask allows).
    """
    if all_eager(z, target, options.mask):
        return _class_loss(z, target, options)
    result: tuple[Tensor, Tensor] = class_loss_op(z, target, *options)
    return result


def class_loss_fused_backward(z: Tensor, target: Tensor | None, options: LossOptions, cut: Tensor, g: Tensor) -> Tensor:
    """The gradient of the logits from that of the losses, (*batch)."""
    if all_eager(z, target, options.mask, cut, g):
        return _class_loss_backward(z, target, options, cut, g)
    result: Tensor = class_loss_backward_op(z, target, *options, cut, g)
    return result


def _class_loss(z: Tensor, target: Tensor | None, options: LossOptions) -> tuple[Tensor, Tensor]:
    result: tuple[Tensor, Tensor] = triton_kernels().row_losses(z, target, options)
    return result


def _class_loss_backward(z: Tensor, target: Tensor | None, options: LossOptions, cut: Tensor, g: Tensor) -> Tensor:
    result: Tensor = triton_kernels().row_losses_backward(z, target, options, cut, g)
    return result


@torch.library.custom_op("contmax::class_loss", mutates_args=())
def class_loss_op(
    z: Tensor, target: Tensor | None, alpha: float, mask: Tensor | None, smoothing: float
) -> tuple[Tensor, Tensor]:
    """`class_loss_fused` as one opaque node."""
    return _class_loss(z, target, LossOptions(alpha, mask, smoothing))


@class_loss_op.register_fake
def _(z: Tensor, *rest: Any) -> tuple[Tensor, Tensor]:
    batch, width = z.shape[:-1], triton_kernels().cut_width(z.shape[-1])
    return z.new_empty(batch, dtype=torch.float64), z.new_empty((*batch, width), dtype=torch.float32)


@class_loss_op.register_vmap
def _(info: Any, in_dims: Places, *arguments: Any) -> Any:
    return class_loss_op(*batch_first(info, in_dims, arguments)), (0, 0)


@torch.library.custom_op("contmax::class_loss_backward", mutates_args=())
def class_loss_backward_op(
    z: Tensor, target: Tensor | None, alpha: float, mask: Tensor | None, smoothing: float, cut: Tensor, g: Tensor
) -> Tensor:
    """`class_loss_fused_backward` as one opaque node."""
    return _class_loss_backward(z, target, LossOptions(alpha, mask, smoothing), cut, g)


@class_loss_backward_op.register_fake
def _(z: Tensor, *rest: Any) -> Tensor:
    return z.new_empty(z.shape)


@class_loss_backward_op.register_vmap
def _(info: Any, in_dims: Places, *arguments: Any) -> Any:
    return class_loss_backward_op(*batch_first(info, in_dims, arguments)), 0


def tensor_or_number(alpha: float | Tensor) -> tuple[Tensor | None, float]:
    """α as operators take it: a number on the device would have to be waited for."""
    return (alpha, 0.0) if isinstance(alpha, Tensor) else (None, alpha)
