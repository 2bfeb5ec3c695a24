"""The arguments that all kernels of one call of attention share."""

import torch
from torch import Tensor

from contmax.kernels._attention_options import AttentionOptions, is_by_distance
from contmax.kernels.triton._attention_tuning import TUNING
from contmax.kernels.triton._counting import power_of_two
from contmax.kernels.triton._launch import order_of, side_by_side

# Products in units of a smaller scale could not be told from what is masked.
_LEAST_SCALE = 1e-20
# From one row to the next at most: so places in a block of 128 rows are numbers of 32 bits.
_LARGEST_STRIDE = 2**24 - 1


def with_near_rows(x: Tensor) -> Tensor:
    """x (B, H, rows, channels) as kernels read it: channels side by side, and no row too far from the last."""
    x = side_by_side(x)
    return x if x.stride(2) <= _LARGEST_STRIDE else x.contiguous()


class AttentionCall:
    """Queries, keys and values as the kernels read them, with their sizes, strides and kinds."""

    def __init__(
        self, query: Tensor, key: Tensor, value: Tensor, alpha: float | Tensor, options: AttentionOptions
    ) -> None:
        mask, bias, lengths, diagonal, scale = options
        if bias is None and scale < _LEAST_SCALE:
            bias = query.new_zeros((1, 1, 1, 1))  # scores are scaled before it is added
        self.query, self.key, self.value = (with_near_rows(x) for x in (query, key, value))
        self.batch, self.heads, self.queries, self.channels = query.shape
        self.groups, self.keys, self.value_channels = key.shape[1], key.shape[2], value.shape[3]
        self.group = self.heads // self.groups
        self.diagonal, self.scale = 0 if diagonal is None else diagonal, scale
        if isinstance(alpha, Tensor):
            self.alpha, self.epsilon, self.order = alpha.float().contiguous(), 0.0, -1
        else:
            self.alpha, self.epsilon, self.order = self.query, alpha - 1, order_of(alpha)
        shape = (self.batch, self.heads, self.queries, self.keys)
        unused, none = self.query, (0, 0, 0, 0)
        self.mask = unused if mask is None else mask.expand(shape).view(torch.uint8)
        self.bias = unused
        bias_places: tuple[int, ...] = none
        if bias is not None and is_by_distance(bias, self.queries, self.keys):
            # From the distance of the first query and the first key on: a later query has its numbers before these.
            self.bias = bias.expand(*shape[:2], 1, -1)[..., self.queries - 1 :]
            places = self.bias.stride()
            bias_places = (places[0], places[1], -places[3], places[3])
        elif bias is not None:
            self.bias = bias.expand(shape)
            bias_places = self.bias.stride()
        self.lengths = unused if lengths is None else lengths.expand(self.batch).to(torch.int32).contiguous()
        mask_places = none if mask is None else self.mask.stride()
        self.places = (*mask_places, *bias_places)
        self.widths = {"D": self.channels, "WIDTH": max(power_of_two(self.channels), 16)}
        self.value_widths = {"C": self.value_channels, "VALUE_WIDTH": max(power_of_two(self.value_channels), 16)}
        widest = max(self.widths["WIDTH"], self.value_widths["VALUE_WIDTH"])
        self.tuning = TUNING.for_heads(widest, query)
        self.powers = {"ORDER": self.order, "PER_HEAD": isinstance(alpha, Tensor)}
        self.kinds = {
            "CAUSAL": diagonal is not None,
            "HAS_MASK": mask is not None,
            "HAS_BIAS": bias is not None,
            "HAS_LENGTHS": lengths is not None,
        }

    @property
    def sizes(self) -> tuple[int, ...]:
        """What most kernels are told of them."""
        return (self.tuning.abreast, self.queries, self.keys, self.diagonal, self.heads, self.group)

    @property
    def all_heads(self) -> int:
        """Those of all sequences."""
        return self.batch * self.heads

    def strides(self, *tensors: Tensor) -> tuple[int, ...]:
        """Of axes but the last."""
        return tuple(stride for x in tensors for stride in x.stride()[:3])
