"""Kernels for blocks of logits that are owned by the caller; called on tensors that hold numbers, inside operators."""

import torch
from torch import Tensor

from contmax.kernels._backends import triton_takes


def class_loss_gradient_in_place(
    z: Tensor, target: Tensor, alpha: float, smoothing: float, cut: Tensor, g: Tensor
) -> Tensor:
    """`class_loss_fused_backward` without a mask, written over the contiguous logits."""
    from contmax.kernels import triton

    return triton.row_losses_backward(z, target, alpha, None, smoothing, cut, g, out=z)


def supports_are_listed(x: Tensor, alpha: float, smoothing: float) -> bool:
    """Whether `support_products` takes logits like x, and is worth it: closer to α = 1, few rows are sparse."""
    return triton_takes(x) and x.dtype != torch.float64 and alpha >= 1.25 and smoothing == 0


def support_products(z: Tensor, target: Tensor, alpha: float, cut: Tensor, weight: Tensor) -> Tensor:
    """(p̂ − e_y) W in float32 for logits (T, C) and W (C, D), from the cuts of `class_loss_fused`.

    The logits must be contiguous, and are overwritten.
    """
    from contmax.kernels import triton

    return triton.support_products(z, target, alpha, cut, weight)
