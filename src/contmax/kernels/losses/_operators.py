"""Losses of rows by Triton's kernels, as operators; and the terms in which the loss of a linear layer is described.

Rows lie along the last axis, and α ≤ 2 is a number.
"""

from typing import Any, NamedTuple

import torch
from torch import Tensor

from contmax._operator import operator

# Reading many more rows of a weight than this costs as much as a dense product; a power of two.
_LONGEST_LIST = 256


def _losses_like(z: Tensor, target: Tensor, *_: Any) -> tuple[Tensor, Tensor]:
    from contmax.kernels.losses._gpu_losses import statistics_width

    width = statistics_width(z.shape[-1], target.is_floating_point())
    return z.new_empty(z.shape[:-1], dtype=torch.float32), z.new_empty((*z.shape[:-1], width), dtype=torch.float32)


@operator("row_losses", like=_losses_like)
def row_losses(z: Tensor, target: Tensor, mask: Tensor | None, alpha: float, smoothing: float) -> tuple[Tensor, Tensor]:
    """Ω*(z) + Ω(q) − ⟨z, q⟩ of logits (*batch, n), and the statistics of rows that the backward pass needs.

    Args:
        z: logits, float32 or half precision.
        target: class ids y (*batch), or weights (*batch, n), which over their sum are y.
        mask: boolean, broadcastable to the logits; True for the allowed classes.
        alpha: α in (0, 2].
        smoothing: s: q = (1−s)·y + s·u, u uniform on the allowed classes. Ω(q) is (1−s)·Ω(y).

    Returns:
        Losses (*batch) and statistics (*batch, width), both in float32.
    """
    from contmax.kernels.gpu._launch import in_parts
    from contmax.kernels.losses._gpu_losses import write_losses

    results = _losses_like(z, target)
    if z.numel() > 0:
        mask = None if mask is None else mask.expand(z.shape)
        in_parts(write_losses, (z, target, mask, *results), alpha, smoothing)
    return results


def _gradients_like(z: Tensor, target: Tensor, *rest: Any) -> tuple[Tensor, Tensor]:
    *_, needs_target = rest
    return z.new_empty(z.shape), target.new_empty(z.shape if needs_target else (0,))


@operator("row_losses_backward", like=_gradients_like)
def row_losses_backward(
    z: Tensor,
    target: Tensor,
    mask: Tensor | None,
    alpha: float,
    smoothing: float,
    statistics: Tensor,
    g: Tensor,
    needs_target: bool,
) -> tuple[Tensor, Tensor]:
    """The gradients of logits and soft targets from that of the losses, g (*batch); (0,) if the targets need none."""
    from contmax.kernels.gpu._launch import in_parts
    from contmax.kernels.losses._gpu_losses import write_gradients

    grad, grad_target = results = _gradients_like(z, target, needs_target)
    if z.numel() > 0:
        mask = None if mask is None else mask.expand(z.shape)
        given = (z, target, mask, statistics, g, grad, grad_target if needs_target else None)
        in_parts(write_gradients, given, alpha, smoothing)
    return results


class LinearLoss(NamedTuple):
    """A linear layer, its inputs, and the loss of its logits W h + b.

    Attributes:
        hidden: h, (T, D).
        weight: W, (C, D), of the dtype of `hidden`.
        bias: b, (C,), or None.
        target: class ids y, (T,).
        alpha: α in (0, 2].
        smoothing: s: q = (1−s)·e_y + s·(uniform).
    """

    hidden: Tensor
    weight: Tensor
    bias: Tensor | None
    target: Tensor
    alpha: float
    smoothing: float

    def of(self, tokens: slice) -> "LinearLoss":
        """The loss of some tokens."""
        return self._replace(hidden=self.hidden[tokens], target=self.target[tokens])


class Supports(NamedTuple):
    """The classes with mass in each token, and their masses.

    Attributes:
        places: class ids in ascending order, (T, CAPACITY), int32.
        masses: p̂ there, (T, CAPACITY), float32.
        counts: the number of classes with mass, (T,), int32. A list is undefined behind its count, and as a whole where
            the count exceeds its capacity.
    """

    places: Tensor
    masses: Tensor
    counts: Tensor

    @staticmethod
    def empty(like: Tensor, tokens: int) -> "Supports":
        """Memory for the supports of this many tokens, on the device of a tensor."""
        lists = like.new_empty((tokens, _LONGEST_LIST), dtype=torch.int32)
        return Supports(lists, torch.empty_like(lists, dtype=torch.float32), like.new_empty(tokens, dtype=torch.int32))

    def of(self, tokens: slice) -> "Supports":
        """The supports of some tokens, in the same memory."""
        return Supports(*(x[tokens] for x in self))
