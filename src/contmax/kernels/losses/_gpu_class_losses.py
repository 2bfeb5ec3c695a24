"""Launchers of the losses' kernels, for fixed α ≤ 2."""

import functools

import torch
from torch import Tensor

from contmax.kernels.gpu._counting import blocks_of, power_of_two
from contmax.kernels.gpu._kept import LAUNCHES, Launch
from contmax.kernels.gpu._launch import (
    CHUNK,
    Rows,
    Sizes,
    as_rows,
    byte_mask,
    forward_block,
    in_parts,
    lists_of,
    order_of,
    resolved,
    side_by_side,
)
from contmax.kernels.losses._gpu_losses import loss_gradient, loss_rows
from contmax.kernels.losses._options import LossOptions
from contmax.kernels.rows._gpu_lists import list_scores
from contmax.kernels.rows._gpu_long_rows import solve_long_rows

# Longer rows are read in slices, and the few scores that may have mass are listed.
LONGEST_ON_CHIP = 4096
# Registers of a thread that lists: with more, too few warps are there to read.
_REGISTERS, _REGISTERS_WITH_SOFT_TARGETS = 80, 96
# Chunks of a row that a program of the backward pass takes.
CHUNKS_OF_GRADIENT = 32


def cut_width(columns: int) -> int:
    """How many numbers the forward pass keeps of a row of this length: `_row_loss`."""
    return 4 if columns <= CHUNK else 4 + blocks_of(columns, CHUNK)


def row_losses(z: Tensor, target: Tensor | None, options: LossOptions) -> tuple[Tensor, Tensor]:
    """Losses of rows against class ids, or Ω* of the rows.

    Args:
        z: logits (*batch, n), float32 or half precision.
        target: class ids (*batch), or None.
        options: what comes with them.

    Returns:
        (*batch) in float64; the cut of each row, (*batch, `cut_width`) in float32, from which the backward makes p̂
        again.
    """
    batch, width = z.shape[:-1], cut_width(z.shape[-1])
    losses, cut = z.new_empty(batch, dtype=torch.float64), z.new_empty((*batch, width), dtype=torch.float32)
    if z.numel() > 0:
        mask = None if options.mask is None else options.mask.expand(z.shape)
        in_parts(_forward, (z, target, mask, losses, cut), options.alpha, options.smoothing)
    return losses, cut


def _forward(
    z: Tensor, target: Tensor | None, mask: Tensor | None, losses: Tensor, cut: Tensor, alpha: float, smoothing: float
) -> None:
    """Write losses and cuts."""
    z, width = side_by_side(z), cut.shape[-1]
    tensors, rows = as_rows(z, byte_mask(mask, z))
    ids = cut if target is None else target.contiguous()
    kinds = (alpha, mask is not None, target is not None, smoothing)
    if rows.columns > LONGEST_ON_CHIP:
        lists = lists_of(z, rows, keeps_places=False)
        peaks = cut.new_empty(2 * rows.total * lists.slices)
        listed = (lists.values, lists.places, lists.counts, peaks, cut, cut)
        list_them, solve = long_losses(rows, lists.sizes, width, *kinds)
        list_them(*tensors, cut, cut, cut, *listed)
        solve(*tensors, cut, ids, cut, *listed, losses)
    else:
        _losses(rows, *kinds)(*tensors, ids, cut, losses)


def row_losses_backward(
    z: Tensor, target: Tensor | None, options: LossOptions, cut: Tensor, g: Tensor, *, out: Tensor | None = None
) -> Tensor:
    """The gradient of the logits, contiguous and of their dtype, from the cotangent g of the losses, (*batch).

    `out` may be the logits themselves, if they are contiguous. Four numbers of each cut are enough, also for some
    columns of the rows only.
    """
    grad = torch.empty(z.shape, dtype=z.dtype, device=z.device) if out is None else out
    if z.numel() > 0:
        mask = None if options.mask is None else options.mask.expand(z.shape)
        in_parts(_backward, (z, target, mask, cut, g, grad), options.alpha, options.smoothing)
    return grad


def _backward(
    z: Tensor,
    target: Tensor | None,
    mask: Tensor | None,
    cut: Tensor,
    g: Tensor,
    grad: Tensor,
    alpha: float,
    smoothing: float,
) -> None:
    """Write the gradient of the logits."""
    z = side_by_side(z)
    tensors, rows = as_rows(z, byte_mask(mask, z))
    ids = cut if target is None else target.contiguous()
    cotangent, step = cotangents_of_rows(g)
    gradient = _gradient(rows, cut.shape[-1], step, alpha, mask is not None, target is not None, smoothing)
    gradient(*tensors, ids, cut.contiguous(), cotangent, grad)


def cotangents_of_rows(g: Tensor) -> tuple[Tensor, int]:
    """Cotangents (*batch) as kernels read them, and how far those of neighbouring rows lie apart."""
    g = resolved(g)
    # A mean hands the same number to every row.
    same = all(stride == 0 for stride, size in zip(g.stride(), g.shape, strict=True) if size > 1)
    return (g, 0) if same else (g.contiguous(), 1)


@functools.lru_cache(maxsize=LAUNCHES)
def _losses(rows: Rows, alpha: float, has_mask: bool, has_target: bool, smoothing: float) -> Launch:
    """Rows that fit on the chip."""
    kinds, width = _kinds(alpha, has_mask, has_target, smoothing), cut_width(rows.columns)
    block = forward_block(rows.columns, kinds["K"])
    kinds |= {"SPAN": CHUNK if width > 4 else 0, "R": block.rows, "B": block.columns}
    numbers = (rows.total, rows.columns, alpha - 1, smoothing, width, *rows.places)
    return Launch(loss_rows, block.programs(rows.total), numbers, kinds, block.warps)


@functools.lru_cache(maxsize=LAUNCHES)
def long_losses(
    rows: Rows,
    sizes: Sizes,
    width: int,
    alpha: float,
    has_mask: bool,
    has_target: bool,
    smoothing: float,
    is_soft: bool = False,
) -> tuple[Launch, Launch]:
    """List what may have mass, and solve the lists; a cut has `width` numbers."""
    kinds = _kinds(alpha, has_mask, has_target, smoothing)
    plain = {"K": kinds["K"], "PER_ROW": False, "HAS_MASK": has_mask, "IS_MAP": False, "IS_SOFT": is_soft}
    numbers = (rows.columns, alpha - 1, width, *rows.places)
    grid = (rows.total, sizes.slices)
    registers = _REGISTERS_WITH_SOFT_TARGETS if is_soft else _REGISTERS
    list_them = Launch(list_scores, grid, numbers, plain | sizes.when_listing, 1, registers)
    kinds |= {"PER_ROW": False, "IS_MAP": False, "IS_SOFT": is_soft, "NEEDS_LOSS": True} | sizes.when_solving
    numbers = (rows.columns, sizes.slices, alpha - 1, smoothing, width, *rows.places)
    return list_them, Launch(solve_long_rows, (rows.total,), numbers, kinds, 8)


@functools.lru_cache(maxsize=LAUNCHES)
def _gradient(
    rows: Rows, width: int, step: int, alpha: float, has_mask: bool, has_target: bool, smoothing: float
) -> Launch:
    """A cut has `width` numbers; cotangents of neighbouring rows lie `step` apart."""
    chunk = min(CHUNK, max(power_of_two(rows.columns), 16))
    kinds = _kinds(alpha, has_mask, has_target, smoothing)
    kinds |= {"HAS_TOPS": width > 4, "CHUNKS": CHUNKS_OF_GRADIENT, "CHUNK": chunk}
    grid = (rows.total, blocks_of(rows.columns, chunk * CHUNKS_OF_GRADIENT))
    numbers = (rows.columns, alpha - 1, smoothing, step, width, *rows.places)
    return Launch(loss_gradient, grid, numbers, kinds, max(1, chunk // 128))


def _kinds(alpha: float, has_mask: bool, has_target: bool, smoothing: float) -> dict[str, int]:
    return {
        "K": order_of(alpha),
        "HAS_MASK": has_mask,
        "HAS_TARGET": has_target,
        "SMOOTHS": smoothing > 0,
    }
