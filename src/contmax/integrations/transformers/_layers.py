"""Internals of `transformers` that this integration relies on: private names, attention layers and their α.

Every private name of `transformers` that the integration reads is in this file; the methods that it extends are in
`EXTENDED` of `_registration.py`. `tests/integrations/test_transformers_names.py` checks them and `_OWN_SOFTMAX`.
"""

import inspect
import re
from collections.abc import Iterator, Sequence
from numbers import Real
from typing import Any, cast

from torch import Tensor
from torch.nn import Module
from transformers import PreTrainedConfig, PreTrainedModel
from transformers.utils.output_capturing import _active_collector

from contmax.nn._module import AlphaModule

NAME = "entmax"
_DEFAULT_ALPHA = 1.5
# Attributes of configurations that hold the number of layers of a stack.
_COUNTS = ("num_hidden_layers", "num_layers", "num_decoder_layers", "encoder_layers", "decoder_layers")
# Arguments that change the weights and that entmax attention does not support, with their names in the error message.
REFUSED = {
    "cache": "paged caches, as in continuous batching",
    "indices": "keys chosen by an indexer",
    "block_indices": "blocks of keys chosen by an indexer",
}
# Endings of the names of attention classes that compute a softmax themselves, in models whose other attention follows
# the interface of transformers. Models in which no layer follows it are refused by transformers' own check.
_OWN_SOFTMAX = (
    "BigBirdPegasusBlockSparseAttention",
    "BigBirdPegasusSelfAttention",
    "ClapAudioSelfAttention",
    "EsmFold2RowAttentionPooling",
    "EsmFoldInvariantPointAttention",
    "EsmFoldSelfAttention",
    "EvollaSequenceCompressorAttention",
    "Gemma3nAudioAttention",
    "Gemma4AudioAttention",
    "GitSelfAttention",
    "InformerProbSparseAttention",
    "LongT5LocalAttention",
    "LongT5TransientGlobalAttention",
    "MHAttentionMap",
    "MultiscaleDeformableAttention",
    "PPFormulaNetVisionAttention",
    "PegasusXGlobalLocalAttention",
    "SamHQVisionAttention",
    "SamVisionAttention",
)


# Attention classes that append keys and extend the mask by themselves, and assume a mask that is added to scores.
_OWN_MASK = ("DeepseekV4Attention",)


def uses_entmax(part: Any) -> bool:
    """Whether the configuration of a model or a layer names entmax attention."""
    return bool(part.config._attn_implementation == NAME)


def is_initialised(part: Any) -> bool:
    """Whether transformers has loaded or initialised a tensor (one on the meta device counts), or a whole module."""
    return getattr(part, "is_meta", False) or getattr(part, "_is_hf_initialized", False)


def mark_initialised(module: Any) -> None:
    """Prevent transformers from initialising a module again at the end of an outer constructor."""
    module._is_hf_initialized = True


def collects_attentions() -> bool:
    """Whether the model call that is running collects attentions; `output_attentions` does not reach all layers."""
    return any(name.endswith("attentions") for name in _active_collector.get() or {})


def attention_layers(model: Module) -> Iterator[tuple[str, Any]]:
    """(name, layer) of every layer that looks up its attention function by the name in `layer.config`."""
    for name, module in model.named_modules():
        # An attention layer can only be recognised by its `forward`, which calls ALL_ATTENTION_FUNCTIONS.get_interface.
        code = getattr(inspect.unwrap(type(module).forward), "__code__", None)
        looks_up = code is not None and "ALL_ATTENTION_FUNCTIONS" in code.co_names
        if looks_up and not isinstance(module, PreTrainedModel):
            yield name, module


def entmax_layers(model: Module) -> list[Any]:
    """The attention layers that use entmax."""
    layers = [layer for _, layer in attention_layers(model) if uses_entmax(layer)]
    if not layers:
        raise ValueError(
            f'{type(model).__name__} has no entmax attention. Call model.set_attn_implementation("{NAME}") first.'
        )
    return layers


def number_layers(model: Module) -> None:
    """Set `entmax_layer` of each attention layer to its number in the stack, from its name if it has no `layer_idx`."""
    for name, layer in attention_layers(model):
        found = re.search(r"\.(\d+)\.", f".{name}.")
        number = getattr(layer, "layer_idx", None)
        layer.entmax_layer = number if isinstance(number, int) else int(found[1]) if found else 0


def alpha_of(layer: Any) -> float | Tensor:
    """α of an attention layer: a number, or a tensor with one α per head if α is learned."""
    learned = getattr(layer, "entmax_alpha", None)
    return given_alpha(layer) if learned is None else cast(AlphaModule, learned).alpha


def given_alpha(layer: Any) -> float:
    """α of a layer, read from its configuration."""
    alpha = getattr(layer.config, "entmax_alpha", None)
    if alpha is None:
        return _DEFAULT_ALPHA
    if isinstance(alpha, Real):
        return float(alpha)
    number = getattr(layer, "entmax_layer", getattr(layer, "layer_idx", None))
    if number is None:
        raise ValueError(
            f"config.entmax_alpha has one α per layer, and {type(layer).__name__} does not know which layer it is. "
            f'Call model.set_attn_implementation("{NAME}") after contmax.integrations.transformers.register().'
        )
    require_one_per_layer(alpha, layer.config)
    return float(alpha[number])


def require_one_per_layer(alpha: float | Sequence[float], config: PreTrainedConfig) -> None:
    """Raise ValueError unless α is a number, or a sequence with one number per layer."""
    if isinstance(alpha, Real):
        return
    alpha = cast(Sequence[float], alpha)
    numbers = [getattr(config, name, None) for name in _COUNTS]
    layers = max((number for number in numbers if isinstance(number, int)), default=len(alpha))
    if len(alpha) != layers:
        raise ValueError(
            f"entmax_alpha must be a number or one per layer, {layers} for {type(config).__name__}; got {len(alpha)}."
        )


def heads_of(layer: Any) -> int:
    """The number of query heads of an attention layer."""
    for owner in (layer, layer.config):
        for name in ("num_heads", "num_attention_heads", "n_heads", "n_head"):
            number = getattr(owner, name, None)
            if isinstance(number, int):
                return number
    raise ValueError(f"{type(layer).__name__} does not tell how many heads it has, so α per head is not possible.")


def require_settable(model: PreTrainedModel) -> None:
    """Refuse a model whose class computes attention by itself, before its constructor looks up the attention name."""
    if not model._can_set_attn_implementation():
        raise ValueError(
            f'{type(model).__name__} computes its attention by itself and would ignore attn_implementation="{NAME}". '
            "Pass a model that uses transformers' attention interface."
        )


def require_attention(model: Module) -> None:
    """Refuse a model without any attention, such as a state-space model."""
    if next(attention_layers(model), None) is None:
        raise ValueError(
            f'{type(model).__name__} has no attention, so attn_implementation="{NAME}" would change nothing. Leave it '
            "out, or pass a model with attention."
        )


def require_interface(model: PreTrainedModel) -> None:
    """Refuse a model that would silently use softmax, or fail in its first call."""
    require_settable(model)
    for module in _own_modules(model):
        if type(module).__name__ in _OWN_MASK:
            raise ValueError(
                f"{type(module).__name__} extends masks by itself and expects numbers to be added to the scores, but "
                f'those of attn_implementation="{NAME}" are boolean. Pass another model, or leave it out.'
            )
        if any(kind.__name__.endswith(_OWN_SOFTMAX) for kind in type(module).__mro__):
            raise ValueError(
                f"{type(module).__name__} of {type(model).__name__} computes its attention by itself and would ignore "
                f'attn_implementation="{NAME}". For the other parts of a composite model, pass '
                f'attn_implementation={{"text_config": "{NAME}"}}.'
            )


def _own_modules(module: Module) -> Iterator[Module]:
    """Submodules at every depth, without nested models and their submodules."""
    for child in module.children():
        if not isinstance(child, PreTrainedModel):
            yield child
            yield from _own_modules(child)
