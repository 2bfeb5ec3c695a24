"""A pretrained BERT with entmax attention: it judges reviews, or learns its own vectors again."""

from pathlib import Path
from typing import Any

import torch
import transformers
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor, nn
from torch.nn import functional as F

from contmax.integrations import transformers as entmax
from contmax_lab.contract import Batch
from contmax_lab.errors import LabError, UsageError
from contmax_lab.tasks.minilm import MinilmModel
from contmax_lab.tasks.minilm._alpha import RisingAlpha
from contmax_lab.tasks.minilm._measures import Judged, Matched, Weights, halves, shortened
from contmax_lab.tasks.minilm._pretrained import PADDING, WEIGHTS


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
