"""Losses of a linear layer and their gradients for a fixed α ≤ 2, over blocks of its logits.

The forward pass takes blocks of tokens with all classes: it leaves the loss, and four numbers from which the p̂ of a
token can be made again from its logits, class by class: their maximum, t = p_max^(α−1), p_max, and what smoothing gives
to each class. While the logits are there, the product (p̂ − q) W is made, which times the cotangent is the gradient of
the hidden vector. The backward pass takes blocks of classes with all tokens, so that the gradient of each row of the
weight comes from one product: sums over blocks would be rounded once for each block.
"""

from collections.abc import Iterator

import torch
from torch import Tensor
from torch.nn import functional as F

from contmax import kernels
from contmax._precision import without_autocast
from contmax.losses._conjugate import class_losses
from contmax.maps._threshold import deformed_exp

# Parts of the logits that are in memory at once: of tokens in the forward pass, of classes in the backward pass. Torch
# operations make a few tensors of each block, kernels one.
_TOKEN_BLOCKS, _TOKEN_BLOCKS_FUSED = 64, 24
_CLASS_BLOCKS, _CLASS_BLOCKS_FUSED = 128, 24
# Smaller products are slow, and so are those that do not fill their last tile.
_FEWEST_TOKENS, _FEWEST_CLASSES = 32, 128
_TILE = 128


def token_blocks(hidden: Tensor) -> Iterator[slice]:
    """Tokens whose logits are in memory at once."""
    parts = _TOKEN_BLOCKS_FUSED if kernels.rows_are_fused(hidden) else _TOKEN_BLOCKS
    return _slices(hidden.shape[0], parts, _FEWEST_TOKENS)


def wide_dtype(dtype: torch.dtype) -> torch.dtype:
    """The dtype of losses and sums: float32 for lower precisions."""
    return torch.promote_types(dtype, torch.float32)


@torch.library.custom_op("contmax::linear_losses", mutates_args=())
def linear_losses(
    hidden: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    target: Tensor,
    alpha: float,
    smoothing: float,
    needs_hidden: bool,
) -> tuple[Tensor, Tensor, Tensor]:
    """Losses of tokens, without their logits.

    Args:
        hidden: (T, D).
        weight: (C, D), of the same dtype.
        bias: (C,), or None.
        target: class ids (T,).
        alpha: α in (0, 2].
        smoothing: the mass of q that is spread over the classes.
        needs_hidden: whether the hidden vectors need a gradient.

    Returns:
        Losses (T,), cuts (T, 4), and the gradient of each loss by its hidden vector, (T, D) or empty; float32 at least.
    """
    tokens, channels = hidden.shape
    wide = hidden.new_empty(0, dtype=wide_dtype(hidden.dtype))
    losses, cut = wide.new_empty(tokens), wide.new_empty(tokens, 4)
    slope = wide.new_empty((tokens, channels) if needs_hidden else (0,))
    with without_autocast(hidden):
        for rows in token_blocks(hidden):
            ids = target[rows]
            logits = F.linear(hidden[rows], weight, bias)
            losses[rows], cut[rows] = _losses_and_cuts(logits, ids, alpha, smoothing)
            if needs_hidden:
                slope[rows] = _slopes(logits, ids, alpha, smoothing, cut[rows], weight)
            del logits  # before the next block is made
    return losses, cut, slope


@linear_losses.register_fake
def _(
    hidden: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    target: Tensor,
    alpha: float,
    smoothing: float,
    needs_hidden: bool,
) -> tuple[Tensor, Tensor, Tensor]:
    wide, tokens = wide_dtype(hidden.dtype), hidden.shape[0]
    slope = hidden.new_empty(hidden.shape if needs_hidden else (0,), dtype=wide)
    return hidden.new_empty(tokens, dtype=wide), hidden.new_empty((tokens, 4), dtype=wide), slope


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
    g: Tensor,
    needs_weight: bool,
) -> tuple[Tensor, Tensor, Tensor]:
    """Gradients of hidden, weight and bias from that of the losses, g (T,); empty where `slope` is, or is not needed.

    `needs_weight` is whether the weight or the bias needs one.
    """
    grad_hidden, grad_weight, grad_bias = _empty_gradients(hidden, weight, bias, slope, needs_weight)
    if slope.numel() > 0:
        torch.mul(slope, g.unsqueeze(-1), out=grad_hidden)
    if not needs_weight:
        return grad_hidden, grad_weight, grad_bias
    parts = _CLASS_BLOCKS_FUSED if kernels.rows_are_fused(hidden) else _CLASS_BLOCKS
    with without_autocast(hidden):
        for columns in _slices(weight.shape[0], parts, _FEWEST_CLASSES):
            logits = F.linear(hidden, weight[columns], None if bias is None else bias[columns])
            residual = _residual(logits, target - columns.start, alpha, smoothing, cut, g)
            torch.mm(residual.mT, hidden, out=grad_weight[columns])
            if bias is not None:
                grad_bias[columns] = residual.sum(0, dtype=wide_dtype(bias.dtype))
            del logits, residual  # before the next block is made
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


def _losses_and_cuts(logits: Tensor, ids: Tensor, alpha: float, smoothing: float) -> tuple[Tensor, Tensor]:
    """Losses (T,) and cuts (T, 4) of tokens with all their classes."""
    if kernels.rows_are_fused(logits):
        losses, cut = kernels.class_loss_fused(logits, ids, alpha, None, smoothing)
        return losses, cut[..., :4]
    z = logits.to(wide_dtype(logits.dtype))
    losses, p = class_losses(z, alpha, ids.unsqueeze(-1), None, smoothing, -1)
    top, p_max = z.amax(-1), p.amax(-1)
    # Nothing to attend: p is zero for any t.
    t = torch.where(p_max == 0, 1, p_max) ** (alpha - 1)
    return losses.squeeze(-1), torch.stack([top, t, p_max, torch.full_like(t, smoothing / z.shape[-1])], -1)


def _residual(logits: Tensor, ids: Tensor, alpha: float, smoothing: float, cut: Tensor, g: Tensor) -> Tensor:
    """g (p̂ − q) of some classes, in the dtype of their logits, maybe over them; ids count from the first of them."""
    if kernels.rows_are_fused(logits):
        return kernels.class_loss_gradient_in_place(logits, ids, alpha, smoothing, cut, g)
    top, t, p_max, share = cut.unsqueeze(-1).unbind(1)
    y = logits - torch.where(top == -torch.inf, 0, top)
    p = p_max * deformed_exp(y / t, alpha - 1)
    inside = (ids >= 0) & (ids < p.shape[-1])
    mass = inside.to(p.dtype) * (smoothing - 1)
    p.scatter_add_(-1, torch.where(inside, ids, 0).unsqueeze(-1), mass.unsqueeze(-1))
    if smoothing > 0:
        p.sub_(share)
    # A token that counts nothing has no gradient, whatever its logits.
    return torch.where(g.unsqueeze(-1) == 0, 0, g.unsqueeze(-1) * p).to(logits.dtype)


def _slopes(logits: Tensor, ids: Tensor, alpha: float, smoothing: float, cut: Tensor, weight: Tensor) -> Tensor:
    """(p̂ − q) W for tokens with all their classes, (T, D); the logits may be overwritten."""
    if kernels.supports_are_listed(logits, alpha, smoothing):
        return kernels.support_products(logits, ids, alpha, cut, weight)
    ones = cut.new_ones(()).expand(cut.shape[:1])
    return _wide_product(_residual(logits, ids, alpha, smoothing, cut, ones), weight)


def _wide_product(residual: Tensor, weight: Tensor) -> Tensor:
    """residual @ weight, (T, D), rounded to float32 and no further."""
    wide = wide_dtype(weight.dtype)
    if weight.dtype == wide:
        return residual @ weight
    if weight.is_cuda:
        return torch.mm(residual, weight, out_dtype=wide)
    total = residual.new_zeros(residual.shape[0], weight.shape[1], dtype=wide)
    for columns in _slices(weight.shape[0], _CLASS_BLOCKS, _FEWEST_CLASSES):
        total.addmm_(residual[:, columns].to(wide), weight[columns].to(wide))
    return total


def _slices(count: int, parts: int, fewest: int) -> Iterator[slice]:
    """About this many parts of a range, in whole tiles."""
    size = max(-(-count // parts), fewest)
    if size > _TILE:
        size = -(-size // _TILE) * _TILE
    return (slice(start, min(start + size, count)) for start in range(0, count, size))
