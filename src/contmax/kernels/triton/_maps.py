"""Launchers of the row kernels: α-entmax and its vector–Jacobian product, for every α > 0."""

import torch
from torch import Tensor

from contmax.kernels.triton._beyond_two import backward_beyond_two, forward_beyond_two
from contmax.kernels.triton._kept import launch
from contmax.kernels.triton._launch import (
    LONGEST_ON_CHIP,
    Rows,
    alpha_arguments,
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
    rows = as_rows(x, byte_mask(mask, x))
    alpha, beyond = _split(alpha, p)
    order = order_of(alpha)
    tensor_alpha, epsilon = alpha_arguments(alpha, p)
    strides = (*rows.sizes, *rows.strides[0], *rows.strides[1])
    kinds = {"K": order, "PER_ROW": isinstance(alpha, Tensor), "HAS_MASK": mask is not None}
    if rows.columns > LONGEST_ON_CHIP:
        _forward_long(x, rows, tensor_alpha, p, omega, epsilon, kinds)
    else:
        block = forward_block(rows.columns, order)
        launch(
            forward_rows,
            block.programs(rows.total),
            (*rows.tensors, tensor_alpha, p, p if omega is None else omega),
            (rows.total, rows.columns, epsilon, *strides),
            {**kinds, "NEEDS_OMEGA": needs_omega, "R": block.rows, "B": block.columns},
            block.warps,
        )
    if beyond is not None:
        launch(
            forward_beyond_two,
            (rows.total,),
            (*rows.tensors, beyond, p, p if omega is None else omega),
            (rows.columns, *strides),
            {"HAS_MASK": mask is not None, "NEEDS_OMEGA": needs_omega, "CHUNK": _CHUNK_BEYOND_TWO},
        )
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
    rows = as_rows(g)
    alpha, beyond = _split(alpha, p)
    order = order_of(alpha)
    tensor_alpha, epsilon = alpha_arguments(alpha, p)
    strides = (*rows.sizes, *rows.strides[0], rows.tensors[0].stride(-1))
    slopes = grad if grad_alpha is None else grad_alpha
    tensors = (p, *rows.tensors, tensor_alpha, grad, slopes)
    numbers = (rows.total, rows.columns, epsilon, *strides)
    kinds = {"K": order, "PER_ROW": isinstance(alpha, Tensor), "NEEDS_ALPHA": needs_alpha}
    if rows.columns > _LONGEST_BACKWARD:
        launch(backward_long_rows, (rows.total,), tensors, numbers, {**kinds, "CHUNK": 4096}, 8)
    else:
        block = backward_block(rows.columns)
        kinds |= {"R": block.rows, "B": block.columns}
        launch(backward_rows, block.programs(rows.total), tensors, numbers, kinds, block.warps)
    if beyond is not None:
        launch(
            backward_beyond_two,
            (rows.total,),
            (p, *rows.tensors, beyond, grad, slopes),
            (rows.columns, *strides, torch.finfo(dtype).max),
            {"NEEDS_ALPHA": needs_alpha, "CHUNK": _CHUNK_BEYOND_TWO},
        )
    return grad, grad_alpha


def _forward_long(
    x: Tensor, rows: Rows, alpha: Tensor, p: Tensor, omega: Tensor | None, epsilon: float, kinds: dict[str, int]
) -> None:
    """List what may have mass, solve the lists, write p; see `_long_rows`."""
    lists = lists_of(x, rows, keeps_places=True)
    cut = x.new_empty(rows.total, 4, dtype=torch.float32)
    strides = (*rows.sizes, *rows.strides[0], *rows.strides[1])
    grid = (rows.total, lists.chunks)
    kinds = {**kinds, **lists.shape}
    launch(
        list_chunks,
        grid,
        (*rows.tensors, alpha, lists.scores, lists.places, lists.counts, lists.tops),
        (rows.columns, epsilon, *strides),
        {**kinds, "KEEPS_PLACES": True},
        16,
    )
    kinds |= lists.blocks
    launch(
        solve_long_rows,
        (rows.total,),
        (*rows.tensors, alpha, alpha, lists.scores, lists.counts, lists.tops, cut, p if omega is None else omega),
        (rows.columns, lists.chunks, epsilon, 0.0, *strides),
        {**kinds, "HAS_TARGET": False, "SMOOTHS": False, "NEEDS_LOSS": omega is not None},
        8,
    )
    launch(
        write_long_rows,
        grid,
        (*rows.tensors, alpha, lists.scores, lists.places, lists.counts, cut, p),
        (rows.columns, lists.chunks, epsilon, *strides),
        kinds,
        8,
    )


def _split(alpha: float | Tensor, p: Tensor) -> tuple[float | Tensor, Tensor | None]:
    """α for the kernels up to 2, and for each row for the kernel beyond 2, None where no row can need that."""
    if isinstance(alpha, Tensor):
        alpha = alpha.expand(*p.shape[:-1], 1).contiguous()
        return alpha, alpha
    if alpha <= 2:
        return alpha, None
    return 2.0, torch.full((*p.shape[:-1], 1), alpha, dtype=torch.float32, device=p.device)
