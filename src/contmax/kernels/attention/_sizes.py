"""Sizes of blocks and lists of attention. Blocks of a matrix product must fit in shared memory."""

import dataclasses
import functools
from typing import NamedTuple

import torch
from torch import Tensor

from contmax._torch_private import constant_to_tracers
from contmax.kernels import blocks_of, power_of_two

# The most entries of a candidate list: longer lists would cost as much as products of whole tiles.
LIST_CAPACITY = 128
# Queries per block of rows; a block is dense if it has no lists (`AttentionLists`).
DENSE_ROWS = 64
# Bytes of shared memory per program on Hopper: GPUs with less get smaller blocks.
_LARGE_CHIP = 227 * 1024
# In half precision rows of up to _FEW_KEYS keys have no lists. For α ≤ _SMALL_ALPHA, where lists are long, rows of up
# to 4·_FEW_KEYS keys have none.
_FEW_KEYS, _SMALL_ALPHA = 1024, 1.4


@constant_to_tracers
def _is_large(device: torch.device) -> bool:
    return device.type != "cuda" or _shared_memory(device) >= _LARGE_CHIP


@functools.cache  # torch takes longer to look up device properties than to launch a kernel
def _shared_memory(device: torch.device) -> int:
    """Bytes of shared memory that a program may have; 0 if this build of torch does not report them."""
    return int(getattr(torch.cuda.get_device_properties(device), "shared_memory_per_block_optin", 0))


def widest_head(like: Tensor) -> int:
    """The most channels per head, for tensors of the dtype and device of `like`."""
    if like.element_size() == 2:
        return 256
    return 128 if _is_large(like.device) else 64


def most_keys_without_lists(alpha: float | Tensor, like: Tensor) -> int:
    """Rows of up to this number of keys have no lists: in the dtype of `like` products of whole tiles cost less."""
    if like.element_size() > 2:
        return 0  # products of float32 take several times as long as those of half precision
    has_long_lists = isinstance(alpha, float) and alpha <= _SMALL_ALPHA
    return _FEW_KEYS * 4 if has_long_lists else _FEW_KEYS


@dataclasses.dataclass(frozen=True)
class Tuning:
    """Sizes of blocks and options of launches, by kernel.

    In the names, `warps` are warps per program, `stages` are pipeline stages of loops (Triton's ``num_stages``), and
    `registers` are the most registers per thread, where None leaves the number to the compiler.
    """

    most_tiles: int = 512  # the most tiles per row; it limits the memory of tile maxima
    bytes_of_maxima: int = 2**29  # the most bytes of tile maxima; calls that need more take blocks of queries in turn
    abreast: int = 64  # the number of heads whose programs start interleaved (`block_and_head`)
    maxima_abreast: int = 16  # `abreast` of `tile_maxima`
    rows: int = 64  # `tile_maxima`: queries per program
    columns: int = 128  # `tile_maxima`: keys per block
    warps: int = 4  # of `tile_maxima`
    stages: int = 2  # of `tile_maxima`
    tile_stages: int = 3  # of `tile_maxima` where a block of keys is exactly four tiles
    registers: int = 128  # of `tile_maxima`; float32, a mask or a bias lifts the limit
    list_warps: int = 4  # of `list_keys`
    list_registers: int = 168  # of `list_keys`
    many_registers: int = 128  # of `list_keys` for rows of many tiles, which twice as many threads share
    undecided_stages: int = 2  # of `list_undecided`
    undecided_registers: int = 128  # of `list_undecided`
    listed_rows: int = 4  # `attend_listed`: rows per program
    listed_registers: int = 64  # of `attend_listed`; only its longest lists, which are rare, need more registers
    gradient_rows: int = 8  # `listed_queries_backward`: rows per program
    gradient_registers: int | None = 96  # of `listed_queries_backward`
    together: int = 128  # `listed_keys_backward`: entries per product
    key_warps: int = 4  # of `listed_keys_backward`
    key_stages: int = 3  # of `listed_keys_backward`
    dense_columns: int = 64  # kernels for dense blocks: keys per block
    dense_warps: int = 4  # of kernels for dense blocks
    dense_stages: int = 3  # of `solve_dense` and `attend_dense`
    dense_gradient_stages: int = 3  # of `dense_queries_backward`, `dense_keys_backward`
    dense_registers: int | None = 168  # of `solve_dense` and `dense_queries_backward`

    def for_heads(self, width: int, like: Tensor) -> "Tuning":
        """The tuning for heads of `width` channels, and tensors of the dtype and device of `like`."""
        return _for_heads(self, width, like.element_size(), _is_large(like.device))


@functools.cache
def _for_heads(tuning: Tuning, width: int, item: int, is_large: bool) -> Tuning:
    """`Tuning.for_heads` for elements of `item` bytes; `is_large`: whether the GPU has the shared memory of Hopper."""
    size = width * item
    chosen = tuning
    if size > 128:
        chosen = dataclasses.replace(
            chosen,
            listed_rows=2,
            listed_registers=72,
            gradient_registers=None,
            dense_stages=3 if item == 2 else 2,
            dense_gradient_stages=2 if item == 2 else 1,
            dense_registers=None,
        )
    if size > 128 * (4 // item):
        chosen = dataclasses.replace(chosen, gradient_rows=4, key_warps=8, key_stages=2)
    if size > 256:
        dense = {"dense_warps": 8} if item == 2 else {"dense_columns": 32}
        dense |= {"dense_stages": 2, "dense_gradient_stages": 2}
        chosen = dataclasses.replace(chosen, together=32, undecided_registers=255, **dense)
    if size <= 256 and is_large:
        return chosen
    small = {"columns": min(tuning.columns, 64), "together": min(chosen.together, 64)}
    if size <= 256:
        small |= {
            "dense_columns": min(chosen.dense_columns, 128 // item),
            "dense_stages": 1,
            "dense_gradient_stages": 1,
        }
    else:
        small["dense_columns"] = 32
    return dataclasses.replace(chosen, **small, tile_stages=2, key_stages=2)


TUNING = Tuning()

# Decoding: the most keys and the most bytes per block of keys.
_DECODED_TOGETHER, _BYTES_OF_BLOCK = 128, 2**15
# Decoding: the most queries per program.
MOST_DECODED_ROWS = 64
# Decoding: the number of programs that an H200 runs at once, and the most blocks of keys per program. Programs with
# more blocks would end at very different times.
_PROGRAMS, _MOST_BLOCKS = 264, 32
# The sum of the largest rounding errors of a score and of the bound of its page, relative to Σ |q·k| over the channels.
ROUNDING_OF_PAGES = 4e-6
# Where pages are skipped: pages in a group, one of which is read first.
PAGES_OF_GROUP = 32
# Decoding: a block of keys has _TILES_OF_BLOCK tiles if a row then has at most _MANY_TILES; in longer rows a block is
# one tile. A row has at most _MOST_TILES, because one program holds all its tile maxima.
_TILES_OF_BLOCK, _MANY_TILES, _MOST_TILES = 4, 4096, 2**15


class DecodingSizes(NamedTuple):
    """How decoding divides keys, and queries of the heads that share these keys, among programs."""

    rows: int  # queries per program
    row_blocks: int  # programs along the queries
    columns: int  # keys per block
    span: int  # keys per program, a multiple of `columns`
    spans: int  # programs along the keys
    tiles: int  # tiles per row
    tiles_of_block: int  # tiles per block of keys


def decoding_sizes(
    queries: int, keys: int, heads: int, width: int, item: int, page: int = _DECODED_TOGETHER
) -> DecodingSizes:
    """The sizes for B·G = `heads`, `queries` per key head, `keys` per sequence, `width` channels of `item` bytes.

    No block of keys is larger than a `page`.
    """
    rows = min(max(power_of_two(queries), 16), MOST_DECODED_ROWS)
    row_blocks, columns = blocks_of(queries, rows), min(_decoded_together(width, item), page)
    blocks = blocks_of(keys, columns)
    span = min(blocks_of(blocks * heads * row_blocks, _PROGRAMS), _MOST_BLOCKS)
    of_block = _TILES_OF_BLOCK if blocks * _TILES_OF_BLOCK <= _MANY_TILES else 1
    return DecodingSizes(
        rows, row_blocks, columns, span * columns, blocks_of(blocks, span), blocks * of_block, of_block
    )


def most_keys_of_decoding(channels: int, item: int, page: int = _DECODED_TOGETHER) -> int:
    """The most keys that decoding takes, in blocks of at most `page` keys; a head has `channels` of `item` bytes."""
    return _MOST_TILES * min(_decoded_together(width_of_block(channels), item), page)


def _decoded_together(width: int, item: int) -> int:
    return max(32, min(_DECODED_TOGETHER, _BYTES_OF_BLOCK // (width * item)))


def width_of_block(channels: int) -> int:
    """Channels per block of queries, keys or values: matrix products need a power of two, 16 or more."""
    return max(power_of_two(channels), 16)
