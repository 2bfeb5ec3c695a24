"""Launchers of the losses against soft targets, for fixed α ≤ 2."""

import functools

import torch
from torch import Tensor

from contmax.kernels.gpu._counting import blocks_of, power_of_two
from contmax.kernels.gpu._kept import LAUNCHES, Launch
from contmax.kernels.gpu._launch import (
    CHUNK,
    Rows,
    as_rows,
    byte_mask,
    forward_block,
    in_parts,
    laid_out,
    lists_of,
    order_of,
    side_by_side,
)
from contmax.kernels.losses import _gpu_class_losses as _class_losses
from contmax.kernels.losses._gpu_class_losses import CHUNKS_OF_GRADIENT, cotangents_of_rows, cut_width, long_losses
from contmax.kernels.losses._options import LossOptions
from contmax.kernels.rows._gpu_soft_rows import soft_gradient, soft_loss_rows

# What is summed of the targets of a slice: `_lists`.
_SUMS_OF_SLICE = 5


def soft_cut_width(columns: int) -> int:
    """How many numbers the forward pass keeps of a row of this length: those of a loss, and the targets' factor."""
    return cut_width(columns) + 1


def soft_row_losses(z: Tensor, target: Tensor, options: LossOptions) -> tuple[Tensor, Tensor]:
    """Losses of rows against soft targets.

    Args:
        z: logits (*batch, n), float32 or half precision.
        target: weights y ≥ 0 of the same shape, of any floating-point dtype; they count over their sum.
        options: what comes with them.

    Returns:
        (*batch) in float64; the cut of each row, (*batch, `soft_cut_width`) in float32, from which the backward makes
        p̂ again.
    """
    batch, width = z.shape[:-1], soft_cut_width(z.shape[-1])
    losses, cut = z.new_empty(batch, dtype=torch.float64), z.new_empty((*batch, width), dtype=torch.float32)
    if z.numel() > 0:
        mask = None if options.mask is None else options.mask.expand(z.shape)
        in_parts(_forward, (z, target, mask, losses, cut), options.alpha, options.smoothing)
    return losses, cut


def _forward(
    z: Tensor, target: Tensor, mask: Tensor | None, losses: Tensor, cut: Tensor, alpha: float, smoothing: float
) -> None:
    """Write losses and cuts."""
    z, target, width = side_by_side(z), laid_out(target), cut.shape[-1]
    tensors, rows = as_rows(z, byte_mask(mask, z))
    if rows.columns > _class_losses.LONGEST_ON_CHIP:
        lists = lists_of(z, rows, keeps_places=False)
        count = rows.total * lists.slices
        peaks, sums = cut.new_empty(2 * count), cut.new_empty(_SUMS_OF_SLICE * count)
        listed = (lists.values, lists.places, lists.counts, peaks, sums, cut)
        kinds = (alpha, mask is not None, False, smoothing, True)
        list_them, solve = long_losses(rows, lists.sizes, width, *kinds)
        list_them(*tensors, cut, cut, target, *listed)
        solve(*tensors, cut, cut, cut, *listed, losses)
    else:
        _losses(rows, alpha, mask is not None, smoothing)(*tensors, target, cut, losses)


def soft_row_losses_backward(
    z: Tensor, target: Tensor, options: LossOptions, cut: Tensor, g: Tensor, needs_target: bool
) -> tuple[Tensor, Tensor | None]:
    """The gradients of the logits and, where it is needed, of the targets, from that of the losses, g (*batch)."""
    grad = torch.empty(z.shape, dtype=z.dtype, device=z.device)
    grad_target = torch.empty(z.shape, dtype=target.dtype, device=z.device) if needs_target else None
    if z.numel() > 0:
        mask = None if options.mask is None else options.mask.expand(z.shape)
        in_parts(_backward, (z, target, mask, cut, g, grad, grad_target), options.alpha, options.smoothing)
    return grad, grad_target


def _backward(
    z: Tensor,
    target: Tensor,
    mask: Tensor | None,
    cut: Tensor,
    g: Tensor,
    grad: Tensor,
    grad_target: Tensor | None,
    alpha: float,
    smoothing: float,
) -> None:
    """Write the gradient of the logits, and of the targets if there is memory for it."""
    z, target = side_by_side(z), laid_out(target)
    tensors, rows = as_rows(z, byte_mask(mask, z))
    cotangent, step = cotangents_of_rows(g)
    gradient = _gradient(rows, step, alpha, mask is not None, smoothing, grad_target is not None)
    to = (grad, grad if grad_target is None else grad_target)
    gradient(*tensors, target, cut.contiguous(), cotangent, *to)


@functools.lru_cache(maxsize=LAUNCHES)
def _losses(rows: Rows, alpha: float, has_mask: bool, smoothing: float) -> Launch:
    """Rows that fit on the chip."""
    kinds, width = _kinds(alpha, has_mask, smoothing), soft_cut_width(rows.columns)
    block = forward_block(rows.columns, kinds["K"])
    kinds |= {"SPAN": CHUNK if width > 5 else 0, "R": block.rows, "B": block.columns}
    numbers = (rows.total, rows.columns, alpha - 1, smoothing, width, *rows.places)
    return Launch(soft_loss_rows, block.programs(rows.total), numbers, kinds, block.warps)


@functools.lru_cache(maxsize=LAUNCHES)
def _gradient(rows: Rows, step: int, alpha: float, has_mask: bool, smoothing: float, needs_target: bool) -> Launch:
    """Cotangents of neighbouring rows lie `step` apart."""
    width = soft_cut_width(rows.columns)
    chunk = min(CHUNK, max(power_of_two(rows.columns), 16))
    kinds = _kinds(alpha, has_mask, smoothing) | {"NEEDS_TARGET": needs_target, "HAS_TOPS": width > 5}
    kinds |= {"CHUNKS": CHUNKS_OF_GRADIENT, "CHUNK": chunk}
    grid = (rows.total, blocks_of(rows.columns, chunk * CHUNKS_OF_GRADIENT))
    numbers = (rows.columns, alpha - 1, smoothing, step, width, *rows.places)
    return Launch(soft_gradient, grid, numbers, kinds, max(1, chunk // 128))


def _kinds(alpha: float, has_mask: bool, smoothing: float) -> dict[str, int]:
    return {"K": order_of(alpha), "HAS_MASK": has_mask, "SMOOTHS": smoothing > 0}
