"""Word vectors, a convolution, attention over the words, a decision."""

import dataclasses

from jsonargparse.typing import ClosedUnitInterval, PositiveFloat, PositiveInt
from torch import Tensor, nn
from torch.nn import functional as F

import contmax
from contmax_lab.attention import AttentionHeads, Kind
from contmax_lab.contract import Batch
from contmax_lab.labelled import Answer, Decision, Targets
from contmax_lab.tasks.texts._data import FIRST_WORD, PADDING


@dataclasses.dataclass(frozen=True)
class TextsModel:
    """The network.

    Args:
        attention: over single words, over a stretch of the text, or both.
        alpha: 1 = softmax and Gaussian, 2 = sparsemax and truncated parabola, and anything else above 0.
        learn_alpha: learn α between 1 and 2, beginning with alpha; every head its own.
        heads: attentions side by side.
        hidden_dim: channels of the word vectors and of the convolution.
        kernel_size: words that the convolution sees, odd.
        dropout: of the word vectors and of what is attended to.
        functions: K, Gaussian basis functions of the continuous attention.
    """

    attention: Kind = "continuous"
    alpha: PositiveFloat = 2.0
    learn_alpha: bool = False
    heads: PositiveInt = 1
    hidden_dim: PositiveInt = 64
    kernel_size: PositiveInt = 3
    dropout: ClosedUnitInterval = 0.3
    functions: PositiveInt = 32


class TextReader(nn.Module):
    """Numbers of words → answers.

    Args:
        model: its configuration.
        words: the vocabulary.
        targets: classes or numbers.

    Example:
        >>> import torch
        >>> reader = TextReader(TextsModel(hidden_dim=8, functions=4), ["good", "bad"], Targets(("no", "yes")))
        >>> answer = reader({"tokens": torch.tensor([[2, 3, 1], [3, 0, 0]])})
        >>> answer.scores.shape, answer.inside.shape
        (torch.Size([2, 2]), torch.Size([2, 3]))
    """

    def __init__(self, model: TextsModel, words: list[str], targets: Targets) -> None:
        super().__init__()
        width = model.hidden_dim
        self.embedding = nn.Embedding(FIRST_WORD + len(words), width, padding_idx=PADDING)
        self.convolution = nn.Conv1d(width, width, model.kernel_size, padding="same")
        self.dropout = nn.Dropout(model.dropout)
        basis = contmax.basis.GaussianBasis.covering(model.functions)
        self.attention = AttentionHeads(
            model.heads, model.attention, width, model.alpha, basis, learnable=model.learn_alpha
        )
        self.decision = Decision(self.attention.width, targets, words)

    def forward(self, batch: Batch) -> Answer:
        """Answers to ``batch["tokens"]`` (B, L), padded with 0."""
        mask = batch["tokens"] != PADDING
        vectors = self.dropout(self.embedding(batch["tokens"]))
        hidden = vectors + F.gelu(self.convolution(vectors.mT)).mT
        context, heads = self.attention(hidden, mask=mask)
        scores = self.decision(self.dropout(context))
        return Answer(scores, self.decision.deviation, heads, _middles(mask), mask)


def _middles(mask: Tensor) -> Tensor:
    """Middles of the words, the text being the unit interval, (B, L)."""
    return (mask.cumsum(-1) - 0.5) / mask.sum(-1, keepdim=True)
