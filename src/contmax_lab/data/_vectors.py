"""Word vectors: as text, a line for each word, in the formats of GloVe and word2vec; or an array beside its words."""

from collections.abc import Collection, Iterator, Sequence
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from contmax_lab.data._tables import Place, existing_file, finite_number, numbered_lines
from contmax_lab.errors import LabError

ORIGINAL = "https://nlp.stanford.edu/projects/glove"


def find_vectors(folder: Path) -> Path:
    """The file of word vectors in a folder of texts.

    Raises:
        LabError: if there is none, or more than one.
    """
    arrays = [path for path in sorted(folder.glob("*.npy")) if _vocabulary_file(path).exists()]
    found = arrays or sorted(folder.glob("glove*.txt"))
    if len(found) == 1:
        return found[0]
    what = "no word vectors" if not found else f"{len(found)} files of word vectors"
    raise LabError(f"{folder}: {what}; pass one as --data.vectors: .txt of GloVe, or .npy with .vocab.txt. {ORIGINAL}")


def vector_width(path: Path) -> int:
    """How many numbers a word vector has, by the first line of the file.

    Args:
        path: as `read_vectors` takes it.

    Raises:
        LabError: if there is no such file, or its first line is neither a word with numbers nor two counts.
    """
    if path.suffix == ".npy":
        return int(_array(path)[1].shape[1])
    for number, line in numbered_lines(path):
        if text := line.strip().replace("\t", " "):
            return _width(text.split(" "), Place(path, number))
    raise LabError(f"{path} is empty; each line must be a word and its numbers, separated by spaces")


def read_vectors(path: Path, words: Collection[str]) -> dict[str, Tensor]:
    """The vectors of those words that the file has, in its order; of a word that it has twice, the first.

    Args:
        path: ``NAME.npy``, (words, D), with ``NAME.vocab.txt``, a word per line; else a text file, in each line a word
            and D numbers, also with .gz behind.
        words: those to find vectors for.

    Raises:
        LabError: with the line, if one has more or fewer numbers than the first, or something that is not a number.
    """
    existing_file(path, "word vectors", ORIGINAL)
    return _of_array(path, set(words)) if path.suffix == ".npy" else _of_text(path, set(words))


def half_table(path: Path, words: Collection[str]) -> tuple[list[str], NDArray[np.float16]]:
    """The words of these that the file has, and their vectors (words, D) in half precision: 3 digits are enough.

    Raises:
        LabError: as `read_vectors`; also if it has none of the words, or a number too large for half precision.
    """
    found = read_vectors(path, words)
    if not found:
        raise LabError(f"{path} has no vector for any word of the texts; its words must be in lower case")
    half = torch.stack(list(found.values())).half()
    for word, vector in zip(found, half, strict=True):
        if not bool(vector.isfinite().all()):
            raise LabError(f"{path}: the vector of {word} is not finite, or too large for float16")
    return list(found), half.numpy()


# -- arrays ------------------------------------------------------------------------------------------------------------


def _vocabulary_file(path: Path) -> Path:
    """NAME.vocab.txt for NAME.npy; also for NAME.f16.npy."""
    stem = path.with_suffix("")
    short = stem.with_suffix("") if stem.suffix in (".f16", ".f32") else stem
    return short.with_name(f"{short.name}.vocab.txt")


def _array(path: Path) -> tuple[list[str], NDArray[np.floating]]:
    listed = existing_file(_vocabulary_file(path), f"the words of {path.name}, one per line", ORIGINAL)
    words = [line for _, line in numbered_lines(listed)]
    try:
        vectors = np.load(path, mmap_mode="r", allow_pickle=False)
    except (ValueError, OSError, EOFError) as error:
        raise LabError(f"{path} is not a numpy array: {' '.join(str(error).split())}") from None
    if vectors.ndim != 2 or not np.issubdtype(vectors.dtype, np.floating):
        raise LabError(f"{path}: {vectors.dtype} of shape {vectors.shape}; expected floats of shape (words, D)")
    if len(words) != len(vectors):
        raise LabError(f"{listed} has {len(words)} words for the {len(vectors)} vectors of {path.name}")
    return words, vectors


def _of_array(path: Path, wanted: set[str]) -> dict[str, Tensor]:
    words, vectors = _array(path)
    rows = {word: row for row, word in reversed(list(enumerate(words))) if word in wanted}
    kept = sorted(rows.items(), key=lambda item: item[1])
    table = torch.from_numpy(vectors[[row for _, row in kept]].astype(np.float32))
    return dict(zip((word for word, _ in kept), table, strict=True))


# -- text --------------------------------------------------------------------------------------------------------------


def _of_text(path: Path, wanted: set[str]) -> dict[str, Tensor]:
    found: dict[str, Tensor] = {}
    for width, place, fields in _vectors(path):
        count = len(fields) - 1
        # A few words of the great GloVe files contain spaces; a number before the vector is no part of a word.
        if count < width or (count > width and _is_number(fields[-width - 1])):
            raise place.problem(f"{count} numbers where the first line has {width}")
        word = " ".join(fields[:-width])
        if word in wanted and word not in found:
            numbers = [finite_number(field, f"the vector of {word}", place) for field in fields[-width:]]
            found[word] = torch.tensor(numbers, dtype=torch.float64).float()
            if not bool(found[word].isfinite().all()):
                raise place.problem(f"the vector of {word} has a number that is too large")
    return found


def _vectors(path: Path) -> Iterator[tuple[int, Place, list[str]]]:
    """The width D, with the fields of every line that holds a word."""
    width = 0
    for number, line in numbered_lines(path):
        place, fields = Place(path, number), line.strip().replace("\t", " ").split(" ")
        if fields == [""]:
            continue
        if not width:
            width = _width(fields, place)
            if _is_counts(fields):
                continue
        yield width, place, fields


def _width(first: Sequence[str], place: Place) -> int:
    """D by the fields of the first line: a word with D numbers, or the counts of words and numbers of word2vec."""
    if _is_counts(first):
        if not (width := int(first[1])):
            raise place.problem("vectors of 0 numbers")
        return width
    if len(first) < 2 or not all(map(_is_number, first[1:])):
        raise place.problem("not a word and its numbers, separated by spaces, as in text files of GloVe and word2vec")
    return len(first) - 1


def _is_counts(fields: Sequence[str]) -> bool:
    return len(fields) == 2 and all(field.isdecimal() for field in fields)


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True
