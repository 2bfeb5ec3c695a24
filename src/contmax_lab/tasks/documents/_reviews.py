"""Reading reviews with their labels, in the layouts in which they are published."""

import dataclasses
import re
from collections.abc import Iterator
from pathlib import Path

from contmax_lab.data import existing_file, numbered_lines
from contmax_lab.errors import LabError

ORIGINAL = "https://ai.stanford.edu/~amaas/data/sentiment"
PARTS = ("train", "test")
_LABELS = {"0": 0, "1": 1, "neg": 0, "pos": 1}
_FILE_NAME = re.compile(r"\d+_\d+\.txt")
_COLUMNS = ("label", "id", "stars", "text")
_BREAK = re.compile(r"<br\s*/?>")
# In this order: a clitic, a word before "n't", a word (with its hyphens), any other sign by itself.
_TOKEN = re.compile(
    r"n't\b|'(?:s|re|ve|ll|d|m)\b|[a-z0-9]+(?:-[a-z0-9]+)*?(?=n't\b)|[a-z0-9]+(?:-[a-z0-9]+)*|[^\sa-z0-9]"
)


@dataclasses.dataclass(frozen=True)
class Review:
    """One text.

    Args:
        label: 1 = positive, 0 = negative.
        text: as it was written.
        place: file and line, for complaints.
        film: what it is about, the same for all reviews of one film; empty where not known.
    """

    label: int
    text: str
    place: str
    film: str = ""


def review_sources(folder: Path) -> dict[str, list[Path]]:
    """The files that hold the reviews of each part, whichever layout the folder has.

    Args:
        folder: ``{train,test}/{pos,neg}/ID_STARS.txt``, perhaps below ``aclImdb``; or ``imdb_{train,test}.tsv``.

    Raises:
        LabError: if it has neither.
    """
    for root in (folder, folder / "aclImdb"):
        if all((root / part / side).is_dir() for part in PARTS for side in ("neg", "pos")):
            return {
                part: [
                    path for side in ("neg", "pos") for path in sorted((root / part / side).glob("*.txt"), key=_number)
                ]
                for part in PARTS
            }
    for pattern in ("imdb_{}.tsv", "{}.tsv"):
        files = {part: [folder / pattern.format(part)] for part in PARTS}
        if any(paths[0].exists() for paths in files.values()):
            for part, paths in files.items():
                existing_file(paths[0], f"the reviews of the part {part}", ORIGINAL)
            return files
    if folder.is_dir():
        found = "neither {train,test}/{pos,neg}/*.txt nor imdb_{train,test}.tsv"
    else:
        found = "a file" if folder.exists() else "no such folder"
    raise LabError(f"{folder}: {found}; pass the folder of the unpacked reviews. The original: {ORIGINAL}")


def _number(path: Path) -> tuple[int, str]:
    """Reviews of one film have neighbouring numbers."""
    number = path.name.partition("_")[0]
    return (int(number) if number.isdecimal() else -1, path.name)


def read_reviews(paths: list[Path]) -> Iterator[Review]:
    """The reviews of some files, in their order.

    Raises:
        LabError: at the first thing that is not as it should be, with file and line.
    """
    if not paths:
        raise LabError(f"there are no reviews: a folder pos or neg holds no .txt file. The original: {ORIGINAL}")
    films = {file: [line for _, line in numbered_lines(file)] for file in film_files(paths)}
    for path in paths:
        yield from _of_table(path) if path.suffix == ".tsv" else _of_file(path, films.get(_film_file(path)))


def film_files(paths: list[Path]) -> list[Path]:
    """The files ``urls_{pos,neg}.txt`` of the original archive, where line N, from 0, names the film of review N."""
    return [file for file in dict.fromkeys(map(_film_file, paths)) if file.is_file()]


def _film_file(path: Path) -> Path:
    return path.parents[1] / f"urls_{path.parent.name}.txt"


def _of_table(path: Path) -> Iterator[Review]:
    for number, line in numbered_lines(path):
        place = f"{path}, line {number}"
        fields = line.split("\t")
        if len(fields) != len(_COLUMNS):
            raise LabError(f"{place}: {len(fields)} columns where there should be 4, {' TAB '.join(_COLUMNS)}")
        if fields[0] not in ("0", "1"):
            raise LabError(f"{place}: the label is {fields[0][:20]!r}; it must be 0 (negative) or 1 (positive)")
        yield Review(_LABELS[fields[0]], fields[3], place)


def _of_file(path: Path, films: list[str] | None) -> Iterator[Review]:
    if not _FILE_NAME.fullmatch(path.name):
        raise LabError(f"{path}: the name of a review is ID_STARS.txt, e.g. 127_8.txt")
    text = " ".join(line for _, line in numbered_lines(path))
    number = int(path.name.partition("_")[0])
    if films is not None and number >= len(films):
        raise LabError(
            f"{_film_file(path)} has {len(films)} lines, none for {path.name}; delete it, or unpack it again"
        )
    yield Review(_LABELS[path.parent.name], text, str(path), films[number] if films else "")


def tokenize(text: str) -> list[str]:
    """Lower-case words, with clitics split off and punctuation by itself; line breaks of HTML are spaces.

    Example:
        >>> tokenize("It isn't Bergman's best sci-fi,<br />but we'd see it again!")
        ['it', 'is', "n't", 'bergman', "'s", 'best', 'sci-fi', ',', 'but', 'we', "'d", 'see', 'it', 'again', '!']
    """
    return _TOKEN.findall(_BREAK.sub(" ", text.lower()))
