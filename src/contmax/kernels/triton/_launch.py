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
    columns = tensors[0].shape[-1]
    if all(x.is_contiguous() for x in tensors):
        count = tensors[0].numel() // columns
        return Rows(tensors, count, columns, (1, count), ((0, 0, columns),) * len(tensors))
    axes = _merged_axes(tensors)
    if len(axes) > 3:
        tensors = tuple(x.contiguous() for x in tensors)
        axes = _merged_axes(tensors)
    none = tuple(0 for _ in tensors)
    (size_a, a), (size_b, b), (size_c, c) = [(1, none)] * (3 - len(axes)) + axes
    count = size_a * size_b * size_c
    return Rows(tensors, count, columns, (size_b, size_c), tuple(zip(a, b, c, strict=True)))


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


# Longer rows are read in chunks.
LONGEST_ON_CHIP = 32768
# Columns of a chunk, how many of them its list holds, warps: measured on an H200 for maps of few rows, and for losses.
_CHUNKS_OF_MAPS, _CHUNKS_OF_LOSSES = (8192, 80, 16), (4096, 40, 8)


class Lists(NamedTuple):
    """Chunks of long rows, and memory for what they list: less than a hundredth of the scores, twice with places."""

    chunks: int
    scores: Tensor  # of the dtype of the scores, so that nothing is rounded
    places: Tensor
    counts: Tensor
    tops: Tensor
    columns: int
    capacity: int  # of a list
    warps: int

    @property
    def shape(self) -> dict[str, int]:
        """What kernels are told of them."""
        return {"CHUNK": self.columns, "CAPACITY": self.capacity}

    @property
    def blocks(self) -> dict[str, int]:
        """Powers of two that hold the chunks of a row and the slots of a list."""
        return {"CHUNKS": power_of_two(self.chunks), "SLOTS": power_of_two(self.capacity)}


def lists_of(x: Tensor, rows: Rows, *, keeps_places: bool) -> Lists:
    """Lists for rows of this length; maps must know the places of what is listed."""
    columns, capacity, warps = _CHUNKS_OF_MAPS if keeps_places else _CHUNKS_OF_LOSSES
    chunks = -(-rows.columns // columns)
    size = rows.total * chunks
    return Lists(
        chunks,
        x.new_empty(size * capacity),
        x.new_empty(size * capacity if keeps_places else 0, dtype=torch.int16),
        x.new_empty(size, dtype=torch.int32),
        x.new_empty(size, dtype=torch.float32),
        columns,
        capacity,
        warps,
    )


def forward_block(columns: int, order: int) -> Block:
    """Rows together and warps for rows of this length, and for this order of powers: measured on an H200."""
    width = max(power_of_two(columns), 16)
    if width <= 512:
        return Block(max(1, (512 if order > 0 else 256) // width), width, 1)
    if order > 0:
        return Block(1, width, {1024: 2, 2048: 2, 4096: 4, 8192: 8}.get(width, 16))
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
