"""Modular co-attention: words attend to words, cells to cells and to words; then both are reduced and fused."""

import dataclasses
import warnings

import torch
from torch import Tensor, nn
from torch.nn import functional as F

import contmax
from contmax_lab.attention import Attended
from contmax_lab.contract import Batch
from contmax_lab.recurrent import LSTM
from contmax_lab.tasks.vqa import VqaModel
from contmax_lab.tasks.vqa._data import FIRST_WORD
from contmax_lab.tasks.vqa._features import Features, GridFile
from contmax_lab.tasks.vqa._reduction import Reduction, Scores


@dataclasses.dataclass(frozen=True)
class Answered:
    """What the network says.

    Args:
        logits: of the answers, (B, V).
        loss: as in the model.
        place: where it looked in the image; None if it did not look.
        grid: (H, W) of the cells; None for regions.
        sparse: whether the attention leaves anything out.
    """

    logits: Tensor
    loss: str
    place: Attended | None = None
    grid: tuple[int, int] | None = None
    sparse: bool = False


class MultiheadAttention(nn.Module):
    """Scaled dot products with several heads, which divide the channels, and dropout of the weights."""

    def __init__(self, width: int, heads: int, dropout: float) -> None:
        super().__init__()
        self.query, self.key, self.value, self.merge = (nn.Linear(width, width) for _ in range(4))
        self.heads, self.dropout = heads, dropout

    def forward(self, asking: Tensor, asked: Tensor, mask: Tensor | None) -> Tensor:
        """Queries from `asking`, keys and values from `asked` where the mask (B, L) is True: (B, Q, D)."""
        query, key, value = (
            layer(x).unflatten(-1, (self.heads, -1)).transpose(1, 2)
            for layer, x in ((self.query, asking), (self.key, asked), (self.value, asked))
        )
        open_to = None if mask is None else mask[:, None, None, :]
        rate = self.dropout if self.training else 0.0
        found = F.scaled_dot_product_attention(query, key, value, attn_mask=open_to, dropout_p=rate)
        merged: Tensor = self.merge(found.transpose(1, 2).flatten(2))
        return merged


class CoAttentionLayer(nn.Module):
    """Self-attention, if it is guided also attention to the words, then a layer for each position by itself."""

    def __init__(self, model: VqaModel, *, guided: bool) -> None:
        super().__init__()
        width = model.hidden_dim
        count = 2 if guided else 1
        self.attentions = nn.ModuleList(MultiheadAttention(width, model.heads, model.dropout) for _ in range(count))
        self.feed = nn.Sequential(
            nn.Linear(width, 4 * width), nn.ReLU(), nn.Dropout(model.dropout), nn.Linear(4 * width, width)
        )
        self.norms = nn.ModuleList(nn.LayerNorm(width) for _ in range(count + 1))
        self.dropout = nn.Dropout(model.dropout)

    def forward(
        self, x: Tensor, mask: Tensor | None, words: Tensor | None = None, word_mask: Tensor | None = None
    ) -> Tensor:
        """(B, L, D) → (B, L, D)."""
        x = self.norms[0](x + self.dropout(self.attentions[0](x, x, mask)))
        if words is not None:
            x = self.norms[1](x + self.dropout(self.attentions[1](x, words, word_mask)))
        fed: Tensor = self.norms[-1](x + self.dropout(self.feed(x)))
        return fed


class CoAttentionNetwork(nn.Module):
    """Questions and features of images → answers.

    Args:
        model: its configuration.
        words: number of known words.
        answers: how often each answer occurs in training, (V,).
        features: of the images: their channels and grid.
        vectors: of the known words, (words, D); None = random ones.
        resident: whether the features move to the device of the network, and batches name rows.

    Reference: Yu et al. 2019, "Deep modular co-attention networks for visual question answering".
    """

    resident: Tensor

    def __init__(
        self,
        model: VqaModel,
        words: int,
        answers: Tensor,
        features: Features,
        vectors: Tensor | None = None,
        *,
        resident: bool = False,
    ) -> None:
        super().__init__()
        self.model, self.grid = model, features.grid
        if model.attention == "frequent":
            self.bias = nn.Parameter((answers + 1e-3).float().log())
            return
        width = model.hidden_dim
        word_dim = model.word_dim if vectors is None else vectors.shape[1]
        self.words = nn.Embedding(FIRST_WORD + words, word_dim, padding_idx=0)
        if vectors is not None:
            with torch.no_grad():
                self.words.weight[FIRST_WORD:] = vectors
        self.lstm = LSTM(word_dim, width, batch_first=True)
        self.encoder = nn.ModuleList(CoAttentionLayer(model, guided=False) for _ in range(model.layers))
        self.word_scores = Scores(width, model.flat_dim, model.dropout)
        self.word_merge = nn.Linear(width, model.fused_dim)
        self.norm = nn.LayerNorm(model.fused_dim)
        self.answer = nn.Linear(model.fused_dim, len(answers))
        if model.attention == "question":
            return
        self.enter = nn.Linear(features.channels, width)
        self.feature_dropout = nn.Dropout(model.feature_dropout)
        self.decoder = nn.ModuleList(CoAttentionLayer(model, guided=True) for _ in range(model.layers))
        self.reduction = Reduction(model, features.grid)
        self.image_merge = nn.Linear(width, model.fused_dim)
        if resident and isinstance(features, GridFile):
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # torch warns that the array is read-only
                # Memory-mapped: moving the network reads it all, the CPU reads rows when they are needed.
                self.register_buffer("resident", torch.from_numpy(features.array), persistent=False)

    def forward(self, batch: Batch) -> Answered:
        """Answers to ``batch["tokens"]`` about ``batch["features"]``, or about the images of ``batch["rows"]``."""
        model = self.model
        if model.attention == "frequent":
            return Answered(self.bias.expand(len(batch["tokens"]), -1), model.loss)
        words, mask = self._read(batch["tokens"])
        weights = contmax.softmax(self.word_scores(words).squeeze(1), mask=mask)
        fused = self.word_merge((weights.unsqueeze(1) @ words).squeeze(1))
        place = None
        if model.attention != "question":
            place = self._look(batch, words, mask)
            fused = fused + self.image_merge(place.context)
        logits = self.answer(self.norm(fused)).float()
        return Answered(logits, model.loss, place, self.grid, model.alpha > 1)

    def _read(self, tokens: Tensor) -> tuple[Tensor, Tensor]:
        """Encoded words, (B, T, D), and their mask, (B, T)."""
        mask = tokens > 0
        hidden = self.lstm(self.words(tokens))[0]
        for layer in self.encoder:
            hidden = layer(hidden, mask)
        return hidden, mask

    def _look(self, batch: Batch, words: Tensor, word_mask: Tensor) -> Attended:
        """Cells or regions that have attended to the words, reduced to one vector."""
        features = self.resident[batch["rows"]].flatten(1, 2) if "rows" in batch else batch["features"]
        cells, there = self.enter(self.feature_dropout(features.to(words.dtype))), batch.get("regions")
        for layer in self.decoder:
            cells = layer(cells, there, words, word_mask)
        attended: Attended = self.reduction(cells, positions=batch.get("positions"), mask=there)
        return attended
