"""Word vectors, a bidirectional LSTM, an attention, a logit."""

import dataclasses
from pathlib import Path
from typing import Literal

import torch
from jsonargparse.typing import ClosedUnitInterval, PositiveFloat, PositiveInt
from torch import Tensor, nn

from contmax.basis import GaussianBasis
from contmax.densities import BetaGaussian
from contmax.nn import CombinedAttention, ContinuousAttention, DiscreteAttention, PooledHead
from contmax_lab.tasks import Batch
from contmax_lab.tasks.documents._prepared import PADDING, UNKNOWN

# Widths of the basis functions, and filters of the continuous head, in the paper.
_WIDTHS = (0.1, 0.5)
_FILTERS = 128
# An input to the input gates at which the sigmoid is 0, exactly, in every precision.
_CLOSED = -1e4


@dataclasses.dataclass(frozen=True)
class DocumentsModel:
    """The network.

    Args:
        attention: over single words, over a stretch of the text, or the sum of both.
        alpha: 1 = softmax and Gaussian, 2 = sparsemax and truncated parabola.
        num_basis: basis functions of the continuous attention, half of width .1, half of width .5.
        matching: of combined attention: "exact" = the density has the variance of the weights; "paper" = it has the
            variance as its σ².
        penalty: of the ridge fit.
        hidden_dim: of each direction of the LSTM.
        dropout: of the word vectors and of the context.
        word_dropout: share of words that are hidden in training.
        frozen: keep the word vectors as they are.
        start: folder of a run of the task language, whose word vectors and LSTM to begin with.
    """

    attention: Literal["discrete", "continuous", "combined"] = "combined"
    alpha: PositiveFloat = 2.0
    num_basis: PositiveInt = 64
    matching: Literal["exact", "paper"] = "exact"
    penalty: PositiveFloat = 0.01
    hidden_dim: PositiveInt = 128
    dropout: ClosedUnitInterval = 0.5
    word_dropout: ClosedUnitInterval = 0.0
    frozen: bool = False
    start: Path | None = None


@dataclasses.dataclass(frozen=True)
class Reading:
    """What the network says of each review, and where it looked.

    Args:
        logits: of being positive, (B,).
        mask: which places hold a word, (B, L).
        weights: of the words, (B, L); None without discrete attention.
        density: over the text as the unit interval, of batch shape (B,); None without continuous attention.
    """

    logits: Tensor
    mask: Tensor
    weights: Tensor | None = None
    density: BetaGaussian | None = None

    @property
    def inside(self) -> Tensor:
        """Which words have a positive weight or lie where the density is positive, (B, L)."""
        inside = torch.zeros_like(self.mask) if self.weights is None else self.weights > 0
        if self.density is not None:
            positions = (self.mask.cumsum(-1) - 0.5) / self.mask.sum(-1, keepdim=True)
            distance = (positions - self.density.loc.unsqueeze(-1)).abs()
            inside = inside | (distance < self.density.half_width.unsqueeze(-1))
        return inside & self.mask


class Reader(nn.Module):
    """Numbers of words → reading.

    Args:
        model: its configuration.
        vectors: of padding, of unknown words and of the words, (2 + words, D).

    Example:
        >>> reader = Reader(DocumentsModel(hidden_dim=8, num_basis=4), torch.randn(10, 5))
        >>> reading = reader({"tokens": torch.tensor([[2, 3, 9], [4, 1, 0]])})
        >>> reading.logits.shape, reading.weights.shape
        (torch.Size([2]), torch.Size([2, 3]))
    """

    def __init__(self, model: DocumentsModel, vectors: Tensor) -> None:
        super().__init__()
        self.word_dropout = float(model.word_dropout)
        # A copy: it will be trained, and others may build a model from the same table.
        self.embedding = nn.Embedding.from_pretrained(vectors.clone(), freeze=model.frozen, padding_idx=PADDING)
        self.dropout = nn.Dropout(model.dropout)
        self.encoder = Encoder(vectors.shape[1], model.hidden_dim)
        self.attention = _attention(model, 2 * model.hidden_dim)
        self.logit = nn.Linear(2 * model.hidden_dim, 1)

    def forward(self, batch: Batch) -> Reading:
        """Read the reviews in ``batch["tokens"]``, (B, L), padded with 0."""
        tokens = batch["tokens"]
        mask = tokens != PADDING
        if self.training and self.word_dropout:
            hidden = (torch.rand(tokens.shape, device=tokens.device) < self.word_dropout) & mask
            tokens = torch.where(hidden, UNKNOWN, tokens)
        states = self.encoder(self.dropout(self.embedding(tokens)), mask)
        context, attended = self.attention(states, mask=mask)
        logits = self.logit(self.dropout(context)).squeeze(-1)
        if isinstance(attended, tuple):
            weights, density = attended
            return Reading(logits, mask, weights, density)
        if isinstance(attended, BetaGaussian):
            return Reading(logits, mask, density=attended)
        return Reading(logits, mask, weights=attended)


class Encoder(nn.Module):
    """A bidirectional LSTM that reads every review as if it were alone in the batch.

    Padding is marked by one more input, which closes the input gates. So the direction that begins at the padding
    keeps its state at zero until it meets the last word. The result is that of packed sequences, without the lengths on
    the host, which would make it wait for the device at every step. The weights of that input have no gradient.

    Args:
        input_dim: of the word vectors.
        hidden_dim: of each direction.
    """

    def __init__(self, input_dim: int, hidden_dim: int) -> None:
        super().__init__()
        self.lstm = nn.LSTM(input_dim + 1, hidden_dim, batch_first=True, bidirectional=True)
        with torch.no_grad():
            for name, weight in self.lstm.named_parameters():
                if name.startswith("weight_ih"):
                    weight[:, -1] = 0.0
                    weight[:hidden_dim, -1] = _CLOSED

    def forward(self, vectors: Tensor, mask: Tensor) -> Tensor:
        """States (B, L, 2·hidden_dim) of word vectors (B, L, D); what stands at the padding means nothing."""
        marked = torch.cat([vectors, (~mask).unsqueeze(-1).to(vectors.dtype)], -1)
        states: Tensor = self.lstm(marked)[0]
        return states


def _attention(model: DocumentsModel, width: int) -> nn.Module:
    discrete = DiscreteAttention(width, alpha=model.alpha)
    if model.attention == "discrete":
        return discrete
    basis = GaussianBasis.linspace(model.num_basis, _WIDTHS)
    if model.attention == "combined":
        return CombinedAttention(discrete, basis, alpha=model.alpha, matching=model.matching, penalty=model.penalty)
    head = PooledHead(width, hidden_dim=_FILTERS, position_channels=False)
    return ContinuousAttention(basis, alpha=model.alpha, head=head, penalty=model.penalty)
