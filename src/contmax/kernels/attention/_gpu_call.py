"""One call of attention: its tensors as the kernels read them, and its kind, from which all launches follow."""

import itertools
from typing import Any, NamedTuple

import torch
from torch import Tensor

from contmax.kernels.attention._sizes import LIST_CAPACITY, TUNING, Tuning, width_of_block
from contmax.kernels.attention._tensors import AttentionOptions, is_by_distance
from contmax.kernels.gpu._launch import order_of, side_by_side

# Products in units of a smaller scale could not be told from the score of a masked key.
_LEAST_SCALE = 1e-20
# The largest stride of rows with which places in a block of 128 rows are numbers of 32 bits.
_LARGEST_STRIDE = 2**24 - 1
_NO_STRIDES = (0, 0, 0, 0)


def with_near_rows(x: Tensor) -> Tensor:
    """x (B, H, rows, channels) as kernels read it: channels side by side, and no row too far from the last."""
    x = side_by_side(x)
    return x if x.stride(2) <= _LARGEST_STRIDE else x.contiguous()


class AttentionKind(NamedTuple):
    """Everything but numbers in tensors: calls of one kind have the same launches.

    Attributes:
        batch, heads, groups, queries, keys: B, H, G, Q and L.
        channels, value_channels: d and c.
        strides: of query, key and value, but for the last axis.
        alpha: α, or None where each head has its own.
        diagonal: query i meets keys up to i + diagonal; None if all.
        scale: factor of the scores.
        mask_strides, bias_strides: of sequences, heads, queries and keys; None without mask or bias.
        has_lengths: whether sequences have lengths of their own.
        dtype: of query, key and value.
        bias_dtype: of the bias; without one, of the queries.
        device: the number of their device.
        tuning: sizes of blocks.
    """

    batch: int
    heads: int
    groups: int
    queries: int
    keys: int
    channels: int
    value_channels: int
    strides: tuple[tuple[int, ...], ...]
    alpha: float | None
    diagonal: int | None
    scale: float
    mask_strides: tuple[int, ...] | None
    bias_strides: tuple[int, ...] | None
    has_lengths: bool
    dtype: torch.dtype
    bias_dtype: torch.dtype
    device: int
    tuning: Tuning

    @property
    def group(self) -> int:
        """Query heads that share a head of the keys."""
        return self.heads // self.groups

    @property
    def all_heads(self) -> int:
        """B·H."""
        return self.batch * self.heads

    @property
    def all_groups(self) -> int:
        """B·G."""
        return self.batch * self.groups

    @property
    def block_width(self) -> int:
        """Channels of blocks of keys and of values alike.

        Triton 3.6 makes products of a narrow block beside a wide one read outside of the shared memory.
        """
        return width_of_block(max(self.channels, self.value_channels))

    @property
    def arguments(self) -> dict[str, Any]:
        """Arguments of kernels by name: numbers, and in capitals constants of compilation."""
        names = ["qb", "qh", "qi", "kb", "kh", "kj", "vb", "vh", "vj", "mb", "mh", "mi", "mj", "bb", "bh", "bi", "bj"]
        strides = (*self.strides, self.mask_strides or _NO_STRIDES, self.bias_strides or _NO_STRIDES)
        return {
            "abreast": self.tuning.abreast,
            "queries": self.queries,
            "keys": self.keys,
            "diagonal": 0 if self.diagonal is None else self.diagonal,
            "heads": self.heads,
            "group": self.group,
            "scale": self.scale,
            # α − 1 loses no digits before it is rounded to float32.
            "fixed_epsilon": 0.0 if self.alpha is None else self.alpha - 1,
            **dict(zip(names, itertools.chain(*strides), strict=True)),
            "ORDER": -1 if self.alpha is None else order_of(self.alpha),
            "PER_HEAD": self.alpha is None,
            "CAUSAL": self.diagonal is not None,
            "HAS_MASK": self.mask_strides is not None,
            "HAS_BIAS": self.bias_strides is not None,
            "HAS_LENGTHS": self.has_lengths,
            "D": self.channels,
            "C": self.value_channels,
            "WIDTH": self.block_width,
            "VALUE_WIDTH": self.block_width,
            "CAPACITY": LIST_CAPACITY,
        }


class AttentionCall:
    """A call's tensors as kernels read them, and its AttentionKind."""

    def __init__(
        self, query: Tensor, key: Tensor, value: Tensor, alpha: float | Tensor, options: AttentionOptions
    ) -> None:
        mask, bias, lengths, diagonal, scale = options
        if bias is None and scale < _LEAST_SCALE:
            bias = query.new_zeros((1, 1, 1, 1))  # scores are scaled before it is added
        self.query, self.key, self.value = with_near_rows(query), with_near_rows(key), with_near_rows(value)
        # Kernels get the pointer of the queries in place of tensors that they do not read.
        self.mask = self.bias = self.lengths = self.alpha = self.query
        number, mask_strides, bias_strides = None, None, None
        if isinstance(alpha, Tensor):
            self.alpha = alpha.float().contiguous()
        else:
            number = alpha
        shape = (*query.shape[:3], key.shape[2])
        if mask is not None:
            self.mask = mask.expand(shape).view(torch.uint8)
            mask_strides = self.mask.stride()
        if bias is not None:
            self.bias, bias_strides = _with_strides(bias, shape)
        if lengths is not None:
            self.lengths = lengths.reshape(-1).expand(shape[0]).to(torch.int32).contiguous()
        (batch, heads, queries, channels), (groups, keys), width = query.shape, key.shape[1:3], value.shape[3]
        self.kind = AttentionKind(
            batch,
            heads,
            groups,
            queries,
            keys,
            channels,
            width,
            tuple([x.stride()[:3] for x in (self.query, self.key, self.value)]),
            number,
            diagonal,
            scale,
            mask_strides,
            bias_strides,
            lengths is not None,
            query.dtype,
            self.bias.dtype,
            query.get_device(),
            TUNING.for_heads(width_of_block(max(channels, width)), query),
        )


def _with_strides(bias: Tensor, shape: tuple[int, ...]) -> tuple[Tensor, tuple[int, ...]]:
    """The bias, and its strides of sequences, heads, queries and keys."""
    if not is_by_distance(bias, *shape[2:]):
        bias = bias.expand(shape)
        return bias, bias.stride()
    # The pointer is to the distance of the first query and the first key: later queries have their numbers before it.
    bias = bias.expand(*shape[:2], 1, -1)[..., shape[2] - 1 :]
    steps = bias.stride()
    return bias, (steps[0], steps[1], -steps[3], steps[3])
