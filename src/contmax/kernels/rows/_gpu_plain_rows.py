"""The commonest maps, without a mask and for one α: each way by one launch, found at once for rows of a kind.

On a GPU most of the time of a small map is Python's. What is known of a kind of rows is asked once, and kept.
"""

import functools

import torch
from torch import Tensor

from contmax._backend import TRITON_DTYPES
from contmax.kernels.gpu._kept import LAUNCHES, ReadyLaunch
from contmax.kernels.gpu._launch import fit_one_launch, order_of, resolved, rows_of
from contmax.kernels.rows import _gpu_maps as _maps
from contmax.kernels.rows._gpu_maps import (
    backward_of_rows,
    empty_rows,
    entmax_rows,
    entmax_rows_backward,
    forward_of_rows,
)


class PlainRows:
    """Maps of scores of one shape, with the same strides, dtype and device, to p in a dtype.

    Args:
        forward: the launch that makes p from the scores.
        alpha: α.
        dtype: of the scores.
        to: the dtype of p.
        device: the number of the device.
    """

    def __init__(self, forward: ReadyLaunch, alpha: float, dtype: torch.dtype, to: torch.dtype, device: int) -> None:
        self.alpha, self.dtype = alpha, dtype
        self._forward, self._to, self._device = forward, to, device
        self._keeps_dtype = dtype == to
        self._backward: dict[tuple[int, ...], ReadyLaunch | None] = {}

    def forward(self, x: Tensor) -> Tensor:
        """p of such scores, contiguous."""
        if x.is_neg():  # its numbers are to be copied, and lie in another way then
            return entmax_rows(x, self.alpha, None, self._to, needs_omega=False)[0]
        p = torch.empty_like(x) if self._keeps_dtype and x.is_contiguous() else empty_rows(x, self._to)
        self._forward(x, p)
        return p

    def backward(self, p: Tensor, g: Tensor) -> Tensor:
        """The gradient of the scores, from p and its cotangent."""
        strides = g.stride()
        launch = self._backward.get(strides)
        # Hooks of users may bring back another p than was saved.
        if (
            launch is None
            or g.is_neg()
            or p.dtype is not self._to
            or not p.is_contiguous()
            or p.get_device() != self._device
        ):
            return self._ordinary_backward(p, resolved(g), strides)
        grad = torch.empty_like(p) if self._keeps_dtype else empty_rows(p, self.dtype)
        launch(p, g, grad)
        return grad

    def _ordinary_backward(self, p: Tensor, g: Tensor, strides: tuple[int, ...]) -> Tensor:
        """The same in the ordinary way; the launch for the next time is made ready, if one will do."""
        if strides not in self._backward:
            self._backward[strides] = _backward_of(g.shape, strides, self.alpha, self._device)
        return entmax_rows_backward(p, g, self.alpha, self.dtype, needs_alpha=False)[0]


@functools.lru_cache(maxsize=LAUNCHES)
def plain_rows_like(
    shape: tuple[int, ...], strides: tuple[int, ...], dtype: torch.dtype, to: torch.dtype, device: int, alpha: float
) -> PlainRows | None:
    """Maps of scores with these properties; None where more than one launch is needed, or another map."""
    if not 0 < alpha <= 2 or alpha == 1 or not shape or 0 in shape or dtype not in TRITON_DTYPES:
        return None
    longest = _maps.LONGEST_ON_CHIP if order_of(alpha) > 0 else _maps.LONGEST_WITH_LOGARITHMS
    if shape[-1] > longest or (strides[-1] != 1 and shape[-1] != 1):
        return None
    rows = rows_of(shape, (strides, strides))
    if rows is None or not fit_one_launch(rows.total, rows.columns):
        return None
    return PlainRows(ReadyLaunch(forward_of_rows(rows, alpha, False, False), device), alpha, dtype, to, device)


def _backward_of(shape: tuple[int, ...], strides: tuple[int, ...], alpha: float, device: int) -> ReadyLaunch | None:
    """The launch for cotangents with these strides; None where it takes more."""
    if shape[-1] > _maps.LONGEST_BACKWARD or shape[-1] * strides[-1] >= _maps.TOO_FAR:
        return None
    rows = rows_of(shape, (strides,))
    return None if rows is None else ReadyLaunch(backward_of_rows(rows, strides[-1], alpha, False), device)
