"""Launches of the row kernels: α-entmax and its vector–Jacobian product, for every α > 0.

Rows that fit on the chip take one launch each way (`_gpu_rows`), longer ones two (`_gpu_lists`, then `_gpu_long_rows`),
and one more if an α may exceed 2 (`_gpu_beyond_two`). Launches are cached by shape and layout of rows, because Python
takes most of the time of a small map on a GPU.
"""

from typing import Any, NamedTuple

import torch
from torch import Tensor

from contmax._backend import TRITON_DTYPES, Backend
from contmax._caches import cached
from contmax.kernels import blocks_of
from contmax.kernels.gpu._cached_launch import Launch, ReadyLaunch
from contmax.kernels.gpu._launch import (
    Rows,
    Sizes,
    as_rows,
    backward_block,
    byte_mask,
    forward_block,
    in_parts,
    lists_of,
    most_rows,
    order_of,
    rows_of,
    side_by_side,
)
from contmax.kernels.rows._gpu_beyond_two import backward_beyond_two, forward_beyond_two
from contmax.kernels.rows._gpu_lists import list_scores, list_support
from contmax.kernels.rows._gpu_long_rows import backward_long_rows, solve_long_rows
from contmax.kernels.rows._gpu_rows import backward_rows, forward_rows

# The longest rows that fit on the chip: forward where powers are products, forward with logarithms, and backward.
LONGEST_ON_CHIP, LONGEST_WITH_LOGARITHMS, LONGEST_BACKWARD = 32768, 16384, 8192
# Offsets within a row, column times stride, must be below this: kernels compute them in 32 bits.
TOO_FAR = 2**31
# If there are more rows than this, a program of `_gpu_beyond_two` checks sixteen of them, because few have α > 2.
_MANY_ROWS = 2048
_CHUNK_BEYOND_TWO = 512
# The most registers per thread of `list_scores`, for losses: with more, too few warps fit to hide the latency of loads.
_REGISTERS, _REGISTERS_WITH_SOFT_TARGETS = 80, 96
# The kernel `list_scores` writes this many numbers per slice of a row to its tensor SUMS.
_SUMS_OF_SLICE = 5


class Kind(NamedTuple):
    """An operation on rows: together with the rows' shape and layout it selects a launch."""

    alpha: float | None  # None if each row has its own
    has_mask: bool
    needs_omega: bool = False
    is_map: bool = True  # else a loss
    is_soft: bool = False  # whether the loss has soft targets
    smoothing: float = 0.0

    @property
    def order(self) -> int:
        """K, the constant that chooses the code of the kernels (`order_of`); −1 if each row has its own α."""
        return -1 if self.alpha is None else order_of(self.alpha)

    @property
    def epsilon(self) -> float:
        """ε = α − 1 in float64; 0, which kernels ignore, if each row has its own α."""
        return 0.0 if self.alpha is None else self.alpha - 1


def entmax_rows(
    x: Tensor, alpha: float | Tensor, mask: Tensor | None, dtype: torch.dtype, *, needs_omega: bool
) -> tuple[Tensor, Tensor]:
    """p along the last axis, and Ω* − max x if `needs_omega`.

    Args:
        x: scores (*batch, n), float32 or half precision.
        alpha: α, a number, or one per row, (*batch, 1).
        mask: boolean, broadcastable to the scores, or None.
        dtype: the dtype of p.
        needs_omega: whether the caller needs Ω*_α(x) − max x.

    Returns:
        p (*batch, n), contiguous; Ω* − max x (*batch, 1) in float64 if `needs_omega`, else p in its place.
    """
    p = empty_rows(x, dtype)
    omega = torch.empty((*x.shape[:-1], 1), dtype=torch.float64, device=x.device) if needs_omega else p
    if x.numel() > 0:
        mask = None if mask is None else mask.expand(x.shape)
        in_parts(_forward, (x, _of_rows(alpha, p), mask, p, omega if needs_omega else None))
    return p, omega


def _forward(x: Tensor, alpha: float | Tensor, mask: Tensor | None, p: Tensor, omega: Tensor | None) -> None:
    """Write p, and Ω* − max x if `omega` is given."""
    x = side_by_side(x)
    tensors, rows = as_rows(x, byte_mask(mask, x))
    has_mask, needs_omega, gain = mask is not None, omega is not None, p if omega is None else omega
    per_row, number = (p, alpha) if isinstance(alpha, float) else (alpha.contiguous(), None)
    kind = Kind(number, has_mask, needs_omega)
    if rows.columns > _longest(kind):
        solve_by_lists(x, tensors, rows, kind, (per_row, p, p, p, gain))
    else:
        forward_of_rows(rows, kind)(tensors[0], p, tensors[1], per_row, gain)
    if number is None:
        _beyond_two(forward_beyond_two, rows, HAS_MASK=has_mask, NEEDS_OMEGA=needs_omega)(*tensors, per_row, p, gain)


def solve_by_lists(
    x: Tensor, scores: tuple[Tensor, ...], rows: Rows, kind: Kind, others: tuple[Tensor, Tensor, Tensor, Tensor, Tensor]
) -> None:
    """Launch twice, to compute p or the losses of rows of x that do not fit on the chip.

    `scores` are the scores and the mask, as `as_rows` returns them. `others` are five tensors: α of each row, targets,
    p, statistics, and Ω* or losses; any tensor can stand for an unused entry.
    """
    per_row, target, p, statistics, result = others
    lists = lists_of(x, rows, keeps_places=kind.is_map, varied=kind.alpha is None)
    count = rows.total * lists.sizes.slices
    sizes = (2 * count, _SUMS_OF_SLICE * count if kind.is_soft else 0)
    peaks, sums = (x.new_empty(size, dtype=torch.float32) for size in sizes)
    listed = (lists.values, lists.places, lists.counts, peaks, sums, statistics)
    list_them, solve = _long_launches(rows, lists.sizes, kind, statistics.shape[-1])
    list_them(*scores, per_row, p, target, *listed)
    solve(*scores, per_row, target, p, *listed, result)


def entmax_rows_backward(
    p: Tensor, g: Tensor, alpha: float | Tensor, dtype: torch.dtype, needs_alpha: bool
) -> tuple[Tensor, Tensor]:
    """The gradient of the scores, and of α for each row if `needs_alpha`.

    Args:
        p: probabilities (*batch, n).
        g: their cotangent, (*batch, n).
        alpha: as for :func:`entmax_rows`.
        dtype: the dtype of the scores.
        needs_alpha: whether the caller needs the gradient of α.

    Returns:
        The gradient of the scores, (*batch, n), contiguous; and of α, (*batch, 1) in float32, or (0,) if not needed.
    """
    p = p.contiguous()
    grad = empty_rows(p, dtype)
    grad_alpha = torch.empty((*p.shape[:-1], 1) if needs_alpha else 0, dtype=torch.float32, device=p.device)
    if p.numel() > 0:
        in_parts(_backward, (p, g, _of_rows(alpha, p), grad, grad_alpha if needs_alpha else None))
    return grad, grad_alpha


def _backward(p: Tensor, g: Tensor, alpha: float | Tensor, grad: Tensor, grad_alpha: Tensor | None) -> None:
    """Write the gradient of the scores, and of α if `grad_alpha` is given."""
    needs_alpha = grad_alpha is not None
    if g.shape[-1] * g.stride(-1) >= TOO_FAR:
        g = g.contiguous()
    (g,), rows = as_rows(g)
    per_row, number = (p, alpha) if isinstance(alpha, float) else (alpha.contiguous(), None)
    kind, step, slope = Kind(number, has_mask=False), g.stride(-1), grad if grad_alpha is None else grad_alpha
    if rows.columns > LONGEST_BACKWARD:
        lists = lists_of(p, rows, keeps_places=True, varied=number is None)
        listed = (lists.values, lists.places, lists.counts)
        list_them, fill = _long_backward_launches(rows, lists.sizes, step, kind, needs_alpha)
        list_them(p, grad, *listed)
        fill(p, g, per_row, grad, slope, *listed)
    else:
        backward_of_rows(rows, step, kind, needs_alpha)(p, g, grad, per_row, slope)
    if number is None:
        largest = torch.finfo(grad.dtype).max
        _beyond_two(backward_beyond_two, rows, step, largest, NEEDS_ALPHA=needs_alpha)(p, g, per_row, grad, slope)


class ReadyRows:
    """α-entmax of eager scores of one shape, layout, dtype and device, for one α, unmasked: one launch each way.

    Args:
        forward: the launch that makes p from the scores.
        alpha: α.
        dtype: the dtype of the scores.
        to: the dtype of p.
        device: the index of the device.
    """

    backend = Backend.TRITON

    def __init__(self, forward: ReadyLaunch, alpha: float, dtype: torch.dtype, to: torch.dtype, device: int) -> None:
        self.alpha, self._dtype = alpha, dtype
        self._forward, self._to, self._device = forward, to, device
        self._keeps_dtype = dtype == to
        self._backward: dict[tuple[int, ...], ReadyLaunch | None] = {}

    def forward(self, x: Tensor) -> Tensor:
        """p of scores x, contiguous."""
        if x.is_neg():  # the kernel reads memory as it is, and a negated copy has another layout
            return entmax_rows(x, self.alpha, None, self._to, needs_omega=False)[0]
        p = torch.empty_like(x) if self._keeps_dtype and x.is_contiguous() else empty_rows(x, self._to)
        self._forward(x, p)
        return p

    def backward(self, p: Tensor, g: Tensor) -> Tensor | None:
        """The gradient of the scores from p and its cotangent; None if one launch cannot take these tensors."""
        strides = g.stride()
        try:
            launch = self._backward[strides]
        except KeyError:
            launch = self._backward[strides] = _ready_backward(g.shape, strides, self.alpha, self._device)
        # Saved-tensor hooks may return p with another dtype, layout or device.
        if p.dtype is not self._to or not p.is_contiguous() or p.get_device() != self._device:
            return None
        if launch is None or g.is_neg():
            return None
        grad = torch.empty_like(p) if self._keeps_dtype else empty_rows(p, self._dtype)
        launch(p, g, grad)
        return grad


def ready(x: Tensor, alpha: float, dtype: torch.dtype) -> ReadyRows | None:
    """`ReadyRows` from scores like x to p of `dtype`; None if α is 1 or not in (0, 2], or one launch cannot take x."""
    return _ready_rows(x.shape, x.stride(), x.dtype, dtype, x.get_device(), alpha)


def probabilities(x: Tensor, alpha: float | Tensor, mask: Tensor | None, dtype: torch.dtype) -> Tensor:
    """The p of `entmax_rows`, in `dtype`, by a cached `ReadyRows` if one launch can compute it."""
    if mask is None and not isinstance(alpha, Tensor):
        found = _ready_rows(x.shape, x.stride(), x.dtype, dtype, x.get_device(), alpha)
        if found is not None:
            return found.forward(x)
    return entmax_rows(x, alpha, mask, dtype, needs_omega=False)[0]


def gradients(
    p: Tensor, g: Tensor, alpha: float | Tensor, dtype: torch.dtype, needs_alpha: bool
) -> tuple[Tensor, Tensor]:
    """The gradients of `entmax_rows_backward`, by a cached `ReadyRows` if one launch can compute them."""
    if not needs_alpha and not isinstance(alpha, Tensor):
        found = _ready_rows(p.shape, p.stride(), dtype, p.dtype, p.get_device(), alpha)
        grad = None if found is None else found.backward(p, g)
        if grad is not None:
            return grad, p.new_empty(0, dtype=torch.float32)
    return entmax_rows_backward(p, g, alpha, dtype, needs_alpha)


@cached
def _ready_rows(
    shape: tuple[int, ...], strides: tuple[int, ...], dtype: torch.dtype, to: torch.dtype, device: int, alpha: float
) -> ReadyRows | None:
    """The result of `ready`, cached by the properties of the scores on which it depends."""
    if not 0 < alpha <= 2 or alpha == 1 or not shape or 0 in shape or dtype not in TRITON_DTYPES:
        return None
    kind = Kind(alpha, has_mask=False)
    if shape[-1] > _longest(kind) or (strides[-1] != 1 and shape[-1] != 1):
        return None
    rows = rows_of(shape, (strides, strides))
    if rows is None or rows.total > most_rows(rows.columns):
        return None
    return ReadyRows(ReadyLaunch(forward_of_rows(rows, kind), device), alpha, dtype, to, device)


def _ready_backward(shape: tuple[int, ...], strides: tuple[int, ...], alpha: float, device: int) -> ReadyLaunch | None:
    """The launch for cotangents with these strides; None if one launch cannot take them."""
    rows = rows_of(shape, (strides,))
    if rows is None or shape[-1] > LONGEST_BACKWARD or shape[-1] * strides[-1] >= TOO_FAR:
        return None
    return ReadyLaunch(backward_of_rows(rows, strides[-1], Kind(alpha, has_mask=False), False), device)


def empty_rows(like: Tensor, dtype: torch.dtype) -> Tensor:
    """An uninitialised contiguous tensor of the shape of `like`."""
    if like.dtype == dtype and like.is_contiguous():
        return torch.empty_like(like)  # quicker without options
    return torch.empty_like(like, dtype=dtype, memory_format=torch.contiguous_format)


@cached
def forward_of_rows(rows: Rows, kind: Kind) -> Launch:
    """The forward launch for rows that fit on the chip."""
    block = forward_block(rows.columns, kind.order)
    kinds = {"K": kind.order, "PER_ROW": kind.alpha is None, "HAS_MASK": kind.has_mask, "NEEDS_OMEGA": kind.needs_omega}
    kinds |= {"R": block.rows, "B": block.columns}
    numbers = (rows.total, rows.columns, kind.epsilon, *rows.places)
    return Launch(forward_rows, (blocks_of(rows.total, block.rows),), numbers, kinds, block.warps)


@cached
def backward_of_rows(rows: Rows, step: int, kind: Kind, needs_alpha: bool) -> Launch:
    """The backward launch for rows that fit on the chip; `step` is the stride of cotangents along a row."""
    numbers = (rows.total, rows.columns, kind.epsilon, *rows.places, step)
    block = backward_block(rows.columns)
    kinds = {"K": kind.order, "PER_ROW": kind.alpha is None, "NEEDS_ALPHA": needs_alpha}
    kinds |= {"R": block.rows, "B": block.columns}
    return Launch(backward_rows, (blocks_of(rows.total, block.rows),), numbers, kinds, block.warps, contracts=True)


@cached
def _beyond_two(kernel: Any, rows: Rows, *numbers: float, **kinds: bool) -> Launch:
    """The launch of a kernel of `_gpu_beyond_two`; `numbers` and `kinds` are arguments that only this kernel takes."""
    each = 16 if rows.total > _MANY_ROWS else 1
    numbers = (rows.total, rows.columns, *rows.places, *numbers)
    return Launch(kernel, (blocks_of(rows.total, each),), numbers, {**kinds, "ROWS": each, "CHUNK": _CHUNK_BEYOND_TWO})


@cached
def _long_launches(rows: Rows, sizes: Sizes, kind: Kind, width: int) -> tuple[Launch, Launch]:
    """Launches of `list_scores` and `solve_long_rows`; `width` is the number of statistics per row."""
    kinds = {"K": kind.order, "PER_ROW": kind.alpha is None, "HAS_MASK": kind.has_mask}
    results = {"IS_MAP": kind.is_map, "IS_SOFT": kind.is_soft}
    registers = None if kind.is_map else _REGISTERS_WITH_SOFT_TARGETS if kind.is_soft else _REGISTERS
    numbers = (rows.columns, kind.epsilon, width, *rows.places)
    constants = kinds | results | sizes.when_listing
    list_them = Launch(list_scores, (rows.total, sizes.slices), numbers, constants, 1, registers)
    kinds |= {"SMOOTHS": kind.smoothing > 0, **results, "NEEDS_OMEGA": kind.needs_omega} | sizes.when_solving
    numbers = (rows.columns, sizes.slices, kind.epsilon, kind.smoothing, width, *rows.places)
    return list_them, Launch(solve_long_rows, (rows.total,), numbers, kinds, sizes.warps_when_solving)


@cached
def _long_backward_launches(
    rows: Rows, sizes: Sizes, step: int, kind: Kind, needs_alpha: bool
) -> tuple[Launch, Launch]:
    """Launches of `list_support` and `backward_long_rows`; `step` is the stride of cotangents along a row."""
    list_them = Launch(list_support, (rows.total, sizes.slices), (rows.columns,), sizes.when_listing, 1)
    kinds = {"K": kind.order, "PER_ROW": kind.alpha is None, "NEEDS_ALPHA": needs_alpha} | sizes.when_solving
    numbers = (rows.columns, sizes.slices, kind.epsilon, *rows.places, step)
    return list_them, Launch(backward_long_rows, (rows.total,), numbers, kinds, sizes.warps_when_solving)


def _longest(kind: Kind) -> int:
    """The longest rows that fit on the chip in a forward pass."""
    return LONGEST_ON_CHIP if kind.order > 0 else LONGEST_WITH_LOGARITHMS


def _of_rows(alpha: float | Tensor, p: Tensor) -> float | Tensor:
    """α as a number ≤ 2, or as a tensor of one α per row, (*batch, 1), which kernels for α > 2 need."""
    if not isinstance(alpha, Tensor):
        return alpha if alpha <= 2 else p.new_full((*p.shape[:-1], 1), alpha, dtype=torch.float32)
    return alpha.expand(*p.shape[:-1], 1)
