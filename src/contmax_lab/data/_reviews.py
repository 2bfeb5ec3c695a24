"""Film reviews with their labels, in the layouts in which they are published, and which are held out for validation."""

import dataclasses
import math
import re
from collections.abc import Iterator, Sequence
from pathlib import Path

import torch
from torch import Tensor

from contmax_lab.data._splitting import shuffled
from contmax_lab.data._tables import existing_file, numbered_lines
from contmax_lab.errors import LabError

REVIEWS_ORIGINAL = "https://ai.stanford.edu/~amaas/data/sentiment"
REVIEW_PARTS = ("train", "test")
_LABELS = {"0": 0, "1": 1, "neg": 0, "pos": 1}
_FILE_NAME = re.compile(r"\d+_\d+\.txt")
_COLUMNS = ("label", "id", "stars", "text")
# Number of stretches of each label, among which those for validation are chosen.
_STRETCHES = 50


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
        if all((root / part / side).is_dir() for part in REVIEW_PARTS for side in ("neg", "pos")):
            return {
                part: [
                    path for side in ("neg", "pos") for path in sorted((root / part / side).glob("*.txt"), key=_number)
                ]
                for part in REVIEW_PARTS
            }
    for pattern in ("imdb_{}.tsv", "{}.tsv"):
        files = {part: [folder / pattern.format(part)] for part in REVIEW_PARTS}
        if any(paths[0].exists() for paths in files.values()):
            for part, paths in files.items():
                existing_file(paths[0], f"the reviews of the part {part}", REVIEWS_ORIGINAL)
            return files
    if folder.is_dir():
        found = "neither {train,test}/{pos,neg}/*.txt nor imdb_{train,test}.tsv"
    else:
        found = "a file" if folder.exists() else "no such folder"
    raise LabError(f"{folder}: {found}; pass the folder of the unpacked reviews. The original: {REVIEWS_ORIGINAL}")


def _number(path: Path) -> tuple[int, str]:
    """The key for sorting files of reviews: their numbers, which are neighbours for reviews of one film."""
    number = path.name.partition("_")[0]
    return (int(number) if number.isdecimal() else -1, path.name)


def read_reviews(paths: list[Path]) -> Iterator[Review]:
    """The reviews of some files, in their order.

    Raises:
        LabError: at the first thing that is not as it should be, with file and line.
    """
    if not paths:
        raise LabError(
            f"there are no reviews: a folder pos or neg holds no .txt file. The original: {REVIEWS_ORIGINAL}"
        )
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


def held_out_reviews(labels: Tensor, films: Tensor, share: float, seed: int) -> Tensor:
    """Which reviews are held out for validation: a share of each label, and no film on both sides.

    The films of the test half are not those of the training half, so neither should be those of validation. Where the
    films are known, whole films are held out, in random order, as long as no label gets more than its share. Where they
    are not, reviews of one film and label still lie side by side, and stretches of neighbours are held out. At the ends
    of a stretch a film is cut in two, and its reviews of the other label stay in training.

    Args:
        labels: 0 or 1, (B,).
        films: numbers from 0 on, -1 where not known, (B,).
        share: of each label; at least one review is held out.
        seed: of the choice.

    Raises:
        LabError: if every film has more reviews than the share.
    """
    wanted = [max(round(share * int((labels == label).sum())), 1) for label in (0, 1)]
    if bool((films < 0).any()):
        return _held_out_stretches(labels, wanted, seed)
    counts = torch.zeros(int(films.max()) + 1, 2, dtype=torch.long)
    counts.index_put_((films.long(), labels), torch.ones_like(labels), accumulate=True)
    chosen = torch.zeros(len(counts), dtype=torch.bool)
    for film in shuffled(len(counts), seed):
        left = [room - count for room, count in zip(wanted, counts[film].tolist(), strict=True)]
        if min(left) >= 0:
            chosen[film], wanted = True, left
    if not bool(chosen.any()):
        raise LabError("every film has more reviews than validation may hold; pass a larger --data.valid")
    return chosen[films.long()]


def _held_out_stretches(labels: Tensor, wanted: Sequence[int], seed: int) -> Tensor:
    held_out = torch.zeros(len(labels), dtype=torch.bool)
    for label, count in enumerate(wanted):
        places = (labels == label).nonzero().flatten()
        stretches = places.tensor_split(_STRETCHES)
        order = torch.cat([stretches[i] for i in shuffled(_STRETCHES, seed)])
        held_out[order[:count]] = True
    return held_out


@dataclasses.dataclass(frozen=True)
class NumberedReviews:
    """Reviews as numbers of words or tokens; a task says what the numbers mean.

    Args:
        tokens: the numbers of all reviews of a part, one after the other.
        starts: where each of these reviews begins, (B,).
        lengths: how many numbers it has, (B,).
        labels: 1 = positive, 0 = negative, (B,).
        draws: a random number in [0, 1) for each of the tokens; None = not to be tested by deletion.
        multiple: batches are padded to a multiple of this number.
    """

    tokens: Tensor
    starts: Tensor
    lengths: Tensor
    labels: Tensor
    draws: Tensor | None = None
    multiple: int = 1

    def __len__(self) -> int:
        return len(self.labels)

    def __getitem__(self, indices: Sequence[int] | Tensor) -> "NumberedReviews":
        chosen = indices if isinstance(indices, Tensor) else torch.as_tensor(indices, dtype=torch.long)
        parts = {name: getattr(self, name)[chosen] for name in ("starts", "lengths", "labels")}
        return dataclasses.replace(self, **parts)

    @property
    def example_lengths(self) -> list[int]:
        """The numbers that each review has."""
        lengths: list[int] = self.lengths.tolist()
        return lengths

    def batch(self, indices: Sequence[int]) -> dict[str, Tensor]:
        """``tokens`` (B, L), padded with 0, ``labels`` (B,), and ``draws`` (B, L) where there are random numbers."""
        chosen = self[indices]
        batch = {"tokens": chosen._padded(self.tokens).long(), "labels": chosen.labels}
        return batch if self.draws is None else {**batch, "draws": chosen._padded(self.draws)}

    def with_draws(self, seed: int) -> "NumberedReviews":
        """These reviews with random numbers for a test by deletion."""
        draws = torch.rand(len(self.tokens), generator=torch.Generator().manual_seed(seed))
        return dataclasses.replace(self, draws=draws)

    def _padded(self, of_tokens: Tensor) -> Tensor:
        steps = torch.arange(math.ceil(int(self.lengths.max()) / self.multiple) * self.multiple)
        places = (self.starts.unsqueeze(-1) + steps).clamp(max=len(self.tokens) - 1)
        return torch.where(steps < self.lengths.unsqueeze(-1), of_tokens[places], 0)
