"""Launchers of the losses' kernels, for fixed α ≤ 2."""

import functools

import torch
from torch import Tensor

from contmax.kernels.triton._counting import blocks_of
from contmax.kernels.triton._kept import LAUNCHES, Launch
from contmax.kernels.triton._launch import (
    LONGEST_ON_CHIP,
    Rows,
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
    tensors, rows = as_rows(z, byte_mask(mask, z))
    ids = cut if target is None else target.contiguous()
    kinds = (alpha, mask is not None, target is not None, smoothing)
    if rows.columns > LONGEST_ON_CHIP:
        _long_losses(tensors, rows, ids, cut, losses, kinds)
    else:
        _losses(rows, *kinds)(*tensors, ids, cut, losses)
    return losses, cut


def _long_losses(
    tensors: tuple[Tensor, ...],
    rows: Rows,
    ids: Tensor,
    cut: Tensor,
    losses: Tensor,
    what: tuple[float, bool, bool, float],
) -> None:
    """List what may have mass, and solve the lists; see `_long_rows`."""
    alpha, smoothing = what[0], what[-1]
    kinds = _kinds(*what)
    lists = lists_of(tensors[0], rows, keeps_places=False)
    plain = {"K": kinds["K"], "PER_ROW": False, "HAS_MASK": kinds["HAS_MASK"], **lists.shape, "KEEPS_PLACES": False}
    numbers = (rows.columns, alpha - 1, *rows.places)
    list_them = Launch(list_chunks, (rows.total, lists.chunks), numbers, plain, lists.warps)
    list_them(*tensors, cut, lists.scores, lists.places, lists.counts, lists.tops)
    solve = Launch(
        solve_long_rows,
        (rows.total,),
        (rows.columns, lists.chunks, alpha - 1, smoothing, *rows.places),
        {**kinds, **lists.shape, **lists.blocks, "PER_ROW": False, "NEEDS_LOSS": True},
        8,
    )
    solve(*tensors, cut, ids, lists.scores, lists.counts, lists.tops, cut, losses)


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
    tensors, rows = as_rows(z, byte_mask(mask, z))
    ids = cut if target is None else target.contiguous()
    # A mean hands the same number to every row.
    same = all(stride == 0 for stride, size in zip(g.stride(), g.shape, strict=True) if size > 1)
    cotangent = g if same else g.contiguous()
    gradient = _gradient(rows, 0 if same else 1, alpha, mask is not None, target is not None, smoothing)
    gradient(*tensors, ids, cut.contiguous(), cotangent, grad)
    return grad


@functools.lru_cache(maxsize=LAUNCHES)
def _losses(rows: Rows, alpha: float, has_mask: bool, has_target: bool, smoothing: float) -> Launch:
    kinds = _kinds(alpha, has_mask, has_target, smoothing)
    block = forward_block(rows.columns, kinds["K"])
    kinds |= {"R": block.rows, "B": block.columns}
    numbers = (rows.total, rows.columns, alpha - 1, smoothing, *rows.places)
    return Launch(loss_rows, block.programs(rows.total), numbers, kinds, block.warps)


@functools.lru_cache(maxsize=LAUNCHES)
def _gradient(rows: Rows, step: int, alpha: float, has_mask: bool, has_target: bool, smoothing: float) -> Launch:
    """Cotangents of neighbouring rows lie `step` apart."""
    kinds = {**_kinds(alpha, has_mask, has_target, smoothing), "CHUNK": _COLUMNS_OF_GRADIENT}
    grid = (rows.total, blocks_of(rows.columns, _COLUMNS_OF_GRADIENT))
    return Launch(loss_gradient, grid, (rows.columns, alpha - 1, smoothing, step, *rows.places), kinds)


def _kinds(alpha: float, has_mask: bool, has_target: bool, smoothing: float) -> dict[str, int]:
    return {
        "K": order_of(alpha),
        "HAS_MASK": has_mask,
        "HAS_TARGET": has_target,
        "SMOOTHS": smoothing > 0,
    }
