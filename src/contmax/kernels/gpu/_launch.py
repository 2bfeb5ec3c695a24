"""How tensors become rows, and how many rows and warps a program gets."""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from contmax._caches import cached
from contmax.kernels._counting import blocks_of, power_of_two
from contmax.kernels.gpu._cached_launch import LAUNCHES


class Rows(NamedTuple):
    """How tensors of one shape (*batch, n) lie: as rows under three leading axes (a, b, c)."""

    total: int
    columns: int
    places: tuple[int, ...]  # as kernels take them: sizes of b and c, then strides of a, b and c in each tensor


def as_rows(*tensors: Tensor) -> tuple[tuple[Tensor, ...], Rows]:
    """Tensors of one shape and their rows. Only tensors whose rows need more than three axes are copied."""
    tensors = tuple([resolved(x) for x in tensors])
    rows = rows_of(tensors[0].shape, tuple([x.stride() for x in tensors]))
    return as_rows(*(x.contiguous() for x in tensors)) if rows is None else (tensors, rows)


@cached(LAUNCHES)
def rows_of(shape: tuple[int, ...], strides: tuple[tuple[int, ...], ...]) -> Rows | None:
    """The rows of tensors with these strides, or None where they need more than three axes."""
    none = (0,) * len(strides)
    merged: list[tuple[int, tuple[int, ...]]] = []  # size, and the stride in each tensor
    for size, *steps in zip(shape[:-1], *strides, strict=False):
        if size == 1:
            continue
        if merged and merged[-1][1] == tuple(size * step for step in steps):
            # In every tensor the axis continues the one before it: both are one axis.
            merged[-1] = (merged[-1][0] * size, tuple(steps))
        else:
            merged.append((size, tuple(steps)))
    if len(merged) > 3:
        return None
    (size_a, a), (size_b, b), (size_c, c) = [(1, none)] * (3 - len(merged)) + merged
    places = (size_b, size_c, *(stride for each in zip(a, b, c, strict=True) for stride in each))
    return Rows(size_a * size_b * size_c, shape[-1], places)


# Kernels number rows, slices of long rows and up to five sums of each slice in 32 bits; a grid has fewer programs too.
MOST_SLICES = 2**28


def fit_one_launch(rows: int, columns: int) -> bool:
    """Whether one launch can number all rows of this length."""
    return rows <= _most_rows(columns)


def _most_rows(columns: int) -> int:
    return max(1, MOST_SLICES // blocks_of(columns, _SLICES_OF_FEW[0]))


def in_parts(launch: Callable[..., None], tensors: Sequence[Any], *others: Any) -> None:
    """``launch(*tensors, *others)``, in several launches of fewer rows where one cannot number all of them.

    Args:
        launch: the function that launches.
        tensors: the first is (*batch, n), the others are (*batch, …) or no tensors. Parts of contiguous ones are
            contiguous.
        others: arguments that all parts share.
    """
    x = tensors[0]
    columns = x.shape[-1]
    rows = x.numel() // columns
    if fit_one_launch(rows, columns):
        launch(*tensors, *others)
        return
    length = x.shape[0]
    each = _most_rows(columns) // (rows // length)
    # An entry of the first axis that has too many rows by itself is divided in turn.
    for part in range(length) if each == 0 else [slice(at, at + each) for at in range(0, length, each)]:
        in_parts(launch, [y[part] if isinstance(y, Tensor) else y for y in tensors], *others)


def resolved(x: Tensor) -> Tensor:
    """x, or a copy where torch has postponed a negation (`x.is_neg()`): kernels read the memory as it is."""
    return x.resolve_neg() if x.is_neg() else x


def laid_out(x: Tensor) -> Tensor:
    """x, or a copy that is contiguous and has no postponed negation."""
    return x if x.is_contiguous() and not x.is_neg() else x.resolve_neg().contiguous()


def side_by_side(x: Tensor) -> Tensor:
    """x, or a copy whose rows have stride 1 and no postponed negation."""
    x = resolved(x)
    return x if x.stride(-1) == 1 or x.shape[-1] == 1 else x.contiguous()


class Block(NamedTuple):
    """The rows of one program, and its warps."""

    rows: int
    columns: int
    warps: int

    def programs(self, rows: int) -> tuple[int]:
        """The grid."""
        return (blocks_of(rows, self.rows),)


# Columns that a warp loads at a time.
CHUNK = 512
# Columns of a slice and the capacity of its candidate list: measured on an H200 for few rows and for many.
_SLICES_OF_FEW, _SLICES_OF_MANY = (8192, 256), (32768, 512)
# Kernels read this many slots of each list of a row where no list is longer: most rows have short lists.
_SHORT = 128
# A row whose own α is close to 1 has a large support: with one α per row lists are longer by this factor.
_LONGER = 4
_MANY = 2048


class Sizes(NamedTuple):
    """Sizes of the slices of long rows and of their candidate lists."""

    slices: int  # of a row
    columns: int  # of a slice
    capacity: int  # of a list
    vector: int  # how many numbers a thread reads at once
    varied: bool  # whether each row has its own α

    @property
    def when_listing(self) -> dict[str, int]:
        """Constants of the kernels that fill the lists, with one warp for each slice."""
        return {"SLICE": self.columns, "CHUNK": CHUNK, "CAPACITY": self.capacity, "VECTOR": self.vector}

    @property
    def when_solving(self) -> dict[str, int]:
        """Constants of the kernels that read the lists; SLICES and SLOTS are powers of two."""
        powers = {"SLICES": power_of_two(self.slices), "SLOTS": power_of_two(self.capacity)}
        powers["SHORT"] = _SHORT if powers["SLOTS"] > 2 * _SHORT else powers["SLOTS"]
        # With one α per row a few rows overflow their lists and are read whole: by more columns at a time.
        chunk = (16 if self.varied else 4) * CHUNK
        return {"SLICE": self.columns, "CHUNK": chunk, "CAPACITY": self.capacity, **powers}

    @property
    def warps_when_solving(self) -> int:
        """Warps of a program that reads the lists of a row."""
        return 16 if self.varied else 8


class Lists(NamedTuple):
    """Candidate lists of all slices: a few hundredths of the memory of the scores."""

    sizes: Sizes
    values: Tensor  # in the dtype of the scores, so that nothing is rounded
    places: Tensor
    counts: Tensor


def lists_of(x: Tensor, rows: Rows, *, keeps_places: bool, varied: bool = False) -> Lists:
    """Empty lists for rows of x, with places where a map needs them; `varied` says that each row has its own α."""
    columns, capacity = _SLICES_OF_MANY if rows.total >= _MANY else _SLICES_OF_FEW
    capacity *= _LONGER if varied else 1
    slices = blocks_of(rows.columns, columns)
    sizes = Sizes(slices, columns, capacity, min(16 // x.element_size(), CHUNK // 32), varied)
    count = rows.total * slices
    values = x.new_empty(count * capacity)
    places = x.new_empty(count * capacity if keeps_places else 0, dtype=torch.int16)
    return Lists(sizes, values, places, x.new_empty(count, dtype=torch.int32))


def forward_block(columns: int, order: int) -> Block:
    """The block of a forward pass for rows of this length and powers of this order."""
    return _block(columns, 512, 1024) if order > 0 else _block(columns, 256, 512)


def backward_block(columns: int) -> Block:
    """The block of a backward pass, which holds more numbers per column."""
    return _block(columns, 512, 512)


def _block(columns: int, scores: int, scores_of_a_warp: int) -> Block:
    """Short rows with `scores` in all, or one long row with 1 to 16,384 / `scores_of_a_warp` warps.

    Both numbers were measured on an H200.
    """
    width = max(power_of_two(columns), 16)
    return Block(max(1, scores // width), width, max(1, min(width, 16384) // scores_of_a_warp))


def order_of(alpha: float) -> int:
    """K as kernels take it (`_solve`): k = 1/(α−1) where powers are products, 0 for other α, −1 where it may be 1."""
    if abs(alpha - 1) < 0.1:
        return -1
    k = round(1 / (alpha - 1))
    return k if 1 <= k <= 4 and abs(1 / (alpha - 1) - k) < 1e-12 else 0


def byte_mask(mask: Tensor | None, like: Tensor) -> Tensor:
    """A boolean mask as bytes in the shape of the scores; without a mask the scores, as a pointer that is not read."""
    return like if mask is None else side_by_side(mask.expand(like.shape)).view(torch.uint8)
