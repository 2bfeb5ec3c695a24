"""Reviews as arrays of numbers on disk, so that many processes begin within a second; in three parts."""

import dataclasses
import re
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from contmax_lab.contract import Splits
from contmax_lab.data import (
    REVIEW_PARTS,
    REVIEWS_ORIGINAL,
    NumberedReviews,
    film_files,
    find_vectors,
    half_table,
    held_out_reviews,
    read_reviews,
    review_sources,
)
from contmax_lab.errors import LabError
from contmax_lab.files import fingerprint, prepared_folder
from contmax_lab.tasks.documents import DocumentsData

KEY_FILE = "documents.json"
PADDING, UNKNOWN, FIRST_WORD = 0, 1, 2
# Part of the key of the cache; raise it when the format of the prepared files changes.
_FORMAT = 3
_FIELDS = ("tokens", "starts", "labels", "films")
_UNFIT = "its arrays do not fit together"


_BREAK = re.compile(r"<br\s*/?>")
# In this order: a clitic, a word before "n't", a word (with its hyphens), any other sign by itself.
_TOKEN = re.compile(
    r"n't\b|'(?:s|re|ve|ll|d|m)\b|[a-z0-9]+(?:-[a-z0-9]+)*?(?=n't\b)|[a-z0-9]+(?:-[a-z0-9]+)*|[^\sa-z0-9]"
)


def tokenize(text: str) -> list[str]:
    """Lower-case words, with clitics split off and punctuation by itself; line breaks of HTML are spaces.

    Example:
        >>> tokenize("It isn't Bergman's best sci-fi,<br />but we'd see it again!")
        ['it', 'is', "n't", 'bergman', "'s", 'best', 'sci-fi', ',', 'but', 'we', "'d", 'see', 'it', 'again', '!']
    """
    return _TOKEN.findall(_BREAK.sub(" ", text.lower()))


@dataclasses.dataclass(frozen=True)
class Prepared:
    """Everything a training needs.

    Args:
        words: those of both parts that have a vector, in the order of the file of word vectors.
        vectors: (words, D).
        train, test: the reviews.
        films: of the training reviews, numbers from 0 on, -1 where not known, (B,).
    """

    words: list[str]
    vectors: NDArray[np.float16]
    train: NumberedReviews
    test: NumberedReviews
    films: Tensor


def prepared(path: Path, vectors: Path | None, cache: Path | None) -> Prepared:
    """Read what an earlier call has prepared from the same files, or prepare it; `path` may be a prepared folder.

    Raises:
        LabError: if a file is not as it should be, or the cache cannot be written.
    """
    if (path / KEY_FILE).is_file():
        return _read(path)
    sources = review_sources(path)
    vectors = find_vectors(path) if vectors is None else vectors
    if not vectors.is_file():
        raise LabError(f"{vectors}: no such file; pass it as --data.vectors")
    # The key of the cache has names, sizes and times of all files.
    files = [*(path for paths in sources.values() for path in [*paths, *film_files(paths)]), vectors]
    first = {part: str(paths[0].parent) for part, paths in sources.items() if paths}
    names = {"reviews": first, "vectors": str(vectors), "files": len(files)}
    key = {"format": _FORMAT, **names, "of": fingerprint(files)}
    root = path / ".contmax" if cache is None else cache
    return _read(prepared_folder(root, KEY_FILE, key, lambda folder: _prepare(sources, vectors, folder)))


def _prepare(sources: dict[str, list[Path]], vectors: Path, folder: Path) -> None:
    numbers: dict[str, int] = {}
    parts = {part: _numbered(sources[part], numbers) for part in REVIEW_PARTS}
    words, table = half_table(vectors, set(numbers))
    renumbered = np.full(len(numbers), UNKNOWN, dtype=np.int32)
    for position, word in enumerate(words):
        renumbered[numbers[word]] = FIRST_WORD + position
    np.save(folder / "vectors.npy", table)
    (folder / "words.txt").write_text("".join(f"{word}\n" for word in words), encoding="utf-8")
    for name, part in parts.items():
        part["tokens"] = renumbered[part["tokens"]]
        for field in _FIELDS:
            np.save(folder / f"{name}.{field}.npy", part[field])


def _numbered(paths: list[Path], numbers: dict[str, int]) -> dict[str, NDArray]:
    """Words as numbers in the order in which they are first met; `starts` ends with the end of the last review."""
    tokens: list[NDArray[np.int32]] = []
    labels: list[int] = []
    films: dict[str, int] = {"": -1}
    film: list[int] = []
    for review in read_reviews(paths):
        words = tokenize(review.text)
        if not words:
            raise LabError(f"{review.place}: the review has no words")
        tokens.append(np.array([numbers.setdefault(word, len(numbers)) for word in words], dtype=np.int32))
        labels.append(review.label)
        film.append(films.setdefault(review.film, len(films) - 1))
    for label in (0, 1):
        if label not in labels:
            raise LabError(f"{paths[0].parent}: no review has the label {label}")
    starts = np.cumsum([0, *map(len, tokens)], dtype=np.int64)
    arrays = np.concatenate(tokens), starts, np.array(labels, dtype=np.int8), np.array(film, dtype=np.int32)
    return dict(zip(_FIELDS, arrays, strict=True))


def _read(folder: Path) -> Prepared:
    try:
        words = (folder / "words.txt").read_text(encoding="utf-8").split("\n")[:-1]
        (train, films), (test, _) = (_read_part(folder, part) for part in REVIEW_PARTS)
        vectors: NDArray[np.float16] = np.load(folder / "vectors.npy", allow_pickle=False)
        if len(words) != len(vectors):
            raise ValueError(_UNFIT)
    except (OSError, ValueError, EOFError) as error:
        raise LabError(f"{folder} is damaged: {' '.join(str(error).split())}; delete it") from None
    return Prepared(words, vectors, train, test, films)


def _read_part(folder: Path, part: str) -> tuple[NumberedReviews, Tensor]:
    tokens, starts, labels, films = (
        torch.from_numpy(np.load(folder / f"{part}.{field}.npy", allow_pickle=False)) for field in _FIELDS
    )
    if int(starts[-1]) != len(tokens):
        raise ValueError(_UNFIT)
    return NumberedReviews(tokens, starts[:-1], starts.diff(), labels.long()), films


def load(data: DocumentsData, seed: int = 0) -> Splits:
    """Read, hold out the same share of both labels for validation, and take the words of the training reviews.

    The seed draws the random words of the deletion test.
    """
    if data.path is None:
        raise LabError(f"no path was given for the reviews; pass --data.path FOLDER. The original: {REVIEWS_ORIGINAL}")
    read = prepared(data.path, data.vectors, data.cache)
    train, test = read.train, read.test
    held_out = held_out_reviews(train.labels, read.films, data.valid, data.split)
    words = _words_of(train[~held_out], FIRST_WORD + len(read.words))[: data.max_words or None]
    columns = min(data.dimensions or read.vectors.shape[1], read.vectors.shape[1])
    vectors = torch.from_numpy(read.vectors[words - FIRST_WORD, :columns]).float()
    # A word without a vector of its own begins with the mean of all.
    table = torch.cat([torch.zeros(1, columns), vectors.mean(0, keepdim=True), vectors])
    numbers = torch.full((FIRST_WORD + len(read.words),), UNKNOWN, dtype=train.tokens.dtype)
    numbers[words] = torch.arange(FIRST_WORD, FIRST_WORD + len(words), dtype=numbers.dtype)
    train, test = (dataclasses.replace(part, tokens=numbers[part.tokens]) for part in (train, test))
    if data.deletion:
        test = test.with_draws(seed)
    known = [read.words[number - FIRST_WORD] for number in words.tolist()]
    info = {"vectors": table, "words": known, "vocabulary": len(known), "dimensions": columns}
    info["classes"] = ("negative", "positive")
    return Splits(train[~held_out], train[held_out], test, info)


def _words_of(documents: NumberedReviews, count: int) -> Tensor:
    """Numbers of the words that these reviews hold, all below `count`, in rising order, without unknown words."""
    ends = documents.starts + documents.lengths
    # +1 where a review begins, -1 where it ends: the running sum is 1 inside these reviews, 0 inside others.
    steps = torch.zeros(len(documents.tokens) + 1, dtype=torch.int8)
    steps.index_add_(0, documents.starts, torch.ones_like(documents.starts, dtype=torch.int8))
    steps.index_add_(0, ends, -torch.ones_like(ends, dtype=torch.int8))
    held = documents.tokens[steps[:-1].cumsum(0) > 0].long()
    return torch.bincount(held, minlength=count)[FIRST_WORD:].nonzero().flatten() + FIRST_WORD
