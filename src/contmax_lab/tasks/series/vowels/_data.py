"""Japanese vowels as series."""

from pathlib import Path

import torch

from contmax_lab.contract import Splits
from contmax_lab.data import Place, Utterances, japanese_vowels
from contmax_lab.labelled import Label, Parts, Targets
from contmax_lab.tasks.series._data import splits_of
from contmax_lab.tasks.series._reading import Columns, OneSeries
from contmax_lab.tasks.series.vowels._settings import VowelsData


def load(data: VowelsData) -> Splits:
    """The published split."""
    train, valid, test = (_series(part, data) for part in japanese_vowels(data.path, data.valid, data.split))
    channels = train[0].values.shape[-1]
    columns = Columns("utterance", "frame", "speaker", tuple(f"coefficient {i + 1}" for i in range(channels)))
    targets = Targets.of([each.label for each in train], "class")
    return splits_of(Parts(train, valid, test, targets), columns)


def _series(part: Utterances, data: VowelsData) -> list[OneSeries]:
    place = Place(data.path or Path("JapaneseVowels"))
    return [
        OneSeries(
            f"{len(series)} frames",
            torch.arange(len(series), dtype=torch.float64),
            series.double(),
            Label(f"speaker {speaker + 1}", place),
        )
        for series, speaker in zip(part.series, part.speaker.tolist(), strict=True)
    ]
