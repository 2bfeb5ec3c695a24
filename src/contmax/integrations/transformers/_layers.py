"""The attention layers of a model: which they are, their number in the stack, and which would not listen to us."""

import functools
import inspect
import re
from collections.abc import Callable, Iterator
from types import CodeType
from typing import Any, NoReturn

from torch.nn import Module
from transformers import PreTrainedModel

NAME = "entmax"
# What layers ask for that changes the weights and that entmax has no counterpart of, by the names of the arguments.
REFUSED = {
    "softcap": "soft-capped scores",
    "s_aux": "attention sinks",
    "cache": "paged caches, as in continuous batching",
    "indices": "keys chosen by an indexer",
    "block_indices": "blocks of keys chosen by an indexer",
}
# Attributes of layers from which it is known, before any call, that they will ask for it.
_ASKS_FOR = {"attn_logit_softcapping": "softcap", "sinks": "s_aux"}


def attention_layers(model: Module) -> Iterator[tuple[str, Any]]:
    """Names and layers that look attention up under the name in their configuration, `layer.config`."""
    for name, module in model.named_modules():
        if _looks_attention_up(module):
            yield name, module


def entmax_layers(model: Module) -> list[Any]:
    """The attention layers that use entmax.

    Raises:
        ValueError: if there are none.
    """
    layers = [layer for _, layer in attention_layers(model) if layer.config._attn_implementation == NAME]
    if not layers:
        raise ValueError(
            f'{type(model).__name__} has no entmax attention. Call model.set_attn_implementation("{NAME}") first.'
        )
    return layers


def number_layers(model: Module) -> None:
    """Tell each attention layer its place in the stack, as `entmax_layer`: many have no `layer_idx`."""
    for name, layer in attention_layers(model):
        found = re.search(r"\.(\d+)\.", f".{name}.")
        number = getattr(layer, "layer_idx", None)
        layer.entmax_layer = number if isinstance(number, int) else int(found[1]) if found else 0


def heads_of(layer: Any) -> int:
    """How many heads the queries of an attention layer have.

    Raises:
        ValueError: if neither the layer nor its configuration says so.
    """
    for owner in (layer, layer.config):
        for name in ("num_heads", "num_attention_heads", "n_heads", "n_head"):
            number = getattr(owner, name, None)
            if isinstance(number, int):
                return number
    raise ValueError(f"{type(layer).__name__} does not tell how many heads it has, so α per head is not possible.")


def refuse(layer: Module, name: str) -> NoReturn:
    """Say that a layer asks for what entmax does not have."""
    raise ValueError(
        f"{type(layer).__name__} uses {REFUSED[name]} ({name}), which entmax attention does not support. Pass another "
        "model, or leave out attn_implementation."
    )


def require_settable(model: PreTrainedModel) -> None:
    """Refuse a class of models that computes attention by itself; some look the name up while they are made.

    Raises:
        ValueError: if it does.
    """
    if not model._can_set_attn_implementation():
        raise ValueError(
            f'{type(model).__name__} computes its attention by itself and would ignore attn_implementation="{NAME}". '
            "Pass a model that uses transformers' attention interface."
        )


def require_attention(model: Module) -> None:
    """Refuse a model without any attention, such as a state-space model.

    Raises:
        ValueError: if neither it nor a model inside of it has attention layers.
    """
    if next(attention_layers(model), None) is None:
        raise ValueError(
            f'{type(model).__name__} has no attention, so attn_implementation="{NAME}" would change nothing. Leave it '
            "out, or pass a model with attention."
        )


def require_interface(model: PreTrainedModel) -> None:
    """Refuse a model that computes attention by itself, or in a way that entmax does not have.

    It would silently go on with softmax, or fail in the first call.

    Raises:
        ValueError: if it does, in the model itself; models within it are asked by themselves.
    """
    require_settable(model)
    for module in _own_modules(model):
        for attribute, name in _ASKS_FOR.items():
            if _looks_attention_up(module) and getattr(module, attribute, None) is not None:
                refuse(module, name)
        if _computes_softmax_by_itself(type(module)):
            raise ValueError(
                f"{type(module).__name__} of {type(model).__name__} computes its attention by itself and would ignore "
                f'attn_implementation="{NAME}". For the other parts of a composite model, pass '
                f'attn_implementation={{"text_config": "{NAME}"}}.'
            )


def _looks_attention_up(module: Module) -> bool:
    kind: type = type(module)
    return not issubclass(kind, PreTrainedModel) and _mentions(kind, "ALL_ATTENTION_FUNCTIONS")


def _own_modules(module: Module) -> Iterator[Module]:
    """Modules inside, without those of models inside."""
    for child in module.children():
        if not isinstance(child, PreTrainedModel):
            yield child
            yield from _own_modules(child)


def _computes_softmax_by_itself(kind: type) -> bool:
    return (
        "Attention" in kind.__name__
        and kind.__module__.partition(".")[0] != "torch"
        and _mentions(kind, "softmax")
        and not _mentions(kind, "ALL_ATTENTION_FUNCTIONS")
    )


@functools.cache
def _mentions(kind: type[Any], name: str) -> bool:
    """Whether a method of a class of modules, or of one that it inherits from, uses a name."""
    kinds = kind.__mro__[: kind.__mro__.index(Module)]
    methods = (value for each in kinds for value in vars(each).values() if inspect.isfunction(value))
    return any(_names_in(method, name) for method in methods)


def _names_in(method: Callable[..., object], name: str) -> bool:
    codes: list[CodeType] = [inspect.unwrap(method).__code__]
    while codes:
        code = codes.pop()
        if name in code.co_names:
            return True
        codes += [constant for constant in code.co_consts if isinstance(constant, CodeType)]
    return False
