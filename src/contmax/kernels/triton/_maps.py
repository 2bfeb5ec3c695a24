"""Launchers of the row kernels: α-entmax and its vector–Jacobian product, for every α > 0."""

from typing import Any

import torch
from torch import Tensor

from contmax.kernels.triton._beyond_two import backward_beyond_two, forward_beyond_two
from contmax.kernels.triton._counting import blocks_of
from contmax.kernels.triton._launch import (
    Rows,
    alpha_arguments,
    as_rows,
    backward_block,
    byte_mask,
    device_of,
    forward_block,
    lists_of,
    order_of,
    side_by_side,
)
from contmax.kernels.triton._lists import list_scores, list_support
from contmax.kernels.triton._long_rows import backward_long_rows, solve_long_rows
from contmax.kernels.triton._rows import backward_rows, forward_rows

# Longer rows are read in slices, of which few scores are listed: with products for powers, with others, and backward.
_LONGEST_ON_CHIP, _LONGEST_WITH_LOGARITHMS, _LONGEST_BACKWARD = 32768, 16384, 8192
_MANY_ROWS = 2048


def _shape_beyond_two(rows: int) -> dict[str, int]:
    """Of many rows several to a program: most have nothing to do."""
    return {"ROWS": 16 if rows > _MANY_ROWS else 1, "CHUNK": 512, "num_warps": 4}


def entmax_rows(
    x: Tensor, alpha: float | Tensor, mask: Tensor | None, dtype: torch.dtype, *, needs_omega: bool
) -> tuple[Tensor, Tensor]:
    """p along the last axis, and Ω* where it is needed.

    Args:
        x: scores (*batch, n), float32 or half precision.
        alpha: α, a number, or one per row, (*batch, 1).
        mask: boolean, broadcastable to the scores, or None.
        dtype: of p.
        needs_omega: whether the maximum Ω*_α(x) is asked for.

    Returns:
        p (*batch, n), contiguous; Ω* (*batch, 1) in float64, empty where it is not needed.
    """
    p = torch.empty(x.shape, dtype=dtype, device=x.device)
    omega = torch.empty((*x.shape[:-1], 1) if needs_omega else 0, dtype=torch.float64, device=x.device)
    if x.numel() == 0:
        return p, omega
    x = side_by_side(x)
    rows = as_rows(x, byte_mask(mask, x))
    alpha, beyond = _split(alpha, p)
    order = order_of(alpha)
    tensor_alpha, epsilon = alpha_arguments(alpha, p)
    tensors = (*rows.tensors, tensor_alpha, p, omega)
    strides = (*rows.sizes, *rows.strides[0], *rows.strides[1])
    sizes = (rows.total, rows.columns, epsilon, *strides)
    kinds = {"HAS_MASK": mask is not None, "NEEDS_OMEGA": needs_omega}
    by_alpha = {"K": order, "PER_ROW": isinstance(alpha, Tensor)}
    with device_of(x):
        if rows.columns > (_LONGEST_ON_CHIP if order > 0 else _LONGEST_WITH_LOGARITHMS):
            _forward_long(rows, tensor_alpha, p, omega, epsilon, {**by_alpha, "HAS_MASK": mask is not None})
        else:
            block = forward_block(rows.columns, order)
            shape = {"R": block.rows, "B": block.columns, "num_warps": block.warps}
            forward_rows[block.programs(rows.total)](*tensors, *sizes, **by_alpha, **kinds, **shape)
        if beyond is not None:
            above = (*rows.tensors, beyond, p, omega, rows.total, rows.columns, *strides)
            shape = _shape_beyond_two(rows.total)
            forward_beyond_two[(blocks_of(rows.total, shape["ROWS"]),)](*above, **kinds, **shape)
    return p, omega


def entmax_rows_backward(
    p: Tensor, g: Tensor, alpha: float | Tensor, dtype: torch.dtype, needs_alpha: bool
) -> tuple[Tensor, Tensor]:
    """The gradient of the scores, and of α for each row where it is needed.

    Args:
        p: probabilities (*batch, n).
        g: their cotangent, (*batch, n).
        alpha: as for :func:`entmax_rows`.
        dtype: of the scores.
        needs_alpha: whether the gradient of α is asked for.

    Returns:
        (*batch, n), contiguous; (*batch, 1) in float32, empty where it is not needed.
    """
    p = p.contiguous()
    grad = torch.empty(p.shape, dtype=dtype, device=p.device)
    grad_alpha = torch.empty((*p.shape[:-1], 1) if needs_alpha else 0, dtype=torch.float32, device=p.device)
    if p.numel() == 0:
        return grad, grad_alpha
    rows = as_rows(g)
    alpha, beyond = _split(alpha, p)
    order = order_of(alpha)
    tensor_alpha, epsilon = alpha_arguments(alpha, p)
    strides = (*rows.sizes, *rows.strides[0], rows.tensors[0].stride(-1))
    tensors = (p, *rows.tensors, tensor_alpha, grad, grad_alpha)
    sizes = (rows.total, rows.columns, epsilon, *strides)
    kinds = {"K": order, "PER_ROW": isinstance(alpha, Tensor), "NEEDS_ALPHA": needs_alpha}
    with device_of(p):
        if rows.columns > _LONGEST_BACKWARD:
            lists = lists_of(p, rows.total, rows.columns, keeps_places=True)
            listed = (lists.values, lists.places, lists.counts)
            list_support[(rows.total, lists.slices)](p, grad, *listed, rows.columns, **lists.when_listing)
            numbers = (rows.columns, lists.slices, epsilon, *strides)
            backward_long_rows[(rows.total,)](*tensors, *listed, *numbers, **kinds, **lists.when_solving)
        else:
            block = backward_block(rows.columns)
            shape = {"R": block.rows, "B": block.columns, "num_warps": block.warps}
            backward_rows[block.programs(rows.total)](*tensors, *sizes, **kinds, **shape)
        if beyond is not None:
            above = (p, *rows.tensors, beyond, grad, grad_alpha, rows.total, rows.columns, *strides)
            shape = _shape_beyond_two(rows.total)
            grid = (blocks_of(rows.total, shape["ROWS"]),)
            backward_beyond_two[grid](*above, torch.finfo(dtype).max, NEEDS_ALPHA=needs_alpha, **shape)
    return grad, grad_alpha


def _forward_long(rows: Rows, alpha: Tensor, p: Tensor, omega: Tensor, epsilon: float, kinds: dict[str, Any]) -> None:
    """List what may have mass and clear p, then solve the lists and fill p in."""
    lists = lists_of(rows.tensors[0], rows.total, rows.columns, keeps_places=True)
    peaks = p.new_empty(2 * rows.total * lists.slices, dtype=torch.float32)
    strides = (*rows.sizes, *rows.strides[0], *rows.strides[1])
    listed = (lists.values, lists.places, lists.counts, peaks, peaks)
    list_scores[(rows.total, lists.slices)](
        *rows.tensors, alpha, p, *listed, rows.columns, epsilon, 0, *strides, **kinds, IS_MAP=True, **lists.when_listing
    )
    solve_long_rows[(rows.total,)](
        *rows.tensors, alpha, alpha, p, *listed, omega, rows.columns, lists.slices, epsilon, 0.0, 0, *strides, **kinds,
        HAS_TARGET=False, SMOOTHS=False, IS_MAP=True, NEEDS_LOSS=omega.numel() > 0, **lists.when_solving,
    )  # fmt: skip


def _split(alpha: float | Tensor, p: Tensor) -> tuple[float | Tensor, Tensor | None]:
    """α for the kernels up to 2, and for each row for the kernel beyond 2, None where no row can need that."""
    if isinstance(alpha, Tensor):
        alpha = alpha.expand(*p.shape[:-1], 1).contiguous()
        return alpha, alpha
    if alpha <= 2:
        return alpha, None
    return 2.0, torch.full((*p.shape[:-1], 1), alpha, dtype=torch.float32, device=p.device)
