"""The α of a model in training: it rises from softmax to its goal, and then stays, or each head learns its own."""

import math

import torch
from torch import Tensor
from transformers import BertModel

from contmax.integrations.transformers import AlphaSchedule, make_alpha_learnable, set_alpha

# A learned α lies inside (1, 2); this one is close to softmax, and its logit not so large that it is stuck.
_LEAST = 1.01


class RisingAlpha:
    """Sets the α of a model before each of its calls.

    Args:
        bert: a model with entmax attention.
        goal: α after the rise.
        examples: how many examples are seen while α rises from 1; 0 = none.
        learned: whether each head learns its own α afterwards.

    Attributes:
        seen: training examples so far, which are stored with the weights: a resumed training has the α of its step.

    Example:
        >>> from transformers import BertConfig
        >>> from contmax.integrations import transformers as entmax
        >>> entmax.register()
        >>> sizes = {"hidden_size": 8, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 8}
        >>> bert = BertModel._from_config(BertConfig(**sizes), attn_implementation="entmax")
        >>> rising = RisingAlpha(bert, goal=1.5, examples=100, learned=False)
        >>> rising.seen = 50
        >>> rising.apply()
        >>> bert.config.entmax_alpha
        1.25
    """

    def __init__(self, bert: BertModel, goal: float, examples: float, *, learned: bool) -> None:
        self.bert, self.examples, self.learned = bert, examples, learned
        self.schedule = AlphaSchedule(goal, rise=1.0)
        self.seen = 0
        self._current: float | None = None
        if learned:
            make_alpha_learnable(bert, goal)
        self.apply()

    def apply(self) -> None:
        """Set the α of the examples that were seen; a learned α is left alone once it has risen."""
        share = min(self.seen / self.examples, 1.0) if self.examples else 1.0
        alpha = self.schedule.alpha_after(share)
        assert isinstance(alpha, float)
        if self.learned and share < 1:
            inside = max(alpha, _LEAST) - 1
            for logits in self._logits():
                logits.data.fill_(math.log(inside / (1 - inside)))
        elif not self.learned and alpha != self._current:
            set_alpha(self.bert, alpha)
            self._current = alpha

    def by_layer(self) -> Tensor:
        """α of each layer, a mean over its heads where they learn it, (layers,)."""
        if self.learned:
            return torch.stack([1 + logits.sigmoid().mean() for logits in self._logits()])
        return torch.full((self.bert.config.num_hidden_layers,), self.bert.config.entmax_alpha)

    def parameters(self) -> list[torch.nn.Parameter]:
        """The parameters that encode a learned α."""
        return self._logits() if self.learned else []

    def _logits(self) -> list[torch.nn.Parameter]:
        return [layer.attention.self.entmax_alpha.alpha_logit for layer in self.bert.encoder.layer]
