"""How tensors become rows, and how many rows and warps a program gets."""

import contextlib
from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from contmax.kernels.triton._counting import blocks_of, power_of_two

_Axis = tuple[int, tuple[int, ...]]  # size, and the stride of each tensor


class Rows(NamedTuple):
    """Tensors of one shape (*batch, n) as rows under three leading axes (a, b, c)."""

    tensors: tuple[Tensor, ...]
    total: int
    columns: int
    sizes: tuple[int, int]  # of b and c
    strides: tuple[tuple[int, int, int], ...]  # of a, b and c in each tensor


def as_rows(*tensors: Tensor) -> Rows:
    """Rows of tensors of one shape, copied only where more than three axes would be needed to reach them."""
    axes = _merged_axes(tensors)
    if len(axes) > 3:
        tensors = tuple(x.contiguous() for x in tensors)
        axes = _merged_axes(tensors)
    none = tuple(0 for _ in tensors)
    (size_a, a), (size_b, b), (size_c, c) = [(1, none)] * (3 - len(axes)) + axes
    count = size_a * size_b * size_c
    return Rows(tensors, count, tensors[0].shape[-1], (size_b, size_c), tuple(zip(a, b, c, strict=True)))


def side_by_side(x: Tensor) -> Tensor:
    """x with the elements of each row next to each other."""
    return x if x.shape[-1] == 1 or x.stride(-1) == 1 else x.contiguous()


def _merged_axes(tensors: Sequence[Tensor]) -> list[_Axis]:
    """Leading axes, neighbours made one where they are one in the memory of every tensor."""
    merged: list[_Axis] = []
    for d, size in enumerate(tensors[0].shape[:-1]):
        strides = tuple(x.stride(d) for x in tensors)
        if size == 1:
            continue
        if merged and merged[-1][1] == tuple(size * stride for stride in strides):
            merged[-1] = (merged[-1][0] * size, strides)
        else:
            merged.append((size, strides))
    return merged


class Block(NamedTuple):
    """What one program takes."""

    rows: int
    columns: int
    warps: int

    def programs(self, rows: int) -> tuple[int]:
        """The grid."""
        return (blocks_of(rows, self.rows),)


# Columns that a warp takes at a time.
CHUNK = 512
# Columns of a slice and how many of them its list holds: measured on an H200 for few rows and for many.
_SLICES_OF_FEW, _SLICES_OF_MANY = (8192, 256), (32768, 512)
_MANY = 2048


class Lists(NamedTuple):
    """Slices of long rows, and memory for what they list: a few hundredths of the scores."""

    slices: int
    values: Tensor  # of the dtype of what is listed, so that nothing is rounded
    places: Tensor
    counts: Tensor
    columns: int  # of a slice
    capacity: int  # of a list

    @property
    def when_listing(self) -> dict[str, int]:
        """What kernels that list are told, a warp each."""
        vector = min(16 // self.values.element_size(), CHUNK // 32)
        return {"SLICE": self.columns, "CHUNK": CHUNK, "CAPACITY": self.capacity, "VECTOR": vector, "num_warps": 1}

    @property
    def when_solving(self) -> dict[str, int]:
        """What kernels that read the lists are told, with powers of two that hold the slices and the slots."""
        sizes = {"SLICES": power_of_two(self.slices), "SLOTS": power_of_two(self.capacity)}
        return {"SLICE": self.columns, "CHUNK": 4 * CHUNK, "CAPACITY": self.capacity, **sizes, "num_warps": 8}


def lists_of(x: Tensor, rows: int, columns: int, *, keeps_places: bool) -> Lists:
    """Lists for rows of this length; maps must know the places of what is listed."""
    slice_, capacity = _SLICES_OF_MANY if rows >= _MANY else _SLICES_OF_FEW
    slices = blocks_of(columns, slice_)
    size = rows * slices
    values = x.new_empty(size * capacity)
    places = x.new_empty(size * capacity if keeps_places else 0, dtype=torch.int16)
    return Lists(slices, values, places, x.new_empty(size, dtype=torch.int32), slice_, capacity)


def forward_block(columns: int, order: int) -> Block:
    """Rows together and warps for rows of this length, and for this order of powers: measured on an H200."""
    width = max(power_of_two(columns), 16)
    if width <= 512:
        return Block(max(1, (512 if order > 0 else 256) // width), width, 1)
    if order > 0:
        return Block(1, width, {1024: 1, 2048: 2, 4096: 4, 8192: 8}.get(width, 16))
    return Block(1, width, {1024: 2, 2048: 4, 4096: 8, 8192: 16}.get(width, 32))


def backward_block(columns: int) -> Block:
    """The same for the backward pass, which has more to hold at a time."""
    width = max(power_of_two(columns), 16)
    if width <= 512:
        return Block(max(1, 512 // width), width, 1)
    return Block(1, width, {1024: 2, 2048: 4, 4096: 8, 8192: 16}.get(width, 32))


def order_of(alpha: float | Tensor) -> int:
    """K as kernels take it (`_solve`): k = 1/(α−1) where powers are products, 0 for other α, −1 where it may be 1."""
    if isinstance(alpha, Tensor) or abs(alpha - 1) < 0.1:
        return -1
    k = round(1 / (alpha - 1))
    return k if 1 <= k <= 4 and abs(1 / (alpha - 1) - k) < 1e-12 else 0


def alpha_arguments(alpha: float | Tensor, like: Tensor) -> tuple[Tensor, float]:
    """α as kernels take it: one α per row, or an unused pointer and the number ε = α − 1, which keeps its digits."""
    return (alpha, 0.0) if isinstance(alpha, Tensor) else (like, float(alpha) - 1)


def byte_mask(mask: Tensor | None, like: Tensor) -> Tensor:
    """A boolean mask as bytes of the shape of the scores, or an unused pointer."""
    return like if mask is None else side_by_side(mask.expand(like.shape)).view(torch.uint8)


def device_of(x: Tensor) -> contextlib.AbstractContextManager[object]:
    """Triton launches on the current device: in this context it is that of x."""
    if not x.is_cuda or x.device.index == torch.cuda.current_device():
        return contextlib.nullcontext()
    return torch.cuda.device(x.device)
