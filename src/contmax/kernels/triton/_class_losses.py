"""Launchers of the losses' kernels, for fixed α ≤ 2."""

import torch
from torch import Tensor

from contmax.kernels.triton._counting import blocks_of
from contmax.kernels.triton._kept import launch
from contmax.kernels.triton._launch import (
    LONGEST_ON_CHIP,
    as_rows,
    byte_mask,
    forward_block,
    lists_of,
    order_of,
    side_by_side,
)
from contmax.kernels.triton._long_rows import list_chunks, solve_long_rows
from contmax.kernels.triton._losses import loss_gradient, loss_rows

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
    strides = (*rows.sizes, *rows.strides[0], *rows.strides[1])
    kinds = _kinds(alpha, mask, target, smoothing)
    if rows.columns > LONGEST_ON_CHIP:
        lists = lists_of(z, rows, keeps_places=False)
        plain = {"K": kinds["K"], "PER_ROW": False, "HAS_MASK": kinds["HAS_MASK"]}
        launch(
            list_chunks,
            (rows.total, lists.chunks),
            (*rows.tensors, cut, lists.scores, lists.places, lists.counts, lists.tops),
            (rows.columns, alpha - 1, *strides),
            {**plain, **lists.shape, "KEEPS_PLACES": False},
            lists.warps,
        )
        launch(
            solve_long_rows,
            (rows.total,),
            (*rows.tensors, cut, ids, lists.scores, lists.counts, lists.tops, cut, losses),
            (rows.columns, lists.chunks, alpha - 1, smoothing, *strides),
            {**kinds, **lists.shape, **lists.blocks, "PER_ROW": False, "NEEDS_LOSS": True},
            8,
        )
    else:
        block = forward_block(rows.columns, kinds["K"])
        launch(
            loss_rows,
            block.programs(rows.total),
            (*rows.tensors, ids, cut, losses),
            (rows.total, rows.columns, alpha - 1, smoothing, *strides),
            {**kinds, "R": block.rows, "B": block.columns},
            block.warps,
        )
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
    strides = (*rows.sizes, *rows.strides[0], *rows.strides[1])
    launch(
        loss_gradient,
        (rows.total, blocks_of(rows.columns, _COLUMNS_OF_GRADIENT)),
        (*rows.tensors, ids, cut.contiguous(), g if same else g.contiguous(), grad),
        (rows.columns, alpha - 1, smoothing, 0 if same else 1, *strides),
        {**_kinds(alpha, mask, target, smoothing), "CHUNK": _COLUMNS_OF_GRADIENT},
    )
    return grad


def _kinds(alpha: float, mask: Tensor | None, target: Tensor | None, smoothing: float) -> dict[str, int]:
    return {
        "K": order_of(alpha),
        "HAS_MASK": mask is not None,
        "HAS_TARGET": target is not None,
        "SMOOTHS": smoothing > 0,
    }
