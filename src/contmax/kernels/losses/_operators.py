"""Operators for losses of rows by Triton's kernels; and `LinearLoss` and `Supports`, records for linear layers.

Rows lie along the last axis, and α ≤ 2 is one number for all rows.
"""

from typing import Any, NamedTuple

import torch
from torch import Tensor

from contmax._operator import operator

# The capacity of a token's list of classes, a power of two: longer lists would cost as much as a dense product.
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
        target: class ids (*batch), or weights (*batch, n). The distribution y of a row, from which `smoothing` makes q,
            is the one-hot vector of the class id, or the weights divided by their sum.
        mask: boolean, broadcastable to the logits; True for the allowed classes.
        alpha: α in (0, 2].
        smoothing: s in q = (1−s)·y + s·u, u uniform on the allowed classes; the loss has (1−s)·Ω(y) in place of Ω(q).

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
    """Gradients of logits, and of soft targets ((0,) unless `needs_target`), from the losses' cotangents g (*batch)."""
    from contmax.kernels.gpu._launch import in_parts
    from contmax.kernels.losses._gpu_losses import write_gradients

    grad, grad_target = results = _gradients_like(z, target, needs_target)
    if z.numel() > 0:
        mask = None if mask is None else mask.expand(z.shape)
        given = (z, target, mask, statistics, g, grad, grad_target if needs_target else None)
        in_parts(write_gradients, given, alpha, smoothing)
    return results


class LinearLoss(NamedTuple):
    """A linear layer, its inputs, and the loss of its logits W h + b."""

    hidden: Tensor  # h, (T, D)
    weight: Tensor  # W, (C, D), of the dtype of `hidden`
    bias: Tensor | None  # b, (C,), or None
    target: Tensor  # class ids y, (T,)
    alpha: float  # α in (0, 2]
    smoothing: float  # s in q = (1−s)·e_y + s·(uniform)

    def of(self, tokens: slice) -> "LinearLoss":
        """The loss of a slice of the tokens."""
        return self._replace(hidden=self.hidden[tokens], target=self.target[tokens])


class Supports(NamedTuple):
    """For each token, the classes with mass, and their masses."""

    places: Tensor  # class ids in ascending order, (T, CAPACITY), int32
    masses: Tensor  # p̂ of these classes, (T, CAPACITY), float32
    # The number of classes with mass, (T,), int32. Entries of a list from its count on are undefined; a list whose
    # count exceeds CAPACITY is incomplete and must not be used.
    counts: Tensor

    @staticmethod
    def empty(like: Tensor, tokens: int) -> "Supports":
        """Uninitialised supports of `tokens` tokens, on the device of `like`."""
        lists = like.new_empty((tokens, _LONGEST_LIST), dtype=torch.int32)
        return Supports(lists, torch.empty_like(lists, dtype=torch.float32), like.new_empty(tokens, dtype=torch.int32))

    def of(self, tokens: slice) -> "Supports":
        """The supports of a slice of the tokens, as views."""
        return Supports(*(x[tokens] for x in self))
