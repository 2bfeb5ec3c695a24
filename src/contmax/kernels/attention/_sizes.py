"""Sizes of the blocks and lists of attention: the operands of a product must fit on the chip."""

import dataclasses
import functools
from typing import NamedTuple

import torch
from torch import Tensor

from contmax._torch_private import constant_to_tracers
from contmax.kernels._counting import blocks_of, power_of_two

# Entries of a list. Longer ones cost as much as a product of whole tiles.
LIST_CAPACITY = 128
# Rows of a dense block.
DENSE_ROWS = 64
# Shared memory of a Hopper processor: chips with less get small blocks.
_LARGE_CHIP = 227 * 1024
# In half precision rows of up to this many keys have no lists; for a small α, whose lists would be long, of four times
# as many.
_FEW_KEYS, _SMALL_ALPHA = 1024, 1.4


@constant_to_tracers
def _is_large(device: torch.device) -> bool:
    return device.type != "cuda" or _shared_memory(device) >= _LARGE_CHIP


@functools.cache  # the properties of a device take torch longer to find than a kernel takes to launch
def _shared_memory(device: torch.device) -> int:
    """Bytes that a program may have; 0 where a build of torch does not know them."""
    return int(getattr(torch.cuda.get_device_properties(device), "shared_memory_per_block_optin", 0))


def widest_head(like: Tensor) -> int:
    """Channels of a head at most, for tensors of this dtype and device."""
    if like.element_size() == 2:
        return 256
    return 128 if _is_large(like.device) else 64


def most_keys_without_lists(alpha: float | Tensor, like: Tensor) -> int:
    """Rows of up to this many keys get no lists: in this dtype products of whole tiles cost less."""
    if like.element_size() > 2:
        return 0  # products of float32 take several times as long
    has_long_lists = isinstance(alpha, float) and alpha <= _SMALL_ALPHA
    return _FEW_KEYS * 4 if has_long_lists else _FEW_KEYS


@dataclasses.dataclass(frozen=True)
class Tuning:
    """Sizes of blocks. `registers` are the most that a thread may use; None leaves the number to the compiler.

    Attributes:
        most_tiles: tiles of a row at most, so that their maxima take little memory.
        bytes_of_maxima: memory of the maxima of the tiles; longer inputs are listed in several blocks of queries.
        abreast: heads whose programs start side by side (`block_and_head`).
        maxima_abreast: `abreast` of the kernel that only multiplies queries with keys.
        rows, columns, warps, stages, registers: of that kernel: queries of a program, keys at a time, its warps, and
            blocks of keys on their way; the registers hold without mask and bias.
        tile_stages: its stages where a block is as wide as a tile.
        list_warps, list_registers: of the kernel that lists keys.
        many_registers: its registers where more threads share a row of many maxima.
        undecided_stages, undecided_registers: of the kernel that multiplies undecided tiles again.
        listed_rows, listed_registers: of the kernel that solves lists; the longest lists need more registers, but are
            rare.
        gradient_rows, gradient_registers: of the kernel that computes gradients of queries by lists.
        together, key_warps, key_stages: of the kernel that computes gradients of keys by lists: entries multiplied at
            a time, warps, and blocks of entries on their way.
        dense_columns, dense_warps, dense_stages: of the kernels for dense blocks: keys at a time, warps, and blocks of
            keys on their way.
        dense_registers: of those that solve dense blocks or compute gradients of their queries.
    """

    most_tiles: int = 512
    bytes_of_maxima: int = 2**29
    abreast: int = 64
    maxima_abreast: int = 16
    rows: int = 64
    columns: int = 128
    warps: int = 4
    stages: int = 2
    tile_stages: int = 3
    registers: int = 128
    list_warps: int = 4
    list_registers: int = 168
    many_registers: int = 128
    undecided_stages: int = 2
    undecided_registers: int = 128
    listed_rows: int = 4
    listed_registers: int = 64
    gradient_rows: int = 8
    gradient_registers: int | None = 96
    together: int = 128
    key_warps: int = 4
    key_stages: int = 3
    dense_columns: int = 64
    dense_warps: int = 4
    dense_stages: int = 3
    dense_registers: int | None = 168

    def for_heads(self, width: int, like: Tensor) -> "Tuning":
        """The sizes for heads of `width` channels, on the device and of the dtype of a tensor."""
        return _for_heads(self, width, like.element_size(), _is_large(like.device))


@functools.cache
def _for_heads(tuning: Tuning, width: int, item: int, is_large: bool) -> Tuning:
    """`Tuning.for_heads` where a number takes `item` bytes."""
    size = width * item
    chosen = tuning
    if size > 128:
        chosen = dataclasses.replace(
            chosen,
            listed_rows=2,
            listed_registers=72,
            gradient_registers=None,
            dense_warps=8,
            dense_stages=2,
            dense_registers=None,
        )
    if size > 128 * (4 // item):
        chosen = dataclasses.replace(chosen, gradient_rows=4, key_warps=8, key_stages=2)
    if size > 256:
        chosen = dataclasses.replace(chosen, together=32, dense_columns=32, undecided_registers=255)
    if size <= 256 and is_large:
        return chosen
    small = {"columns": min(tuning.columns, 64), "together": min(chosen.together, 64)}
    if size <= 256:
        small |= {"dense_columns": min(chosen.dense_columns, 128 // item), "dense_stages": 1}
    return dataclasses.replace(chosen, **small, tile_stages=2, key_stages=2)


TUNING = Tuning()

# Keys of a block of decoding, and bytes of such a block at most; programs that a GPU runs side by side.
_DECODED_TOGETHER, _BYTES_OF_BLOCK, _PROGRAMS = 128, 2**15, 528
# Tiles per block of keys, and the most per row: one program holds all tile maxima of a row.
_TILES_OF_BLOCK, _MOST_TILES = 4, 2**15


class DecodingSizes(NamedTuple):
    """How decoding is divided: queries of the heads that share keys, then keys.

    Attributes:
        rows: queries of a program.
        row_blocks: programs along the queries.
        columns: keys at a time.
        span: keys of a program, a multiple of `columns`.
        spans: programs along the keys.
        tiles: of a row, of columns // 4 keys each.
    """

    rows: int
    row_blocks: int
    columns: int
    span: int
    spans: int
    tiles: int


def decoding_sizes(queries: int, keys: int, heads: int, width: int, item: int) -> DecodingSizes:
    """The sizes for this many queries of each head of the keys, keys, heads, and channels of `item` bytes."""
    rows = min(max(power_of_two(queries), 16), 64)
    row_blocks, columns = blocks_of(queries, rows), _decoded_together(width, item)
    blocks = blocks_of(keys, columns)
    span = blocks_of(blocks * heads * row_blocks, _PROGRAMS)
    return DecodingSizes(rows, row_blocks, columns, span * columns, blocks_of(blocks, span), blocks * _TILES_OF_BLOCK)


def most_keys_of_decoding(channels: int, item: int) -> int:
    """How many keys decoding takes, for heads of this many channels of `item` bytes."""
    return _MOST_TILES // _TILES_OF_BLOCK * _decoded_together(width_of_block(channels), item)


def _decoded_together(width: int, item: int) -> int:
    return max(32, min(_DECODED_TOGETHER, _BYTES_OF_BLOCK // (width * item)))


def width_of_block(channels: int) -> int:
    """Channels of a block of queries, keys or values: products take a power of two, 16 or more."""
    return max(power_of_two(channels), 16)
