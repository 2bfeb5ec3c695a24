"""Blocks of the logits of a linear layer, and what is made of one: losses with their cuts, residuals, products.

The cut of a token is four numbers from which its p̂ can be made again from its logits, class by class: their maximum,
t = p_max^(α−1), the largest p̂ or what scales the weights to p̂, and what smoothing gives to each class.
"""

from collections.abc import Iterator

import torch
from torch import Tensor

from contmax import kernels
from contmax._precision import wide_dtype
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


def class_blocks(weight: Tensor) -> Iterator[slice]:
    """Classes whose logits are in memory at once."""
    parts = _CLASS_BLOCKS_FUSED if kernels.rows_are_fused(weight) else _CLASS_BLOCKS
    return _slices(weight.shape[0], parts, _FEWEST_CLASSES)


def losses_and_cuts(logits: Tensor, ids: Tensor, alpha: float, smoothing: float) -> tuple[Tensor, Tensor]:
    """Losses (T,) and cuts (T, 4) of tokens with all their classes; kernels may add columns for their own use."""
    if kernels.rows_are_fused(logits):
        return kernels.class_loss_fused(logits, ids, kernels.LossOptions(alpha, None, smoothing))
    z = logits.to(wide_dtype(logits.dtype))
    losses, p = class_losses(z, alpha, ids.unsqueeze(-1), None, smoothing, -1)
    top, p_max = z.amax(-1), p.amax(-1)
    # Nothing to attend: p is zero for any t.
    t = torch.where(p_max == 0, 1, p_max) ** (alpha - 1)
    return losses.squeeze(-1), torch.stack([top, t, p_max, torch.full_like(t, smoothing / z.shape[-1])], -1)


def residual(logits: Tensor, ids: Tensor, alpha: float, smoothing: float, cut: Tensor, g: Tensor) -> Tensor:
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


def dense_slopes(logits: Tensor, ids: Tensor, alpha: float, smoothing: float, cut: Tensor, weight: Tensor) -> Tensor:
    """(p̂ − q) W for tokens with all their classes, (T, D), float32 at least; the logits may be overwritten."""
    ones = cut.new_ones(()).expand(cut.shape[:1])
    difference, wide = residual(logits, ids, alpha, smoothing, cut, ones), wide_dtype(weight.dtype)
    if weight.dtype == wide:
        return difference @ weight
    if weight.is_cuda:
        return torch.mm(difference, weight, out_dtype=wide)
    total = difference.new_zeros(difference.shape[0], weight.shape[1], dtype=wide)
    for columns in class_blocks(weight):
        total.addmm_(difference[:, columns].to(wide), weight[columns].to(wide))
    return total


def _slices(count: int, parts: int, fewest: int) -> Iterator[slice]:
    """About this many parts of a range, in whole tiles."""
    size = max(-(-count // parts), fewest)
    if size > _TILE:
        size = -(-size // _TILE) * _TILE
    return (slice(start, min(start + size, count)) for start in range(0, count, size))
