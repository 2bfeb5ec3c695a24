"""A pretrained BERT with entmax attention: it judges reviews, or learns its own vectors again."""

import math
from pathlib import Path
from typing import Any

import torch
import transformers
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor, nn
from torch.nn import functional as F
from transformers import BertModel

from contmax.integrations import transformers as entmax
from contmax.integrations.transformers import AlphaSchedule, make_alpha_learnable, set_alpha
from contmax_lab.contract import Batch
from contmax_lab.errors import LabError, UsageError
from contmax_lab.tasks.minilm import MinilmModel
from contmax_lab.tasks.minilm._data import PADDING, WEIGHTS
from contmax_lab.tasks.minilm._measures import Judged, Matched, Weights, halves, shortened

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


class Converted(nn.Module):
    """What both have in common: the model, its α, the mean of its last states.

    Args:
        folder: of the prepared model.
        model: how it is converted.
        examples: number of training examples, of which an epoch is made.
    """

    def __init__(self, folder: Path, model: MinilmModel, examples: int) -> None:
        super().__init__()
        self.bert = _bert(folder, model.dropout if model.learn == "labels" else 0.0)
        try:
            self.alpha = RisingAlpha(self.bert, model.alpha, model.rise * examples, learned=model.learn_alpha)
        except ValueError as error:
            raise UsageError(f"model.alpha: {error}") from None

    def begin(self, batch: Batch) -> None:
        """Before a call: set α, and count the examples of a training step."""
        self.alpha.apply()
        if self.training:
            is_one_of_many = torch.distributed.is_available() and torch.distributed.is_initialized()
            self.alpha.seen += len(batch["tokens"]) * (torch.distributed.get_world_size() if is_one_of_many else 1)

    def pooled(self, tokens: Tensor) -> Tensor:
        """The mean of the last states over the tokens that are no padding, (B, E)."""
        return _pooled(self.bert, tokens)[0]

    def weighed(self, tokens: Tensor) -> tuple[Tensor, Weights]:
        """The mean of the last states, and counts of zeros among the weights of all layers."""
        mean, attentions = _pooled(self.bert, tokens, need_weights=True)
        return mean, Weights.of(attentions, tokens != PADDING, self.alpha.by_layer())

    def get_extra_state(self) -> Tensor:
        """The number of examples that α has seen."""
        return torch.tensor(self.alpha.seen)

    def set_extra_state(self, state: Tensor) -> None:
        """Set the number of examples that α has seen."""
        self.alpha.seen = int(state)


class Judge(Converted):
    """Tokens → whether the review is positive."""

    def __init__(self, folder: Path, model: MinilmModel, examples: int) -> None:
        super().__init__(folder, model, examples)
        self.dropout = nn.Dropout(model.dropout)
        self.logit = nn.Linear(self.bert.config.hidden_size, 1)

    def forward(self, batch: Batch) -> Judged:
        """Judge the reviews in ``batch["tokens"]``, (B, L); with ``batch["draws"]`` also count zeros and delete."""
        self.begin(batch)
        tokens = batch["tokens"]
        if "draws" not in batch:
            return Judged(self._logits(self.pooled(tokens)))
        mean, weights = self.weighed(tokens)
        without = shortened(tokens, weights.received, batch["draws"])
        rest = {name: self._logits(self.pooled(left)) for name, left in without.items()}
        return Judged(self._logits(mean), weights, rest)

    def _logits(self, mean: Tensor) -> Tensor:
        logits: Tensor = self.logit(self.dropout(mean)).squeeze(-1)
        return logits


class Student(Converted):
    """Tokens → vectors of the two halves of the review, beside those of the pretrained model with softmax."""

    def __init__(self, folder: Path, model: MinilmModel, examples: int) -> None:
        super().__init__(folder, model, examples)
        self.goal = float(model.alpha)
        self.teacher = _bert(folder, 0.0).requires_grad_(False)
        entmax.set_alpha(self.teacher, 1.0)

    def forward(self, batch: Batch) -> Matched:
        """Read the reviews in ``batch["tokens"]``, (B, L); with ``batch["draws"]`` also switched at once, untrained."""
        self.begin(batch)
        tokens = halves(batch["tokens"]).flatten(0, 1)
        if "draws" not in batch:
            return Matched(_vectors(self.pooled(tokens)), self._taught(tokens))
        mean, weights = self.weighed(tokens)
        entmax.set_alpha(self.teacher, self.goal)
        before = self._taught(tokens)
        entmax.set_alpha(self.teacher, 1.0)
        return Matched(_vectors(mean), self._taught(tokens), before, weights)

    @torch.no_grad()
    def _taught(self, tokens: Tensor) -> Tensor:
        return _vectors(_pooled(self.teacher, tokens)[0])


def _bert(folder: Path, dropout: float) -> transformers.BertModel:
    """The pretrained model with entmax attention.

    It has no dropout of weights: that needs each weight by itself, which the fused kernels never hold.

    Raises:
        LabError: if weights and configuration do not fit together.
    """
    entmax.register()
    config = transformers.BertConfig.from_pretrained(
        folder, hidden_dropout_prob=dropout, attention_probs_dropout_prob=0.0
    )
    bert = transformers.BertModel._from_config(config, attn_implementation="entmax", add_pooling_layer=False)
    try:
        bert.load_state_dict(load_file(folder / WEIGHTS))
    except (RuntimeError, SafetensorError, OSError) as error:
        raise LabError(
            f"{folder / WEIGHTS} is damaged: {' '.join(str(error).split())[:120]}; prepare it again"
        ) from None
    return bert


def _pooled(bert: transformers.BertModel, tokens: Tensor, *, need_weights: bool = False) -> tuple[Tensor, Any]:
    mask = tokens != PADDING
    output = bert(input_ids=tokens, attention_mask=mask.long(), output_attentions=need_weights)
    count = mask.sum(-1, keepdim=True).clamp(min=1)
    mean: Tensor = (output.last_hidden_state * mask.unsqueeze(-1)).sum(-2) / count
    return mean, output.attentions


def _vectors(mean: Tensor) -> Tensor:
    """Vectors of length 1 of the halves of each review, (B, 2, E), in full precision."""
    vectors: Tensor = F.normalize(mean.float(), dim=-1).unflatten(0, (-1, 2))
    return vectors
