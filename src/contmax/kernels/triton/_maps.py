"""Launchers of the row kernels: α-entmax and its vector–Jacobian product, for every α > 0."""

import functools

import torch
from torch import Tensor

from contmax.kernels.triton._beyond_two import backward_beyond_two, forward_beyond_two
from contmax.kernels.triton._kept import LAUNCHES, Launch
from contmax.kernels.triton._launch import (
    LONGEST_ON_CHIP,
    Rows,
    as_rows,
    backward_block,
    byte_mask,
    forward_block,
    lists_of,
    order_of,
    side_by_side,
)
from contmax.kernels.triton._long_rows import backward_long_rows, list_chunks, solve_long_rows, write_long_rows
from contmax.kernels.triton._rows import backward_rows, forward_rows

# Beyond it, a row in chunks keeps more of the processor busy than one in the registers.
_LONGEST_BACKWARD = 16384
_CHUNK_BEYOND_TWO = 512


def entmax_rows(
    x: Tensor, alpha: float | Tensor, mask: Tensor | None, dtype: torch.dtype, *, needs_omega: bool
) -> tuple[Tensor, Tensor | None]:
    """p along the last axis, and Ω* where it is needed.

    Args:
        x: scores (*batch, n), float32 or half precision.
        alpha: α, a number, or one per row, (*batch, 1).
        mask: boolean, broadcastable to the scores, or None.
        dtype: of p.
        needs_omega: whether the maximum Ω*_α(x) is asked for.

    Returns:
        p (*batch, n), contiguous; Ω* (*batch, 1) in float64, or None.
    """
    p = torch.empty(x.shape, dtype=dtype, device=x.device)
    omega = torch.empty((*x.shape[:-1], 1), dtype=torch.float64, device=x.device) if needs_omega else None
    if x.numel() == 0:
        return p, omega
    x = side_by_side(x)
    tensors, rows = as_rows(x, byte_mask(mask, x))
    alpha, beyond = _split(alpha, p)
    tensor_alpha, number = (alpha, None) if isinstance(alpha, Tensor) else (p, alpha)
    to = (p, p if omega is None else omega)
    if rows.columns > LONGEST_ON_CHIP:
        _forward_long(tensors, rows, tensor_alpha, number, p, omega, has_mask=mask is not None)
    else:
        _forward(rows, number, mask is not None, needs_omega)(*tensors, tensor_alpha, *to)
    if beyond is not None:
        _forward_beyond_two(rows, mask is not None, needs_omega)(*tensors, beyond, *to)
    return p, omega


def entmax_rows_backward(
    p: Tensor, g: Tensor, alpha: float | Tensor, dtype: torch.dtype, needs_alpha: bool
) -> tuple[Tensor, Tensor | None]:
    """The gradient of the scores, and of α for each row where it is needed.

    Args:
        p: probabilities (*batch, n).
        g: their cotangent, (*batch, n).
        alpha: as for :func:`entmax_rows`.
        dtype: of the scores.
        needs_alpha: whether the gradient of α is asked for.

    Returns:
        (*batch, n), contiguous; (*batch, 1) in float32, or None.
    """
    p = p.contiguous()
    grad = torch.empty(p.shape, dtype=dtype, device=p.device)
    grad_alpha = torch.empty((*p.shape[:-1], 1), dtype=torch.float32, device=p.device) if needs_alpha else None
    if p.numel() == 0:
        return grad, grad_alpha
    tensors, rows = as_rows(g)
    alpha, beyond = _split(alpha, p)
    tensor_alpha, number = (alpha, None) if isinstance(alpha, Tensor) else (p, alpha)
    step, to = tensors[0].stride(-1), (grad, grad if grad_alpha is None else grad_alpha)
    is_long = rows.columns > _LONGEST_BACKWARD
    _backward(rows, step, number, needs_alpha, is_long)(p, *tensors, tensor_alpha, *to)
    if beyond is not None:
        _backward_beyond_two(rows, step, needs_alpha, torch.finfo(dtype).max)(p, *tensors, beyond, *to)
    return grad, grad_alpha


@functools.lru_cache(maxsize=LAUNCHES)
def _forward(rows: Rows, alpha: float | None, has_mask: bool, needs_omega: bool) -> Launch:
    """Rows that fit on the chip; α is None where each has its own."""
    order, epsilon = _order_and_epsilon(alpha)
    block = forward_block(rows.columns, order)
    kinds = {"K": order, "PER_ROW": alpha is None, "HAS_MASK": has_mask, "NEEDS_OMEGA": needs_omega}
    kinds |= {"R": block.rows, "B": block.columns}
    numbers = (rows.total, rows.columns, epsilon, *rows.places)
    return Launch(forward_rows, block.programs(rows.total), numbers, kinds, block.warps)


@functools.lru_cache(maxsize=LAUNCHES)
def _forward_beyond_two(rows: Rows, has_mask: bool, needs_omega: bool) -> Launch:
    kinds = {"HAS_MASK": has_mask, "NEEDS_OMEGA": needs_omega, "CHUNK": _CHUNK_BEYOND_TWO}
    return Launch(forward_beyond_two, (rows.total,), (rows.columns, *rows.places), kinds)


@functools.lru_cache(maxsize=LAUNCHES)
def _backward(rows: Rows, step: int, alpha: float | None, needs_alpha: bool, is_long: bool) -> Launch:
    """Cotangents in rows, neighbours `step` apart; α as above."""
    order, epsilon = _order_and_epsilon(alpha)
    numbers = (rows.total, rows.columns, epsilon, *rows.places, step)
    kinds = {"K": order, "PER_ROW": alpha is None, "NEEDS_ALPHA": needs_alpha}
    if is_long:
        return Launch(backward_long_rows, (rows.total,), numbers, {**kinds, "CHUNK": 4096}, 8)
    block = backward_block(rows.columns)
    kinds |= {"R": block.rows, "B": block.columns}
    return Launch(backward_rows, block.programs(rows.total), numbers, kinds, block.warps)


@functools.lru_cache(maxsize=LAUNCHES)
def _backward_beyond_two(rows: Rows, step: int, needs_alpha: bool, largest: float) -> Launch:
    kinds = {"NEEDS_ALPHA": needs_alpha, "CHUNK": _CHUNK_BEYOND_TWO}
    return Launch(backward_beyond_two, (rows.total,), (rows.columns, *rows.places, step, largest), kinds)


def _forward_long(
    tensors: tuple[Tensor, ...],
    rows: Rows,
    alpha: Tensor,
    number: float | None,
    p: Tensor,
    omega: Tensor | None,
    *,
    has_mask: bool,
) -> None:
    """List what may have mass, solve the lists, write p; see `_long_rows`."""
    lists = lists_of(tensors[0], rows, keeps_places=True)
    cut = p.new_empty(rows.total, 4, dtype=torch.float32)
    order, epsilon = _order_and_epsilon(number)
    grid = (rows.total, lists.chunks)
    kinds = {"K": order, "PER_ROW": number is None, "HAS_MASK": has_mask, **lists.shape}
    list_them = Launch(list_chunks, grid, (rows.columns, epsilon, *rows.places), {**kinds, "KEEPS_PLACES": True}, 16)
    list_them(*tensors, alpha, lists.scores, lists.places, lists.counts, lists.tops)
    kinds |= lists.blocks
    solve = Launch(
        solve_long_rows,
        (rows.total,),
        (rows.columns, lists.chunks, epsilon, 0.0, *rows.places),
        {**kinds, "HAS_TARGET": False, "SMOOTHS": False, "NEEDS_LOSS": omega is not None},
        8,
    )
    solve(*tensors, alpha, alpha, lists.scores, lists.counts, lists.tops, cut, p if omega is None else omega)
    write = Launch(write_long_rows, grid, (rows.columns, lists.chunks, epsilon, *rows.places), kinds, 8)
    write(*tensors, alpha, lists.scores, lists.places, lists.counts, cut, p)


def _order_and_epsilon(alpha: float | None) -> tuple[int, float]:
    """K as kernels take it, and ε = α − 1, which keeps its digits; for rows with an α of their own ε is not used."""
    return (-1, 0.0) if alpha is None else (order_of(alpha), alpha - 1)


def _split(alpha: float | Tensor, p: Tensor) -> tuple[float | Tensor, Tensor | None]:
    """α for the kernels up to 2, and for each row for the kernel beyond 2, None where no row can need that."""
    if isinstance(alpha, Tensor):
        alpha = alpha.expand(*p.shape[:-1], 1).contiguous()
        return alpha, alpha
    if alpha <= 2:
        return alpha, None
    return 2.0, torch.full((*p.shape[:-1], 1), alpha, dtype=torch.float32, device=p.device)
