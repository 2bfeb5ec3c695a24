"""Launchers of the losses' kernels, for fixed α ≤ 2."""

import torch
from torch import Tensor

from contmax.kernels.triton._counting import blocks_of, power_of_two
from contmax.kernels.triton._launch import (
    CHUNK,
    as_rows,
    byte_mask,
    device_of,
    forward_block,
    lists_of,
    order_of,
    side_by_side,
)
from contmax.kernels.triton._lists import list_scores
from contmax.kernels.triton._long_rows import solve_long_rows
from contmax.kernels.triton._losses import loss_gradient, loss_rows

# Longer rows are read in slices, of which few scores are listed.
_LONGEST_ON_CHIP = 4096
# Registers of a thread that lists: with more, too few warps are there to read.
_REGISTERS = 80
# Chunks of a row that a program of the backward pass takes.
_CHUNKS_OF_GRADIENT = 32


def cut_width(columns: int) -> int:
    """How many numbers the forward pass keeps of a row of this length: `_row_loss`."""
    return 4 if columns <= CHUNK else 4 + blocks_of(columns, CHUNK)


def row_losses(
    z: Tensor, target: Tensor | None, alpha: float, mask: Tensor | None, smoothing: float
) -> tuple[Tensor, Tensor]:
    """Losses of rows against class ids, or Ω* of the rows.

    Args:
        z: logits (*batch, n), float32 or half precision.
        target: class ids (*batch), or None.
        alpha: α in (0, 2].
        mask: boolean, broadcastable to the logits, or None.
        smoothing: the mass of q that is spread over the allowed classes.

    Returns:
        (*batch) in float64; the cut of each row, (*batch, `cut_width`) in float32, from which the backward makes p̂
        again.
    """
    batch, width = z.shape[:-1], cut_width(z.shape[-1])
    losses, cut = z.new_empty(batch, dtype=torch.float64), z.new_empty((*batch, width), dtype=torch.float32)
    if z.numel() == 0:
        return losses, cut
    z = side_by_side(z)
    rows = as_rows(z, byte_mask(mask, z))
    ids = cut if target is None else target.contiguous()
    tensors = (*rows.tensors, ids, cut, losses)
    strides = (*rows.sizes, *rows.strides[0], *rows.strides[1])
    sizes = (rows.total, rows.columns, alpha - 1, smoothing, width, *strides)
    kinds = _kinds(alpha, mask, target, smoothing)
    with device_of(z):
        if rows.columns > _LONGEST_ON_CHIP:
            lists = lists_of(z, rows.total, rows.columns, keeps_places=False)
            peaks = cut.new_empty(2 * rows.total * lists.slices)
            listed = (lists.values, lists.places, lists.counts, peaks, cut)
            numbers = (rows.columns, lists.slices, alpha - 1, smoothing, width, *strides)
            plain = {"K": kinds["K"], "PER_ROW": False, "HAS_MASK": kinds["HAS_MASK"]}
            list_scores[(rows.total, lists.slices)](
                *rows.tensors, cut, cut, *listed, rows.columns, alpha - 1, width, *strides,
                **plain, IS_MAP=False, **lists.when_listing, maxnreg=_REGISTERS,
            )  # fmt: skip
            solve_long_rows[(rows.total,)](
                *rows.tensors, cut, ids, cut, *listed, losses, *numbers,
                **kinds, PER_ROW=False, IS_MAP=False, NEEDS_LOSS=True, **lists.when_solving,
            )  # fmt: skip
        else:
            block = forward_block(rows.columns, kinds["K"])
            span = {"SPAN": CHUNK if width > 4 else 0}
            shape = {**span, "R": block.rows, "B": block.columns, "num_warps": block.warps}
            loss_rows[block.programs(rows.total)](*tensors, *sizes, **kinds, **shape)
    return losses, cut


def row_losses_backward(
    z: Tensor,
    target: Tensor | None,
    alpha: float,
    mask: Tensor | None,
    smoothing: float,
    cut: Tensor,
    g: Tensor,
    *,
    out: Tensor | None = None,
) -> Tensor:
    """The gradient of the logits, contiguous and of their dtype, from the cotangent g of the losses, (*batch).

    `out` may be the logits themselves, if they are contiguous. Four numbers of each cut are enough, also for some
    columns of the rows only.
    """
    grad = torch.empty(z.shape, dtype=z.dtype, device=z.device) if out is None else out
    if z.numel() == 0:
        return grad
    z = side_by_side(z)
    rows = as_rows(z, byte_mask(mask, z))
    ids = cut if target is None else target.contiguous()
    # A mean hands the same number to every row.
    same = all(stride == 0 for stride, size in zip(g.stride(), g.shape, strict=True) if size > 1)
    tensors = (*rows.tensors, ids, cut.contiguous(), g if same else g.contiguous(), grad)
    width, strides = cut.shape[-1], (*rows.sizes, *rows.strides[0], *rows.strides[1])
    sizes = (rows.columns, alpha - 1, smoothing, 0 if same else 1, width, *strides)
    chunk = min(CHUNK, max(power_of_two(rows.columns), 16))
    grid = (rows.total, blocks_of(rows.columns, chunk * _CHUNKS_OF_GRADIENT))
    warps = max(1, chunk // 128)
    shape = {"HAS_TOPS": width > 4, "CHUNKS": _CHUNKS_OF_GRADIENT, "CHUNK": chunk, "num_warps": warps}
    with device_of(z):
        loss_gradient[grid](*tensors, *sizes, **_kinds(alpha, mask, target, smoothing), **shape)
    return grad


def _kinds(alpha: float, mask: Tensor | None, target: Tensor | None, smoothing: float) -> dict[str, int]:
    return {
        "K": order_of(alpha),
        "HAS_MASK": mask is not None,
        "HAS_TARGET": target is not None,
        "SMOOTHS": smoothing > 0,
    }
