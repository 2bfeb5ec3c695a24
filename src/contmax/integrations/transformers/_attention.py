"""The attention function that layers of `transformers` call."""

from typing import Any

import torch
from torch import Tensor
from torch.nn import Module
from transformers.utils.output_capturing import _active_collector

from contmax.attention import entmax_attention
from contmax.integrations.transformers._alpha import alpha_of
from contmax.integrations.transformers._layers import REFUSED, refuse


def entmax_attention_forward(
    module: Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    dropout: float = 0.0,
    scaling: float | None = None,
    is_causal: bool | None = None,
    position_bias: Tensor | None = None,
    sliding_window: int | None = None,
    **options: Any,
) -> tuple[Tensor, Tensor | None]:
    """Means of the values, (B, Q, H, c), and the weights before dropout, (B, H, Q, L), if they are asked for.

    Args:
        module: the layer; it knows its α.
        query: (B, H, Q, d).
        key: (B, G, L, d), G dividing H.
        value: (B, G, L, c).
        attention_mask: boolean (True = may be attended) or added to the scores, (B, 1 or H, Q, ≥ L); None for all keys,
            or for those up to a query's own place if the layer is causal.
        dropout: share of the weights to drop.
        scaling: factor of the scores, 1/√d by default.
        is_causal: whether the layer is causal; `module.is_causal` by default. It matters without a mask only.
        position_bias: added to the scores, (1 or B, H, Q, L).
        sliding_window: how far back a query sees; the mask says so already.
        options: what the layer has for other implementations.
    """
    _refuse(module, options)
    queries, keys = query.shape[2], key.shape[2]
    causal = getattr(module, "is_causal", True) if is_causal is None else is_causal
    causal = queries > 1 and attention_mask is None and causal
    if sliding_window is not None and attention_mask is None and keys > sliding_window:
        raise ValueError(
            f"{type(module).__name__} has a sliding window of {sliding_window} for {keys} keys, but got no mask. "
            'Call the model, not the layer, after model.set_attn_implementation("entmax").'
        )
    if causal and keys > queries:
        # Only the first call with a static cache has fewer queries than keys and no mask: the rest is not filled yet.
        key, value = key[:, :, :queries], value[:, :, :queries]
        position_bias = None if position_bias is None else position_bias[..., :queries]
    mask, bias = _mask_and_bias(attention_mask, key.shape[2])
    if position_bias is not None:
        bias = position_bias if bias is None else bias + position_bias
    need_weights = _weights_are_asked_for(options)
    attended = entmax_attention(
        query,
        key,
        value,
        alpha=alpha_of(module),
        mask=mask,
        bias=bias,
        is_causal=causal,
        dropout_p=dropout,
        scale=scaling,
        enable_gqa=key.shape[1] != query.shape[1],
        need_weights=need_weights,
    )
    output, weights = attended if isinstance(attended, tuple) else (attended, None)
    return output.transpose(1, 2).contiguous(), weights


def _refuse(module: Module, options: dict[str, Any]) -> None:
    for name in REFUSED:
        if options.get(name) is not None:
            refuse(module, name)


def _mask_and_bias(mask: Tensor | None, keys: int) -> tuple[Tensor | None, Tensor | None]:
    """A mask of `transformers` as a boolean one, and what is added to the scores.

    Raises:
        TypeError: if the mask is neither.
    """
    if mask is None:
        return None, None
    if not isinstance(mask, Tensor) or mask.dim() != 4 or not (mask.dtype == torch.bool or mask.is_floating_point()):
        got = f"{mask.dtype} of shape {tuple(mask.shape)}" if isinstance(mask, Tensor) else type(mask).__name__
        raise TypeError(f"the mask must be boolean, or a bias of floating point, of shape (B, 1, Q, L); got {got}.")
    mask = mask[..., :keys]  # masks for a static cache may be longer
    if mask.dtype == torch.bool:
        return mask, None
    # A masked key has the least finite number, and a row with every key masked should get zeros, not a mean.
    return mask > torch.finfo(mask.dtype).min / 2, mask


def _weights_are_asked_for(options: dict[str, Any]) -> bool:
    """Whether the caller of the model wants attentions.

    Some models do not hand `output_attentions` on to their layers: what transformers collects knows.
    """
    collected = _active_collector.get() or {}
    return bool(options.get("output_attentions")) or any(name.endswith("attentions") for name in collected)
