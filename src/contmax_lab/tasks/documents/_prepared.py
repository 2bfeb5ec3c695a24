"""Reviews as arrays of numbers on disk, so that many processes begin within a second."""

import dataclasses
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from contmax_lab.data import find_vectors, half_table
from contmax_lab.errors import LabError
from contmax_lab.files import fingerprint, prepared_folder
from contmax_lab.tasks.documents._reviews import PARTS, film_files, read_reviews, review_sources, tokenize

KEY_FILE = "documents.json"
PADDING, UNKNOWN, FIRST_WORD = 0, 1, 2
# Part of the key: to be raised when the same files would give other arrays.
_FORMAT = 3


@dataclasses.dataclass(frozen=True)
class Part:
    """The reviews of one part of the data, one after the other.

    Args:
        tokens: numbers of all words: 1 = unknown, 2 + i = word i of the vocabulary.
        starts: where each review begins, and the end of the last, (reviews + 1,).
        labels: 0 or 1, (reviews,).
        films: number of the film, -1 where not known, (reviews,).
    """

    tokens: NDArray[np.int32]
    starts: NDArray[np.int64]
    labels: NDArray[np.int8]
    films: NDArray[np.int32]


@dataclasses.dataclass(frozen=True)
class Prepared:
    """Everything a training needs.

    Args:
        words: those of both parts that have a vector, in the order of the file of word vectors.
        vectors: (words, D).
        parts: ``train`` and ``test``.
    """

    words: list[str]
    vectors: NDArray[np.float16]
    parts: dict[str, Part]


def prepared(path: Path, vectors: Path | None, cache: Path | None) -> Prepared:
    """Read what an earlier call has prepared from the same files, or prepare it.

    Args:
        path: folder of reviews, or a folder that was prepared.
        vectors: file of word vectors; None = the one beside the reviews.
        cache: folder for what is prepared; None = ``.contmax`` beside the reviews.

    Raises:
        LabError: if a file is not as it should be, or the cache cannot be written.
    """
    if (path / KEY_FILE).is_file():
        return _read(path)
    sources = review_sources(path)
    vectors = find_vectors(path) if vectors is None else vectors
    if not vectors.is_file():
        raise LabError(f"{vectors}: no such file; pass it as --data.vectors")
    key, root = _key(sources, vectors), path / ".contmax" if cache is None else cache
    return _read(prepared_folder(root, KEY_FILE, key, lambda folder: _write(_prepare(sources, vectors), folder)))


def _key(sources: dict[str, list[Path]], vectors: Path) -> dict[str, object]:
    """What was read, as far as a look at the folder tells."""
    files = [*(path for paths in sources.values() for path in [*paths, *film_files(paths)]), vectors]
    first = {part: str(paths[0].parent) for part, paths in sources.items() if paths}
    of = fingerprint(files)
    return {"format": _FORMAT, "reviews": first, "vectors": str(vectors), "files": len(files), "of": of}


# -- preparing ---------------------------------------------------------------------------------------------------------


def _prepare(sources: dict[str, list[Path]], vectors: Path) -> Prepared:
    numbers: dict[str, int] = {}
    parts = {part: _numbered(sources[part], numbers) for part in PARTS}
    words, table = half_table(vectors, set(numbers))
    renumbered = np.full(len(numbers), UNKNOWN, dtype=np.int32)
    for position, word in enumerate(words):
        renumbered[numbers[word]] = FIRST_WORD + position
    return Prepared(
        words, table, {name: dataclasses.replace(part, tokens=renumbered[part.tokens]) for name, part in parts.items()}
    )


def _numbered(paths: list[Path], numbers: dict[str, int]) -> Part:
    """Words as numbers in the order in which they are first met."""
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
    return Part(np.concatenate(tokens), starts, np.array(labels, dtype=np.int8), np.array(film, dtype=np.int32))


# -- on disk -----------------------------------------------------------------------------------------------------------


def _write(made: Prepared, folder: Path) -> None:
    np.save(folder / "vectors.npy", made.vectors)
    (folder / "words.txt").write_text("".join(f"{word}\n" for word in made.words), encoding="utf-8")
    for name, part in made.parts.items():
        for field in dataclasses.fields(part):
            np.save(folder / f"{name}.{field.name}.npy", getattr(part, field.name))


def _read(folder: Path) -> Prepared:
    try:
        words = (folder / "words.txt").read_text(encoding="utf-8").split("\n")[:-1]
        parts = {
            name: Part(*(_array(folder / f"{name}.{field.name}.npy") for field in dataclasses.fields(Part)))
            for name in PARTS
        }
        vectors = _array(folder / "vectors.npy")
    except (OSError, ValueError, EOFError) as error:
        raise LabError(f"{folder} is damaged: {' '.join(str(error).split())}; delete it") from None
    if len(words) != len(vectors) or any(part.starts[-1] != len(part.tokens) for part in parts.values()):
        raise LabError(f"{folder} is damaged: its arrays do not fit together; delete it")
    return Prepared(words, vectors, parts)


def _array(path: Path) -> NDArray:
    array: NDArray = np.load(path, allow_pickle=False)
    return array
