"""Launches of the row kernels: α-entmax and its vector–Jacobian product, for every α > 0.

Rows that fit on the chip take one launch each way (`_gpu_rows`), longer ones two (`_gpu_lists`, then `_gpu_long_rows`),
and one more where an α may be more than 2 (`_gpu_beyond_two`). A launch is remembered for rows of one shape and layout,
because on a GPU most of the time of a small map is Python's.
"""

import torch
from torch import Tensor

from contmax._backend import TRITON_DTYPES, Backend
from contmax._caches import cached
from contmax.kernels._counting import blocks_of
from contmax.kernels.gpu._cached_launch import LAUNCHES, Launch, ReadyLaunch
from contmax.kernels.gpu._launch import (
    Rows,
    Sizes,
    as_rows,
    backward_block,
    byte_mask,
    fit_one_launch,
    forward_block,
    in_parts,
    lists_of,
    order_of,
    rows_of,
    side_by_side,
)
from contmax.kernels.rows._gpu_beyond_two import backward_beyond_two, forward_beyond_two
from contmax.kernels.rows._gpu_lists import list_scores, list_support
from contmax.kernels.rows._gpu_long_rows import backward_long_rows, solve_long_rows
from contmax.kernels.rows._gpu_rows import backward_rows, forward_rows

# The longest rows that fit on the chip: with products for powers, with logarithms for powers, and backward.
LONGEST_ON_CHIP, LONGEST_WITH_LOGARITHMS, LONGEST_BACKWARD = 32768, 16384, 8192
# Kernels number the elements of a row in 32 bits, strides included.
TOO_FAR = 2**31
# From this number of rows on, a program checks sixteen for α > 2, since hardly one has it.
_MANY_ROWS = 2048
_CHUNK_BEYOND_TWO = 512


def entmax_rows(
    x: Tensor, alpha: float | Tensor, mask: Tensor | None, dtype: torch.dtype, *, needs_omega: bool
) -> tuple[Tensor, Tensor]:
    """p along the last axis, and Ω* less the maximum of the scores where it is needed.

    Args:
        x: scores (*batch, n), float32 or half precision.
        alpha: α, a number, or one per row, (*batch, 1).
        mask: boolean, broadcastable to the scores, or None.
        dtype: of p.
        needs_omega: whether the caller needs Ω*_α(x) − max x.

    Returns:
        p (*batch, n), contiguous; Ω* − max x (*batch, 1) in float64, or p again where it is not needed.
    """
    p = empty_rows(x, dtype)
    omega = torch.empty((*x.shape[:-1], 1), dtype=torch.float64, device=x.device) if needs_omega else p
    if x.numel() > 0:
        mask = None if mask is None else mask.expand(x.shape)
        in_parts(_forward, (x, _of_rows(alpha, p), mask, p, omega if needs_omega else None))
    return p, omega


def _forward(x: Tensor, alpha: float | Tensor, mask: Tensor | None, p: Tensor, omega: Tensor | None) -> None:
    """Write p, and Ω* less the maximum if there is memory for it."""
    x = side_by_side(x)
    tensors, rows = as_rows(x, byte_mask(mask, x))
    has_mask, needs_omega, gain = mask is not None, omega is not None, p if omega is None else omega
    per_row, number = (p, alpha) if isinstance(alpha, float) else (alpha.contiguous(), None)
    if rows.columns > _longest(number):
        lists = lists_of(x, rows, keeps_places=True, varied=number is None)
        peaks = p.new_empty(2 * rows.total * lists.sizes.slices, dtype=torch.float32)
        list_them, solve = _long_launches(rows, lists.sizes, number, has_mask, needs_omega)
        listed = (lists.values, lists.places, lists.counts, peaks, peaks, peaks)
        list_them(*tensors, per_row, p, p, *listed)
        solve(*tensors, per_row, per_row, p, *listed, gain)
    else:
        forward_of_rows(rows, number, has_mask, needs_omega)(tensors[0], p, tensors[1], per_row, gain)
    if number is None:
        _forward_beyond_two(rows, has_mask, needs_omega)(*tensors, per_row, p, gain)


def entmax_rows_backward(
    p: Tensor, g: Tensor, alpha: float | Tensor, dtype: torch.dtype, needs_alpha: bool
) -> tuple[Tensor, Tensor]:
    """The gradient of the scores, and of α for each row where it is needed.

    Args:
        p: probabilities (*batch, n).
        g: their cotangent, (*batch, n).
        alpha: as for :func:`entmax_rows`.
        dtype: of the scores.
        needs_alpha: whether the caller needs the gradient of α.

    Returns:
        (*batch, n), contiguous; (*batch, 1) in float32, or empty, (0,).
    """
    p = p.contiguous()
    grad = empty_rows(p, dtype)
    grad_alpha = torch.empty((*p.shape[:-1], 1) if needs_alpha else 0, dtype=torch.float32, device=p.device)
    if p.numel() > 0:
        in_parts(_backward, (p, g, _of_rows(alpha, p), grad, grad_alpha if needs_alpha else None))
    return grad, grad_alpha


def _backward(p: Tensor, g: Tensor, alpha: float | Tensor, grad: Tensor, grad_alpha: Tensor | None) -> None:
    """Write the gradient of the scores, and of α if there is memory for it."""
    needs_alpha = grad_alpha is not None
    if g.shape[-1] * g.stride(-1) >= TOO_FAR:
        g = g.contiguous()
    (g,), rows = as_rows(g)
    per_row, number = (p, alpha) if isinstance(alpha, float) else (alpha.contiguous(), None)
    step, slope = g.stride(-1), grad if grad_alpha is None else grad_alpha
    if rows.columns > LONGEST_BACKWARD:
        lists = lists_of(p, rows, keeps_places=True, varied=number is None)
        listed = (lists.values, lists.places, lists.counts)
        list_them, fill = _long_backward_launches(rows, lists.sizes, step, number, needs_alpha)
        list_them(p, grad, *listed)
        fill(p, g, per_row, grad, slope, *listed)
    else:
        backward_of_rows(rows, step, number, needs_alpha)(p, g, grad, per_row, slope)
    if number is None:
        _backward_beyond_two(rows, step, needs_alpha, torch.finfo(grad.dtype).max)(p, g, per_row, grad, slope)


class ReadyRows:
    """Maps of eager scores of one shape, layout, dtype and device, for one α without a mask: one launch each way.

    Args:
        forward: the launch that makes p from the scores.
        alpha: α.
        dtype: of the scores.
        to: the dtype of p.
        device: the number of the device.
    """

    backend = Backend.TRITON

    def __init__(self, forward: ReadyLaunch, alpha: float, dtype: torch.dtype, to: torch.dtype, device: int) -> None:
        self.alpha, self._dtype = alpha, dtype
        self._forward, self._to, self._device = forward, to, device
        self._keeps_dtype = dtype == to
        self._backward: dict[tuple[int, ...], ReadyLaunch | None] = {}

    def forward(self, x: Tensor) -> Tensor:
        """p of such scores, contiguous."""
        if x.is_neg():  # the kernel reads memory as it is, and a negated copy has another layout
            return entmax_rows(x, self.alpha, None, self._to, needs_omega=False)[0]
        p = torch.empty_like(x) if self._keeps_dtype and x.is_contiguous() else empty_rows(x, self._to)
        self._forward(x, p)
        return p

    def backward(self, p: Tensor, g: Tensor) -> Tensor | None:
        """The gradient of the scores, from p and its cotangent; None where one launch does not do."""
        strides = g.stride()
        launch = self._backward.get(strides)
        if launch is None:
            if strides not in self._backward:
                self._backward[strides] = launch = _ready_backward(g.shape, strides, self.alpha, self._device)
            if launch is None:
                return None
        # Hooks of users may bring back another p than was saved.
        if g.is_neg() or p.dtype is not self._to or not p.is_contiguous() or p.get_device() != self._device:
            return None
        grad = torch.empty_like(p) if self._keeps_dtype else empty_rows(p, self._dtype)
        launch(p, g, grad)
        return grad


def ready(x: Tensor, alpha: float, dtype: torch.dtype) -> ReadyRows | None:
    """Maps of scores like x to p in a dtype; None where more than one launch is needed, or another map."""
    return _ready_rows(x.shape, x.stride(), x.dtype, dtype, x.get_device(), alpha)


@cached(LAUNCHES)
def _ready_rows(
    shape: tuple[int, ...], strides: tuple[int, ...], dtype: torch.dtype, to: torch.dtype, device: int, alpha: float
) -> ReadyRows | None:
    if not 0 < alpha <= 2 or alpha == 1 or not shape or 0 in shape or dtype not in TRITON_DTYPES:
        return None
    if shape[-1] > _longest(alpha) or (strides[-1] != 1 and shape[-1] != 1):
        return None
    rows = rows_of(shape, (strides, strides))
    if rows is None or not fit_one_launch(rows.total, rows.columns):
        return None
    return ReadyRows(ReadyLaunch(forward_of_rows(rows, alpha, False, False), device), alpha, dtype, to, device)


def _ready_backward(shape: tuple[int, ...], strides: tuple[int, ...], alpha: float, device: int) -> ReadyLaunch | None:
    """The launch for cotangents with these strides; None where it takes more."""
    if shape[-1] > LONGEST_BACKWARD or shape[-1] * strides[-1] >= TOO_FAR:
        return None
    rows = rows_of(shape, (strides,))
    return None if rows is None else ReadyLaunch(backward_of_rows(rows, strides[-1], alpha, False), device)


def empty_rows(like: Tensor, dtype: torch.dtype) -> Tensor:
    """Contiguous memory of the shape of `like`."""
    if like.dtype == dtype and like.is_contiguous():
        return torch.empty_like(like)  # options would take time
    return torch.empty_like(like, dtype=dtype, memory_format=torch.contiguous_format)


@cached(LAUNCHES)
def forward_of_rows(rows: Rows, alpha: float | None, has_mask: bool, needs_omega: bool) -> Launch:
    """Rows that fit on the chip; α is None where each has its own."""
    order, epsilon = _order_and_epsilon(alpha)
    block = forward_block(rows.columns, order)
    kinds = {"K": order, "PER_ROW": alpha is None, "HAS_MASK": has_mask, "NEEDS_OMEGA": needs_omega}
    kinds |= {"R": block.rows, "B": block.columns}
    numbers = (rows.total, rows.columns, epsilon, *rows.places)
    return Launch(forward_rows, block.programs(rows.total), numbers, kinds, block.warps)


@cached(LAUNCHES)
def _forward_beyond_two(rows: Rows, has_mask: bool, needs_omega: bool) -> Launch:
    grid, kinds = _programs_beyond_two(rows.total)
    kinds |= {"HAS_MASK": has_mask, "NEEDS_OMEGA": needs_omega}
    return Launch(forward_beyond_two, grid, (rows.total, rows.columns, *rows.places), kinds)


@cached(LAUNCHES)
def backward_of_rows(rows: Rows, step: int, alpha: float | None, needs_alpha: bool) -> Launch:
    """Cotangents in rows, their elements `step` apart; α is None where each row has its own."""
    order, epsilon = _order_and_epsilon(alpha)
    numbers = (rows.total, rows.columns, epsilon, *rows.places, step)
    block = backward_block(rows.columns)
    kinds = {"K": order, "PER_ROW": alpha is None, "NEEDS_ALPHA": needs_alpha, "R": block.rows, "B": block.columns}
    return Launch(backward_rows, block.programs(rows.total), numbers, kinds, block.warps, contracts=True)


@cached(LAUNCHES)
def _backward_beyond_two(rows: Rows, step: int, needs_alpha: bool, largest: float) -> Launch:
    grid, kinds = _programs_beyond_two(rows.total)
    numbers = (rows.total, rows.columns, *rows.places, step, largest)
    return Launch(backward_beyond_two, grid, numbers, {**kinds, "NEEDS_ALPHA": needs_alpha})


def _programs_beyond_two(rows: int) -> tuple[tuple[int], dict[str, int]]:
    each = 16 if rows > _MANY_ROWS else 1
    return (blocks_of(rows, each),), {"ROWS": each, "CHUNK": _CHUNK_BEYOND_TWO}


@cached(LAUNCHES)
def _long_launches(
    rows: Rows, sizes: Sizes, alpha: float | None, has_mask: bool, needs_omega: bool
) -> tuple[Launch, Launch]:
    """The launch that lists scores with mass and clears p, and the one that solves the lists and fills p in."""
    order, epsilon = _order_and_epsilon(alpha)
    kinds = {"K": order, "PER_ROW": alpha is None, "HAS_MASK": has_mask, "IS_MAP": True, "IS_SOFT": False}
    numbers = (rows.columns, epsilon, 0, *rows.places)
    list_them = Launch(list_scores, (rows.total, sizes.slices), numbers, kinds | sizes.when_listing, 1)
    kinds = {"K": order, "PER_ROW": alpha is None, "HAS_MASK": has_mask, "SMOOTHS": False, "IS_MAP": True}
    kinds |= {"IS_SOFT": False, "NEEDS_OMEGA": needs_omega} | sizes.when_solving
    numbers = (rows.columns, sizes.slices, epsilon, 0.0, 0, *rows.places)
    return list_them, Launch(solve_long_rows, (rows.total,), numbers, kinds, sizes.warps_when_solving)


@cached(LAUNCHES)
def _long_backward_launches(
    rows: Rows, sizes: Sizes, step: int, alpha: float | None, needs_alpha: bool
) -> tuple[Launch, Launch]:
    """The launch that lists the support and clears the gradient, and the one that fills it in."""
    order, epsilon = _order_and_epsilon(alpha)
    list_them = Launch(list_support, (rows.total, sizes.slices), (rows.columns,), sizes.when_listing, 1)
    kinds = {"K": order, "PER_ROW": alpha is None, "NEEDS_ALPHA": needs_alpha} | sizes.when_solving
    numbers = (rows.columns, sizes.slices, epsilon, *rows.places, step)
    return list_them, Launch(backward_long_rows, (rows.total,), numbers, kinds, sizes.warps_when_solving)


def _order_and_epsilon(alpha: float | None) -> tuple[int, float]:
    """K as kernels take it, and ε = α − 1 with all its digits; rows with an α of their own (None) do not use ε."""
    return (-1, 0.0) if alpha is None else (order_of(alpha), alpha - 1)


def _longest(alpha: float | None) -> int:
    """The longest rows that fit on the chip."""
    return LONGEST_ON_CHIP if _order_and_epsilon(alpha)[0] > 0 else LONGEST_WITH_LOGARITHMS


def _of_rows(alpha: float | Tensor, p: Tensor) -> float | Tensor:
    """One α ≤ 2 for all rows, or one for each, (*batch, 1): the kernels for more than 2 read it from memory."""
    if not isinstance(alpha, Tensor):
        return alpha if alpha <= 2 else p.new_full((*p.shape[:-1], 1), alpha, dtype=torch.float32)
    return alpha.expand(*p.shape[:-1], 1)
