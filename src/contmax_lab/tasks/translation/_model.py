"""Bidirectional GRU, attention, GRU with input feeding, a guess at the next piece."""

from typing import cast

import torch
from torch import Tensor, nn

from contmax_lab.contract import Batch
from contmax_lab.recurrent import Bidirectional
from contmax_lab.tasks.translation import TranslationModel
from contmax_lab.tasks.translation._attention import Guesses, Look, Memory, SourceAttention, joined
from contmax_lab.tasks.translation._beam import Decoding, beam_search
from contmax_lab.tasks.translation._data import PADDING


class Network(nn.Module):
    """What the networks share: tables of pieces, one for both languages and the output where these are tied.

    Args:
        model: its configuration.
        vocabulary: V, pieces of both languages.
    """

    guess: nn.Linear

    def __init__(self, model: TranslationModel, vocabulary: int) -> None:
        super().__init__()
        self.config, self.alpha, self.dim = model, float(model.alpha), int(model.embedding_dim)
        self.target = nn.Embedding(vocabulary, self.dim, padding_idx=PADDING)
        self.source = self.target if model.tied else nn.Embedding(vocabulary, self.dim, padding_idx=PADDING)
        self.dropout = nn.Dropout(model.dropout)

    def initialise(self) -> None:
        """Draw the tables, after all other weights were drawn; tie them with the output."""
        for table in dict.fromkeys((self.source, self.target)):
            nn.init.normal_(table.weight, std=self.dim**-0.5)
            nn.init.zeros_(table.weight[PADDING])
        if self.config.tied:
            self.guess.weight = self.target.weight

    @property
    def smoothing(self) -> float:
        """Label smoothing: that of the settings in training, else 0."""
        return float(self.config.label_smoothing) if self.training else 0.0

    def translated(self, source: Tensor) -> Tensor:
        """Pieces of translations, (B, T), of those of sentences, (B, L), by beam search."""
        beam, most, penalty = int(self.config.beam), int(self.config.max_output), float(self.config.length_penalty)
        return beam_search(cast(Decoding, self), source, beam=beam, max_output=most, length_penalty=penalty)[0]


class Translator(Network):
    r"""Pieces of a sentence → pieces of its translation.

    .. math:: s_t = \mathrm{GRU}([y_{t-1}; a_{t-1}], s_{t-1}), \qquad c_t = \mathrm{attend}(s_t), \qquad
              a_t = \tanh(W[s_t; c_t]), \qquad s_0 = \tanh(W_0 [\overrightarrow h_L; \overleftarrow h_1])

    Args:
        model: its configuration.
        vocabulary: V, pieces of both languages.

    Example:
        >>> sizes = {"embedding_dim": 6, "encoder_dim": 4, "decoder_dim": 5}
        >>> translator = Translator(TranslationModel(**sizes), vocabulary=20)
        >>> batch = {"source": torch.tensor([[5, 7, 3], [9, 3, 0]]), "target": torch.tensor([[2, 8, 3], [2, 3, 0]])}
        >>> translator(batch).logits.shape
        torch.Size([2, 2, 20])
    """

    def __init__(self, model: TranslationModel, vocabulary: int) -> None:
        super().__init__(model, vocabulary)
        hidden, states = int(model.decoder_dim), 2 * int(model.encoder_dim)
        self.encoder = Bidirectional("gru", self.dim, int(model.encoder_dim))
        self.bridge = nn.Linear(states, hidden)
        self.cell = nn.GRUCell(self.dim + hidden, hidden)
        self.attention = SourceAttention(model)
        self.attentional = nn.Linear(hidden + states, hidden)
        self.readout = nn.Linear(hidden, self.dim) if model.tied else nn.Identity()
        self.guess = nn.Linear(self.dim if model.tied else hidden, vocabulary)
        self.hidden_dropout = nn.Dropout(model.hidden_dropout)
        self.initialise()

    def forward(self, batch: Batch) -> Guesses:
        """Guess every piece of ``batch["target"]``, (B, 1 + T), after the first, from ``batch["source"]``, (B, L)."""
        memory = self.memory(batch["source"])
        state = self.first(memory)
        vectors = self.dropout(self.target(batch["target"][:, :-1]))
        attentional: list[Tensor] = []
        looks: list[Look] = []
        for vector in vectors.split(1, 1):
            state, look = self._step(vector, state, memory)
            attentional.append(state["attentional"])
            looks.append(look)
        logits = self._guessed(torch.cat(attentional, 1))
        return Guesses(
            logits, joined(looks), self.alpha, memory.mask, self.attention.kind == "combined", self.smoothing
        )

    # -- one piece after the other -------------------------------------------------------------------------------------

    def memory(self, source: Tensor) -> Memory:
        """What is known of sentences before anything is said, from their pieces (B, L)."""
        mask = source != PADDING
        states = self.hidden_dropout(self.encoder(self.dropout(self.source(source)), mask))
        return self.attention.memory(states, mask)

    def first(self, memory: Memory) -> dict[str, Tensor]:
        """The state before the first piece, of one hypothesis for each sentence: tensors (B, 1, …)."""
        forwards, backwards = memory.values.chunk(2, -1)
        last = memory.mask.sum(-1).clamp(min=1) - 1
        ends = forwards.gather(1, last.view(-1, 1, 1).expand(-1, 1, forwards.shape[-1]))
        state = torch.tanh(self.bridge(torch.cat([ends, backwards[:, :1]], -1)))
        return {"hidden": state, "attentional": torch.zeros_like(state)}

    def step(self, pieces: Tensor, state: dict[str, Tensor], memory: Memory) -> tuple[Tensor, dict[str, Tensor]]:
        """Logits (B, Q, V) of what follows, and the state after the last pieces (B, Q) of Q hypotheses."""
        state, _ = self._step(self.dropout(self.target(pieces)), state, memory)
        return self._guessed(state["attentional"]), state

    def _step(self, vector: Tensor, state: dict[str, Tensor], memory: Memory) -> tuple[dict[str, Tensor], Look]:
        fed = torch.cat([vector, state["attentional"]], -1)
        hidden = self.cell(fed.flatten(0, 1), state["hidden"].flatten(0, 1)).view(*fed.shape[:2], -1)
        context, look = self.attention(hidden, memory)
        attentional = torch.tanh(self.attentional(torch.cat([hidden, context], -1)))
        return {"hidden": hidden, "attentional": attentional}, look

    def _guessed(self, attentional: Tensor) -> Tensor:
        logits: Tensor = self.guess(self.readout(self.hidden_dropout(attentional)))
        return logits
