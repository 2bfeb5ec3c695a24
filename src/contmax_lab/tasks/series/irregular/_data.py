"""Series of the user's own, or of aeon with observations dropped at random."""

import math
from pathlib import Path

import torch

from contmax_lab.contract import Splits
from contmax_lab.data import MOTIONS, VOWELS, Place, Recordings, packaged_series
from contmax_lab.labelled import Label, Parts, Targets, some
from contmax_lab.tasks.series._columns import Columns
from contmax_lab.tasks.series._data import load as load_tables
from contmax_lab.tasks.series._data import splits_of
from contmax_lab.tasks.series._reading import OneSeries
from contmax_lab.tasks.series.irregular import IrregularData

# Which set, and how many of the training series of each class are held out for validation.
_SETS = {"vowels": (VOWELS, 6), "motions": (MOTIONS, 3)}


def load(data: IrregularData) -> Splits:
    """The tables of the user; or the published split of a set of aeon, and what is left of its observations."""
    if data.train is not None:
        return load_tables(data)
    which, held_out = _SETS[data.name]
    draws = torch.Generator().manual_seed(data.split)
    place = Place(data.path or Path(which.name))
    # Channels are scaled again by what is left of the training series, so that their scale here does not matter.
    parts = packaged_series(which, data.path, data.split, held_out)
    train, valid, test = (some(_dropped(part, data.dropped, draws, which.classes, place), data) for part in parts)
    channels = tuple(f"channel {number + 1}" for number in range(which.channels))
    columns = Columns("series", "frame", which.noun, channels)
    return splits_of(Parts(train, valid, test, Targets.of([each.label for each in train], "class")), columns)


def _dropped(
    part: Recordings, share: float, draws: torch.Generator, classes: tuple[str, ...], place: Place
) -> list[OneSeries]:
    """What is left if every value is dropped with this probability, whatever happens to the others."""
    found = []
    for number, (series, label) in enumerate(zip(part.series, part.label.tolist(), strict=True)):
        left = torch.rand(series.shape, generator=draws) >= share
        there = left.any(-1)
        values = torch.where(left, series.double(), math.nan)[there]
        times = there.nonzero().squeeze(-1).double()
        found.append(OneSeries(f"series {number + 1}", times, values, Label(classes[label], place)))
    return found
