"""α of each attention layer: from the configuration, or learned by each head."""

from collections.abc import Iterator, Sequence
from numbers import Real
from typing import Any, cast

from torch import Tensor
from torch.nn import Module
from transformers import PreTrainedConfig, PreTrainedModel

from contmax.integrations.transformers._layers import NAME, attention_layers, entmax_layers, heads_of, number_layers
from contmax.nn._alpha import AlphaModule

DEFAULT = 1.5
# Configurations name the numbers of layers of their stacks in these ways.
_COUNTS = ("num_hidden_layers", "num_layers", "num_decoder_layers", "encoder_layers", "decoder_layers")


def alpha_of(layer: Any) -> float | Tensor:
    """α of an attention layer: a number, or a tensor with one per head if they are learned."""
    learned = getattr(layer, "entmax_alpha", None)
    return given_alpha(layer) if learned is None else cast(AlphaModule, learned).alpha


def given_alpha(layer: Any) -> float:
    """α that the configuration has for a layer.

    Raises:
        ValueError: if it has one per layer and the layers are not numbered, or more or fewer than it has.
    """
    alpha = getattr(layer.config, "entmax_alpha", None)
    if alpha is None:
        return DEFAULT
    if isinstance(alpha, Real):
        return float(alpha)
    number = getattr(layer, "entmax_layer", getattr(layer, "layer_idx", None))
    if number is None:
        raise ValueError(
            f"config.entmax_alpha has one α per layer, and {type(layer).__name__} does not know which layer it is. "
            f'Call model.set_attn_implementation("{NAME}") after contmax.integrations.transformers.register().'
        )
    _require_one_per_layer(alpha, layer.config)
    return float(alpha[number])


def set_alpha(model: Module, alpha: float | Sequence[float]) -> None:
    """Set the α of a model, in its configuration and in those of its parts.

    ``model.config.entmax_alpha = …`` is enough *before* a model is made. Afterwards encoders, decoders and parts of
    composite models may have their own configurations, which only this function reaches.

    Args:
        model: any model of `transformers`, or a module with one inside.
        alpha: α > 0; 1 is softmax. A number for all layers, or one per layer; in an encoder–decoder, layer i of both
            has the same α.

    Raises:
        ValueError: if it is not positive, does not have one number per layer, or the model learns its α or does not use
            entmax attention.

    Example:
        >>> from transformers import BertConfig, BertModel
        >>> from contmax.integrations.transformers import register, set_alpha
        >>> register()
        >>> config = BertConfig(hidden_size=8, num_hidden_layers=2, num_attention_heads=2, intermediate_size=8)
        >>> model = BertModel._from_config(config, attn_implementation="entmax")
        >>> set_alpha(model, [1.0, 1.5])
        >>> model.config.entmax_alpha
        [1.0, 1.5]
    """
    if any(hasattr(layer, "entmax_alpha") for _, layer in attention_layers(model)):
        raise ValueError(
            f"{type(model).__name__} learns its α, so it cannot be set. Load a model whose α is not learned."
        )
    values = [float(alpha)] if isinstance(alpha, Real) else [float(a) for a in cast(Sequence[float], alpha)]
    if not values or not all(0 < value < float("inf") for value in values):
        raise ValueError(
            f"α must be positive, a number or one per layer; got {alpha}. 1 is softmax; 1.5 is a good choice."
        )
    entmax_layers(model)
    configurations = list(_configurations(model))
    if not isinstance(alpha, Real):
        for config in configurations:
            _require_one_per_layer(values, config)
    for config in configurations:
        config.entmax_alpha = values[0] if isinstance(alpha, Real) else values
    number_layers(model)


def make_alpha_learnable(model: Module, alpha: float | None = None) -> None:
    r"""Let each head of each attention layer learn its own α inside (1, 2).

    The parameters are part of the model: `save_pretrained` writes them, and `from_pretrained` reads them in any process
    that has called :func:`register`. If an optimizer exists already, add the new parameters to it; their names end in
    ``entmax_alpha.alpha_logit``. Weight decay pulls α towards 1.5.

    Args:
        model: a model with ``attn_implementation="entmax"``, or a module with one inside.
        alpha: α to begin with, in (1, 2); by default the value in the configuration, or 1.5.

    Raises:
        ValueError: if α is not inside (1, 2), or the model does not use entmax attention.

    Example:
        >>> from transformers import BertConfig, BertModel
        >>> from contmax.integrations.transformers import make_alpha_learnable, register
        >>> register()
        >>> config = BertConfig(hidden_size=8, num_hidden_layers=2, num_attention_heads=2, intermediate_size=8)
        >>> model = BertModel._from_config(config, attn_implementation="entmax")
        >>> make_alpha_learnable(model)
        >>> sum("alpha_logit" in name for name, _ in model.named_parameters())
        2

    Reference: Correia, Niculae & Martins 2019.
    """
    layers = entmax_layers(model)
    number_layers(model)
    # All of them are made before any is put in its place.
    learned: list[Any] = [_learned(layer, alpha) for layer in layers]
    for layer, module in zip(layers, learned, strict=True):
        # Without the mark, a class on top of the model would initialise it again when its own constructor ends.
        module._is_hf_initialized = True
        layer.entmax_alpha = module
    for part in model.modules():
        if part in layers or (isinstance(part, PreTrainedModel) and any(x in layers for x in part.modules())):
            cast(PreTrainedConfig, part.config).entmax_alpha_learnable = True


def attach_learned_alpha(model: PreTrainedModel) -> None:
    """Put parameters for α where the configuration says that it is learned: `from_pretrained` fills them."""
    for _, layer in attention_layers(model):
        if getattr(layer.config, "entmax_alpha_learnable", False) and not hasattr(layer, "entmax_alpha"):
            layer.entmax_alpha = _learned(layer, None)


def _learned(layer: Any, alpha: float | None) -> AlphaModule:
    start = given_alpha(layer) if alpha is None else alpha
    module = AlphaModule(start, learnable=True, num_heads=heads_of(layer))
    like = next(layer.parameters(), None)
    return module if like is None else module.to(like.device)


def _configurations(model: Module) -> Iterator[PreTrainedConfig]:
    """Each configuration that a part of the model reads, once."""
    found: dict[int, PreTrainedConfig] = {}
    for module in model.modules():
        config = getattr(module, "config", None)
        if isinstance(config, PreTrainedConfig):
            found.setdefault(id(config), config)
    yield from found.values()


def _require_one_per_layer(alpha: Sequence[float], config: PreTrainedConfig) -> None:
    numbers = [getattr(config, name, None) for name in _COUNTS]
    layers = max((number for number in numbers if isinstance(number, int)), default=len(alpha))
    if len(alpha) != layers:
        raise ValueError(
            f"entmax_alpha must be a number or one per layer, {layers} for {type(config).__name__}; got {len(alpha)}."
        )
