"""Reading word vectors: the text format of GloVe, or an array beside a list of words."""

from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from contmax_lab.data._reading import existing_file, numbered_lines
from contmax_lab.errors import LabError

ORIGINAL = "https://nlp.stanford.edu/projects/glove"

Table = tuple[list[str], NDArray[np.float16]]


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


def read_vectors(path: Path, wanted: set[str]) -> Table:
    """The vectors of the wanted words that the file has, in its order.

    Args:
        path: ``NAME.npy``, (words, D), with ``NAME.vocab.txt``, a word per line; else a text file, in each line a word
            and D numbers.
        wanted: words to keep.

    Returns:
        Words, and their vectors (words, D).

    Raises:
        LabError: if a file is missing or not as it should be, with the line.
    """
    existing_file(path, "word vectors", ORIGINAL)
    words, vectors = _of_array(path, wanted) if path.suffix == ".npy" else _of_text(path, wanted)
    if not words:
        raise LabError(f"{path} has no vector for any word of the texts; it must be of lower-case words")
    return words, vectors


def _vocabulary_file(path: Path) -> Path:
    """NAME.vocab.txt for NAME.npy; also for NAME.f16.npy."""
    stem = path.with_suffix("")
    short = stem.with_suffix("") if stem.suffix in (".f16", ".f32") else stem
    return short.with_name(f"{short.name}.vocab.txt")


def _of_array(path: Path, wanted: set[str]) -> Table:
    listed = existing_file(_vocabulary_file(path), f"the words of {path.name}, one per line", ORIGINAL)
    words = [line for _, line in numbered_lines(listed)]
    try:
        vectors = np.load(path, mmap_mode="r", allow_pickle=False)
    except (ValueError, OSError, EOFError) as error:
        raise LabError(f"{path} is no array of numpy: {' '.join(str(error).split())}") from None
    if vectors.ndim != 2 or not np.issubdtype(vectors.dtype, np.floating):
        raise LabError(f"{path}: {vectors.dtype} of shape {vectors.shape}; expected floats of shape (words, D)")
    if len(words) != len(vectors):
        raise LabError(f"{listed} has {len(words)} words for the {len(vectors)} vectors of {path.name}")
    rows = [row for row, word in enumerate(words) if word in wanted]
    return [words[row] for row in rows], _as_half(vectors[rows], path)


def _of_text(path: Path, wanted: set[str]) -> Table:
    words: list[str] = []
    rows: list[NDArray[np.float32]] = []
    dim = 0
    for number, line in numbered_lines(path):
        if number == 1 and len(line.split(" ")) == 2:
            continue  # word2vec begins with how many words and numbers there are
        dim = dim or len(line.split(" ")) - 1
        # A word may hold spaces, a number cannot.
        word, *fields = line.rstrip(" ").rsplit(" ", dim)
        if len(fields) != dim or dim < 2:
            raise LabError(f"{path}, line {number}: {len(fields)} numbers after the word; expected {max(dim, 2)}")
        if word in wanted:
            try:
                rows.append(np.array(fields, dtype=np.float32))
            except ValueError:
                raise LabError(f"{path}, line {number}: what follows {word!r} are not {dim} numbers") from None
            words.append(word)
    return words, _as_half(np.array(rows, dtype=np.float32).reshape(len(rows), dim), path)


def _as_half(vectors: NDArray[np.floating], path: Path) -> NDArray[np.float16]:
    """Half precision: 3 digits are more than word vectors mean."""
    with np.errstate(over="ignore"):
        half = vectors.astype(np.float16)
    if not np.isfinite(half).all():
        row = int(np.flatnonzero(~np.isfinite(half).all(-1))[0])
        raise LabError(f"{path}: the vector of word {row + 1} is not finite, or too large for float16")
    return half
