"""Pairs of sentences in three parts."""

import dataclasses
from collections.abc import Sequence

import torch
from torch import Tensor

from contmax_lab.contract import Splits
from contmax_lab.data import shuffled
from contmax_lab.errors import LabError
from contmax_lab.tasks.translation import TranslationData
from contmax_lab.tasks.translation._prepared import (
    END,
    KEY_FILE,
    PADDING,
    START,
    Prepared,
    Side,
    Source,
    prepared,
    read_prepared,
)
from contmax_lab.tasks.translation._sentences import ORIGINALS, PARTS, Languages, find_parts


@dataclasses.dataclass(frozen=True)
class Sentences:
    """Sentences of one language as numbers of pieces.

    Args:
        tokens: of all sentences, one after the other.
        starts: where each of these begins, (B,).
        lengths: its pieces, (B,).
    """

    tokens: Tensor
    starts: Tensor
    lengths: Tensor

    @classmethod
    def of(cls, side: Side) -> "Sentences":
        """Those of a side."""
        starts = torch.from_numpy(side.starts)
        return cls(torch.from_numpy(side.tokens), starts[:-1], starts.diff())

    def __getitem__(self, chosen: Tensor) -> "Sentences":
        return Sentences(self.tokens, self.starts[chosen], self.lengths[chosen])

    def padded(self, first: int | None = None) -> Tensor:
        """Numbers of pieces with the end of the sentence, (B, L); before them `first`, where given."""
        longest = int(self.lengths.max()) if len(self.lengths) else 0
        steps, ends = torch.arange(longest + 1), self.lengths.unsqueeze(-1)
        places = (self.starts.unsqueeze(-1) + steps).clamp(max=max(len(self.tokens) - 1, 0))
        numbers = torch.where(steps < ends, self.tokens[places].long(), torch.where(steps == ends, END, PADDING))
        if first is None:
            return numbers
        return torch.cat([numbers.new_full((len(numbers), 1), first), numbers], 1)


@dataclasses.dataclass(frozen=True)
class Pairs:
    """Pairs of sentences of one part.

    Args:
        source, target: their pieces.
        rows: of each pair, where its text stands in the list of texts; −1 = it is not kept.
    """

    source: Sentences
    target: Sentences
    rows: Tensor

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, indices: Sequence[int] | Tensor) -> "Pairs":
        chosen = torch.as_tensor(indices, dtype=torch.long)
        return Pairs(self.source[chosen], self.target[chosen], self.rows[chosen])

    def batch(self) -> dict[str, Tensor]:
        """Padded: source (B, L) with its end, target (B, T) from the start to its end, row (B,)."""
        return {"source": self.source.padded(), "target": self.target.padded(START), "row": self.rows}


def load(data: TranslationData) -> Splits:
    """Read the parts, or what was prepared of them."""
    read = _prepared(data)
    texts = [*read.texts["valid"], *read.texts["test"]]
    first = {"train": None, "valid": 0, "test": len(read.texts["valid"])}
    parts = {part: _limited(_pairs(read, part, first[part]), data) for part in PARTS}
    train = parts["train"]
    short = torch.maximum(train.source.lengths, train.target.lengths) <= data.max_length
    parts["train"] = train[short.nonzero().flatten()]
    info = {
        "pieces": read.pieces,
        "vocabulary": len(read.pieces),
        "texts": texts,
        "prepared": str(read.folder),
        "longest": int(train.source.lengths[short].max()) if short.any() else 0,
    }
    return Splits(parts["train"], parts["valid"], parts["test"], info)


def _prepared(data: TranslationData) -> Prepared:
    if data.path is not None and (data.path / KEY_FILE).is_file():
        return read_prepared(data.path)
    languages = Languages(data.source, data.target, data.source_column, data.target_column)
    if data.path is not None:
        parts = find_parts(data.path, languages)
    elif data.train is None:
        raise LabError(
            f"no data was given; pass --data.path FOLDER, or your own pair of files as --data.train. {ORIGINALS}"
        )
    else:
        parts = {part: [] for part in PARTS}
    parts |= {part: [named] for part in PARTS if (named := getattr(data, part)) is not None}
    source = Source(parts, languages, data.merges, data.lowercase, data.held_out, data.split)
    return prepared(source, data.cache or parts["train"][0].parent / ".contmax")


def _pairs(read: Prepared, part: str, first: int | None) -> Pairs:
    source, target = (Sentences.of(side) for side in read.sides[part])
    count = len(source.lengths)
    rows = torch.full((count,), -1) if first is None else torch.arange(first, first + count)
    return Pairs(source, target, rows)


def _limited(pairs: Pairs, data: TranslationData) -> Pairs:
    if not data.limit or data.limit >= len(pairs):
        return pairs
    return pairs[sorted(shuffled(len(pairs), data.split)[: data.limit])]
