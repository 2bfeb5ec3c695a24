"""Launchers of the losses' kernels, for fixed α ≤ 2."""

import torch
from torch import Tensor

from contmax.kernels.triton._launch import (
    LONGEST_ON_CHIP,
    as_rows,
    block_of,
    byte_mask,
    chunks_of,
    device_of,
    integer_order,
    side_by_side,
)
from contmax.kernels.triton._losses import loss_gradient, loss_long_rows, loss_rows

_COLUMNS_OF_GRADIENT = 2048


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
        (*batch) in float64; the cut of each row, (*batch, 4) in float32, from which the backward makes p̂ again.
    """
    batch = z.shape[:-1]
    losses, cut = z.new_empty(batch, dtype=torch.float64), z.new_empty((*batch, 4), dtype=torch.float32)
    if z.numel() == 0:
        return losses, cut
    z = side_by_side(z)
    rows = as_rows(z, byte_mask(mask, z))
    ids = cut if target is None else target.contiguous()
    tensors = (*rows.tensors, ids, cut, losses)
    sizes = (rows.count, rows.columns, alpha - 1, smoothing, *rows.sizes, *rows.strides[0], *rows.strides[1])
    kinds = _kinds(alpha, mask, target, smoothing)
    with device_of(z):
        if rows.columns > LONGEST_ON_CHIP:
            chunks = chunks_of(rows.count, kinds["K"], z)
            shape = {"CHUNK": chunks.columns, "CAPACITY": chunks.capacity, "num_warps": chunks.warps}
            loss_long_rows[(chunks.programs,)](*tensors, *chunks.lists(z), *sizes, **kinds, **shape)
        else:
            block = block_of(rows.columns, kinds["K"])
            shape = {"R": block.rows, "B": block.columns, "num_warps": block.warps}
            loss_rows[block.programs(rows.count)](*tensors, *sizes, **kinds, **shape)
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

    `out` may be the logits themselves, if they are contiguous.
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
    sizes = (rows.columns, alpha - 1, smoothing, 0 if same else 1, *rows.sizes, *rows.strides[0], *rows.strides[1])
    grid = (rows.count, -(-rows.columns // _COLUMNS_OF_GRADIENT))
    shape = {"CHUNK": _COLUMNS_OF_GRADIENT, "num_warps": 4}
    with device_of(z):
        loss_gradient[grid](*tensors, *sizes, **_kinds(alpha, mask, target, smoothing), **shape)
    return grad


def _kinds(alpha: float, mask: Tensor | None, target: Tensor | None, smoothing: float) -> dict[str, int]:
    return {
        "K": integer_order(alpha),
        "HAS_MASK": mask is not None,
        "HAS_TARGET": target is not None,
        "SMOOTHS": smoothing > 0,
    }
