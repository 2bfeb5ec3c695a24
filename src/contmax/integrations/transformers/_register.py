"""Making `attn_implementation="entmax"` known to `transformers`."""

import functools
from collections.abc import Callable
from typing import Any

from torch.nn import Module
from transformers import AttentionInterface, AttentionMaskInterface, PreTrainedModel
from transformers.masking_utils import sdpa_mask
from transformers.utils import logging

from contmax.integrations.transformers._alpha import attach_learned_alpha
from contmax.integrations.transformers._attention import entmax_attention_forward
from contmax.integrations.transformers._layers import (
    NAME,
    number_layers,
    require_attention,
    require_interface,
    require_settable,
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
    for name, extended in _EXTENDED.items():
        _extend(name, extended)
    for name in ("_from_config", "from_pretrained"):
        _extend_loading(name)


def _extend(name: str, extended: Callable[..., None]) -> None:
    original = getattr(PreTrainedModel, name)
    if hasattr(original, "_extended_by_contmax"):
        return

    @functools.wraps(original)
    def method(self: PreTrainedModel, *arguments: Any, **options: Any) -> None:
        extended(self, original, *arguments, **options)

    method._extended_by_contmax = True  # type: ignore[attr-defined]
    setattr(PreTrainedModel, name, method)


def _extend_loading(name: str) -> None:
    """Look at whole models only: a part of one, such as the convolutions of a detector, may have no attention."""
    original = vars(PreTrainedModel)[name].__func__
    if hasattr(original, "_extended_by_contmax"):
        return

    @functools.wraps(original)
    def method(cls: type[PreTrainedModel], *arguments: Any, **options: Any) -> Any:
        loaded = original(cls, *arguments, **options)
        model = loaded[0] if isinstance(loaded, tuple) else loaded
        # Parts are made from configurations too, but without the option; what is loaded is a whole.
        whole = name == "from_pretrained" or "attn_implementation" in options
        if whole and model.config._attn_implementation == NAME:
            require_attention(model)
        return loaded

    method._extended_by_contmax = True  # type: ignore[attr-defined]
    setattr(PreTrainedModel, name, classmethod(method))


def _init(model: PreTrainedModel, original: Any, *arguments: Any, **options: Any) -> None:
    """At the beginning of each constructor, before layers are made."""
    original(model, *arguments, **options)
    if model.config._attn_implementation == NAME:
        require_settable(model)


def _post_init(model: PreTrainedModel, original: Any) -> None:
    """At the end of each constructor, before weights are loaded."""
    if model.config._attn_implementation == NAME:
        require_interface(model)
        number_layers(model)
    elif getattr(model.config, "entmax_alpha", None) is not None:
        logger.warning_once(
            f"config.entmax_alpha is {model.config.entmax_alpha}, but attention is {model.config._attn_implementation}:"
            f' pass attn_implementation="{NAME}" to use it.'
        )
    attach_learned_alpha(model)
    original(model)


def _set_attn_implementation(model: PreTrainedModel, original: Any, attn_implementation: Any, **options: Any) -> None:
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


def _initialize_weights(model: PreTrainedModel, original: Any, module: Module, *arguments: Any) -> None:
    # A checkpoint may have no α; what transformers then makes in its place has no value yet.
    if type(module) is AlphaModule and _has_no_value(module) and _has_no_value(module.alpha_logit):
        module.reset_parameters()
    original(model, module, *arguments)


def _has_no_value(part: Any) -> bool:
    """Whether transformers has neither loaded nor made a tensor, or all of a module."""
    return not getattr(part, "is_meta", False) and not getattr(part, "_is_hf_initialized", False)


_EXTENDED: dict[str, Callable[..., None]] = {
    "__init__": _init,
    "post_init": _post_init,
    "set_attn_implementation": _set_attn_implementation,
    "_initialize_weights": _initialize_weights,
}
