"""Losses of a linear layer and their gradients for a fixed α ≤ 2, over blocks of its logits, as operators.

Each of T tokens has a hidden vector h, logits z = W h + b of C classes, p̂ = entmax(z) and a smoothed target q. The
forward pass computes z of a block of tokens, and from it (p̂ − q) W, which times the cotangent is the gradient of h.
The gradient of W is rounded once:

* By Triton's kernels for α ≥ 1.25, the forward pass lists each token's classes with mass, and the backward pass sums
  hidden vectors by these lists.
* Otherwise the backward pass recomputes z of a block of classes for all tokens: one product gives a row's gradient.

A token's statistics are four numbers that turn a logit into p̂: the maximum of z, t = p_max^(α−1), p_max = max p̂ (for
Triton's kernels 1/Σ weights, see kernels/losses/README.md), and the mass that smoothing gives to each class.
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

# The class id of ignored tokens, whose hidden vectors may be NaN. On a GPU other ids outside [0, C) give a NaN loss.
IGNORED = torch.iinfo(torch.int64).min
# Numbers of blocks: of tokens in the forward pass, of classes in the backward pass. Triton's kernels take larger
# blocks, since they allocate one tensor of the size of a block; torch operations allocate several.
_TOKEN_BLOCKS, _CLASS_BLOCKS, _BLOCKS_FUSED = 64, 128, 24
# Least block sizes; longer blocks consist of whole tiles. Matrix products of other sizes are slow.
_FEWEST_TOKENS, _FEWEST_CLASSES = 32, 128
_TILE = 128
# For smaller α few tokens have a sparse p̂, and lists of its support save no time.
_LEAST_LISTED_ALPHA = 1.25
# Tensors without batch axes: torch.vmap over one of these calls the operators once per layer.
_LAYER = ("loss_hidden", "loss_weight", "loss_bias", "loss_target")


def token_blocks(tokens: int, fused: bool) -> Iterator[slice]:
    """Slices of tokens, whose logits are in memory at once; `fused`: by Triton's kernels."""
    return _slices(tokens, _TOKEN_BLOCKS, _FEWEST_TOKENS, fused)


def _slices(count: int, parts: int, fewest: int, fused: bool) -> Iterator[slice]:
    """About `parts` slices of range(count), each of at least `fewest` or, if more than a tile, of whole tiles."""
    size = max(-(-count // (_BLOCKS_FUSED if fused else parts)), fewest)
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
    """Losses of tokens, from blocks of logits that are computed one after the other.

    Args:
        loss: the layer; losses of `IGNORED` tokens are arbitrary, and their cotangents 0.
        fused: whether Triton's kernels take the logits.
        needs_hidden: whether the hidden vectors need a gradient.
        needs_weight: whether the weight or the bias needs a gradient.

    Returns:
        Losses (T,), statistics (T, 4), and the gradient of each loss in its hidden vector, (T, D) or empty; float32 at
        least. Then the three tensors of `Supports`, of 0 tokens if the backward pass reads no lists.
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
            del logits  # frees memory for the next block
    return results


def _losses_and_statistics(logits: Tensor, loss: LinearLoss, fused: bool) -> tuple[Tensor, Tensor]:
    """Losses (T,) and statistics (T, 4) of a block of tokens; Triton's kernels append maxima of tiles."""
    if fused:
        return row_losses(logits, loss.target, None, loss.alpha, loss.smoothing)
    z = logits.to(wide_dtype(logits.dtype))
    losses, p = losses_and_map(z, loss.alpha, loss.target.unsqueeze(-1), None, loss.smoothing, -1)
    top, p_max = z.amax(-1), p.amax(-1)
    # A fully masked row has p_max = 0, of which a power may be infinite: take t = 1.
    t = torch.where(p_max == 0, 1, p_max) ** (loss.alpha - 1)
    return losses.squeeze(-1), torch.stack([top, t, p_max, torch.full_like(t, loss.smoothing / z.shape[-1])], -1)


def _residual(logits: Tensor, ids: Tensor, loss: LinearLoss, statistics: Tensor, g: Tensor, fused: bool) -> Tensor:
    """g (p̂ − q) of a block of classes, in the logits' dtype, maybe over the logits; `ids` are relative to the block."""
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
    # An ignored token has g = 0, and its logits may be NaN.
    return torch.where(g.unsqueeze(-1) == 0, 0, g.unsqueeze(-1) * p).to(logits.dtype)


def _dense_products(logits: Tensor, loss: LinearLoss, statistics: Tensor, fused: bool) -> Tensor:
    """(p̂ − q) W from logits of a block of tokens, all classes: (T, D), float32 at least; may overwrite the logits."""
    weight, ones = loss.weight, statistics.new_ones(()).expand(statistics.shape[:1])
    difference, wide = _residual(logits, loss.target, loss, statistics, ones, fused), wide_dtype(weight.dtype)
    if weight.dtype == wide:
        return difference @ weight
    if weight.is_cuda:
        return torch.mm(difference, weight, out_dtype=wide)
    total = difference.new_zeros(difference.shape[0], weight.shape[1], dtype=wide)
    for columns in _slices(len(weight), _CLASS_BLOCKS, _FEWEST_CLASSES, fused):
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
    """Gradients of hidden, weight and bias from g (T,), the gradient of the losses.

    The gradient of hidden is empty if `slopes` is; the others are empty unless `needs_weight`.
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
    """Write the gradients of W, Σ_t g_t (p̂_t − q_t) h_tᵀ, and of b, Σ_t g_t (p̂_t − q_t), from recomputed logits."""
    hidden, weight, bias, target = loss[:4]
    # The hidden vector of an ignored token may be NaN, and NaN times a residual of 0 is NaN.
    hidden = hidden.masked_fill((target == IGNORED).unsqueeze(-1), 0)
    for columns in _slices(len(weight), _CLASS_BLOCKS, _FEWEST_CLASSES, fused):
        logits = F.linear(hidden, weight[columns], None if bias is None else bias[columns])
        difference = _residual(logits, target - columns.start, loss, statistics, g, fused)
        torch.mm(difference.mT, hidden, out=grad_weight[columns])
        if bias is not None:
            grad_bias[columns] = difference.sum(0, dtype=wide_dtype(bias.dtype))
        del logits, difference  # frees memory for the next block
