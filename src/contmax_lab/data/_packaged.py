"""Data that comes inside packages: handwritten digits of scikit-learn; vowels and motions of aeon."""

import dataclasses
import math
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from contmax_lab.data._splitting import shuffled
from contmax_lab.data._tables import Place, existing_file, numbered_lines
from contmax_lab.errors import LabError
from contmax_lab.packages import require_folder

DIGIT_SIDE = 8
DIGIT_CLASSES = 10
_BRIGHTEST = 16.0


@dataclasses.dataclass(frozen=True)
class Images:
    """Examples, one per image.

    Args:
        pixels: from 0 to 1, shape (number of images, 8, 8).
        digit: what was written, shape (number of images,).
    """

    pixels: Tensor
    digit: Tensor

    def __len__(self) -> int:
        return len(self.digit)

    def __getitem__(self, indices: Sequence[int]) -> "Images":
        chosen = list(indices)
        return Images(self.pixels[chosen], self.digit[chosen])


def handwritten_digits(valid: int, test: int, split: int, path: Path | None = None) -> tuple[Images, Images, Images]:
    """All images, split at random.

    Args:
        valid: validation images.
        test: test images.
        split: seed of the split.
        path: folder with digits.csv.gz; None = the one inside scikit-learn.

    Returns:
        Training, validation and test images.

    Raises:
        LabError: if scikit-learn or its file is missing, or no images are left to train.
    """
    images = _read_digits(path)
    if valid + test >= len(images):
        raise LabError(
            f"{valid} validation and {test} test images leave none of {len(images)} to train; pass smaller "
            "--data.valid, .test"
        )
    order = shuffled(len(images), split)
    return images[order[test + valid :]], images[order[test:][:valid]], images[order[:test]]


def _read_digits(path: Path | None = None) -> Images:
    # The file of sklearn.datasets.load_digits, whose import takes longer than an epoch on the digits.
    folder = path or require_folder("sklearn", "The demo's image data") / "datasets" / "data"
    try:
        table = np.loadtxt(folder / "digits.csv.gz", delimiter=",", dtype=np.float32)
    except (OSError, ValueError, EOFError) as error:
        of = f"in {path}" if path else "inside scikit-learn"
        told = f"the digits {of} cannot be read ({' '.join(str(error).split())})"
        raise LabError(f"{told}: pip install --force-reinstall scikit-learn") from None
    numbers = torch.from_numpy(table)
    grey = numbers[:, :-1].reshape(-1, DIGIT_SIDE, DIGIT_SIDE) / _BRIGHTEST
    return Images(grey, numbers[:, -1].long())


_CLASSIFICATION = "https://www.timeseriesclassification.com"


@dataclasses.dataclass(frozen=True)
class Recordings:
    """Examples, one per series of observations.

    Args:
        series: each of shape (L, C), channels standardised over the training examples.
        label: the class, shape (number of series,), from 0.
    """

    series: list[Tensor]
    label: Tensor

    def __len__(self) -> int:
        return len(self.series)

    def __getitem__(self, indices: Sequence[int]) -> "Recordings":
        return Recordings([self.series[i] for i in indices], self.label[list(indices)])


@dataclasses.dataclass(frozen=True)
class SeriesSet:
    """A set of labelled series inside aeon.

    Args:
        name: of its folder and files.
        channels: of an observation.
        classes: as the files spell them.
        held_out: validation examples of each class.
        noun: what a class is, for messages.
        origin: where the files are to be had.
    """

    name: str
    channels: int
    classes: tuple[str, ...]
    held_out: int
    noun: str = "class"
    origin: str = _CLASSIFICATION


VOWELS = SeriesSet(
    "JapaneseVowels",
    12,
    tuple(map(str, range(1, 10))),
    6,
    "speaker",
    "https://archive.ics.uci.edu/dataset/128/japanese+vowels",
)
MOTIONS = SeriesSet("BasicMotions", 6, ("standing", "running", "walking", "badminton"), 2)


def packaged_series(
    which: SeriesSet, path: Path | None, split: int, held_out: int | None = None
) -> tuple[Recordings, Recordings, Recordings]:
    """The published split; validation examples are taken evenly from the classes of the training part.

    Args:
        which: the set.
        path: folder with NAME_TRAIN.ts and NAME_TEST.ts; None = the one inside aeon.
        split: seed of the choice of validation examples.
        held_out: validation examples of each class; None = as many as the set says.

    Returns:
        Training, validation and test examples.

    Raises:
        LabError: if a file is missing or a line is not as it should be.
    """
    folder = path or require_folder("aeon", f"The data {which.name}") / "datasets" / "data" / which.name
    known, test = (_read_series(folder / f"{which.name}_{part}.ts", which) for part in ("TRAIN", "TEST"))
    chosen: list[int] = []
    count = which.held_out if held_out is None else held_out
    for label in known.label.unique().tolist():
        own = (known.label == label).nonzero().flatten().tolist()
        if len(own) <= count:
            said = which.classes[label]
            raise LabError(f"{which.noun} {said} has {len(own)} training examples; pass a smaller --data.valid")
        chosen += [own[i] for i in shuffled(len(own), split)[:count]]
    train = known[sorted({*range(len(known))} - {*chosen})]
    frames = torch.cat(train.series)
    mean, std = frames.mean(0), frames.std(0)
    return (
        _standardised(train, mean, std),
        _standardised(known[sorted(chosen)], mean, std),
        _standardised(test, mean, std),
    )


def digit_rows(
    valid: int, test: int, split: int, path: Path | None = None
) -> tuple[Recordings, Recordings, Recordings]:
    """Handwritten digits read from top to bottom: series of eight observations, each a row of eight pixels.

    Args:
        valid, test, split, path: as of `handwritten_digits`.

    Returns:
        Training, validation and test examples, standardised by one mean and one deviation of all pixels: some pixels
        at the border are white in nearly every scan.
    """
    parts = handwritten_digits(valid, test, split, path)
    mean, std = parts[0].pixels.mean(), parts[0].pixels.std()
    train, held_out, tests = (_standardised(Recordings(list(part.pixels), part.digit), mean, std) for part in parts)
    return train, held_out, tests


def _standardised(part: Recordings, mean: Tensor, std: Tensor) -> Recordings:
    # One operation on all frames, since one on a few frames takes as long.
    frames = (torch.cat(part.series) - mean) / std
    return Recordings(list(frames.split([len(series) for series in part.series])), part.label)


def _read_series(path: Path, which: SeriesSet) -> Recordings:
    """Lines of ``channel:channel:…:label``, a channel being comma-separated numbers, after a header of # and @."""
    original = f"aeon, pip install --force-reinstall aeon; {which.origin}"
    existing_file(path, f"the {which.name} data", original)
    numbers: list[float] = []
    lengths, labels = [], []
    for number, text in numbered_lines(path):
        if not text.strip() or text[0] in "#@":
            continue
        *channels, label = text.split(":")
        place = Place(path, number)
        if len(channels) != which.channels:
            raise place.problem(f"{len(channels)} channels where there should be {which.channels}")
        read = [_numbers(channel, place) for channel in channels]
        if len({len(row) for row in read}) != 1:
            raise place.problem(f"channels of different lengths, {sorted({len(row) for row in read})}")
        if label.strip().lower() not in which.classes:
            raise place.problem(f"{label.strip()!r} is no {which.noun}; there are {', '.join(which.classes)}")
        for frame in zip(*read, strict=True):
            numbers += frame
        lengths.append(len(read[0]))
        labels.append(which.classes.index(label.strip().lower()))
    if not labels:
        raise LabError(f"{path} has no series; the original: {original}")
    frames = torch.tensor(numbers).view(-1, which.channels)
    return Recordings(list(frames.split(lengths)), torch.tensor(labels))


def _numbers(text: str, place: Place) -> list[float]:
    try:
        values = list(map(float, text.split(",")))
    except ValueError:
        values = [math.nan]
    if not all(map(math.isfinite, values)):
        raise place.problem(f"{text[:40]!r} are not finite numbers with commas between them")
    return values
