"""The task vowels: the utterances and the table of the demo."""

from pathlib import Path

import torch

from contmax_lab.contract import Splits, attention_table, seedless
from contmax_lab.data import VOWELS as UTTERANCES
from contmax_lab.data import Place, Recordings, packaged_series
from contmax_lab.labelled import Label, OnInstalledData, Parts, Targets
from contmax_lab.tasks.series._columns import Columns
from contmax_lab.tasks.series._data import splits_of
from contmax_lab.tasks.series._reading import OneSeries
from contmax_lab.tasks.series._task import SeriesTask
from contmax_lab.tasks.series.vowels import SETTINGS, VowelsData

VOWELS = attention_table(
    "vowels",
    "Who speaks? Attention over time",
    domain="utterance",
    about=(
        "Nine men say the Japanese vowels a and e; which of them speaks? 640 utterances of 7 to 29 frames, each frame "
        "twelve cepstral coefficients, in the published split: 270 to train (54 of them for validation) and 370 to "
        "test. The task series: two convolutions over time, one attention that gathers a single vector, a linear "
        "classifier; only the attention differs between the rows. (Kudo, Toyama & Shimbo 1999; data inside the package "
        "aeon.)"
    ),
)


def load(data: VowelsData) -> Splits:
    """The published split."""
    parts = packaged_series(UTTERANCES, data.path, data.split, data.valid)
    train, valid, test = (_series(part, data) for part in parts)
    channels = train[0].values.shape[-1]
    columns = Columns("utterance", "frame", "speaker", tuple(f"coefficient {i + 1}" for i in range(channels)))
    targets = Targets.of([each.label for each in train], "class")
    return splits_of(Parts(train, valid, test, targets), columns)


def _series(part: Recordings, data: VowelsData) -> list[OneSeries]:
    place = Place(data.path or Path("JapaneseVowels"))
    return [
        OneSeries(
            f"{len(series)} frames",
            torch.arange(len(series), dtype=torch.float64),
            series.double(),
            Label(f"speaker {speaker + 1}", place),
        )
        for series, speaker in zip(part.series, part.label.tolist(), strict=True)
    ]


class Vowels(OnInstalledData, SeriesTask, settings=SETTINGS):
    """Tell speakers apart."""

    summary = "which of nine speakers says two Japanese vowels: the task series on data that is installed"
    reproduces = (VOWELS,)
    load = seedless(load)


TASK = Vowels()
