"""Continuous attention as a pooling layer on the hidden states of any encoder."""

import torch
from huggingface_hub import PyTorchModelHubMixin
from torch import Tensor
from torch.distributions import Distribution

from contmax.basis import GaussianBasis
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
