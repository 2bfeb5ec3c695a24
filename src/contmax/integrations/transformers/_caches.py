"""A cache with boxes around pages of its keys, by which steps of generation skip pages without weight."""

from typing import Any

from torch import Tensor
from transformers import PreTrainedConfig
from transformers.cache_utils import DynamicCache, DynamicLayer

from contmax.attention import KeyPages


class _LayerWithPages(DynamicLayer):
    """Keys and values of a layer. The tensor of keys it returns has the pages of the keys as attribute `key_pages`."""

    def update(self, key_states: Tensor, value_states: Tensor, *args: Any, **kwargs: Any) -> tuple[Tensor, Tensor]:
        before = self.keys if self.is_initialized else None
        keys, values = super().update(key_states, value_states, *args, **kwargs)
        pages = pages_of(before)
        if pages is None:  # the first keys, or keys that were reordered or shortened since the last step
            pages = KeyPages(keys)
        else:
            pages.append(key_states)
        keys.key_pages = pages
        return keys, values


def pages_of(keys: Tensor | None) -> KeyPages | None:
    """The pages of a tensor of keys that a cache has returned; None for any other tensor."""
    return getattr(keys, "key_pages", None)


class KeyPagesCache(DynamicCache):
    r"""A cache for long texts: pages of keys that have no weight are not read, and the words are the same.

    Layers with a sliding window have no pages. See :class:`contmax.KeyPages`.

    Args:
        config: the configuration of the model, which says which layers have a sliding window.

    Example:
        >>> import torch, transformers
        >>> from contmax.integrations import transformers as entmax
        >>> entmax.register()
        >>> config = transformers.GPT2Config(vocab_size=50, n_embd=16, n_layer=2, n_head=2, eos_token_id=1)
        >>> model = transformers.GPT2LMHeadModel._from_config(config, attn_implementation="entmax")
        >>> cache = entmax.KeyPagesCache(model.config)
        >>> words = torch.randint(2, 50, (1, 7))
        >>> model.generate(words, past_key_values=cache, max_new_tokens=5, min_new_tokens=5, pad_token_id=0).shape
        torch.Size([1, 12])
    """

    def __init__(self, config: PreTrainedConfig) -> None:
        super().__init__(config=config)
        layers: list[Any] = vars(self)["layers"]
        self.layers = [_LayerWithPages() if type(layer) is DynamicLayer else layer for layer in layers]
