"""The task: reviews without their labels."""

import functools
import math

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

from contmax_lab.contract import Batch, Splits, Task, seedless
from contmax_lab.recurrent import Bidirectional
from contmax_lab.tasks.documents._data import FIRST_WORD, PADDING, load
from contmax_lab.tasks.documents.language import SETTINGS, LanguageModel

# Number of guesses per chunk: the probabilities of all words for each are in memory at once.
_CHUNK = 8192
_IGNORED = -100


class WordGuesser(nn.Module):
    r"""Numbers of words → how surprising they are to somebody who reads forwards, and backwards.

    .. math:: \log p(w_{t+1} \mid w_{\le t}) + \log p(w_{t-1} \mid w_{\ge t}), \quad
              p(w \mid h) \propto \exp(v_w^\top (A h + a) + b_w)

    with :math:`v_w` the vector of a word, by which it is read as well.

    Args:
        model: its configuration.
        vectors: of padding, of unknown words and of the words, (2 + words, D).

    Example:
        >>> guesser = WordGuesser(LanguageModel(words=6, hidden_dim=8), torch.randn(10, 5))
        >>> guesser({"tokens": torch.tensor([[2, 3, 9], [4, 1, 0]])}).shape
        torch.Size([2])
    """

    def __init__(self, model: LanguageModel, vectors: Tensor) -> None:
        super().__init__()
        self.words = min(int(model.words), len(vectors) - FIRST_WORD)
        self.embedding = nn.Embedding.from_pretrained(vectors.clone(), freeze=False, padding_idx=PADDING)
        self.dropout = nn.Dropout(model.dropout)
        self.encoder = Bidirectional("lstm", vectors.shape[1], model.hidden_dim)
        self.next = nn.Linear(model.hidden_dim, vectors.shape[1])
        self.previous = nn.Linear(model.hidden_dim, vectors.shape[1])
        self.bias = nn.Parameter(torch.zeros(self.words))

    def forward(self, batch: Batch) -> Tensor:
        """Mean negative log-likelihood, (B,), of the words of each review in ``batch["tokens"]``, (B, L), padded."""
        tokens = batch["tokens"]
        states = self.dropout(self.encoder(self.dropout(self.embedding(tokens)), tokens != PADDING))
        forwards, backwards = states.chunk(2, -1)
        expected = torch.cat([self.next(forwards[:, :-1]), self.previous(backwards[:, 1:])], 1)
        # At padding nothing is guessed backwards either.
        targets = torch.cat([tokens[:, 1:], tokens[:, :-1].where(tokens[:, 1:] != PADDING, PADDING)], 1) - FIRST_WORD
        known = (targets >= 0) & (targets < self.words)
        wanted = targets.where(known, _IGNORED).flatten()
        pieces = zip(expected.flatten(0, 1).split(_CHUNK), wanted.split(_CHUNK), strict=True)
        # The backward pass computes the probabilities of all words again, so that they need not be kept.
        again = functools.partial(checkpoint, self._cross_entropy, use_reentrant=False, preserve_rng_state=False)
        nats = torch.cat([again(*piece) for piece in pieces]).view(targets.shape)
        return nats.sum(-1) / known.sum(-1).clamp(min=1)

    def _cross_entropy(self, expected: Tensor, targets: Tensor) -> Tensor:
        vectors = self.embedding.weight[FIRST_WORD : FIRST_WORD + self.words]
        return F.cross_entropy(F.linear(expected, vectors, self.bias), targets, ignore_index=_IGNORED, reduction="none")


class Language(Task, settings=SETTINGS):
    """Guess the neighbours of every word."""

    summary = "film reviews without labels: guess the next and the previous word; a start for documents"
    # The parts are those of ``documents``, so that nothing held out there is read here.
    load = seedless(load)

    def build(self, model: LanguageModel, splits: Splits) -> nn.Module:
        """A network with fresh weights and the word vectors of the data."""
        return WordGuesser(model, splits.info["vectors"])

    def loss(self, output: Tensor, batch: Batch) -> tuple[Tensor, Tensor]:
        """Mean negative log-likelihood of the words of a review; every review counts alike."""
        return output, torch.ones_like(output)

    def measures(self, output: Tensor, batch: Batch) -> dict[str, Tensor]:
        """The loss in bits."""
        return {"bits": output / math.log(2)}


TASK = Language()
