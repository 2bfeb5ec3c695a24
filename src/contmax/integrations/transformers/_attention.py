"""Entmax for models of `transformers`: attention with exact zeros, its cache, sampling of words, pooling of states."""

from typing import Any

import torch
from huggingface_hub import PyTorchModelHubMixin
from torch import Tensor
from torch.distributions import Distribution
from torch.nn import Module
from transformers import LogitsProcessor, PreTrainedConfig
from transformers.cache_utils import DynamicCache, DynamicLayer

from contmax.attention import KeyPages, entmax_attention
from contmax.basis import GaussianBasis
from contmax.integrations.transformers._layers import REFUSED, alpha_of, collects_attentions
from contmax.maps import entmax
from contmax.nn import ContinuousAttention

_CARD = """
---
{{ card_data }}
---

A pooling layer on the hidden states of an encoder: attention to an interval of the text, by continuous attention
([Martins et al. 2020](https://arxiv.org/abs/2006.07214)).

```python
from contmax.integrations.transformers import ContinuousPooling

pooling = ContinuousPooling.from_pretrained("this/repository")
pooled = pooling(encoder(**batch).last_hidden_state, batch["attention_mask"])
```
"""


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
    softcap: float | None = None,
    s_aux: Tensor | None = None,
    cu_seq_lens_q: Tensor | None = None,
    cu_seq_lens_k: Tensor | None = None,
    **options: Any,
) -> tuple[Tensor, Tensor | None]:
    """Means of the values, (B, Q, H, c), and the weights before dropout, (B, H, Q, L), if the caller wants attentions.

    Args:
        module: the layer, from which `alpha_of` reads α.
        query: (B, H, Q, d).
        key: (B, G, L, d), G dividing H.
        value: (B, G, L, c).
        attention_mask: boolean (True = may be attended) or added to the scores, (B, 1 or H, Q, ≥ L); None for all keys,
            or, in a causal layer, for the keys up to the position of a query.
        dropout: share of the weights to drop.
        scaling: factor of the scores, 1/√d by default.
        is_causal: whether the layer is causal; `module.is_causal` by default. It matters only without a mask.
        position_bias: added to the scores, (1 or B, H, Q, L).
        sliding_window: number of keys that a query may attend; ignored beside a mask, which already accounts for it.
        softcap: bound of the scores (Gemma 2).
        s_aux: one more score per head, of a key whose value is 0 (gpt-oss).
        cu_seq_lens_q, cu_seq_lens_k: offsets of sequences that a collator has packed into a batch of one; a mask
            restricts them further.
        options: ``output_attentions``, and arguments for other implementations; those in `REFUSED` raise an error.
    """
    for name, meaning in REFUSED.items():
        if options.get(name) is not None:
            raise ValueError(
                f"{type(module).__name__} uses {meaning} ({name}), which entmax attention does not support. Pass "
                "another model, or leave out attn_implementation."
            )
    queries, keys = query.shape[2], key.shape[2]
    causal = getattr(module, "is_causal", True) if is_causal is None else is_causal
    packed = None
    if cu_seq_lens_q is not None:
        if query.shape[0] != 1:
            raise ValueError(
                f"cu_seq_lens_q is for sequences packed into a batch of one; got a batch of {query.shape[0]}. Flatten "
                "it, or pass an attention mask."
            )
        packed = (cu_seq_lens_q, cu_seq_lens_q if cu_seq_lens_k is None else cu_seq_lens_k)
    causal = queries > 1 and attention_mask is None and causal
    window = None
    if sliding_window is not None and attention_mask is None and keys > sliding_window:
        window = (sliding_window - 1, 0 if causal or queries == 1 else sliding_window - 1)
    if causal and keys > queries and packed is None:
        # Only a first call with a static cache has no mask and fewer queries than keys: leave out keys not yet filled.
        key, value = key[:, :, :queries], value[:, :, :queries]
        position_bias = None if position_bias is None else position_bias[..., :queries]
    mask, bias = _mask_and_bias(attention_mask, key.shape[2])
    if position_bias is not None:
        bias = position_bias if bias is None else bias + position_bias
    need_weights = bool(options.get("output_attentions")) or collects_attentions()
    attended = entmax_attention(
        query,
        key,
        value,
        alpha=alpha_of(module),
        mask=mask,
        bias=bias,
        is_causal=causal,
        cu_seqlens=packed,
        window=window,
        softcap=softcap,
        sinks=s_aux,
        dropout_p=dropout,
        scale=scaling,
        enable_gqa=key.shape[1] != query.shape[1],
        need_weights=need_weights,
        key_pages=None if need_weights or dropout > 0 else pages_of(key),
    )
    output, weights = attended if isinstance(attended, tuple) else (attended, None)
    return output.transpose(1, 2).contiguous(), weights


def _mask_and_bias(mask: Tensor | None, keys: int) -> tuple[Tensor | None, Tensor | None]:
    """A mask of `transformers` as a boolean mask and a bias of the scores."""
    if mask is None:
        return None, None
    if not isinstance(mask, Tensor) or mask.dim() != 4 or not (mask.dtype == torch.bool or mask.is_floating_point()):
        got = f"{mask.dtype} of shape {tuple(mask.shape)}" if isinstance(mask, Tensor) else type(mask).__name__
        raise TypeError(f"the mask must be boolean, or a bias of floating point, of shape (B, 1, Q, L); got {got}.")
    mask = mask[..., :keys]  # masks for a static cache may be longer
    if mask.dtype == torch.bool:
        return mask, None
    # This mask is added to scores and has the least finite number at masked keys. Return a boolean mask too, so that a
    # fully masked row gives zeros, not a mean of values.
    return mask > torch.finfo(mask.dtype).min / 2, mask


class ContinuousPooling(
    torch.nn.Module,
    PyTorchModelHubMixin,
    library_name="contmax",
    license="mit",
    tags=["continuous-attention", "pooling"],
    paper_url="https://arxiv.org/abs/2006.07214",
    model_card_template=_CARD,
):
    r"""One vector for a sequence of hidden states: the mean over the interval that the layer looks at.

    .. math:: c = E_p[V(t)], \qquad V \text{ the signal that the hidden states are observations of}

    :class:`contmax.nn.ContinuousAttention` with a head that learns where to look. `save_pretrained`, `from_pretrained`
    and `push_to_hub` come from `huggingface_hub.PyTorchModelHubMixin`; they store the arguments, the weights and a
    model card.

    Args:
        embed_dim: E, channels of the hidden states: ``model.config.hidden_size``.
        num_basis: K, number of basis functions of the signal; they resolve waves of 3/(K − 1) of the sequence or
            longer.
        alpha: α of the density: 1 is a Gaussian, 2 a parabola with bounded support.
        penalty: λ of the ridge fit.

    Shape:
        hidden_states (B, L, E), attention_mask (B, L), output (B, E).

    Example:
        >>> import torch
        >>> pooling = ContinuousPooling(16)
        >>> pooling(torch.randn(2, 30, 16), torch.ones(2, 30, dtype=torch.long)).shape
        torch.Size([2, 16])
        >>> _, density = pooling(torch.randn(2, 30, 16), need_density=True)
        >>> density.half_width.shape
        torch.Size([2])
    """

    def __init__(self, embed_dim: int, num_basis: int = 32, alpha: float = 2.0, penalty: float = 0.01) -> None:
        super().__init__()
        basis = GaussianBasis.covering(num_basis)
        self.attention = ContinuousAttention(basis, embed_dim=embed_dim, alpha=alpha, penalty=penalty)

    def forward(
        self, hidden_states: Tensor, attention_mask: Tensor | None = None, *, need_density: bool = False
    ) -> Tensor | tuple[Tensor, Distribution]:
        """The pooled states, or with `need_density` also the density over the sequence, from 0 to 1.

        Args:
            hidden_states: ``outputs.last_hidden_state``.
            attention_mask: as a tokenizer makes it, 1 or True = a word, 0 or False = padding.
            need_density: whether to return where the layer looks.
        """
        mask = None if attention_mask is None else attention_mask.bool()
        context, density = self.attention(hidden_states, mask=mask)
        return (context, density) if need_density else context


class EntmaxLogitsProcessor(LogitsProcessor):
    r"""Lets `generate` sample from exactly the words to which α-entmax gives a positive probability.

    .. math:: z \mapsto \ln\,\alpha\text{-entmax}(z)

    Words of probability zero get −∞, and the softmax of the result is the entmax of the logits. It comes before
    ``temperature``, ``top_k`` and ``top_p``: pass ``top_k=0``, since `generate` has 50 by default.

    Args:
        alpha: α > 0; 1 is softmax, larger values keep fewer words.

    Raises:
        ValueError: if α is not positive.

    Example:
        >>> import torch
        >>> EntmaxLogitsProcessor(2.0)(None, torch.tensor([[1.0, 0.5, -1.0]])).exp()
        tensor([[0.7500, 0.2500, 0.0000]])

    With a model: ``model.generate(**inputs, do_sample=True, top_k=0, logits_processor=[EntmaxLogitsProcessor(1.5)])``.

    Reference: Martins, Marinho & Martins 2020 (Sparse text generation).
    """

    def __init__(self, alpha: float = 1.5) -> None:
        if not 0 < alpha < float("inf"):
            raise ValueError(f"α must be positive; got {alpha}. 1 is softmax; 1.5 is a good choice.")
        self.alpha = float(alpha)

    def __call__(self, input_ids: torch.LongTensor | None, scores: torch.Tensor) -> torch.Tensor:
        """Logarithms of the probabilities, (B, V).

        Args:
            input_ids: the words so far, which do not matter.
            scores: logits of the next word, (B, V).
        """
        return entmax(scores, self.alpha).log()


class _LayerWithPages(DynamicLayer):
    """The cache of one layer; the tensor of keys that `update` returns has an attribute `key_pages`.

    Pages are blocks of keys, which attention can skip without reading them; see :class:`contmax.KeyPages`.
    """

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
    r"""A cache for long texts: pages of keys that have no weight are not read, which changes no word.

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
