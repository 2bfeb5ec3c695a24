"""Word vectors, a bidirectional LSTM, an attention, a logit."""

import dataclasses
from pathlib import Path
from typing import Any, cast

import torch
from torch import Tensor, nn

from contmax.basis import GaussianBasis
from contmax.densities import BetaGaussian
from contmax.nn import CombinedAttention, ContinuousAttention, DiscreteAttention, GateHead, PooledHead
from contmax_lab.attention import Attended
from contmax_lab.contract import Batch
from contmax_lab.errors import LabError
from contmax_lab.files import read_checkpoint, read_yaml
from contmax_lab.recurrent import Bidirectional
from contmax_lab.tasks.documents import DocumentsData, DocumentsModel
from contmax_lab.tasks.documents._data import PADDING, UNKNOWN
from contmax_lab.tasks.documents._reading import Reading, deletion_test

# Widths of the basis functions, and filters of the continuous head, in the paper.
_WIDTHS = (0.1, 0.5)
_FILTERS = 128
_SHARED = ("max_words", "dimensions", "valid", "split")


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
        # A copy, since training changes it and other models may be built from this table.
        self.embedding = nn.Embedding.from_pretrained(vectors.clone(), freeze=model.frozen, padding_idx=PADDING)
        self.dropout = nn.Dropout(model.dropout)
        self.encoder = Bidirectional("lstm", vectors.shape[1], model.hidden_dim)
        width = 2 * int(model.hidden_dim)
        self.attention = _attention(model, width)
        self.logit = nn.Linear(width, 1)
        self.value = nn.Linear(vectors.shape[1], width) if model.values == "words" else None
        # Shares of gates are positive, whatever α is.
        self.sparse = model.alpha > 1 and (model.attention, model.head) != ("combined", "gates")

    def forward(self, batch: Batch) -> Reading:
        """Read the reviews in ``batch["tokens"]``, (B, L), padded with 0; with ``batch["draws"]`` test by deletion."""
        reading = self.read(batch["tokens"])
        if "draws" not in batch:
            return reading
        shortened = deletion_test(self.read, batch["tokens"], reading, batch["draws"])
        return dataclasses.replace(reading, shortened=shortened)

    def read(self, tokens: Tensor) -> Reading:
        """Read reviews, (B, L), padded with 0."""
        mask = tokens != PADDING
        if self.training and self.word_dropout:
            hidden = (torch.rand(tokens.shape, device=tokens.device) < self.word_dropout) & mask
            tokens = torch.where(hidden, UNKNOWN, tokens)
        _, attended = self.attend(tokens)
        logits = self.logit(self.dropout(attended.context)).squeeze(-1)
        density = cast(BetaGaussian | None, attended.density)
        return Reading(logits, mask, attended.weights, density, self.sparse)

    def attend(self, tokens: Tensor) -> tuple[Tensor, Attended]:
        """What is attended to, (B, L, 2·hidden_dim), and how."""
        mask = tokens != PADDING
        vectors = self.dropout(self.embedding(tokens))
        states = self.encoder(vectors, mask)
        values = states if self.value is None else self.value(vectors)
        if self.value is None:
            return values, Attended.of(*self.attention(values, mask=mask))
        if isinstance(self.attention, DiscreteAttention):
            _, weights = self.attention(states, mask=mask)
            return values, Attended((weights.unsqueeze(-2) @ values).squeeze(-2), weights)
        return values, Attended.of(*self.attention(values, keys=states, mask=mask))


def _attention(model: DocumentsModel, width: int) -> nn.Module:
    # Built for every kind, used or not: earlier runs drew these random numbers, and seeds must reproduce them.
    discrete = DiscreteAttention(width, alpha=model.alpha)
    if model.attention == "discrete":
        return discrete
    scale = _WIDTHS if model.values == "states" else 1 / model.num_basis
    basis = GaussianBasis.linspace(model.num_basis, scale)
    options: dict[str, Any] = {"alpha": model.alpha, "penalty": model.penalty}
    if model.head == "gates":
        gates = GateHead(width)
        if model.attention == "combined":
            return CombinedAttention(None, basis, head=gates, **options)
        return ContinuousAttention(basis, head=gates, **options)
    if model.attention == "combined":
        return CombinedAttention(discrete, basis, matching=model.matching, **options)
    pooled = PooledHead(width, hidden_dim=_FILTERS, position_channels=model.head == "narrow")
    return ContinuousAttention(basis, head=pooled, **options)


def take_over(network: nn.Module, start: Path, data: DocumentsData) -> None:
    """Begin with the word vectors and the LSTM of `start`, a run of the task language on the same reviews and words.

    Raises:
        LabError: if there is no such run, or it has read other reviews or words, or has other sizes.
    """
    weights = start / "model.safetensors"
    if not weights.is_file():
        raise LabError(f"--model.start: {start} holds no trained model; make one with contmax train language/imdb")
    begun: dict[str, Any] = read_yaml(start / "config.yaml")
    if begun["task"] != "language":
        raise LabError(f"--model.start: {start} is a run of the task {begun['task']}; pass one of the task language")
    for field in _SHARED:
        theirs, ours = begun["data"].get(field, getattr(DocumentsData(), field)), getattr(data, field)
        # Another split has trained on what is held out here; other words have other numbers.
        if theirs != ours:
            raise LabError(
                f"--model.start: {start} was trained with data.{field}={theirs}, but here it is {ours}; use the same"
            )
    own = network.state_dict()
    taken = {
        name: tensor
        for name, tensor in read_checkpoint(weights).tensors.items()
        if name.startswith(("embedding.", "encoder."))
    }
    wrong = [name for name, tensor in taken.items() if name not in own or own[name].shape != tensor.shape]
    if wrong:
        raise LabError(f"--model.start: {start} does not fit ({wrong[0]}); train it with the same hidden_dim")
    network.load_state_dict(taken, strict=False)
