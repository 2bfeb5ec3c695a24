"""Losses of a linear layer and their gradients for a fixed α ≤ 2, over blocks of its logits, as opaque operators.

The forward pass takes blocks of tokens with all classes. While the logits are there, the product (p̂ − q) W is made,
which times the cotangent is the gradient of the hidden vector. The gradient of each row of the weight is rounded once:

* On a GPU the forward pass lists the classes with mass, usually a few of each token, and the backward pass adds up
  hidden vectors by those lists.
* Elsewhere it makes the logits again, in blocks of classes with all tokens, so that each row comes from one product.
"""

import torch
from torch import Tensor
from torch.nn import functional as F

from contmax import kernels
from contmax._precision import wide_dtype, without_autocast
from contmax.losses._linear_blocks import (
    class_blocks,
    dense_slopes,
    losses_and_cuts,
    residual,
    token_blocks,
)

# The class id of a token that counts nothing: its hidden vector may be NaN. Other ids outside [0, C) are mistakes of
# the caller, which a GPU answers with NaN.
IGNORED = torch.iinfo(torch.int64).min


@torch.library.custom_op("contmax::linear_losses", mutates_args=())
def linear_losses(
    hidden: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    target: Tensor,
    alpha: float,
    smoothing: float,
    needs_hidden: bool,
    needs_weight: bool,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]:
    """Losses of tokens, without their logits.

    Args:
        hidden: (T, D).
        weight: (C, D), of the same dtype.
        bias: (C,), or None.
        target: class ids (T,), or `IGNORED`; the losses of ignored tokens are arbitrary, and their cotangents 0.
        alpha: α in (0, 2].
        smoothing: the mass of q that is spread over the classes.
        needs_hidden: whether the hidden vectors need a gradient.
        needs_weight: whether the weight or the bias needs one.

    Returns:
        Losses (T,), cuts (T, 4), and the gradient of each loss by its hidden vector, (T, D) or empty; float32 at least.
        Then `kernels.Supports`, of no tokens where the backward pass needs none.
    """
    results = _empty_results(hidden, alpha, needs_hidden, needs_weight)
    losses, cut, slope, *kept = results
    listed = kernels.supports_are_listed(hidden, alpha) and (needs_hidden or needs_weight)
    supports = kernels.Supports(*kept) if needs_weight else kernels.empty_supports(hidden, len(hidden) if listed else 0)
    with without_autocast(hidden):
        mean_row = weight.mean(0, dtype=cut.dtype) if listed and needs_hidden and smoothing > 0 else None
        for rows in token_blocks(hidden):
            ids = target[rows].masked_fill(target[rows] == IGNORED, 0)
            logits = F.linear(hidden[rows], weight, bias)
            losses[rows], block_cut = losses_and_cuts(logits, ids, alpha, smoothing)
            cut[rows] = block_cut[:, :4]
            arguments = (logits, ids, alpha, smoothing, block_cut)
            if listed:
                kernels.list_supports(logits, alpha, block_cut, supports.of(rows))
            if needs_hidden and listed:
                slope[rows] = kernels.support_products(*arguments, supports.of(rows), weight, mean_row)
            elif needs_hidden:
                slope[rows] = dense_slopes(*arguments, weight)
            del logits, arguments  # before the next block is made
    return results


@linear_losses.register_fake
def _(
    hidden: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    target: Tensor,
    alpha: float,
    smoothing: float,
    needs_hidden: bool,
    needs_weight: bool,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]:
    return _empty_results(hidden, alpha, needs_hidden, needs_weight)


def _empty_results(
    hidden: Tensor, alpha: float, needs_hidden: bool, needs_weight: bool
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]:
    tokens, wide = hidden.shape[0], wide_dtype(hidden.dtype)
    listed = needs_weight and kernels.supports_are_listed(hidden, alpha)
    return (
        hidden.new_empty(tokens, dtype=wide),
        hidden.new_empty((tokens, 4), dtype=wide),
        hidden.new_empty(hidden.shape if needs_hidden else (0,), dtype=wide),
        *kernels.empty_supports(hidden, tokens if listed else 0),
    )


@torch.library.custom_op("contmax::linear_losses_backward", mutates_args=())
def linear_losses_backward(
    hidden: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    target: Tensor,
    alpha: float,
    smoothing: float,
    cut: Tensor,
    slope: Tensor,
    places: Tensor,
    masses: Tensor,
    counts: Tensor,
    g: Tensor,
    needs_weight: bool,
) -> tuple[Tensor, Tensor, Tensor]:
    """Gradients of hidden, weight and bias from that of the losses, g (T,); empty where `slope` is, or is not needed.

    `needs_weight` is whether the weight or the bias needs one; `places`, `masses` and `counts` are the supports.
    """
    grad_hidden, grad_weight, grad_bias = _empty_gradients(hidden, weight, bias, slope, needs_weight)
    if slope.numel() > 0:
        torch.mul(slope, g.unsqueeze(-1), out=grad_hidden)
        grad_hidden.masked_fill_((target == IGNORED).unsqueeze(-1), 0)
    if not needs_weight:
        return grad_hidden, grad_weight, grad_bias
    layer, options, gradients = (hidden, weight, bias, target), (alpha, smoothing, cut), (grad_weight, grad_bias)
    with without_autocast(hidden):
        if counts.numel() > 0:
            kernels.support_sums(*layer, *options, kernels.Supports(places, masses, counts), g, *gradients)
        else:
            _dense_sums(*layer, *options, g, *gradients)
    return grad_hidden, grad_weight, grad_bias


@linear_losses_backward.register_fake
def _(
    hidden: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    target: Tensor,
    alpha: float,
    smoothing: float,
    cut: Tensor,
    slope: Tensor,
    places: Tensor,
    masses: Tensor,
    counts: Tensor,
    g: Tensor,
    needs_weight: bool,
) -> tuple[Tensor, Tensor, Tensor]:
    return _empty_gradients(hidden, weight, bias, slope, needs_weight)


def _empty_gradients(
    hidden: Tensor, weight: Tensor, bias: Tensor | None, slope: Tensor, needs_weight: bool
) -> tuple[Tensor, Tensor, Tensor]:
    classes = weight.shape[0]
    return (
        hidden.new_empty(slope.shape),
        weight.new_empty(weight.shape if needs_weight else (0,)),
        weight.new_empty(classes if needs_weight and bias is not None else 0),
    )


def _dense_sums(
    hidden: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    target: Tensor,
    alpha: float,
    smoothing: float,
    cut: Tensor,
    g: Tensor,
    grad_weight: Tensor,
    grad_bias: Tensor,
) -> None:
    """Write Σ_t g_t (p̂_t − q_t) h_tᵀ and Σ_t g_t (p̂_t − q_t), from logits that are made again."""
    # The vector of an ignored token may be NaN, which times its residual of 0 is NaN.
    hidden = hidden.masked_fill((target == IGNORED).unsqueeze(-1), 0)
    for columns in class_blocks(weight):
        logits = F.linear(hidden, weight[columns], None if bias is None else bias[columns])
        difference = residual(logits, target - columns.start, alpha, smoothing, cut, g)
        torch.mm(difference.mT, hidden, out=grad_weight[columns])
        if bias is not None:
            grad_bias[columns] = difference.sum(0, dtype=wide_dtype(bias.dtype))
        del logits, difference  # before the next block is made
