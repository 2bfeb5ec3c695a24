"""One call of attention: its tensors as the kernels read them, and all else that its launches depend on."""

from typing import NamedTuple

import torch
from torch import Tensor

from contmax.kernels.attention._gpu_tuning import TUNING, Tuning
from contmax.kernels.attention._options import AttentionOptions, is_by_distance
from contmax.kernels.gpu._counting import power_of_two
from contmax.kernels.gpu._launch import order_of, side_by_side

# Products in units of a smaller scale could not be told from what is masked.
_LEAST_SCALE = 1e-20
# From one row to the next at most: so places in a block of 128 rows are numbers of 32 bits.
_LARGEST_STRIDE = 2**24 - 1
_NO_PLACES = (0, 0, 0, 0)


def with_near_rows(x: Tensor) -> Tensor:
    """x (B, H, rows, channels) as kernels read it: channels side by side, and no row too far from the last."""
    x = side_by_side(x)
    return x if x.stride(2) <= _LARGEST_STRIDE else x.contiguous()


class AttentionKind(NamedTuple):
    """Calls of one kind have the same launches, whatever their numbers are.

    Attributes:
        query_shape: (B, H, Q, d).
        key_shape: (B, G, L, d).
        value_channels: c.
        strides: of query, key and value, but for the last axis.
        alpha: α, or None where each head has its own.
        diagonal: query i meets keys up to i + diagonal; None if all.
        scale: factor of the scores.
        mask_places: strides of the mask, or None,
        bias_places: and of the bias.
        has_lengths: whether sequences have lengths of their own.
        dtype: of query, key and value,
        bias_dtype: and of the bias, or the same without one.
        device: the number of their device.
        tuning: sizes of blocks.
    """

    query_shape: tuple[int, ...]
    key_shape: tuple[int, ...]
    value_channels: int
    strides: tuple[tuple[int, ...], ...]
    alpha: float | None
    diagonal: int | None
    scale: float
    mask_places: tuple[int, ...] | None
    bias_places: tuple[int, ...] | None
    has_lengths: bool
    dtype: torch.dtype
    bias_dtype: torch.dtype
    device: int
    tuning: Tuning

    @property
    def batch(self) -> int:
        """Sequences."""
        return self.query_shape[0]

    @property
    def queries(self) -> int:
        """Of a sequence."""
        return self.query_shape[2]

    @property
    def keys(self) -> int:
        """Of a sequence."""
        return self.key_shape[2]

    @property
    def heads(self) -> int:
        """Of a sequence's queries."""
        return self.query_shape[1]

    @property
    def all_heads(self) -> int:
        """Those of all sequences."""
        return self.batch * self.heads

    @property
    def all_groups(self) -> int:
        """Heads of keys, of all sequences."""
        return self.batch * self.key_shape[1]

    @property
    def group(self) -> int:
        """Query heads that share a head of the keys."""
        return self.heads // self.key_shape[1]

    @property
    def places(self) -> tuple[int, ...]:
        """Where mask and bias lie, as kernels are told."""
        return (*(self.mask_places or _NO_PLACES), *(self.bias_places or _NO_PLACES))

    @property
    def last_key(self) -> int:
        """`diagonal` as kernels are told."""
        return 0 if self.diagonal is None else self.diagonal

    @property
    def sizes(self) -> tuple[int, ...]:
        """What most kernels are told."""
        return (self.tuning.abreast, self.queries, self.keys, self.last_key, self.heads, self.group)

    @property
    def epsilon(self) -> float:
        """α − 1, which keeps its digits."""
        return 0.0 if self.alpha is None else self.alpha - 1

    @property
    def powers(self) -> dict[str, int]:
        """How powers are computed."""
        return {"ORDER": -1 if self.alpha is None else order_of(self.alpha), "PER_HEAD": self.alpha is None}

    @property
    def widths(self) -> dict[str, int]:
        """Channels of queries and keys."""
        return {"D": self.query_shape[3], "WIDTH": self.block_width}

    @property
    def value_widths(self) -> dict[str, int]:
        """Channels of values."""
        return {"C": self.value_channels, "VALUE_WIDTH": self.block_width}

    @property
    def block_width(self) -> int:
        """Channels of a block, of keys and of values alike.

        Of a narrow block beside a wide one Triton 3.6 makes products that read outside of the shared memory.
        """
        return _width(max(self.query_shape[3], self.value_channels))

    @property
    def options(self) -> dict[str, bool]:
        """What comes with queries, keys and values."""
        return {
            "CAUSAL": self.diagonal is not None,
            "HAS_MASK": self.mask_places is not None,
            "HAS_BIAS": self.bias_places is not None,
            "HAS_LENGTHS": self.has_lengths,
        }


class AttentionCall:
    """The tensors of a call as the kernels read them, and its kind."""

    def __init__(
        self, query: Tensor, key: Tensor, value: Tensor, alpha: float | Tensor, options: AttentionOptions
    ) -> None:
        mask, bias, lengths, diagonal, scale = options
        if bias is None and scale < _LEAST_SCALE:
            bias = query.new_zeros((1, 1, 1, 1))  # scores are scaled before it is added
        self.query, self.key, self.value = with_near_rows(query), with_near_rows(key), with_near_rows(value)
        # Pointers that are not used are those of the queries.
        self.mask = self.bias = self.lengths = self.alpha = self.query
        number, mask_places, bias_places = None, None, None
        if isinstance(alpha, Tensor):
            self.alpha = alpha.float().contiguous()
        else:
            number = alpha
        shape = (*query.shape[:3], key.shape[2])
        if mask is not None:
            self.mask = mask.expand(shape).view(torch.uint8)
            mask_places = self.mask.stride()
        if bias is not None:
            self.bias, bias_places = _placed(bias, shape)
        if lengths is not None:
            self.lengths = lengths.expand(shape[0]).to(torch.int32).contiguous()
        channels = value.shape[3]
        self.kind = AttentionKind(
            query.shape,
            key.shape,
            channels,
            tuple([x.stride()[:3] for x in (self.query, self.key, self.value)]),
            number,
            diagonal,
            scale,
            mask_places,
            bias_places,
            lengths is not None,
            query.dtype,
            self.bias.dtype,
            query.get_device(),
            TUNING.for_heads(_width(max(query.shape[3], channels)), query),
        )


def _placed(bias: Tensor, shape: tuple[int, ...]) -> tuple[Tensor, tuple[int, ...]]:
    """The bias, and how far apart those of neighbouring sequences, heads, queries and keys are."""
    if not is_by_distance(bias, *shape[2:]):
        bias = bias.expand(shape)
        return bias, bias.stride()
    # From the distance of the first query and the first key on: a later query has its numbers before these.
    bias = bias.expand(*shape[:2], 1, -1)[..., shape[2] - 1 :]
    places = bias.stride()
    return bias, (places[0], places[1], -places[3], places[3])


def _width(channels: int) -> int:
    return max(power_of_two(channels), 16)
