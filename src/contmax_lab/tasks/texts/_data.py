"""Texts of the user's own, as numbers of words."""

import collections
import dataclasses
import re
from collections.abc import Sequence
from pathlib import Path

import torch
from torch import Tensor

from contmax_lab.contract import Splits
from contmax_lab.data import read_table, vector_width
from contmax_lab.labelled import Label, read_parts
from contmax_lab.tasks.texts import TextsData

# Scripts that write no spaces: every sign is a word.
_SIGNS = "\u3040-\u30ff\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff"
_WORD = re.compile(rf"[{_SIGNS}]|[^\W{_SIGNS}]+(?:['’-][^\W{_SIGNS}]+)*|[^\w\s]")
PADDING, UNKNOWN, FIRST_WORD = 0, 1, 2


def split_words(text: str) -> list[str]:
    """Words in lower case, punctuation by itself; of Chinese and Japanese every sign.

    Example:
        >>> split_words("Isn't it well-made? Ja, schön! 好看")
        ["isn't", 'it', 'well-made', '?', 'ja', ',', 'schön', '!', '好', '看']
    """
    return _WORD.findall(text.lower())


@dataclasses.dataclass(frozen=True)
class Texts:
    """Texts of one part.

    Args:
        tokens: of each text: 1 = unknown, 2 + i = word i of the vocabulary.
        spelled: of each text, its words in the list of all words.
        target: classes or numbers, (B,).
    """

    tokens: list[Tensor]
    spelled: list[Tensor]
    target: Tensor

    def __len__(self) -> int:
        return len(self.tokens)


@dataclasses.dataclass(frozen=True)
class _Text:
    words: Tensor
    label: Label


def load(data: TextsData) -> Splits:
    """Read the tables; the vocabulary is that of the training texts alone."""
    numbers: dict[str, int] = {}

    def read(path: Path) -> list[_Text]:
        texts = []
        for row in read_table(path, [data.text, data.label]):
            words = split_words(row.text(data.text))[: data.max_length]
            if not words:
                raise row.place.problem(f"no words in the column {data.text}")
            spelled = [numbers.setdefault(word, len(numbers)) for word in words]
            texts.append(_Text(torch.tensor(spelled, dtype=torch.int32), Label(row.text(data.label), row.place)))
        return texts

    parts = read_parts(read, data, f"reviews.csv, a table with the columns {data.text} and {data.label}")
    spelling = list(numbers)
    counts = collections.Counter(spelling[i] for text in parts.train for i in text.words.tolist())
    frequent = [word for word, count in counts.items() if count >= data.min_count]
    # The most frequent words come first, equally frequent ones by the alphabet.
    words = sorted(frequent, key=lambda word: (-counts[word], word))[: data.max_words]
    places = {word: place for place, word in enumerate(words, start=FIRST_WORD)}
    lookup = torch.tensor([places.get(word, UNKNOWN) for word in spelling])

    def part(texts: Sequence[_Text], target: Tensor) -> Texts:
        spelled = [text.words.long() for text in texts]
        return Texts([lookup[own] for own in spelled], spelled, target)

    width = 0 if data.vectors is None else vector_width(data.vectors)
    sizes = {"max_length": int(data.max_length), "vector_width": width}
    known = {"vocabulary": len(words), "sizes": sizes, "of_table": {"column": data.text}}
    return parts.splits(part, words=words, spelling=spelling, **known)
