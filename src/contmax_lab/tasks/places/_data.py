"""Examples whose place is known: made anew for every step of a training, fixed for validation and test."""

import dataclasses
from collections.abc import Sequence

import torch
from torch import Tensor

from contmax_lab.contract import Batch, Splits
from contmax_lab.data import (
    DIGIT_CLASSES,
    MOTIONS,
    VOWELS,
    Images,
    Recordings,
    digit_rows,
    handwritten_digits,
    packaged_series,
    shuffled,
)
from contmax_lab.errors import LabError
from contmax_lab.tasks.places import PlacesData
from contmax_lab.tasks.places._scenes import (
    clutter_alone,
    digit_in_clutter,
    irregular,
    one_in_noise,
    resampled,
    two_in_noise,
    two_in_turn,
)

# Held-out images.
_VALID, _TEST = 200, 400
# The kinds of which a single recording is hidden in noise, and its class is to be told.
_ALONE = ("utterance", "motion", "rows")


@dataclasses.dataclass(frozen=True)
class Moving:
    """Examples that every call places anew, by torch's global generator.

    Args:
        data: how.
        source: what is to be found.
        spans: whether the true span of each may be learned from, shape (number of examples,).
    """

    data: PlacesData
    source: Recordings | Images
    spans: Tensor

    def __len__(self) -> int:
        return len(self.source)

    @property
    def example_lengths(self) -> list[int] | None:
        """Observations of each series; None for canvases."""
        return None if isinstance(self.source, Images) else [len(series) for series in self.source.series]

    def batch(self, indices: Sequence[int]) -> Batch:
        """The examples with these indices, each at a new place."""
        return {**self._drawn(indices), "span_known": self.spans[list(indices)]}

    def _drawn(self, indices: Sequence[int]) -> Batch:
        data, source = self.data, self.source
        if isinstance(source, Images):
            return digit_in_clutter(source[indices], source)
        chosen = source[indices]
        if data.kind in _ALONE:
            return one_in_noise(chosen, (data.shortest, data.longest))
        # For each utterance a random one of another speaker.
        differs = (chosen.label.unsqueeze(-1) != source.label).float()
        others = source[torch.multinomial(differs, 1).squeeze(-1).tolist()]
        if data.kind == "pair":
            return two_in_noise(chosen, others, int(source.label.max()) + 1)
        return irregular(two_in_turn(chosen, others), data.dropped)


@dataclasses.dataclass(frozen=True)
class Fixed:
    """Examples whose places do not change.

    Args:
        examples: all of them.
    """

    examples: Batch

    def __len__(self) -> int:
        return len(self.examples["label"])

    @property
    def example_lengths(self) -> list[int] | None:
        """Observations of each series; None for canvases."""
        return self.examples["mask"].sum(-1).tolist() if "mask" in self.examples else None

    def batch(self, indices: Sequence[int]) -> Batch:
        """The examples with these indices, without padding that none of them needs."""
        chosen = {name: tensor[list(indices)] for name, tensor in self.examples.items()}
        if "mask" not in chosen:
            return chosen
        longest = int(chosen["mask"].sum(-1).max())
        along_time = ("frames", "background", "mask", "positions")
        return {name: tensor[:, :longest] if name in along_time else tensor for name, tensor in chosen.items()}


def load(data: PlacesData) -> Splits:
    """Training examples are placed anew in every step; validation and test examples stay."""
    if data.shortest > data.longest or data.shortest < 1:
        raise LabError(
            f"series {data.shortest:g} to {data.longest:g} times as long as what is in them cannot be made; pass "
            "1 <= --data.shortest <= --data.longest"
        )
    if data.kind == "turns" and data.dropped >= 1:
        raise LabError("no observation of a series would be left; pass --data.dropped below 1")
    train: Recordings | Images
    valid: Recordings | Images
    test: Recordings | Images
    if data.kind == "digit":
        train, valid, test = handwritten_digits(_VALID, _TEST, data.split, data.path)
    else:
        if data.kind == "rows":
            found = digit_rows(_VALID, _TEST, data.split, data.path)
        else:
            found = packaged_series(MOTIONS if data.kind == "motion" else VOWELS, data.path, data.split)
        train, valid, test = (resampled(part, data.rate) for part in found)
    known = torch.zeros(len(train), dtype=torch.bool)
    known[shuffled(len(train), data.split)[: round(data.labelled * len(train))]] = True
    classes = DIGIT_CLASSES if isinstance(train, Images) else int(train.label.max()) + 1
    info = {
        "classes": 2 if data.kind == "pair" else classes,
        "channels": 1 if isinstance(train, Images) else train.series[0].shape[-1],
        "query_dim": classes if data.kind == "pair" else 0,
        "dim": 2 if isinstance(train, Images) else 1,
    }
    return Splits(
        Moving(data, train, known),
        _fixed(data, valid, data.valid_places, seed=2 * data.split),
        _fixed(data, test, data.test_places, seed=2 * data.split + 1, deletion=True),
        info,
    )


def _fixed(data: PlacesData, source: Recordings | Images, places: int, seed: int, *, deletion: bool = False) -> Fixed:
    """The examples in this many places; with `deletion`, also what their parts are replaced by."""
    moving = Moving(data, source, torch.zeros(len(source), dtype=torch.bool))
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(seed)
        batch = moving.batch([*range(len(source))] * places)
        if deletion and isinstance(source, Images):
            batch["background"] = clutter_alone(source, len(batch["pixels"]))
        elif deletion:
            batch["background"] = torch.randn_like(batch["frames"]) * batch["mask"].unsqueeze(-1)
        return Fixed(batch)
