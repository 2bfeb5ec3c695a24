"""`AttentionCall`: a call's tensors as kernels read them, and its `AttentionKind`, which determines all launches."""

import itertools
from typing import Any, NamedTuple

import torch
from torch import Tensor

from contmax.kernels.attention._operators import AttentionOptions, is_by_distance
from contmax.kernels.attention._sizes import LIST_CAPACITY, TUNING, Tuning, width_of_block
from contmax.kernels.gpu._launch import order_of, side_by_side

# With a smaller scale, a moderate score could have a product ⟨q, k⟩ below −1e30, and its key would pass for masked.
_LEAST_SCALE = 1e-20
# The largest stride of rows for which offsets within a block of 128 rows fit in 32 bits.
_LARGEST_STRIDE = 2**24 - 1
_NO_STRIDES = (0, 0, 0, 0)


def with_near_rows(x: Tensor) -> Tensor:
    """x (B, H, rows, channels), copied unless channels have stride 1 and rows a stride ≤ `_LARGEST_STRIDE`."""
    x = side_by_side(x)
    return x if x.stride(2) <= _LARGEST_STRIDE else x.contiguous()


class AttentionKind(NamedTuple):
    """Sizes, strides, dtypes and numbers of a call, without its tensors: calls of one kind share their launches."""

    batch: int  # B
    heads: int  # H
    groups: int  # G
    queries: int  # Q
    keys: int  # L
    channels: int  # d
    value_channels: int  # c
    strides: tuple[tuple[int, ...], ...]  # of query, key and value, along all axes but the last
    alpha: float | None  # α, or None if α is a tensor with one number per head
    diagonal: int | None  # query i may attend only keys j ≤ i + diagonal; None without a causal mask
    scale: float  # factor of the products ⟨q, k⟩
    mask_strides: tuple[int, ...] | None  # along sequences, heads, queries and keys; None without a mask
    bias_strides: tuple[int, ...] | None  # along sequences, heads, queries and keys; None without a bias
    has_lengths: bool  # whether `lengths` is given
    has_spans: bool  # whether `spans` is given
    dtype: torch.dtype  # of query, key and value
    bias_dtype: torch.dtype  # of the bias; without one, of the queries
    device: int  # index of the device
    tuning: Tuning  # sizes of blocks and options of launches

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
        """Channels per block, equal for keys and values.

        With unequal widths, products compiled by Triton 3.6 read outside of shared memory.
        """
        return width_of_block(max(self.channels, self.value_channels))

    @property
    def arguments(self) -> dict[str, Any]:
        """Numbers that kernels take, by argument name; names in capitals are compile-time constants."""
        names = ["qb", "qh", "qi", "kb", "kh", "kj", "vb", "vh", "vj", "mb", "mh", "mi", "mj", "bb", "bh", "bi", "bj"]
        strides = (*self.strides, self.mask_strides or _NO_STRIDES, self.bias_strides or _NO_STRIDES)
        return {
            **self._asdict(),
            "abreast": self.tuning.abreast,
            "diagonal": 0 if self.diagonal is None else self.diagonal,
            "group": self.group,
            # Subtract in float64, before α − 1 is rounded to float32.
            "fixed_epsilon": 0.0 if self.alpha is None else self.alpha - 1,
            **dict(zip(names, itertools.chain(*strides), strict=True)),
            "ORDER": -1 if self.alpha is None else order_of(self.alpha),
            "PER_HEAD": self.alpha is None,
            "CAUSAL": self.diagonal is not None,
            "HAS_MASK": self.mask_strides is not None,
            "HAS_BIAS": self.bias_strides is not None,
            "HAS_LENGTHS": self.has_lengths,
            "HAS_SPANS": self.has_spans,
            "D": self.channels,
            "C": self.value_channels,
            "WIDTH": self.block_width,
            "VALUE_WIDTH": self.block_width,
            "CAPACITY": LIST_CAPACITY,
        }


class AttentionCall:
    """A call's tensors as kernels read them, and its `AttentionKind`."""

    def __init__(
        self, query: Tensor, key: Tensor, value: Tensor, alpha: float | Tensor, options: AttentionOptions
    ) -> None:
        mask, bias, lengths, diagonal, scale, spans = options
        if bias is None and scale < _LEAST_SCALE:
            bias = query.new_zeros((1, 1, 1, 1))  # with a bias, products are scaled before they are compared with −1e30
        self.query, self.key, self.value = with_near_rows(query), with_near_rows(key), with_near_rows(value)
        # The queries stand for absent tensors: kernels need a pointer, but do not read it.
        self.mask = self.bias = self.limits = self.alpha = self.query
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
            self.limits = lengths.reshape(-1).expand(shape[0]).to(torch.int32).contiguous()
        if spans is not None:
            self.limits = spans.expand(*shape[:3], 2).to(torch.int32).contiguous()
        (batch, heads, queries, channels), (groups, keys), width = query.shape, key.shape[1:3], value.shape[3]
        sizes = (batch, heads, groups, queries, keys, channels, width)
        strides = tuple([x.stride()[:3] for x in (self.query, self.key, self.value)])
        extras = (mask_strides, bias_strides, lengths is not None, spans is not None)
        tuning = TUNING.for_heads(width_of_block(max(channels, width)), query)
        storage = (query.dtype, self.bias.dtype, query.get_device())
        self.kind = AttentionKind(*sizes, strides, number, diagonal, scale, *extras, *storage, tuning)

    def empty(self, dtype: torch.dtype, *shapes: tuple[int, ...]) -> list[Tensor]:
        """Uninitialised tensors of these shapes, on the device of the call."""
        return [torch.empty(shape, dtype=dtype, device=self.query.device) for shape in shapes]


def _with_strides(bias: Tensor, shape: tuple[int, ...]) -> tuple[Tensor, tuple[int, ...]]:
    """The bias, and its strides along sequences, heads, queries and keys; `shape` is (B, H, Q, L)."""
    if not is_by_distance(bias, *shape[2:]):
        bias = bias.expand(shape)
        return bias, bias.stride()
    # The bias of query i and key j is at index j − i + Q − 1. So begin at index Q − 1, the bias of query 0 and key 0;
    # the stride along queries is minus that along keys.
    bias = bias.expand(*shape[:2], 1, -1)[..., shape[2] - 1 :]
    steps = bias.stride()
    return bias, (steps[0], steps[1], -steps[3], steps[3])
