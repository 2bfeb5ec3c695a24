"""A small transformer, as is usual for translation today; each of its attentions may be an α-entmax."""

import dataclasses
import math
from typing import cast

import torch
from torch import Tensor, nn

import contmax
from contmax_lab.contract import Batch
from contmax_lab.errors import UsageError
from contmax_lab.tasks.translation import TranslationModel
from contmax_lab.tasks.translation._attention import Guesses, Look
from contmax_lab.tasks.translation._data import PADDING
from contmax_lab.tasks.translation._model import Network

# The slowest wave of the positions takes about 2π times this many pieces.
_SLOWEST = 10000.0


@dataclasses.dataclass(frozen=True)
class Read:
    """What all steps of a translation need of the source sentences, computed once.

    Args:
        keys, values: of the pieces, for each layer of the decoder, (B, H, L, d).
        mask: which places hold a piece, (B, L).
    """

    keys: list[Tensor]
    values: list[Tensor]
    mask: Tensor


class Transformer(Network):
    r"""Pieces of a sentence → pieces of its translation, by attention alone.

    .. math:: x \leftarrow x + f(\mathrm{norm}(x)), \qquad f \in \text{self-attention, attention to the source,
              } W_2 \max(W_1 x, 0)

    with sines and cosines of the places added to the vectors of the pieces (Vaswani et al. 2017; norms before the
    layers). Where it looked is the mean of the heads of the last attention to the source.

    The state of a hypothesis holds the keys and values of its pieces, so that a step of the beam search costs as much
    as one piece.

    Args:
        model: its configuration.
        vocabulary: V, pieces of both languages.

    Raises:
        UsageError: if the configuration asks for an attention that a transformer does not have.

    Example:
        >>> sizes = {"embedding_dim": 8, "layers": 2, "heads": 2, "feedforward_dim": 16}
        >>> model = Transformer(TranslationModel(network="transformer", attention="discrete", **sizes), vocabulary=20)
        >>> batch = {"source": torch.tensor([[5, 7, 3], [9, 3, 0]]), "target": torch.tensor([[2, 8, 3], [2, 3, 0]])}
        >>> model(batch).logits.shape
        torch.Size([2, 2, 20])
    """

    def __init__(self, model: TranslationModel, vocabulary: int) -> None:
        if model.attention != "discrete":
            raise UsageError(
                f"a transformer's attention is discrete; set model.attention=discrete, not {model.attention}"
            )
        if model.embedding_dim % model.heads:
            raise UsageError(
                f"model.embedding_dim must be a multiple of model.heads; got {model.embedding_dim} and {model.heads}"
            )
        if model.learned_alpha and not 1 < model.alpha < 2:
            raise UsageError(f"a learned α starts inside (1, 2); got model.alpha={model.alpha:g}")
        super().__init__(model, vocabulary)
        self.encoder = nn.ModuleList(EncoderLayer(model) for _ in range(model.layers))
        self.decoder = nn.ModuleList(DecoderLayer(model) for _ in range(model.layers))
        self.source_norm, self.target_norm = nn.LayerNorm(self.dim), nn.LayerNorm(self.dim)
        self.guess = nn.Linear(self.dim, vocabulary)
        self.initialise()

    def forward(self, batch: Batch) -> Guesses:
        """Guess every piece of ``batch["target"]``, (B, 1 + T), after the first, from ``batch["source"]``, (B, L)."""
        read = self.memory(batch["source"])
        x = self._placed(self.target(batch["target"][:, :-1]), 0)
        looks: list[Tensor] = []
        # No mask for padding: it stands behind the pieces, and causal attention does not look there.
        for number, layer in enumerate(self.decoder):
            is_last = number + 1 == len(self.decoder)
            x, weights = layer(x, read.keys[number], read.values[number], read.mask, need_weights=is_last)
            looks += [] if weights is None else [weights.mean(1)]
        return Guesses(self._guessed(x), Look(looks[-1]), self.alpha, read.mask, smoothing=self.smoothing)

    # -- one piece after the other -------------------------------------------------------------------------------------

    def memory(self, source: Tensor) -> Read:
        """What is known of sentences before anything is said, from their pieces (B, L)."""
        mask = source != PADDING
        x = self._placed(self.source(source), 0)
        for layer in self.encoder:
            x = layer(x, mask)
        x = self.source_norm(x)
        pairs = [layer.source.keys_and_values(x) for layer in self._layers()]
        return Read([keys for keys, _ in pairs], [values for _, values in pairs], mask)

    def first(self, memory: Read) -> dict[str, Tensor]:
        """The empty cache before the first piece, (B, 1, 0, layers, 2, E)."""
        empty = memory.keys[0].new_zeros(len(memory.mask), 1, 0, len(self.decoder), 2, self.dim)
        return {"said": empty}

    def step(self, pieces: Tensor, state: dict[str, Tensor], memory: Read) -> tuple[Tensor, dict[str, Tensor]]:
        """Logits (B, Q, V) of what follows, and the state after the last pieces (B, Q) of Q hypotheses."""
        said = state["said"]
        x = self._placed(self.target(pieces), said.shape[2], along=None)
        left: list[Tensor] = []
        for number, layer in enumerate(self._layers()):
            x, own = layer.step(x, said[..., number, :, :], memory.keys[number], memory.values[number], memory.mask)
            left.append(own)
        return self._guessed(x), {"said": torch.cat([said, torch.stack(left, -3)], 2)}

    def _layers(self) -> list["DecoderLayer"]:
        return cast(list[DecoderLayer], list(self.decoder))

    def _placed(self, vectors: Tensor, start: int, along: int | None = 1) -> Tensor:
        """Vectors of pieces plus their places, which count from `start` along a dimension; None = all at `start`."""
        count = 1 if along is None else vectors.shape[along]
        placed: Tensor = self.dropout(vectors * math.sqrt(self.dim) + places(start, count, self.dim, vectors))
        return placed

    def _guessed(self, x: Tensor) -> Tensor:
        logits: Tensor = self.guess(self.target_norm(x))
        return logits


class EncoderLayer(nn.Module):
    """Pieces of the source look at each other."""

    def __init__(self, model: TranslationModel) -> None:
        super().__init__()
        dim = int(model.embedding_dim)
        self.own, self.feed = _Heads.of(model), _feedforward(model)
        self.norms = nn.ModuleList(nn.LayerNorm(dim) for _ in range(2))
        self.dropout = nn.Dropout(model.hidden_dropout)

    def forward(self, x: Tensor, mask: Tensor) -> Tensor:
        """(B, L, E) → (B, L, E), with pieces where the mask (B, L) is True."""
        x = x + self.dropout(self.own(self.norms[0](x), mask=mask))
        added: Tensor = x + self.dropout(self.feed(self.norms[1](x)))
        return added


class DecoderLayer(nn.Module):
    """Pieces of the translation look at those before them, and at the source."""

    def __init__(self, model: TranslationModel) -> None:
        super().__init__()
        dim = int(model.embedding_dim)
        self.own, self.source, self.feed = _Heads.of(model, is_causal=True), _Heads.of(model), _feedforward(model)
        self.norms = nn.ModuleList(nn.LayerNorm(dim) for _ in range(3))
        self.dropout = nn.Dropout(model.hidden_dropout)

    def forward(
        self, x: Tensor, keys: Tensor, values: Tensor, mask: Tensor, *, need_weights: bool = False
    ) -> tuple[Tensor, Tensor | None]:
        """All pieces at once, (B, T, E), and if need be how they looked at the source, (B, H, T, L)."""
        x = x + self.dropout(self.own(self.norms[0](x)))
        return self._with_source(x, keys, values, mask, need_weights=need_weights)

    def step(self, x: Tensor, said: Tensor, keys: Tensor, values: Tensor, mask: Tensor) -> tuple[Tensor, Tensor]:
        """The last piece of each hypothesis, (B, Q, E), and its key and value for the cache, (B, Q, 1, 2, E).

        Args:
            x: the pieces.
            said: cached keys and values of the pieces before them, (B, Q, t, 2, E).
            keys, values, mask: of the source.
        """
        alone = self.norms[0](x).flatten(0, 1).unsqueeze(1)
        left = torch.stack([self.own.key_projection(alone), self.own.value_projection(alone)], -2)
        behind = torch.cat([said.flatten(0, 1), left], 1)
        own_keys, own_values = (self.own.as_heads(part) for part in behind.unbind(-2))
        x = x + self.dropout(self.own.attended(alone, own_keys, own_values)[0].view_as(x))
        return self._with_source(x, keys, values, mask)[0], left.view(*x.shape[:2], *left.shape[1:])

    def _with_source(
        self, x: Tensor, keys: Tensor, values: Tensor, mask: Tensor, *, need_weights: bool = False
    ) -> tuple[Tensor, Tensor | None]:
        asked, shown = self.norms[1](x), mask[:, None, None]
        added, weights = self.source.attended(asked, keys, values, shown, need_weights=need_weights)
        x = x + self.dropout(added)
        return x + self.dropout(self.feed(self.norms[2](x))), weights


class _Heads(contmax.nn.EntmaxAttention):
    """Attention of several heads with a cache of keys and values."""

    @classmethod
    def of(cls, model: TranslationModel, *, is_causal: bool = False) -> "_Heads":
        """Heads with the sizes and the α of the settings."""
        learnable = bool(model.learned_alpha)
        return cls(model.embedding_dim, model.heads, alpha=model.alpha, learnable=learnable, is_causal=is_causal)

    def as_heads(self, x: Tensor) -> Tensor:
        """(B, n, E) → (B, H, n, d)."""
        return x.reshape(*x.shape[:-1], self.num_heads, -1).transpose(1, 2)

    def keys_and_values(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Of states (B, L, E), both (B, H, L, d)."""
        return self.as_heads(self.key_projection(x)), self.as_heads(self.value_projection(x))

    def attended(
        self, query: Tensor, keys: Tensor, values: Tensor, mask: Tensor | None = None, *, need_weights: bool = False
    ) -> tuple[Tensor, Tensor | None]:
        """Attention of queries (B, Q, E) to cached keys and values, (B, Q, E); if need be the weights, (B, H, Q, L)."""
        found = contmax.entmax_attention(
            self.as_heads(self.query_projection(query)),
            keys,
            values,
            alpha=self.alpha,
            mask=mask,
            need_weights=need_weights,
        )
        means, weights = found if isinstance(found, tuple) else (found, None)
        output: Tensor = self.output_projection(means.transpose(1, 2).flatten(2))
        return output, weights


def places(start: int, count: int, dim: int, like: Tensor) -> Tensor:
    r"""Sines and cosines of the places start, start + 1, …, of wavelengths from 2π to 10000 · 2π, (count, dim).

    Example:
        >>> places(0, 2, 4, torch.zeros(())).shape
        torch.Size([2, 4])
    """
    place = torch.arange(start, start + count, dtype=like.dtype, device=like.device).unsqueeze(-1)
    half = torch.arange((dim + 1) // 2, dtype=like.dtype, device=like.device)
    angle = place * torch.exp(half * (-2 * math.log(_SLOWEST) / dim))
    return torch.stack([angle.sin(), angle.cos()], -1).flatten(-2)[:, :dim]


def _feedforward(model: TranslationModel) -> nn.Sequential:
    dim, inner = int(model.embedding_dim), int(model.feedforward_dim)
    return nn.Sequential(nn.Linear(dim, inner), nn.ReLU(), nn.Dropout(model.hidden_dropout), nn.Linear(inner, dim))
