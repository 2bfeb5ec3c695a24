"""Kernels for the blocks of a linear layer's logits; called on tensors that hold numbers, inside operators."""

from typing import NamedTuple

import torch
from torch import Tensor

from contmax._backend import triton_takes
from contmax.kernels.losses._options import LossOptions

# Reading many more rows than this costs as much as a dense product; a power of two.
_LONGEST_LIST = 256


class Supports(NamedTuple):
    """The classes that have mass in each token, and how much; a token with more than a list holds has the count only.

    Attributes:
        places: class ids (T, CAPACITY), int32.
        masses: p̂ there, (T, CAPACITY), float32.
        counts: how many classes have mass, (T,), int32; what is in a list behind its count is not defined.
    """

    places: Tensor
    masses: Tensor
    counts: Tensor

    def of(self, tokens: slice) -> "Supports":
        """Those of some tokens, in the same memory."""
        return Supports(*(x[tokens] for x in self))


def empty_supports(like: Tensor, tokens: int) -> Supports:
    """Memory for the supports of this many tokens, on the device of a tensor."""
    lists = like.new_empty((tokens, _LONGEST_LIST), dtype=torch.int32)
    return Supports(lists, torch.empty_like(lists, dtype=torch.float32), like.new_empty(tokens, dtype=torch.int32))


def supports_are_listed(x: Tensor, alpha: float) -> bool:
    """Whether `list_supports` takes logits like x, and is worth it: closer to α = 1, few rows are sparse."""
    return triton_takes(x) and alpha >= 1.25


def class_loss_gradient_in_place(
    z: Tensor, target: Tensor, alpha: float, smoothing: float, cut: Tensor, g: Tensor
) -> Tensor:
    """`class_loss_fused_backward` without a mask, written over the contiguous logits."""
    from contmax.kernels import triton

    return triton.row_losses_backward(z, target, LossOptions(alpha, None, smoothing), cut, g, out=z)


def list_supports(z: Tensor, alpha: float, cut: Tensor, supports: Supports) -> None:
    """Fill in the supports of contiguous logits (T, C), from the cuts of `class_loss_fused`."""
    from contmax.kernels import triton

    triton.list_supports(z, alpha, cut, *supports)


def support_products(
    z: Tensor,
    target: Tensor,
    alpha: float,
    smoothing: float,
    cut: Tensor,
    supports: Supports,
    weight: Tensor,
    mean_row: Tensor | None,
) -> Tensor:
    """(p̂ − q) W in float32 for logits (T, C) and W (C, D), from the cuts of `class_loss_fused`.

    The logits must be contiguous, and are overwritten. `mean_row` is that of W, (D,), if something is smoothed.
    """
    from contmax.kernels import triton

    return triton.support_products(z, target, alpha, smoothing, cut, *supports, weight, mean_row)


def support_sums(
    hidden: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    target: Tensor,
    alpha: float,
    smoothing: float,
    cut: Tensor,
    supports: Supports,
    g: Tensor,
    grad_weight: Tensor,
    grad_bias: Tensor,
) -> None:
    """Write Σ_t g_t (p̂_t − q_t) h_tᵀ, (C, D), and Σ_t g_t (p̂_t − q_t), (C,) or empty, which are added up in float32."""
    from contmax.kernels import triton

    triton.support_sums(
        hidden, weight, bias, target, alpha, smoothing, cut, *supports, g, grad_weight, grad_bias
    )  # fmt: skip
