"""Losses of a linear layer and their gradients for a fixed α ≤ 2, over blocks of its logits, as operators.

The forward pass takes blocks of tokens with all classes. While the logits are there, the product (p̂ − q) W is made,
which times the cotangent is the gradient of the hidden vector. The gradient of each row of the weight is rounded once:

* On a GPU the forward pass lists the classes with mass, usually a few of each token, and the backward pass adds up
  hidden vectors by those lists.
* Elsewhere it makes the logits again, in blocks of classes with all tokens, so that each row comes from one product.

The statistics of a token are four numbers from which p̂ of any class follows from its logit: the maximum of the logits,
t = p_max^(α−1), the largest p̂ (by Triton's kernels 1/Σ weights), and the share that smoothing gives to each class.
"""

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from contmax._eager import wide_dtype, without_autocast
from contmax._operator import operator
from contmax.kernels.losses import LinearLoss, Supports, row_losses
from contmax.losses._row_losses import losses_and_map
from contmax.maps._threshold import deformed_exp

# The class id of an ignored token, whose hidden vector may be NaN. Other ids outside [0, C) are mistakes of the caller,
# which a GPU answers with NaN.
IGNORED = torch.iinfo(torch.int64).min
# Parts of the logits that are in memory at once: of tokens in the forward pass, of classes in the backward pass. Torch
# operations make a few tensors of each block, kernels one.
_TOKEN_BLOCKS, _CLASS_BLOCKS, _BLOCKS_FUSED = 64, 128, 24
# Smaller products are slow, and so are those that do not fill their last tile.
_FEWEST_TOKENS, _FEWEST_CLASSES = 32, 128
_TILE = 128
# Closer to α = 1 few rows are sparse, and lists are not worth it.
_LEAST_LISTED_ALPHA = 1.25
# torch.vmap runs over the tokens of one layer only.
_LAYER = ("loss_hidden", "loss_weight", "loss_bias", "loss_target")


def token_blocks(tokens: int, fused: bool) -> Iterator[slice]:
    """Tokens whose logits are in memory at once."""
    return _slices(tokens, _BLOCKS_FUSED if fused else _TOKEN_BLOCKS, _FEWEST_TOKENS)


def _class_blocks(classes: int, fused: bool) -> Iterator[slice]:
    """Classes whose logits are in memory at once."""
    return _slices(classes, _BLOCKS_FUSED if fused else _CLASS_BLOCKS, _FEWEST_CLASSES)


def _slices(count: int, parts: int, fewest: int) -> Iterator[slice]:
    """About this many parts of a range, in whole tiles."""
    size = max(-(-count // parts), fewest)
    if size > _TILE:
        size = -(-size // _TILE) * _TILE
    return (slice(start, min(start + size, count)) for start in range(0, count, size))


def _results_like(
    loss: LinearLoss, fused: bool, needs_hidden: bool, needs_weight: bool
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]:
    hidden = loss.hidden
    tokens, wide = hidden.shape[0], wide_dtype(hidden.dtype)
    return (
        hidden.new_empty(tokens, dtype=wide),
        hidden.new_empty((tokens, 4), dtype=wide),
        hidden.new_empty(hidden.shape if needs_hidden else (0,), dtype=wide),
        *Supports.empty(hidden, tokens if needs_weight and fused and loss.alpha >= _LEAST_LISTED_ALPHA else 0),
    )


@operator("linear_losses", like=_results_like, shared=_LAYER)
def linear_losses(
    loss: LinearLoss, fused: bool, needs_hidden: bool, needs_weight: bool
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]:
    """Losses of tokens, without their logits.

    Args:
        loss: the layer; losses of `IGNORED` tokens are arbitrary, and their cotangents 0.
        fused: whether Triton's kernels take the logits.
        needs_hidden: whether the hidden vectors need a gradient.
        needs_weight: whether the weight or the bias needs one.

    Returns:
        Losses (T,), statistics (T, 4), and the gradient of each loss by its hidden vector, (T, D) or empty; float32 at
        least. Then the three tensors of `Supports`, of no tokens where the backward pass needs none.
    """
    results = _results_like(loss, fused, needs_hidden, needs_weight)
    losses, statistics, slopes, *lists = results
    hidden, weight, bias, _, alpha, smoothing = loss
    listed = fused and alpha >= _LEAST_LISTED_ALPHA and (needs_hidden or needs_weight)
    supports = Supports(*lists) if needs_weight else Supports.empty(hidden, len(hidden) if listed else 0)
    with without_autocast(hidden):
        mean_row = weight.mean(0, dtype=statistics.dtype) if listed and needs_hidden and smoothing > 0 else None
        for rows in token_blocks(len(hidden), fused):
            block = loss.of(rows)
            block = block._replace(target=block.target.masked_fill(block.target == IGNORED, 0))
            logits = F.linear(block.hidden, weight, bias)
            losses[rows], of_block = _losses_and_statistics(logits, block, fused)
            statistics[rows] = of_block[:, :4]
            if listed:
                from contmax.kernels.losses._gpu_supports import list_supports, support_products

                list_supports(logits, alpha, of_block, supports.of(rows))
                if needs_hidden:
                    slopes[rows] = support_products(logits, block, of_block, supports.of(rows), mean_row)
            elif needs_hidden:
                slopes[rows] = _dense_products(logits, block, of_block, fused)
            del logits  # before the next block is made
    return results


def _losses_and_statistics(logits: Tensor, loss: LinearLoss, fused: bool) -> tuple[Tensor, Tensor]:
    """Losses (T,) and statistics of tokens with all their classes: four numbers each, and by kernels tile maxima."""
    if fused:
        return row_losses(logits, loss.target, None, loss.alpha, loss.smoothing)
    z = logits.to(wide_dtype(logits.dtype))
    losses, p = losses_and_map(z, loss.alpha, loss.target.unsqueeze(-1), None, loss.smoothing, -1)
    top, p_max = z.amax(-1), p.amax(-1)
    # A fully masked row has p = 0 for any t.
    t = torch.where(p_max == 0, 1, p_max) ** (loss.alpha - 1)
    return losses.squeeze(-1), torch.stack([top, t, p_max, torch.full_like(t, loss.smoothing / z.shape[-1])], -1)


def _residual(logits: Tensor, ids: Tensor, loss: LinearLoss, statistics: Tensor, g: Tensor, fused: bool) -> Tensor:
    """g (p̂ − q) of some classes, in the dtype of their logits, maybe in their memory; ids count from the first."""
    if fused:
        from contmax.kernels.gpu._launch import in_parts
        from contmax.kernels.losses._gpu_losses import write_gradients

        in_parts(write_gradients, (logits, ids, None, statistics, g, logits, None), loss.alpha, loss.smoothing)
        return logits
    top, t, p_max, share = statistics.unsqueeze(-1).unbind(1)
    y = logits - torch.where(top == -torch.inf, 0, top)
    p = p_max * deformed_exp(y / t, loss.alpha - 1)
    inside = (ids >= 0) & (ids < p.shape[-1])
    mass = inside.to(p.dtype) * (loss.smoothing - 1)
    p.scatter_add_(-1, torch.where(inside, ids, 0).unsqueeze(-1), mass.unsqueeze(-1))
    if loss.smoothing > 0:
        p.sub_(share)
    # An ignored token has no gradient, whatever its logits.
    return torch.where(g.unsqueeze(-1) == 0, 0, g.unsqueeze(-1) * p).to(logits.dtype)


def _dense_products(logits: Tensor, loss: LinearLoss, statistics: Tensor, fused: bool) -> Tensor:
    """(p̂ − q) W for tokens with all their classes, (T, D), float32 at least; the logits may be overwritten."""
    weight, ones = loss.weight, statistics.new_ones(()).expand(statistics.shape[:1])
    difference, wide = _residual(logits, loss.target, loss, statistics, ones, fused), wide_dtype(weight.dtype)
    if weight.dtype == wide:
        return difference @ weight
    if weight.is_cuda:
        return torch.mm(difference, weight, out_dtype=wide)
    total = difference.new_zeros(difference.shape[0], weight.shape[1], dtype=wide)
    for columns in _class_blocks(len(weight), fused):
        total.addmm_(difference[:, columns].to(wide), weight[columns].to(wide))
    return total


def _gradients_like(
    loss: LinearLoss, fused: bool, statistics: Tensor, slopes: Tensor, *rest: Any
) -> tuple[Tensor, Tensor, Tensor]:
    *_, needs_weight = rest
    hidden, weight, bias = loss[:3]
    return (
        hidden.new_empty(slopes.shape),
        weight.new_empty(weight.shape if needs_weight else (0,)),
        weight.new_empty(weight.shape[0] if needs_weight and bias is not None else 0),
    )


@operator(
    "linear_losses_backward",
    like=_gradients_like,
    shared=(*_LAYER, "statistics", "slopes", "supports_places", "supports_masses", "supports_counts", "g"),
)
def linear_losses_backward(
    loss: LinearLoss,
    fused: bool,
    statistics: Tensor,
    slopes: Tensor,
    supports: Supports,
    g: Tensor,
    needs_weight: bool,
) -> tuple[Tensor, Tensor, Tensor]:
    """Gradients of hidden, weight and bias from those of the losses, g (T,).

    The first is empty where `slopes` is, the others where neither the weight nor the bias needs one.
    """
    results = _gradients_like(loss, fused, statistics, slopes, needs_weight)
    grad_hidden, grad_weight, grad_bias = results
    if slopes.numel() > 0:
        torch.mul(slopes, g.unsqueeze(-1), out=grad_hidden)
        grad_hidden.masked_fill_((loss.target == IGNORED).unsqueeze(-1), 0)
    if not needs_weight:
        return results
    with without_autocast(loss.hidden):
        if supports.counts.numel() > 0:
            from contmax.kernels.losses._gpu_weight_gradients import write_weight_gradients

            write_weight_gradients(loss, statistics, supports, g, grad_weight, grad_bias)
        else:
            _write_dense_sums(loss, fused, statistics, g, grad_weight, grad_bias)
    return results


def _write_dense_sums(
    loss: LinearLoss, fused: bool, statistics: Tensor, g: Tensor, grad_weight: Tensor, grad_bias: Tensor
) -> None:
    """Write Σ_t g_t (p̂_t − q_t) h_tᵀ and Σ_t g_t (p̂_t − q_t), from logits that are made again."""
    hidden, weight, bias, target = loss[:4]
    # The vector of an ignored token may be NaN, and NaN times its residual of 0 is NaN.
    hidden = hidden.masked_fill((target == IGNORED).unsqueeze(-1), 0)
    for columns in _class_blocks(len(weight), fused):
        logits = F.linear(hidden, weight[columns], None if bias is None else bias[columns])
        difference = _residual(logits, target - columns.start, loss, statistics, g, fused)
        torch.mm(difference.mT, hidden, out=grad_weight[columns])
        if bias is not None:
            grad_bias[columns] = difference.sum(0, dtype=wide_dtype(bias.dtype))
        del logits, difference  # before the next block is made
