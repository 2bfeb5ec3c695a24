"""How large the blocks of attention are: what a product holds at a time must fit on the chip."""

import dataclasses
import functools

import torch
from torch import Tensor

from contmax._torch_private import constant_to_tracers

# Shared memory of a Hopper processor: chips with less get small blocks.
_LARGE_CHIP = 227 * 1024
# Keys of rows that have no lists in half precision: four times as many for a small α, with which lists would be long.
_FEW_KEYS, _SMALL_ALPHA = 1024, 1.4


@constant_to_tracers
def _is_large(device: torch.device) -> bool:
    return device.type != "cuda" or _shared_memory(device) >= _LARGE_CHIP


@functools.cache  # torch takes longer to ask than a kernel to launch
def _shared_memory(device: torch.device) -> int:
    """Bytes that a program may have; 0 where a build of torch does not know it."""
    return int(getattr(torch.cuda.get_device_properties(device), "shared_memory_per_block_optin", 0))


def widest_head(like: Tensor) -> int:
    """Channels of a head at most, for tensors of this dtype and device."""
    if like.element_size() == 2:
        return 256
    return 128 if _is_large(like.device) else 64


def most_keys_without_lists(alpha: float | Tensor, like: Tensor) -> int:
    """How many keys a row may have for which no lists are made: products of whole tiles cost less, in this dtype."""
    if like.element_size() > 2:
        return 0  # products of float32 take several times as long
    has_long_lists = isinstance(alpha, float) and alpha <= _SMALL_ALPHA
    return _FEW_KEYS * 4 if has_long_lists else _FEW_KEYS


@dataclasses.dataclass(frozen=True)
class Tuning:
    """Sizes of blocks.

    Attributes:
        most_tiles: tiles of a row at most, so that their tops take little memory;
        bytes_of_tops: and bytes of tops that are there at a time.
        abreast: heads of which programs start side by side,
        tops_abreast: or so many where all that is done is to multiply queries with keys.
        rows: queries of a program that multiplies them with keys,
        columns: keys at a time,
        warps: of that program,
        stages: and blocks of keys on their way to it,
        tile_stages: or so many where a block is as wide as a tile,
        registers: and of each of its threads at most, without mask and bias.
        list_warps: of a program that lists keys,
        list_registers: and of each of its threads at most,
        many_registers: or of those that share a row of many tops.
        doubted_stages: of a program that multiplies tiles again,
        doubted_registers: and of each of its threads at most.
        listed_rows: queries of a program that solves lists,
        listed_registers: and of each of its threads at most: the longest lists need more, but are rare.
        gradient_rows: queries of one that makes their gradients,
        gradient_registers: and of each of its threads at most; None leaves the number to the compiler.
        together: entries of lists that are multiplied at a time for the gradients of keys,
        key_warps: by so many warps,
        key_stages: and blocks of them on their way.
        dense_columns: keys at a time for queries with long lists or none,
        dense_warps: by so many warps,
        dense_stages: and with so many blocks of keys on their way,
        dense_registers: and of each thread that solves them, or makes gradients of queries, at most.
    """

    most_tiles: int = 512
    bytes_of_tops: int = 2**29
    abreast: int = 64
    tops_abreast: int = 16
    rows: int = 64
    columns: int = 128
    warps: int = 4
    stages: int = 2
    tile_stages: int = 3
    registers: int = 128
    list_warps: int = 4
    list_registers: int = 168
    many_registers: int = 128
    doubted_stages: int = 2
    doubted_registers: int = 128
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
        """The same for heads of so many channels, on the device and of the dtype of a tensor."""
        return _for_heads(self, width, like.element_size(), _is_large(like.device))


@functools.cache
def _for_heads(tuning: Tuning, width: int, item: int, is_large: bool) -> Tuning:
    """The same where a number takes `item` bytes."""
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
        chosen = dataclasses.replace(chosen, together=32, dense_columns=32, doubted_registers=255)
    if size <= 256 and is_large:
        return chosen
    small = {"columns": min(tuning.columns, 64), "together": min(chosen.together, 64)}
    if size <= 256:
        small |= {"dense_columns": min(chosen.dense_columns, 128 // item), "dense_stages": 1}
    return dataclasses.replace(chosen, **small, tile_stages=2, key_stages=2)


TUNING = Tuning()
