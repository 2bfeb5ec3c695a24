"""The attention function that layers of `transformers` call, and its registration as `attn_implementation="entmax"`."""

import functools
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.nn import Module
from transformers import AttentionInterface, AttentionMaskInterface, PreTrainedModel
from transformers.masking_utils import sdpa_mask
from transformers.utils import logging

from contmax.attention import entmax_attention
from contmax.integrations.transformers._alpha import alpha_of, attach_learned_alpha
from contmax.integrations.transformers._layers import (
    NAME,
    REFUSED,
    collects_attentions,
    is_initialised,
    number_layers,
    refuse,
    require_attention,
    require_interface,
    require_settable,
    uses_entmax,
)
from contmax.nn._alpha import AlphaModule

logger = logging.get_logger(__name__)


def register() -> None:
    """Make ``attn_implementation="entmax"`` available to models of `transformers`.

    It registers the attention function and the function that makes its masks, without which padding would be attended
    to. Methods of `transformers.PreTrainedModel` are extended, since transformers has no other hook for it:

    * models that have no attention, compute it by themselves, or compute it in a way that entmax does not have (soft
      caps, sinks) refuse ``"entmax"`` when they are made or loaded, where transformers only logs a warning;
    * a model whose configuration says that α is learned is made with the parameters for it, so that `from_pretrained`
      finds them (see :func:`make_alpha_learnable`).

    Call it once per process, before models are made; calling it again changes nothing.

    Example:
        >>> from transformers import BertConfig, BertModel
        >>> register()
        >>> config = BertConfig(hidden_size=8, num_hidden_layers=2, num_attention_heads=2, intermediate_size=8)
        >>> config.entmax_alpha = [1.25, 1.5]
        >>> BertModel._from_config(config, attn_implementation="entmax").config._attn_implementation
        'entmax'
    """
    AttentionInterface.register(NAME, entmax_attention_forward)
    AttentionMaskInterface.register(NAME, sdpa_mask)
    for name, extended in EXTENDED.items():
        _extend(name, extended)


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
    """Means of the values, (B, Q, H, c), and the weights before dropout, (B, H, Q, L), if the caller wants attentions.

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
        sliding_window: how far back a query sees; the mask holds this already.
        options: arguments for other implementations.
    """
    for name in REFUSED:
        if options.get(name) is not None:
            refuse(module, name)
    queries, keys = query.shape[2], key.shape[2]
    causal = getattr(module, "is_causal", True) if is_causal is None else is_causal
    causal = queries > 1 and attention_mask is None and causal
    if sliding_window is not None and attention_mask is None and keys > sliding_window:
        raise ValueError(
            f"{type(module).__name__} has a sliding window of {sliding_window} for {keys} keys, but got no mask. "
            'Call the model, not the layer, after model.set_attn_implementation("entmax").'
        )
    if causal and keys > queries:
        # Only the first call with a static cache has fewer queries than keys and no mask: later keys are not filled.
        key, value = key[:, :, :queries], value[:, :, :queries]
        position_bias = None if position_bias is None else position_bias[..., :queries]
    mask, bias = _mask_and_bias(attention_mask, key.shape[2])
    if position_bias is not None:
        bias = position_bias if bias is None else bias + position_bias
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
        need_weights=bool(options.get("output_attentions")) or collects_attentions(),
    )
    output, weights = attended if isinstance(attended, tuple) else (attended, None)
    return output.transpose(1, 2).contiguous(), weights


def _mask_and_bias(mask: Tensor | None, keys: int) -> tuple[Tensor | None, Tensor | None]:
    """A mask of `transformers` as a boolean mask and a bias of the scores.

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
    # A masked key has the least finite number as its bias; a row with every key masked must get zeros, not a mean.
    return mask > torch.finfo(mask.dtype).min / 2, mask


def _extend(name: str, extended: Callable[..., Any]) -> None:
    """Replace a method of `PreTrainedModel` by `extended(original, self or class, …)`, once."""
    given = vars(PreTrainedModel)[name]
    original = given.__func__ if isinstance(given, classmethod) else given
    if hasattr(original, "_extended_by_contmax"):
        return

    @functools.wraps(original)
    def method(*arguments: Any, **options: Any) -> Any:
        return extended(original, *arguments, **options)

    method._extended_by_contmax = True  # type: ignore[attr-defined]
    setattr(PreTrainedModel, name, classmethod(method) if isinstance(given, classmethod) else method)


def _init(original: Any, model: PreTrainedModel, *arguments: Any, **options: Any) -> None:
    """Runs at the beginning of each constructor, before layers are made."""
    original(model, *arguments, **options)
    if uses_entmax(model):
        require_settable(model)


def _post_init(original: Any, model: PreTrainedModel) -> None:
    """Runs at the end of each constructor, before weights are loaded."""
    if uses_entmax(model):
        require_interface(model)
        number_layers(model)
    elif getattr(model.config, "entmax_alpha", None) is not None:
        logger.warning_once(
            f"config.entmax_alpha is {model.config.entmax_alpha}, but attention is {model.config._attn_implementation}:"
            f' pass attn_implementation="{NAME}" to use it.'
        )
    attach_learned_alpha(model)
    original(model)


def _set_attn_implementation(original: Any, model: PreTrainedModel, attn_implementation: Any, **options: Any) -> None:
    everywhere = not isinstance(attn_implementation, dict)
    by_part = {"": attn_implementation} if everywhere else attn_implementation
    models = [module for module in model.modules() if isinstance(module, PreTrainedModel)]
    for part, name in by_part.items():
        config = model.config if part == "" else getattr(model.config, part, None)
        for each in models:
            if name == NAME and (everywhere or each.config is config):
                require_interface(each)
    if attn_implementation == NAME:
        require_attention(model)
    original(model, attn_implementation, **options)
    if everywhere:
        # transformers 5.17 leaves out encoders and decoders that have a copy of the configuration.
        for each in models:
            if type(each.config) is type(model.config):
                each.config._attn_implementation = model.config._attn_implementation
    number_layers(model)


def _initialize_weights(original: Any, model: PreTrainedModel, module: Module, *arguments: Any) -> None:
    # A checkpoint may have no α; transformers then makes a tensor without a value for it.
    if type(module) is AlphaModule and not is_initialised(module) and not is_initialised(module.alpha_logit):
        module.reset_parameters()
    original(model, module, *arguments)


def _from_config(original: Any, kind: type[PreTrainedModel], *arguments: Any, **options: Any) -> Any:
    model = original(kind, *arguments, **options)
    # Parts of a model, which may have no attention, are made without the option.
    if "attn_implementation" in options and uses_entmax(model):
        require_attention(model)
    return model


def _from_pretrained(original: Any, kind: type[PreTrainedModel], *arguments: Any, **options: Any) -> Any:
    loaded = original(kind, *arguments, **options)
    model = loaded[0] if isinstance(loaded, tuple) else loaded
    if uses_entmax(model):
        require_attention(model)
    return loaded


EXTENDED: dict[str, Callable[..., Any]] = {
    "__init__": _init,
    "post_init": _post_init,
    "set_attn_implementation": _set_attn_implementation,
    "_initialize_weights": _initialize_weights,
    "_from_config": _from_config,
    "from_pretrained": _from_pretrained,
}
