"""How tensors become rows, and how many rows and warps a program gets."""

import contextlib
import functools
from collections.abc import Sequence
from typing import NamedTuple

import torch
import triton
from torch import Tensor

_Axis = tuple[int, tuple[int, ...]]  # size, and the stride of each tensor


class Rows(NamedTuple):
    """Tensors of one shape (*batch, n) as rows under three leading axes (a, b, c)."""

    tensors: tuple[Tensor, ...]
    count: int
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
        return (triton.cdiv(rows, self.rows),)


# Longer rows are read in chunks.
LONGEST_ON_CHIP = 32768


class Chunks(NamedTuple):
    """How a program works through long rows: by chunks, with a list of the scores that may have mass."""

    columns: int
    capacity: int
    warps: int
    programs: int

    def lists(self, like: Tensor) -> tuple[Tensor, Tensor]:
        """Memory for the lists: scores and places."""
        size = self.programs * self.capacity
        return like.new_empty(size, dtype=torch.float32), like.new_empty(size, dtype=torch.int32)


def chunks_of(rows: int, order: int, like: Tensor) -> Chunks:
    """Chunks for this many long rows: enough programs to fill the device, and few enough to keep their lists small.

    Without an integer order each score takes a logarithm and an exponential, and half as many fit into the registers.
    """
    return Chunks(4096 if order else 2048, 4096 if order else 2048, 8, min(rows, 4 * _processors(like.device)))


@functools.cache
def _processors(device: torch.device) -> int:
    return torch.cuda.get_device_properties(device).multi_processor_count if device.type == "cuda" else 1


def block_of(columns: int, order: int) -> Block:
    """Rows together and warps for rows of this length, and for this integer order or 0."""
    width = max(triton.next_power_of_2(columns), 16)
    if width <= 512:
        return Block(max(1, 2048 // width), width, 4)
    return Block(1, width, min(32, max(2, width // 1024)))


def integer_order(alpha: float | Tensor) -> int:
    """k = 1/(α−1) where that is 1, 2, 3 or 4 and powers are products, else 0."""
    if isinstance(alpha, Tensor) or alpha <= 1:
        return 0
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
