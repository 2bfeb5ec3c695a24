"""Losses against soft targets by triton's kernels: called as they are, or as opaque operators in a trace or under vmap.

Rows lie along the last axis.
"""

from typing import Any

import torch
from torch import Tensor

from contmax._eager import all_eager
from contmax._vmapped import Places, batch_first
from contmax.kernels.losses._options import LossOptions


def soft_loss_fused(z: Tensor, target: Tensor, options: LossOptions) -> tuple[Tensor, Tensor]:
    """Ω*(z) + (1−s)·(Ω(q) − ⟨z, q⟩) − s·⟨z, u⟩ of logits (*batch, n), in float64, and what the backward needs of it.

    q is the targets over their sum, u uniform on what the mask allows.
    """
    if all_eager(z, target, options.mask):
        return _soft_loss(z, target, options)
    result: tuple[Tensor, Tensor] = soft_loss_op(z, target, *options)
    return result


def soft_loss_fused_backward(
    z: Tensor, target: Tensor, options: LossOptions, cut: Tensor, g: Tensor, needs_target: bool
) -> tuple[Tensor, Tensor | None]:
    """Gradients of the logits and, where it is needed, of the targets from that of the losses, (*batch)."""
    if all_eager(z, target, options.mask, cut, g):
        return _soft_loss_backward(z, target, options, cut, g, needs_target)
    grad, grad_target = soft_loss_backward_op(z, target, *options, cut, g, needs_target)
    return grad, grad_target if needs_target else None


def _soft_loss(z: Tensor, target: Tensor, options: LossOptions) -> tuple[Tensor, Tensor]:
    from contmax.kernels import triton

    return triton.soft_row_losses(z, target, options)


def _soft_loss_backward(
    z: Tensor, target: Tensor, options: LossOptions, cut: Tensor, g: Tensor, needs_target: bool
) -> tuple[Tensor, Tensor | None]:
    from contmax.kernels import triton

    return triton.soft_row_losses_backward(z, target, options, cut, g, needs_target)


@torch.library.custom_op("contmax::soft_loss", mutates_args=())
def soft_loss_op(
    z: Tensor, target: Tensor, alpha: float, mask: Tensor | None, smoothing: float
) -> tuple[Tensor, Tensor]:
    """`soft_loss_fused` as one opaque node."""
    return _soft_loss(z, target, LossOptions(alpha, mask, smoothing))


@soft_loss_op.register_fake
def _(z: Tensor, *rest: Any) -> tuple[Tensor, Tensor]:
    from contmax.kernels import triton

    batch, width = z.shape[:-1], triton.soft_cut_width(z.shape[-1])
    return z.new_empty(batch, dtype=torch.float64), z.new_empty((*batch, width), dtype=torch.float32)


@soft_loss_op.register_vmap
def _(info: Any, in_dims: Places, *arguments: Any) -> Any:
    return soft_loss_op(*batch_first(info, in_dims, arguments)), (0, 0)


@torch.library.custom_op("contmax::soft_loss_backward", mutates_args=())
def soft_loss_backward_op(
    z: Tensor,
    target: Tensor,
    alpha: float,
    mask: Tensor | None,
    smoothing: float,
    cut: Tensor,
    g: Tensor,
    needs_target: bool,
) -> tuple[Tensor, Tensor]:
    """`soft_loss_fused_backward` as one opaque node; where it is not needed, the gradient of the targets is empty."""
    options = LossOptions(alpha, mask, smoothing)
    grad, grad_target = _soft_loss_backward(z, target, options, cut, g, needs_target)
    return grad, target.new_empty(0) if grad_target is None else grad_target


@soft_loss_backward_op.register_fake
def _(z: Tensor, target: Tensor, *rest: Any) -> tuple[Tensor, Tensor]:
    return z.new_empty(z.shape), target.new_empty(z.shape if rest[-1] else (0,))


@soft_loss_backward_op.register_vmap
def _(info: Any, in_dims: Places, *arguments: Any) -> Any:
    results = soft_loss_backward_op(*batch_first(info, in_dims, arguments))
    return results, (0, 0 if arguments[-1] else None)
