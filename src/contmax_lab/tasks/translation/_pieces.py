"""Pieces of words: byte-pair encoding, learned from the training sentences alone."""

import json
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from contmax_lab.packages import require

PADDING, UNKNOWN, START, END = range(4)
_SPECIAL = ("<pad>", "<unk>", "<s>", "</s>")
# What a space becomes, so that text can be put together again.
_SPACE = "▁"
TOKENIZER_FILE, PIECES_FILE = "tokenizer.json", "pieces.json"


def learned_encoder(sentences: Iterable[str], merges: int) -> Any:
    """A tokenizer whose pieces are the characters of the sentences and this many merged pairs, of both languages.

    Raises:
        LabError: if tokenizers is not installed.
    """
    tokenizers = require("tokenizers", "Byte-pair encoding")
    encoder = tokenizers.Tokenizer(tokenizers.models.BPE(unk_token=_SPECIAL[UNKNOWN]))
    # Signs stand alone: a full stop is no part of the word before it.
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


def listed(encoder: Any) -> list[str]:
    """The pieces by their numbers."""
    vocabulary: dict[str, int] = encoder.get_vocab()
    return sorted(vocabulary, key=vocabulary.__getitem__)


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


def write_pieces(folder: Path, encoder: Any) -> None:
    """Tokenizer and list of pieces as files."""
    encoder.save(str(folder / TOKENIZER_FILE))
    (folder / PIECES_FILE).write_text(json.dumps(listed(encoder), ensure_ascii=False) + "\n", encoding="utf-8")


def read_pieces(folder: Path) -> list[str]:
    """The pieces by their numbers."""
    pieces: list[str] = json.loads((folder / PIECES_FILE).read_text(encoding="utf-8"))
    return pieces
