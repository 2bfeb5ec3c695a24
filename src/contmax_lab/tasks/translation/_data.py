"""Sentences as numbers of pieces on disk, prepared where there is a tokenizer; in three parts."""

import dataclasses
import functools
import json
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from contmax_lab.contract import Batch, Splits
from contmax_lab.data import limited, shuffled
from contmax_lab.errors import LabError
from contmax_lab.files import fingerprint, prepared_folder
from contmax_lab.packages import require
from contmax_lab.tasks.translation import TranslationData
from contmax_lab.tasks.translation._sentences import ORIGINALS, PARTS, files_of, find_parts, read_pairs

PADDING, UNKNOWN, START, END = range(4)
_SPECIAL = ("<pad>", "<unk>", "<s>", "</s>")
# Stands for a space, so that pieces can be joined to text again.
_SPACE = "▁"
TOKENIZER_FILE, PIECES_FILE = "tokenizer.json", "pieces.json"
KEY_FILE = "translation.json"
# Part of the key of the cache; raise it when the format of the prepared files changes.
_FORMAT = 1
TextPairs = list[tuple[str, str]]


def learned_encoder(sentences: Iterable[str], merges: int) -> Any:
    """A tokenizer whose pieces are the characters of the sentences and this many merged pairs, of both languages.

    Raises:
        LabError: if tokenizers is not installed.
    """
    tokenizers = require("tokenizers", "Byte-pair encoding")
    encoder = tokenizers.Tokenizer(tokenizers.models.BPE(unk_token=_SPECIAL[UNKNOWN]))
    # Split off punctuation: a full stop is no part of the word before it.
    encoder.pre_tokenizer = tokenizers.pre_tokenizers.Sequence(
        [
            tokenizers.pre_tokenizers.Metaspace(replacement=_SPACE, prepend_scheme="always"),
            tokenizers.pre_tokenizers.Punctuation(behavior="isolated"),
        ]
    )
    sentences = list(sentences)
    characters = set().union(*sentences, _SPACE)
    trainer = tokenizers.trainers.BpeTrainer(
        vocab_size=len(_SPECIAL) + len(characters) + merges, special_tokens=list(_SPECIAL), show_progress=False
    )
    encoder.train_from_iterator(sentences, trainer)
    return encoder


def read_encoder(path: Path) -> Any:
    """The tokenizer that a training has used.

    Raises:
        LabError: if tokenizers is not installed.
    """
    return require("tokenizers", "Byte-pair encoding").Tokenizer.from_file(str(path))


def encoded(encoder: Any, sentences: Sequence[str]) -> tuple[NDArray[np.int32], NDArray[np.int64]]:
    """Numbers of all pieces, one sentence after the other, and where each begins, with the end of the last."""
    found = [encoding.ids for encoding in encoder.encode_batch(list(sentences), add_special_tokens=False)]
    starts = np.cumsum([0, *map(len, found)], dtype=np.int64)
    return np.array([number for ids in found for number in ids], dtype=np.int32), starts


def as_text(numbers: Sequence[int], pieces: Sequence[str]) -> str:
    """The sentence of some pieces; no tokenizer is needed for that.

    Example:
        >>> as_text([4, 5, 6, 3], ["<pad>", "<unk>", "<s>", "</s>", "▁a", "▁ca", "t"])
        'a cat'
    """
    kept = (pieces[number] for number in numbers if number not in (PADDING, START, END))
    return "".join(kept).replace(_SPACE, " ").strip()


def normalised(text: str, *, lowercase: bool) -> str:
    """Single spaces, and small letters where these are wanted.

    Example:
        >>> normalised(" Ein  Hund. ", lowercase=True)
        'ein hund.'
    """
    single = " ".join(text.split())
    return single.lower() if lowercase else single


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
class Prepared:
    """Everything a training and an evaluation need.

    Args:
        folder: where it lies.
        pieces: by their numbers.
        sides: part → source and target.
        texts: part → pairs of sentences as text, of ``valid`` and ``test``.
    """

    folder: Path
    pieces: list[str]
    sides: dict[str, tuple[Sentences, Sentences]]
    texts: dict[str, TextPairs]


def read_prepared(folder: Path) -> Prepared:
    """Read a folder that was prepared, here or elsewhere.

    Raises:
        LabError: if it is damaged.
    """
    try:
        pieces: list[str] = json.loads((folder / PIECES_FILE).read_text(encoding="utf-8"))
        sides = {part: (_read_side(folder, part, "source"), _read_side(folder, part, "target")) for part in PARTS}
        texts: dict[str, TextPairs] = {}
        for part in ("valid", "test"):
            lines = (folder / f"{part}.tsv").read_text(encoding="utf-8").split("\n")[:-1]
            texts[part] = [(source, target) for source, target in (line.split("\t") for line in lines)]
        for part, both in sides.items():
            counts = {len(side.lengths) for side in both} | ({len(texts[part])} if part in texts else set())
            if len(counts) > 1:
                raise ValueError(f"the files of {part} do not fit together")
    except (OSError, ValueError, EOFError) as error:
        raise LabError(f"{folder} is damaged: {' '.join(str(error).split())}; delete it") from None
    return Prepared(folder, pieces, sides, texts)


def _spelled_pairs(parts: dict[str, list[Path]], data: TranslationData) -> dict[str, TextPairs]:
    """The pairs of each part; without files for validation, a share of the training pairs is held out.

    Raises:
        LabError: if a file is not as it should be, or holds nothing.
    """
    spell = functools.partial(normalised, lowercase=data.lowercase)
    found: dict[str, TextPairs] = {}
    for part, places in parts.items():
        pairs = (pair for place in places for pair in read_pairs(place, data))
        found[part] = [(spell(source), spell(target)) for source, target in pairs]
        if places and not found[part]:
            raise LabError(f"{places[0]}: no pair of sentences; expected one in a line")
    if found["valid"]:
        return found
    # All translations of a source sentence are on one side.
    sources = list(dict.fromkeys(source for source, _ in found["train"]))
    if len(sources) < 2:
        raise LabError("one source sentence cannot be split into training and validation; name --data.valid")
    count = min(max(round(data.held_out * len(sources)), 1), len(sources) - 1)
    chosen = {sources[i] for i in shuffled(len(sources), data.split)[:count]}
    train, valid = ([pair for pair in found["train"] if (pair[0] in chosen) == held] for held in (False, True))
    return {**found, "train": train, "valid": valid}


def _write(pairs: dict[str, TextPairs], merges: int, folder: Path) -> None:
    encoder = learned_encoder([text for pair in pairs["train"] for text in pair], merges)
    encoder.save(str(folder / TOKENIZER_FILE))
    vocabulary: dict[str, int] = encoder.get_vocab()
    pieces = sorted(vocabulary, key=vocabulary.__getitem__)
    (folder / PIECES_FILE).write_text(json.dumps(pieces, ensure_ascii=False) + "\n", encoding="utf-8")
    for part, found in pairs.items():
        for side, name in enumerate(("source", "target")):
            tokens, starts = encoded(encoder, [pair[side] for pair in found])
            np.save(folder / f"{part}.{name}.tokens.npy", tokens)
            np.save(folder / f"{part}.{name}.starts.npy", starts)
        if part != "train":
            lines = "".join(f"{source}\t{target}\n" for source, target in found)
            (folder / f"{part}.tsv").write_text(lines, encoding="utf-8")


def _read_side(folder: Path, part: str, name: str) -> Sentences:
    tokens, starts = (
        torch.from_numpy(np.load(folder / f"{part}.{name}.{field}.npy", allow_pickle=False))
        for field in ("tokens", "starts")
    )
    if int(starts[-1]) != len(tokens):
        raise ValueError(f"the files of {part} do not fit together")
    return Sentences(tokens, starts[:-1], starts.diff())


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

    def batch(self, indices: Sequence[int]) -> Batch:
        """Padded: source (B, L) with its end, target (B, T) from the start to its end, row (B,)."""
        chosen = self[indices]
        return {"source": chosen.source.padded(), "target": chosen.target.padded(START), "row": chosen.rows}

    @property
    def example_lengths(self) -> list[int]:
        """Pieces of the longer sentence of each pair, with its end."""
        lengths: list[int] = (torch.maximum(self.source.lengths, self.target.lengths) + 1).tolist()
        return lengths


def load(data: TranslationData) -> Splits:
    """Read the parts, or what was prepared of them."""
    read = _prepared(data)
    valid, test = read.texts["valid"], read.texts["test"]
    rows = {"valid": torch.arange(len(valid)), "test": len(valid) + torch.arange(len(test))}
    rows["train"] = torch.full((len(read.sides["train"][0].lengths),), -1)
    chosen = {part: limited(len(rows[part]), data.limit, data.split) for part in PARTS}
    parts = {part: Pairs(*read.sides[part], rows[part])[chosen[part]] for part in PARTS}
    train = parts["train"]
    read_on = (torch.maximum(train.source.lengths, train.target.lengths) <= data.max_length).nonzero().flatten()
    if data.any_length:
        read_on = torch.as_tensor(shuffled(len(train), data.split)[: len(read_on)], dtype=torch.long)
    train = train[read_on]
    info = {
        "pieces": read.pieces,
        "vocabulary": len(read.pieces),
        "texts": [*valid, *test],
        "prepared": str(read.folder),
        "of_sentences": {"lowercase": bool(data.lowercase)},
        "longest": int(train.source.lengths.max()) if len(train) else 0,
    }
    return Splits(train, parts["valid"], parts["test"], info)


def _prepared(data: TranslationData) -> Prepared:
    if data.path is not None and (data.path / KEY_FILE).is_file():
        return read_prepared(data.path)
    if data.path is not None:
        parts = find_parts(data.path, data)
    elif data.train is None:
        raise LabError(
            f"no data was given; pass --data.path FOLDER, or your own pair of files as --data.train. {ORIGINALS}"
        )
    else:
        parts = {part: [] for part in PARTS}
    parts |= {part: [named] for part in PARTS if (named := getattr(data, part)) is not None}
    files = {part: [file for place in parts[part] for file in files_of(place, data)] for part in PARTS}
    key = {
        "format": _FORMAT,
        "files": {part: [path.name for path in paths] for part, paths in files.items()},
        "of": fingerprint([path for paths in files.values() for path in paths]),
        "languages": {name: getattr(data, name) for name in ("source", "target", "source_column", "target_column")},
        "merges": data.merges,
        "lowercase": data.lowercase,
        "split": None if parts["valid"] else [data.held_out, data.split],
    }

    def make(folder: Path) -> None:
        _write(_spelled_pairs(parts, data), data.merges, folder)

    # The cache has what an earlier call made of these files.
    cache = data.cache or parts["train"][0].parent / ".contmax"
    return read_prepared(prepared_folder(cache, KEY_FILE, key, make))
