"""Data that comes inside packages: handwritten digits of scikit-learn, spoken vowels of aeon."""

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


def handwritten_digits(valid: int, test: int, split: int) -> tuple[Images, Images, Images]:
    """All images, split at random.

    Args:
        valid: validation images.
        test: test images.
        split: seed of the split.

    Returns:
        Training, validation and test images.

    Raises:
        LabError: if scikit-learn or its file is missing, or no images are left to train.
    """
    images = _read_digits()
    if valid + test >= len(images):
        raise LabError(
            f"{valid} validation and {test} test images leave none of {len(images)} to train; pass smaller "
            "--data.valid, .test"
        )
    order = shuffled(len(images), split)
    return images[order[test + valid :]], images[order[test:][:valid]], images[order[:test]]


def _read_digits() -> Images:
    # The file of sklearn.datasets.load_digits, whose import takes longer than an epoch on the digits.
    path = require_folder("sklearn", "The demo's image data") / "datasets" / "data" / "digits.csv.gz"
    try:
        table = np.loadtxt(path, delimiter=",", dtype=np.float32)
    except (OSError, ValueError, EOFError) as error:
        told = f"the digits inside scikit-learn cannot be read ({' '.join(str(error).split())})"
        raise LabError(f"{told}: pip install --force-reinstall scikit-learn") from None
    numbers = torch.from_numpy(table)
    grey = numbers[:, :-1].reshape(-1, DIGIT_SIDE, DIGIT_SIDE) / _BRIGHTEST
    return Images(grey, numbers[:, -1].long())


_ORIGINAL = "aeon, pip install --force-reinstall aeon; https://archive.ics.uci.edu/dataset/128/japanese+vowels"
_CHANNELS = 12


@dataclasses.dataclass(frozen=True)
class Utterances:
    """Examples, one per utterance.

    Args:
        series: each of shape (L, 12), channels standardised over the training utterances.
        speaker: who it was, shape (number of utterances,), from 0.
    """

    series: list[Tensor]
    speaker: Tensor

    def __len__(self) -> int:
        return len(self.series)

    def __getitem__(self, indices: Sequence[int]) -> "Utterances":
        return Utterances([self.series[i] for i in indices], self.speaker[list(indices)])


def japanese_vowels(path: Path | None, valid: int, split: int) -> tuple[Utterances, Utterances, Utterances]:
    """The published split; validation utterances are taken evenly from the speakers of the training part.

    Args:
        path: folder with JapaneseVowels_TRAIN.ts and JapaneseVowels_TEST.ts; None = the one inside aeon.
        valid: validation utterances of each speaker.
        split: seed of their choice.

    Returns:
        Training, validation and test utterances.

    Raises:
        LabError: if a file is missing or a line is not as it should be.
    """
    folder = path or require_folder("aeon", "The demo's speech data") / "datasets" / "data" / "JapaneseVowels"
    known, test = (_read_vowels(folder / f"JapaneseVowels_{part}.ts") for part in ("TRAIN", "TEST"))
    held_out: list[int] = []
    for speaker in known.speaker.unique().tolist():
        own = (known.speaker == speaker).nonzero().flatten().tolist()
        if len(own) <= valid:
            raise LabError(f"speaker {speaker + 1} has {len(own)} training utterances; pass a smaller --data.valid")
        held_out += [own[i] for i in shuffled(len(own), split)[:valid]]
    train = known[sorted({*range(len(known))} - {*held_out})]
    frames = torch.cat(train.series)
    mean, std = frames.mean(0), frames.std(0)

    def standardised(part: Utterances) -> Utterances:
        # One operation on all frames, since one on a few frames takes as long.
        frames = (torch.cat(part.series) - mean) / std
        return Utterances(list(frames.split([len(series) for series in part.series])), part.speaker)

    return standardised(train), standardised(known[sorted(held_out)]), standardised(test)


def _read_vowels(path: Path) -> Utterances:
    """Lines of ``channel:channel:…:label``, a channel being comma-separated numbers, after a header of # and @."""
    existing_file(path, "the JapaneseVowels data", _ORIGINAL)
    numbers: list[float] = []
    lengths, speaker = [], []
    for number, text in numbered_lines(path):
        if not text.strip() or text[0] in "#@":
            continue
        *channels, label = text.split(":")
        place = Place(path, number)
        if len(channels) != _CHANNELS:
            raise place.problem(f"{len(channels)} channels where there should be {_CHANNELS}")
        read = [_numbers(channel, place) for channel in channels]
        if len({len(row) for row in read}) != 1:
            raise place.problem(f"channels of different lengths, {sorted({len(row) for row in read})}")
        if not label.strip().isdecimal() or int(label) < 1:
            raise place.problem(f"{label.strip()!r} is not the number of a speaker, 1, 2, …")
        for frame in zip(*read, strict=True):
            numbers += frame
        lengths.append(len(read[0]))
        speaker.append(int(label) - 1)
    if not speaker:
        raise LabError(f"{path} has no utterances; the original: {_ORIGINAL}")
    frames = torch.tensor(numbers).view(-1, _CHANNELS)
    return Utterances(list(frames.split(lengths)), torch.tensor(speaker))


def _numbers(text: str, place: Place) -> list[float]:
    try:
        values = list(map(float, text.split(",")))
    except ValueError:
        values = [math.nan]
    if not all(map(math.isfinite, values)):
        raise place.problem(f"{text[:40]!r} are not finite numbers with commas between them")
    return values
