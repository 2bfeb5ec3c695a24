"""Word vectors, a convolution, attention over the words, a decision."""

import torch
from torch import Tensor, nn
from torch.nn import functional as F

import contmax
from contmax_lab.contract import Batch
from contmax_lab.labelled import Answer, Decision, Targets, attention_over
from contmax_lab.tasks.texts._data import FIRST_WORD, PADDING, UNKNOWN
from contmax_lab.tasks.texts._settings import TextsModel


class TextReader(nn.Module):
    """Numbers of words → answers.

    Args:
        model: its configuration.
        words: the vocabulary.
        targets: classes or numbers.
        vector_width: of word vectors from elsewhere; 0 = there are none.

    Example:
        >>> reader = TextReader(TextsModel(hidden_dim=8, functions=4), ["good", "bad"], Targets(("no", "yes")))
        >>> answer = reader({"tokens": torch.tensor([[2, 3, 1], [3, 0, 0]])})
        >>> answer.scores.shape, answer.inside.shape
        (torch.Size([2, 2]), torch.Size([2, 3]))
    """

    def __init__(self, model: TextsModel, words: list[str], targets: Targets, vector_width: int = 0) -> None:
        super().__init__()
        width, self.words = model.hidden_dim, words
        self.embedding = nn.Embedding(FIRST_WORD + len(words), vector_width or width, padding_idx=PADDING)
        self.project = nn.Linear(vector_width, width) if vector_width else nn.Identity()
        self.convolution = nn.Conv1d(width, width, model.kernel_size, padding="same")
        self.dropout = nn.Dropout(model.dropout)
        basis = contmax.basis.GaussianBasis.covering(model.functions)
        self.attention = attention_over(basis, width, model)
        self.decision = Decision(self.attention.width, targets, words)

    def forward(self, batch: Batch) -> Answer:
        """Answers to ``batch["tokens"]`` (B, L), padded with 0."""
        mask = batch["tokens"] != PADDING
        context, heads = self.attention(self.encode(batch["tokens"]), mask=mask)
        scores = self.decision(self.dropout(context))
        return Answer(scores, self.decision.deviation, heads, _middles(mask), mask)

    def encode(self, tokens: Tensor) -> Tensor:
        """What is attended to, (B, L, hidden_dim)."""
        vectors: Tensor = self.project(self.dropout(self.embedding(tokens)))
        return vectors + F.gelu(self.convolution(vectors.mT)).mT

    @torch.no_grad()
    def begin_with(self, vectors: dict[str, Tensor]) -> None:
        """Take over vectors of words; those of all others stay random, with the mean length of the known ones.

        Args:
            vectors: word → vector.
        """
        known = torch.stack([*vectors.values()])
        rows = self.embedding.weight
        scale = known.norm(dim=-1).mean() / rows[UNKNOWN:].norm(dim=-1).mean()
        rows *= scale.to(rows)
        for place, word in enumerate(self.words, start=FIRST_WORD):
            if word in vectors:
                rows[place] = vectors[word].to(rows)


def _middles(mask: Tensor) -> Tensor:
    """Middles of the words, the text being the unit interval, (B, L)."""
    return (mask.cumsum(-1) - 0.5) / mask.sum(-1, keepdim=True)
