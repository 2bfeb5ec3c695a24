"""Launchers of the row kernels: α-entmax and its vector–Jacobian product, for every α > 0."""

import functools

import torch
from torch import Tensor

from contmax.kernels.gpu._counting import blocks_of
from contmax.kernels.gpu._kept import LAUNCHES, Launch
from contmax.kernels.gpu._launch import (
    Rows,
    Sizes,
    as_rows,
    backward_block,
    byte_mask,
    forward_block,
    in_parts,
    lists_of,
    order_of,
    side_by_side,
)
from contmax.kernels.rows._gpu_beyond_two import backward_beyond_two, forward_beyond_two
from contmax.kernels.rows._gpu_lists import list_scores, list_support
from contmax.kernels.rows._gpu_long_rows import solve_long_rows
from contmax.kernels.rows._gpu_long_rows_backward import backward_long_rows
from contmax.kernels.rows._gpu_rows import backward_rows, forward_rows

# Longer rows are read in slices, and few scores are listed: with products for powers, with others, and backward.
LONGEST_ON_CHIP, LONGEST_WITH_LOGARITHMS, LONGEST_BACKWARD = 32768, 16384, 8192
# Numbers of a row that are so far apart do not fit 32 bits.
TOO_FAR = 2**31
# Of more rows than these a program looks after sixteen, where hardly one has α > 2.
_MANY_ROWS = 2048
_CHUNK_BEYOND_TWO = 512


def entmax_rows(
    x: Tensor, alpha: float | Tensor, mask: Tensor | None, dtype: torch.dtype, *, needs_omega: bool
) -> tuple[Tensor, Tensor | None]:
    """p along the last axis, and Ω* less the maximum of the scores where it is needed.

    Args:
        x: scores (*batch, n), float32 or half precision.
        alpha: α, a number, or one per row, (*batch, 1).
        mask: boolean, broadcastable to the scores, or None.
        dtype: of p.
        needs_omega: whether Ω*_α(x) − max x is asked for.

    Returns:
        p (*batch, n), contiguous; Ω* − max x (*batch, 1) in float64, or None.
    """
    p = empty_rows(x, dtype)
    omega = torch.empty((*x.shape[:-1], 1), dtype=torch.float64, device=x.device) if needs_omega else None
    if x.numel() > 0:
        mask = None if mask is None else mask.expand(x.shape)
        in_parts(_forward, (x, _of_rows(alpha, p), mask, p, omega))
    return p, omega


def _forward(x: Tensor, alpha: float | Tensor, mask: Tensor | None, p: Tensor, omega: Tensor | None) -> None:
    """Write p, and Ω* less the maximum if there is memory for it."""
    x = side_by_side(x)
    tensors, rows = as_rows(x, byte_mask(mask, x))
    alpha, beyond = _split(alpha, p)
    tensor_alpha, number = (alpha, None) if isinstance(alpha, Tensor) else (p, alpha)
    to = (p, p if omega is None else omega)
    if rows.columns > (LONGEST_ON_CHIP if _order_and_epsilon(number)[0] > 0 else LONGEST_WITH_LOGARITHMS):
        _forward_long(tensors, rows, tensor_alpha, number, p, omega, has_mask=mask is not None)
    else:
        forward = forward_of_rows(rows, number, mask is not None, omega is not None)
        forward(tensors[0], p, tensors[1], tensor_alpha, to[1])
    if beyond is not None:
        _forward_beyond_two(rows, mask is not None, omega is not None)(*tensors, beyond, *to)


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
    grad = empty_rows(p, dtype)
    grad_alpha = torch.empty((*p.shape[:-1], 1), dtype=torch.float32, device=p.device) if needs_alpha else None
    if p.numel() > 0:
        in_parts(_backward, (p, g, _of_rows(alpha, p), grad, grad_alpha))
    return grad, grad_alpha


def _backward(p: Tensor, g: Tensor, alpha: float | Tensor, grad: Tensor, grad_alpha: Tensor | None) -> None:
    """Write the gradient of the scores, and of α if there is memory for it."""
    needs_alpha = grad_alpha is not None
    if g.shape[-1] * g.stride(-1) >= TOO_FAR:
        g = g.contiguous()
    tensors, rows = as_rows(g)
    alpha, beyond = _split(alpha, p)
    tensor_alpha, number = (alpha, None) if isinstance(alpha, Tensor) else (p, alpha)
    step, to = tensors[0].stride(-1), (grad, grad if grad_alpha is None else grad_alpha)
    if rows.columns > LONGEST_BACKWARD:
        _backward_long(p, tensors[0], rows, step, tensor_alpha, number, *to, needs_alpha=needs_alpha)
    else:
        backward_of_rows(rows, step, number, needs_alpha)(p, tensors[0], grad, tensor_alpha, to[1])
    if beyond is not None:
        _backward_beyond_two(rows, step, needs_alpha, torch.finfo(grad.dtype).max)(p, *tensors, beyond, *to)


def empty_rows(like: Tensor, dtype: torch.dtype) -> Tensor:
    """Memory for as many numbers, contiguous."""
    if like.dtype == dtype and like.is_contiguous():
        return torch.empty_like(like)  # which takes less time without options
    return torch.empty_like(like, dtype=dtype, memory_format=torch.contiguous_format)


@functools.lru_cache(maxsize=LAUNCHES)
def forward_of_rows(rows: Rows, alpha: float | None, has_mask: bool, needs_omega: bool) -> Launch:
    """Rows that fit on the chip; α is None where each has its own."""
    order, epsilon = _order_and_epsilon(alpha)
    block = forward_block(rows.columns, order)
    kinds = {"K": order, "PER_ROW": alpha is None, "HAS_MASK": has_mask, "NEEDS_OMEGA": needs_omega}
    kinds |= {"R": block.rows, "B": block.columns}
    numbers = (rows.total, rows.columns, epsilon, *rows.places)
    return Launch(forward_rows, block.programs(rows.total), numbers, kinds, block.warps)


@functools.lru_cache(maxsize=LAUNCHES)
def _forward_beyond_two(rows: Rows, has_mask: bool, needs_omega: bool) -> Launch:
    grid, kinds = _programs_beyond_two(rows.total)
    kinds |= {"HAS_MASK": has_mask, "NEEDS_OMEGA": needs_omega}
    return Launch(forward_beyond_two, grid, (rows.total, rows.columns, *rows.places), kinds)


@functools.lru_cache(maxsize=LAUNCHES)
def backward_of_rows(rows: Rows, step: int, alpha: float | None, needs_alpha: bool) -> Launch:
    """Cotangents in rows, neighbours `step` apart; α as above."""
    order, epsilon = _order_and_epsilon(alpha)
    numbers = (rows.total, rows.columns, epsilon, *rows.places, step)
    block = backward_block(rows.columns)
    kinds = {"K": order, "PER_ROW": alpha is None, "NEEDS_ALPHA": needs_alpha, "R": block.rows, "B": block.columns}
    return Launch(backward_rows, block.programs(rows.total), numbers, kinds, block.warps, contracts=True)


@functools.lru_cache(maxsize=LAUNCHES)
def _backward_beyond_two(rows: Rows, step: int, needs_alpha: bool, largest: float) -> Launch:
    grid, kinds = _programs_beyond_two(rows.total)
    numbers = (rows.total, rows.columns, *rows.places, step, largest)
    return Launch(backward_beyond_two, grid, numbers, {**kinds, "NEEDS_ALPHA": needs_alpha})


def _programs_beyond_two(rows: int) -> tuple[tuple[int], dict[str, int]]:
    each = 16 if rows > _MANY_ROWS else 1
    return (blocks_of(rows, each),), {"ROWS": each, "CHUNK": _CHUNK_BEYOND_TWO}


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
    """List what may have mass and clear p, then solve the lists and fill p in."""
    lists = lists_of(tensors[0], rows, keeps_places=True, varied=number is None)
    peaks = p.new_empty(2 * rows.total * lists.slices, dtype=torch.float32)
    list_them, solve = _long_launches(rows, lists.sizes, number, has_mask, omega is not None)
    listed = (lists.values, lists.places, lists.counts, peaks, peaks, peaks)
    list_them(*tensors, alpha, p, p, *listed)
    solve(*tensors, alpha, alpha, p, *listed, p if omega is None else omega)


@functools.lru_cache(maxsize=LAUNCHES)
def _long_launches(
    rows: Rows, sizes: Sizes, alpha: float | None, has_mask: bool, needs_omega: bool
) -> tuple[Launch, Launch]:
    """The launches of `_forward_long`."""
    order, epsilon = _order_and_epsilon(alpha)
    kinds = {"K": order, "PER_ROW": alpha is None, "HAS_MASK": has_mask, "IS_MAP": True, "IS_SOFT": False}
    numbers = (rows.columns, epsilon, 0, *rows.places)
    list_them = Launch(list_scores, (rows.total, sizes.slices), numbers, kinds | sizes.when_listing, 1)
    kinds |= {"HAS_TARGET": False, "SMOOTHS": False, "NEEDS_LOSS": needs_omega} | sizes.when_solving
    numbers = (rows.columns, sizes.slices, epsilon, 0.0, 0, *rows.places)
    return list_them, Launch(solve_long_rows, (rows.total,), numbers, kinds, sizes.warps_when_solving)


def _backward_long(
    p: Tensor,
    g: Tensor,
    rows: Rows,
    step: int,
    alpha: Tensor,
    number: float | None,
    grad: Tensor,
    grad_alpha: Tensor,
    *,
    needs_alpha: bool,
) -> None:
    """List the support and clear the gradient, then fill it in."""
    lists = lists_of(p, rows, keeps_places=True, varied=number is None)
    listed = (lists.values, lists.places, lists.counts)
    list_them, fill = _long_backward_launches(rows, lists.sizes, step, number, needs_alpha)
    list_them(p, grad, *listed)
    fill(p, g, alpha, grad, grad_alpha, *listed)


@functools.lru_cache(maxsize=LAUNCHES)
def _long_backward_launches(
    rows: Rows, sizes: Sizes, step: int, alpha: float | None, needs_alpha: bool
) -> tuple[Launch, Launch]:
    """The launches of `_backward_long`."""
    order, epsilon = _order_and_epsilon(alpha)
    list_them = Launch(list_support, (rows.total, sizes.slices), (rows.columns,), sizes.when_listing, 1)
    kinds = {"K": order, "PER_ROW": alpha is None, "NEEDS_ALPHA": needs_alpha} | sizes.when_solving
    numbers = (rows.columns, sizes.slices, epsilon, *rows.places, step)
    return list_them, Launch(backward_long_rows, (rows.total,), numbers, kinds, sizes.warps_when_solving)


def _order_and_epsilon(alpha: float | None) -> tuple[int, float]:
    """K as kernels take it, and ε = α − 1, which keeps its digits; for rows with an α of their own ε is not used."""
    return (-1, 0.0) if alpha is None else (order_of(alpha), alpha - 1)


def _of_rows(alpha: float | Tensor, p: Tensor) -> float | Tensor:
    """α as it is, or one for each row, (*batch, 1)."""
    return alpha.expand(*p.shape[:-1], 1) if isinstance(alpha, Tensor) else alpha


def _split(alpha: float | Tensor, p: Tensor) -> tuple[float | Tensor, Tensor | None]:
    """α for the kernels up to 2, and for each row for the kernel beyond 2, None where no row can need that."""
    if isinstance(alpha, Tensor):
        alpha = alpha.contiguous()
        return alpha, alpha
    if alpha <= 2:
        return alpha, None
    return 2.0, torch.full((*p.shape[:-1], 1), alpha, dtype=torch.float32, device=p.device)
