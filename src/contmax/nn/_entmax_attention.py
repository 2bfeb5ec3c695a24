"""Multi-head attention with α-entmax: the counterpart of torch.nn.MultiheadAttention, which has softmax."""

from collections.abc import Sequence
from typing import Literal

import torch
from torch import Tensor

from contmax._mask import has_shape, require_boolean
from contmax._typing import Bool, Float, Int
from contmax.attention import entmax_attention
from contmax.attention._arguments import checked_lengths
from contmax.maps._threshold import power_on_support
from contmax.nn._module import AlphaModule, check_values, split_heads, wide_linear

# γ of a query whose length scale is adaptive lies in (−2, 2).
_LARGEST_POWER = 2.0


class EntmaxAttention(AlphaModule):
    r"""Multi-head attention whose weights have exact zeros.

    .. math:: o = W_o\,[\,P_1 V_1 \dots P_H V_H\,], \qquad
              P_h = \alpha_h\text{-entmax}\big(\lambda_h(n)\, Q_h K_h^\top/\sqrt d - m_h |i - j|\big)

    with Q, K, V linear in queries, keys and values.

    Args:
        embed_dim: E, channels of queries and outputs; a multiple of `num_heads`.
        num_heads: H.
        alpha: α: a float, or one for each head: numbers, or a tensor of shape () or (H,). 1 is softmax. A Parameter is
            learned as it is, without bounds.
        learnable: whether each head learns its own α inside (1, 2), starting at `alpha`; see :class:`Entmax`.
        kdim: channels of the keys; E by default.
        vdim: channels of the values; E by default.
        bias: whether the linear maps have a bias.
        dropout: share of the weights dropped in training.
        is_causal: whether a query may attend only to keys up to its own position; the last query is aligned with the
            last key.
        alibi: "half" gives the first half of the heads a penalty m_h = 1/h for distance, h = 1 … H/2, and the rest
            none; None gives no head a penalty.
        length_scale: a factor λ on the queries, by the number n of keys that each of them may attend. True: λ_h(n) =
            δ_h + β_h (ln n)^{γ_h}; the three are learned for each head and start at δ = 1, β = 0, γ = 1, which changes
            nothing. "adaptive" is that of ASEntmax: each head of each query x has its own λ_h(x, n) = 1 + β_h(x)
            ln(n + 1)^{γ_h(x)}, with β_h(x) = softplus(w·x + b) and γ_h(x) = 2 tanh(w′·x + b′), only in heads without a
            penalty for distance; in the others λ is 1. None leaves the queries as they are.

    Shape:
        query (B, Q, E), key (B, L, kdim), value (B, L, vdim), output (B, Q, E), weights (B, H, Q, L).

    Example:
        >>> import torch, contmax
        >>> attend = contmax.nn.EntmaxAttention(16, 4, learnable=True, is_causal=True, alibi="half")
        >>> x = torch.randn(2, 50, 16)
        >>> attend(x).shape
        torch.Size([2, 50, 16])
        >>> output, weights = attend(x, need_weights=True)
        >>> weights.shape
        torch.Size([2, 4, 50, 50])
        >>> asentmax = contmax.nn.EntmaxAttention(16, 4, is_causal=True, alibi="half", length_scale="adaptive")
        >>> asentmax.scale_projection  # two numbers for each of the two heads without a penalty
        Linear(in_features=16, out_features=4, bias=True)

    References: Correia, Niculae & Martins 2019 (one α per head); Press et al. 2022 (ALiBi); Vasylenko et al. 2025
    (ASEntmax: scales that grow with the length, positions for half of the heads).
    """

    _shown = ("embed_dim", "num_heads", "alpha", "kdim", "vdim", "dropout", "is_causal", "alibi")
    slopes: Tensor | None

    def __init__(
        self,
        embed_dim: int,
        num_heads: int,
        *,
        alpha: float | Sequence[float] | Tensor = 1.5,
        learnable: bool = False,
        kdim: int | None = None,
        vdim: int | None = None,
        bias: bool = True,
        dropout: float = 0.0,
        is_causal: bool = False,
        alibi: Literal["half"] | None = None,
        length_scale: bool | Literal["adaptive"] | None = None,
    ) -> None:
        if num_heads < 1 or embed_dim % num_heads:
            raise ValueError(f"embed_dim must be a multiple of num_heads; got {embed_dim} for {num_heads} heads.")
        if not 0 <= dropout < 1:
            raise ValueError(f"dropout is the share of weights that is dropped, in [0, 1); got {dropout}.")
        if alibi not in (None, "half"):
            raise ValueError(f'alibi must be "half" or None; got {alibi!r}.')
        if length_scale not in (None, False, True, "adaptive"):
            raise ValueError(f'length_scale must be True, "adaptive" or None; got {length_scale!r}.')
        super().__init__(alpha, learnable=learnable, num_heads=num_heads)
        self.embed_dim, self.num_heads, self.is_causal, self.alibi = embed_dim, num_heads, is_causal, alibi
        self.kdim = embed_dim if kdim is None else kdim
        self.vdim = embed_dim if vdim is None else vdim
        self.dropout = dropout
        self.query_projection = torch.nn.Linear(embed_dim, embed_dim, bias=bias)
        self.key_projection = torch.nn.Linear(self.kdim, embed_dim, bias=bias)
        self.value_projection = torch.nn.Linear(self.vdim, embed_dim, bias=bias)
        self.output_projection = torch.nn.Linear(embed_dim, embed_dim, bias=bias)
        self.register_buffer("slopes", _slopes(num_heads) if alibi == "half" else None, persistent=False)
        start = torch.tensor([1.0, 0.0, 1.0]).repeat(num_heads, 1)
        self.length_scale = torch.nn.Parameter(start) if length_scale is True else None
        adaptive = num_heads if alibi is None else num_heads - num_heads // 2
        self.scale_projection = torch.nn.Linear(embed_dim, 2 * adaptive) if length_scale == "adaptive" else None

    def reset_parameters(self) -> None:
        """Reset α, the slopes and the scales; the linear maps have their own `reset_parameters`."""
        super().reset_parameters()
        with torch.no_grad():
            if self.slopes is not None:
                self.slopes.copy_(_slopes(self.num_heads))
            if self.length_scale is not None:
                self.length_scale.copy_(torch.tensor([1.0, 0.0, 1.0]))

    def forward(
        self,
        query: Float[Tensor, "B Q E"],
        key: Float[Tensor, "B L C"] | None = None,
        value: Float[Tensor, "B L V"] | None = None,
        *,
        mask: Bool[Tensor, "..."] | None = None,
        lengths: Int[Tensor, "..."] | None = None,
        need_weights: bool = False,
    ) -> Float[Tensor, "B Q E"] | tuple[Float[Tensor, "B Q E"], Float[Tensor, "B H Q L"]]:
        """The output, or with `need_weights` the output and the weights before dropout.

        Args:
            query: where to attend from.
            key: what is compared with the queries; the queries themselves by default.
            value: what is averaged; the keys by default.
            mask: True = may be attended: (L,), (B, L), (B, Q, L) or (B, H, Q, L).
            lengths: how many keys each sequence has, (B,); keys after these are padding.
            need_weights: whether to return the weights; all of them are then held in memory.
        """
        compared = query if key is None else key
        averaged = compared if value is None else value
        check_values(query, self.embed_dim, "query")
        check_values(compared, self.kdim, "key")
        check_values(averaged, self.vdim, "value")
        mask = _mask_of_heads(mask, (*query.shape[:2], compared.shape[1]))
        seen = self._seen_keys(query, compared.shape[1], mask, lengths)
        if seen is not None:
            # Replace keys and values that no query may attend by 0 before the projections: a NaN there would make the
            # gradients of the projection weights NaN, as 0 · NaN.
            compared = torch.where(seen, compared, 0)
            averaged = compared if value is None else torch.where(seen, value, 0)
        heads = split_heads(self.query_projection(query), self.num_heads)
        if self.length_scale is not None or self.scale_projection is not None:
            count = self._count(query, compared.shape[1], mask, lengths)
            scale = self._constant_scale(count) if self.scale_projection is None else self._adaptive_scale(query, count)
            heads = heads * scale.to(heads.dtype)
        attended = entmax_attention(
            heads,
            split_heads(self.key_projection(compared), self.num_heads),
            split_heads(self.value_projection(averaged), self.num_heads),
            alpha=self.alpha,
            mask=mask,
            bias=self._penalty(query.shape[1], compared.shape[1]),
            is_causal=self.is_causal,
            lengths=lengths,
            dropout_p=self.dropout if self.training else 0.0,
            need_weights=need_weights,
        )
        means, weights = attended if isinstance(attended, tuple) else (attended, None)
        output: Tensor = self.output_projection(means.transpose(1, 2).flatten(2))
        return output if weights is None else (output, weights)

    def _seen_keys(self, query: Tensor, keys: int, mask: Tensor | None, lengths: Tensor | None) -> Tensor | None:
        """Whether any query may attend each key, broadcastable to (B, L, 1); None if `mask` and `lengths` are None."""
        if mask is not None and mask.dim() == 4:
            if self.is_causal and mask.shape[-2] > 1:
                mask = mask & mask.new_ones(query.shape[1], keys).tril(keys - query.shape[1])
            mask = mask.any(-2).any(-2)
        exist = checked_lengths(lengths, (query.shape[0],), query)
        if exist is not None:
            exists = torch.arange(keys, device=query.device) < exist[..., 0, 0]
            mask = exists if mask is None else mask & exists
        return None if mask is None else mask.unsqueeze(-1)

    def _penalty(self, queries: int, keys: int) -> Tensor | None:
        """The ALiBi bias −m_h |i − j| for each offset i − j of a query from a key, L − 1 … 1 − Q: (H, 1, Q + L − 1).

        The last query and the last key have the same position. Without slopes the result is None.
        """
        if self.slopes is None:
            return None
        steps = torch.arange(keys - 1, -max(queries, 1), -1, device=self.slopes.device)
        return -self.slopes[:, None, None] * steps.abs()

    def _count(self, query: Tensor, keys: int, mask: Tensor | None, lengths: Tensor | None) -> Tensor:
        """How many keys n each query may attend, broadcastable to (B, H, Q, 1)."""
        queries = query.shape[1]
        own = torch.arange(keys - queries, keys, device=query.device).unsqueeze(-1) + 1
        count = own.new_full((1,), keys) if lengths is None else lengths[:, None, None, None]
        count = torch.minimum(own, count) if self.is_causal else count
        if mask is not None:
            count = (mask & (torch.arange(keys, device=query.device) < count)).sum(-1, keepdim=True)
        return count.clamp(min=0)

    def _constant_scale(self, count: Tensor) -> Tensor:
        """λ_h(n) = δ_h + β_h (ln n)^γ_h, broadcastable to (B, H, Q, 1)."""
        assert self.length_scale is not None
        delta, beta, gamma = (x[:, None, None] for x in self.length_scale.unbind(-1))
        log_n = torch.log(count.clamp(min=1).to(delta.dtype))
        # At ln n = 0 the power is 0 here for every γ, with derivative 0; torch's 0^γ is 1 or infinite for γ ≤ 0.
        return delta + beta * power_on_support(log_n, gamma)

    def _adaptive_scale(self, query: Tensor, count: Tensor) -> Tensor:
        """λ_h(x, n) = 1 + β_h(x) ln(n + 1)^γ_h(x) in the heads without a penalty, 1 in the others: (B, H, Q, 1)."""
        assert self.scale_projection is not None
        beta, gamma = wide_linear(self.scale_projection, query).mT.unsqueeze(-1).chunk(2, 1)
        free = beta.shape[1]
        if count.dim() == 4 and count.shape[1] > 1:  # a mask of its own for each head
            count = count[:, -free:]
        # ln(n + 1) as in the authors' code, since ln n is 0 for n = 1, where a negative power of it is infinite.
        power = power_on_support(torch.log1p(count.to(beta.dtype)), _LARGEST_POWER * torch.tanh(gamma))
        scale = 1 + torch.nn.functional.softplus(beta) * power
        return torch.cat([torch.ones_like(scale[:, :1]).expand(-1, self.num_heads - free, -1, -1), scale], 1)

    def extra_repr(self) -> str:
        """The text of `repr` between the parentheses."""
        shown = self.length_scale is not None if self.scale_projection is None else "'adaptive'"
        return f"{super().extra_repr()}, length_scale={shown}"


def _slopes(num_heads: int) -> Tensor:
    """Slopes of ALiBi: 1/h for heads h = 1 … H/2, 0 for the rest."""
    half = num_heads // 2
    return torch.tensor([1 / h for h in range(1, half + 1)] + [0.0] * (num_heads - half))


def _mask_of_heads(mask: Tensor | None, sizes: tuple[int, int, int]) -> Tensor | None:
    """The mask, reshaped to broadcast to (B, H, Q, L); `sizes` are (B, Q, L)."""
    if mask is None:
        return None
    require_boolean(mask)
    batch, queries, keys = sizes
    if has_shape(mask, (keys,)):
        return mask
    if has_shape(mask, (batch, keys), (1, keys)):
        return mask[:, None, None]
    if has_shape(mask, (batch, queries, keys), (1, queries, keys)):
        return mask[:, None]
    if mask.dim() == 4 and mask.shape[0] in (1, batch) and mask.shape[2] in (1, queries) and mask.shape[3] == keys:
        return mask
    raise ValueError(
        f"mask must have shape (L,), (B, L), (B, Q, L) or (B, H, Q, L), B = {batch}, Q = {queries} and L = {keys}; got "
        f"{tuple(mask.shape)}. True = may be attended."
    )
