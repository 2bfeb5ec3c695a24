"""Word vectors as text, a line for each word: the formats of GloVe and of word2vec."""

from collections.abc import Collection, Iterator
from pathlib import Path

import torch
from torch import Tensor

from contmax_lab.data._tables import Place, finite_number, numbered_text
from contmax_lab.errors import LabError


def vector_width(path: Path) -> int:
    """How many numbers a word vector has, by the first line of the file.

    Args:
        path: text, also with .gz behind.

    Raises:
        LabError: if there is no such file, or its first line is neither a word with numbers nor two counts.
    """
    width, _ = next(_lines(path), (0, None))
    if not width:
        raise LabError(f"{path} is empty; each line must be a word and its numbers, separated by spaces")
    return width


def read_vectors(path: Path, words: Collection[str]) -> dict[str, Tensor]:
    """The vectors of those words that the file has; of a word that it has twice, the first.

    Args:
        path: text, also with .gz behind.
        words: whose vectors are wanted.

    Raises:
        LabError: with the line, if one has more or fewer numbers than the first, or something that is not a number.
    """
    wanted, found = set(words), dict[str, Tensor]()
    for width, line in _lines(path):
        if line is None:
            continue
        place, text = line
        fields = text.split(" ")
        if len(fields) <= width:
            raise place.problem(f"{len(fields) - 1} numbers where the first line has {width}")
        # A few words of the great GloVe files contain spaces.
        word = " ".join(fields[:-width])
        if len(fields) > width + 1 and _is_number(fields[-width - 1]):
            raise place.problem(f"{len(fields) - 1} numbers where the first line has {width}")
        if word in wanted and word not in found:
            numbers = [finite_number(field, f"the vector of {word}", place) for field in fields[-width:]]
            vector = torch.tensor(numbers, dtype=torch.float64).float()
            if not bool(vector.isfinite().all()):
                raise place.problem(f"the vector of {word} has a number that is too large")
            found[word] = vector
    return found


def _lines(path: Path) -> Iterator[tuple[int, tuple[Place, str] | None]]:
    """The width, with every line that holds a word; first with None where the file begins with its counts."""
    width = 0
    for place, line in numbered_text(path):
        text = line.strip().replace("\t", " ")
        if not text:
            continue
        if not width:
            fields = text.split(" ")
            if len(fields) == 2 and all(field.isdecimal() for field in fields):  # word2vec: words, numbers of each
                width = int(fields[1])
                if not width:
                    raise place.problem("vectors of 0 numbers")
                yield width, None
                continue
            width = len(fields) - 1
            if not width or not all(map(_is_number, fields[1:])):
                raise place.problem(
                    "not a word and its numbers, separated by spaces, as in text files of GloVe and word2vec"
                )
        yield width, (place, text)


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True
