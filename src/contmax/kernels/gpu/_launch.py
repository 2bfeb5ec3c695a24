"""How kernels address rows of tensors; sizes of blocks, of slices (parts of long rows) and of their candidate lists."""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from contmax._caches import cached
from contmax.kernels import blocks_of, power_of_two


class Rows(NamedTuple):
    """The memory layout of tensors of one shape (*batch, n): rows of n elements. Batch axes are merged to a, b, c."""

    total: int  # number of rows
    columns: int  # n
    places: tuple[int, ...]  # arguments of kernels: the sizes of b and c, then each tensor's strides along a, b, c


def as_rows(*tensors: Tensor) -> tuple[tuple[Tensor, ...], Rows]:
    """The tensors, which have one shape, and their `Rows`.

    A lazily negated tensor is copied; all are copied if their strides need more than three leading axes.
    """
    tensors = tuple([resolved(x) for x in tensors])
    rows = rows_of(tensors[0].shape, tuple([x.stride() for x in tensors]))
    return as_rows(*(x.contiguous() for x in tensors)) if rows is None else (tensors, rows)


@cached
def rows_of(shape: tuple[int, ...], strides: tuple[tuple[int, ...], ...]) -> Rows | None:
    """The `Rows` of tensors of one shape with these strides; None if the strides need more than three leading axes."""
    none = (0,) * len(strides)
    merged: list[tuple[int, tuple[int, ...]]] = []  # for each axis its size, and its stride in each tensor
    for size, *steps in zip(shape[:-1], *strides, strict=False):
        if size == 1:
            continue
        if merged and merged[-1][1] == tuple(size * step for step in steps):
            # In every tensor the axis continues the axis before it: merge the two.
            merged[-1] = (merged[-1][0] * size, tuple(steps))
        else:
            merged.append((size, tuple(steps)))
    if len(merged) > 3:
        return None
    (size_a, a), (size_b, b), (size_c, c) = [(1, none)] * (3 - len(merged)) + merged
    places = (size_b, size_c, *(stride for each in zip(a, b, c, strict=True) for stride in each))
    return Rows(size_a * size_b * size_c, shape[-1], places)


# The most slices per launch: 32 bits then suffice to number rows, slices, up to five sums per slice, and programs.
MOST_SLICES = 2**28


def most_rows(columns: int) -> int:
    """The most rows of `columns` elements in one launch: 32 bits can number these rows and their slices."""
    return max(1, MOST_SLICES // blocks_of(columns, _SLICES_OF_FEW[0]))


def in_parts(launch: Callable[..., None], tensors: Sequence[Any], *others: Any) -> None:
    """``launch(*tensors, *others)``, in several launches if there are more rows than one launch can number.

    Args:
        launch: the function that launches.
        tensors: the first is (*batch, n), the others are (*batch, …) or not tensors. Parts of contiguous tensors
            are contiguous.
        others: further arguments, passed to each launch as they are.
    """
    x = tensors[0]
    columns = x.shape[-1]
    rows = x.numel() // columns
    if rows <= most_rows(columns):
        launch(*tensors, *others)
        return
    length = x.shape[0]
    each = most_rows(columns) // (rows // length)
    # If one entry of the first axis alone has too many rows, divide the entry further.
    for part in range(length) if each == 0 else [slice(at, at + each) for at in range(0, length, each)]:
        in_parts(launch, [y[part] if isinstance(y, Tensor) else y for y in tensors], *others)


def resolved(x: Tensor) -> Tensor:
    """x, or a copy where torch has postponed a negation (`x.is_neg()`): kernels read the memory as it is."""
    return x.resolve_neg() if x.is_neg() else x


def laid_out(x: Tensor) -> Tensor:
    """x, or a copy that is contiguous and has no postponed negation."""
    return x if x.is_contiguous() and not x.is_neg() else x.resolve_neg().contiguous()


def side_by_side(x: Tensor) -> Tensor:
    """x, or a copy of x that has stride 1 along the last axis and no postponed negation (`resolved`)."""
    x = resolved(x)
    return x if x.stride(-1) == 1 or x.shape[-1] == 1 else x.contiguous()


class Block(NamedTuple):
    """The block of scores that one program holds, and the number of its warps."""

    rows: int
    columns: int
    warps: int


# A warp reads a row by tiles of this number of columns, which it loads at once.
CHUNK = 512
# (columns of a slice, capacity of its candidate list): the fastest on an H200 for few rows, and for many rows.
_SLICES_OF_FEW, _SLICES_OF_MANY = (8192, 256), (32768, 512)
# Most lists are short: if none of a row's lists has more than _SHORT entries, kernels read only _SHORT slots of each.
_SHORT = 128
# Lists are longer by this factor if each row has its own α, because rows with α close to 1 have large supports.
_LONGER = 4
_MANY = 2048  # the least number of rows that counts as many


class Sizes(NamedTuple):
    """Sizes of the slices of long rows and of their candidate lists."""

    slices: int  # slices per row
    columns: int  # columns per slice
    capacity: int  # slots per list
    vector: int  # numbers that a thread reads at once
    varied: bool  # whether each row has its own α

    @property
    def when_listing(self) -> dict[str, int]:
        """Constants of the kernels that fill the lists: one program of one warp per slice."""
        return {"SLICE": self.columns, "CHUNK": CHUNK, "CAPACITY": self.capacity, "VECTOR": self.vector}

    @property
    def when_solving(self) -> dict[str, int]:
        """Constants of the kernels that read the lists; SLICES and SLOTS are powers of two ≥ `slices`, `capacity`."""
        powers = {"SLICES": power_of_two(self.slices), "SLOTS": power_of_two(self.capacity)}
        powers["SHORT"] = _SHORT if powers["SLOTS"] > 2 * _SHORT else powers["SLOTS"]
        # If each row has its own α, some rows overflow their lists and are read whole. Wider chunks serve these rows.
        chunk = (16 if self.varied else 4) * CHUNK
        return {"SLICE": self.columns, "CHUNK": chunk, "CAPACITY": self.capacity, **powers}

    @property
    def warps_when_solving(self) -> int:
        """Warps of the program that reads the lists of a row."""
        return 16 if self.varied else 8


class Lists(NamedTuple):
    """Candidate lists of all slices. They take a few per cent of the scores' memory, more if each row has its own α."""

    sizes: Sizes
    values: Tensor  # listed scores, in their own dtype, so that nothing is rounded
    places: Tensor  # the columns of these scores within the slice
    counts: Tensor  # the number of candidates of each slice, above the capacity where a list overflowed


def lists_of(x: Tensor, rows: Rows, *, keeps_places: bool, varied: bool = False) -> Lists:
    """Memory for lists of rows of x, with columns if `keeps_places`, longer if each row has its own α (`varied`)."""
    columns, capacity = _SLICES_OF_MANY if rows.total >= _MANY else _SLICES_OF_FEW
    capacity *= _LONGER if varied else 1
    slices = blocks_of(rows.columns, columns)
    sizes = Sizes(slices, columns, capacity, min(16 // x.element_size(), CHUNK // 32), varied)
    count = rows.total * slices
    values = x.new_empty(count * capacity)
    places = x.new_empty(count * capacity if keeps_places else 0, dtype=torch.int16)
    return Lists(sizes, values, places, x.new_empty(count, dtype=torch.int32))


def forward_block(columns: int, order: int) -> Block:
    """The block of a forward pass over rows of `columns` scores; `order` selects the code for powers (`order_of`)."""
    return _block(columns, 512, 1024) if order > 0 else _block(columns, 256, 512)


def backward_block(columns: int) -> Block:
    """The block of a backward pass, for which a program holds more numbers per column than for a forward pass."""
    return _block(columns, 512, 512)


def _block(columns: int, scores: int, scores_of_a_warp: int) -> Block:
    """A block of short rows with `scores` scores in all, or of one longer row; a warp has about `scores_of_a_warp`.

    The numbers that callers pass were measured on an H200.
    """
    width = max(power_of_two(columns), 16)
    return Block(max(1, scores // width), width, max(1, min(width, 16384) // scores_of_a_warp))


def order_of(alpha: float) -> int:
    """The constant K, which selects how kernels compute powers (`rows._gpu_solve`).

    K is k = 1/(α − 1) if this is 1, 2, 3 or 4; otherwise −1 for |α − 1| < 0.1, and 0 for other α.
    """
    if abs(alpha - 1) < 0.1:
        return -1
    k = round(1 / (alpha - 1))
    return k if 1 <= k <= 4 and abs(1 / (alpha - 1) - k) < 1e-12 else 0


def byte_mask(mask: Tensor | None, like: Tensor) -> Tensor:
    """The mask as uint8 in the shape of `like`; without a mask `like` itself, as a pointer that kernels do not read."""
    return like if mask is None else side_by_side(mask.expand(like.shape)).view(torch.uint8)
