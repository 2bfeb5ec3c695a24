"""Stays as tensors: values in the scale of the training stays, times before the last observation of each variable."""

import dataclasses
import functools
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from contmax_lab.channels import HOURS, Sizes, basis_of, observations, signals, warped, weights_and_intensity
from contmax_lab.contract import Batch, Splits
from contmax_lab.data import held_out_share, limited, shuffled
from contmax_lab.errors import LabError
from contmax_lab.tasks.physionet import PhysionetData
from contmax_lab.tasks.physionet._reading import STATIC, VARIABLES, Records, prepared, read

FOLDS = 5
# Values are clamped to these quantiles of the training observations, numbers of summaries to ±_LARGEST deviations.
_QUANTILES = (0.005, 0.995)
_LARGEST = 5.0


@dataclasses.dataclass(frozen=True)
class Cohort:
    """The data of stays that do not depend on a split: nothing in them is learned.

    Args:
        died: whether the patient died in hospital, 0 or 1, (B,).
        static: age, gender, height and ward, (B, 4), NaN where not known.
        counts: numbers of observations of each variable, (B, C).
        minutes, values: time since admission and value of each observation, sorted by stay, variable and time, (N,).
    """

    died: Tensor
    static: Tensor
    counts: Tensor
    minutes: Tensor
    values: Tensor

    @classmethod
    def of(cls, records: Records) -> "Cohort":
        """The cohort of all stays in the prepared file."""
        return cls(
            torch.from_numpy(records.died.astype(np.int64)),
            torch.from_numpy(records.static),
            torch.from_numpy(records.counts.astype(np.int64)),
            torch.from_numpy(records.minutes.astype(np.float32)),
            torch.from_numpy(records.values),
        )

    @functools.cached_property
    def group(self) -> Tensor:
        """The index of the sequence of each observation, stay · C + variable, (N,)."""
        return torch.repeat_interleave(torch.arange(self.counts.numel()), self.counts.flatten())

    @functools.cached_property
    def variable(self) -> Tensor:
        """The index of the variable of each observation, (N,)."""
        return self.group % len(VARIABLES)

    @functools.cached_property
    def ends(self) -> Tensor:
        """For each sequence, one past the index of its last observation, (B, C)."""
        return self.counts.flatten().cumsum(0).view(self.counts.shape)

    @property
    def offsets(self) -> Tensor:
        """The index of the first observation of each stay, then the number of all observations, (B + 1,)."""
        return torch.cat([torch.zeros(1, dtype=torch.int64), self.ends[:, -1]])

    def last(self, numbers: Tensor, otherwise: float) -> Tensor:
        """From one number per observation, that of the last observation of each variable, (N,) → (B, C).

        Variables without observations get `otherwise`.
        """
        if not len(numbers):
            return torch.full(self.counts.shape, otherwise)
        return torch.where(self.counts > 0, numbers[(self.ends - 1).clamp(min=0)], otherwise)

    @functools.cached_property
    def before(self) -> Tensor:
        """Position of each observation before the last one of its variable in its stay, (N,)."""
        last = self.last(self.minutes, 0.0).flatten()
        return warped((last[self.group] - self.minutes) / 60)

    def without(self, dropped: Tensor) -> "Cohort":
        """The cohort without the observations where `dropped`, (N,), is True."""
        left = self.group[~dropped].bincount(minlength=self.counts.numel()).view(self.counts.shape)
        return Cohort(self.died, self.static, left, self.minutes[~dropped], self.values[~dropped])

    def part(self, stays: Tensor) -> tuple["Cohort", Tensor]:
        """The cohort of some of the stays, and the indices of their observations in this cohort."""
        starts, lengths = self.offsets[stays], self.counts[stays].sum(-1)
        places = _ranges(starts, lengths)
        chosen = self.died[stays], self.static[stays], self.counts[stays]
        return Cohort(*chosen, self.minutes[places], self.values[places]), places


def _ranges(starts: Tensor, lengths: Tensor) -> Tensor:
    """The concatenation of the ranges start, start + 1, …, start + length − 1."""
    shift = torch.repeat_interleave(starts - (lengths.cumsum(0) - lengths), lengths)
    return torch.arange(len(shift)) + shift


@dataclasses.dataclass(frozen=True)
class Scale:
    """The scale of all numbers, learned from the training stays alone.

    Args:
        logged: whether the logarithm of a variable is taken, (C,).
        low, high: bounds to which its values are clamped, (C,).
        centre, width: mean and standard deviation of the clamped values, (C,).
        mean, deviation: mean and standard deviation of the numbers of a summary, (S,).
    """

    logged: Tensor
    low: Tensor
    high: Tensor
    centre: Tensor
    width: Tensor
    mean: Tensor
    deviation: Tensor

    @classmethod
    def of(cls, training: Cohort) -> "Scale":
        """The scale learned from these stays."""
        numbers = [_of_values(training.values[training.variable == place].numpy()) for place in range(len(VARIABLES))]
        logged, low, high, centre, width = (torch.tensor(column) for column in zip(*numbers, strict=True))
        nothing = torch.zeros(1), torch.ones(1)
        scale = cls(logged, low, high, centre, width, *nothing)
        summary = _summary(training, scale.values(training))
        deviation = summary.std(0)
        return dataclasses.replace(scale, mean=summary.mean(0), deviation=torch.where(deviation > 1e-6, deviation, 1.0))

    def values(self, cohort: Cohort) -> Tensor:
        """Values of the observations in deviations from the mean, (N,)."""
        variable = cohort.variable
        logged = cohort.values.clamp(min=0).add(0.1).log()
        values = torch.where(self.logged[variable], logged, cohort.values)
        cut = values.clamp(self.low[variable], self.high[variable])
        return (cut - self.centre[variable]) / self.width[variable]

    def summary(self, cohort: Cohort, values: Tensor) -> Tensor:
        """Last values, numbers of observations, times since the last one, and static numbers, all scaled, (B, S)."""
        return ((_summary(cohort, values) - self.mean) / self.deviation).clamp(-_LARGEST, _LARGEST)


def _of_values(values: NDArray) -> tuple[bool, float, float, float, float]:
    """For one variable: whether to take the logarithm, the bounds of its values, and mean and deviation within them."""
    if not len(values):
        return False, 0.0, 0.0, 0.0, 1.0
    taken = []
    for is_logged in (False, True):
        if is_logged and values.min() < 0:
            continue
        numbers = np.log(values + 0.1) if is_logged else values.astype(np.float64)
        low, high = np.quantile(numbers, _QUANTILES)
        cut = np.clip(numbers, low, high)
        width = max(float(cut.std()), 1e-6) if high > low else 1.0
        skew = abs(float((((cut - cut.mean()) / width) ** 3).mean()))
        taken.append((skew, (is_logged, float(low), float(high), float(cut.mean()), width)))
    # Take the logarithm if the distribution is then less skewed.
    return min(taken, key=lambda one: one[0])[1]


def _summary(cohort: Cohort, values: Tensor) -> Tensor:
    since = HOURS - cohort.last(cohort.minutes, 0.0) / 60
    age, gender, height, ward = cohort.static.unbind(-1)
    unknown = cohort.static[:, :3].isnan()
    static = [age, gender, height]
    # Unknown numbers become 0; for gender and height a further column says that they are unknown.
    static = [torch.where(missing, 0.0, column) for column, missing in zip(static, unknown.unbind(-1), strict=True)]
    wards = torch.stack([ward == number for number in range(1, 5)], -1).float()
    own = torch.cat([torch.stack(static, -1), unknown[:, 1:].float(), wards], -1)
    return torch.cat([cohort.last(values, 0.0), cohort.counts.log1p(), since.log1p(), own], -1)


# How many static numbers a summary has, at its end.
STATIC_NUMBERS = len(STATIC) + 5


@dataclasses.dataclass(frozen=True)
class Stays:
    """Stays as a network takes them.

    Args:
        cohort: the stays as they were measured.
        scale: the scale of the training stays.
        values: scaled values of the observations, (N,).
        summary: scaled numbers about each stay, (B, S).
        signals: coefficients of the signals, (B, C, K, 4); empty if the layout has no signals.
        is_test: whether these are the test stays, whose batches hold observations beside signals.
        data: the settings.
    """

    cohort: Cohort
    scale: Scale
    values: Tensor
    summary: Tensor
    signals: Tensor
    is_test: bool
    data: PhysionetData

    @classmethod
    def of(
        cls,
        cohort: Cohort,
        scale: Scale,
        data: PhysionetData,
        *,
        is_test: bool,
        known: tuple[Tensor, Tensor] | None = None,
    ) -> "Stays":
        """Scale, summarise, fit signals.

        Args:
            cohort: the stays.
            scale: the scale of the training stays.
            data: the settings.
            is_test: whether these are the test stays: the deletion test needs observations beside the signals.
            known: ridge weights (N, K) and intensities (B, C, K), where they have been computed.
        """
        values = scale.values(cohort)
        fitted = torch.zeros(0)
        if data.layout == "signals":
            fitted = signals(values, cohort.group, *(_fits(cohort, data) if known is None else known))
        return cls(cohort, scale, values, scale.summary(cohort, values), fitted, is_test, data)

    @property
    def shows_observations(self) -> bool:
        """Whether batches hold the observations."""
        return self.data.layout == "observations" or (self.is_test and self.data.layout == "signals")

    def __len__(self) -> int:
        return len(self.cohort.died)

    def batch(self, indices: Sequence[int]) -> Batch:
        """Summaries, targets, and signals or observations; a stay's observations are a row, padded to the longest."""
        stays = torch.as_tensor(indices, dtype=torch.long)
        batch = {"summary": self.summary[stays], "target": self.cohort.died[stays].float(), "place": stays}
        batch["tested"] = torch.full((len(stays),), self.is_test)
        if len(self.signals):
            batch["signals"] = self.signals[stays]
        if not self.shows_observations:
            return batch
        own, places = self.cohort.part(stays)
        return {**batch, **observations(self.values[places], own.before, own.minutes / 60, own.group, own.counts)}

    def without(self, indices: Tensor, dropped: Tensor) -> "Stays":
        """Some stays without some observations; summaries and signals are computed again.

        Args:
            indices: which stays, (b,).
            dropped: True for observations to leave out, in the order of a batch, padded, (b, L).
        """
        own, _ = self.cohort.part(indices)
        lengths = own.counts.sum(-1).tolist()
        gone = torch.cat([row[:length] for row, length in zip(dropped, lengths, strict=True)])
        return Stays.of(own.without(gone), self.scale, self.data, is_test=self.is_test)


@functools.lru_cache(maxsize=2)
def _known(folder: Path, data: PhysionetData) -> tuple[Cohort, tuple[Tensor, Tensor] | None]:
    """All stays, and the ridge weights and intensities of their signals, which do not depend on the split."""
    cohort = Cohort.of(read(folder))
    return cohort, _fits(cohort, data) if data.layout == "signals" else None


def _fits(cohort: Cohort, data: PhysionetData) -> tuple[Tensor, Tensor]:
    return weights_and_intensity(cohort.before, cohort.counts, basis_of(data.functions), data.penalty)


@functools.lru_cache(maxsize=2)
def load(data: PhysionetData) -> Splits:
    """Read, divide, learn the scale from the training stays, and fit signals."""
    folder = prepared(data)
    records = read(folder)
    if data.sets == "ab" and not records.in_b.any():
        raise LabError(f"{data.path} has no set b; unpack set-b.tar.gz and Outcomes-b.txt, or pass --data.sets a")
    # The settings on which weights and intensities depend.
    common = PhysionetData(layout=data.layout, functions=data.functions, penalty=data.penalty)
    cohort, known = _known(folder, common)
    chosen = np.flatnonzero(records.in_b == 0) if data.sets == "a" else np.arange(len(records.died))
    chosen = chosen[limited(len(chosen), data.limit, data.fold)]
    divided = (
        mtan_split(len(chosen)) if data.split == "mtan" else folds(records.died[chosen].tolist(), data.fold, data.valid)
    )
    indices = [torch.from_numpy(chosen[places]) for places in divided]
    scale = Scale.of(cohort.part(indices[0])[0])
    parts = []
    for place, own in enumerate(indices):
        part, observations = cohort.part(own)
        fits = None if known is None else (known[0][observations], known[1][own])
        parts.append(Stays.of(part, scale, data, is_test=place == 2, known=fits))
    died = [f"{float(part.cohort.died.float().mean()):.1%}" for part in parts]
    sizes = Sizes(len(VARIABLES), parts[0].summary.shape[-1], STATIC_NUMBERS)
    info = {"sizes": sizes, "died": tuple(died), "data": data, "stays": parts}
    train, valid, test = parts
    return Splits(train, valid, test, info)


def mtan_split(count: int) -> tuple[NDArray, NDArray, NDArray]:
    """Places of the training, validation and test stays as in the code of mTAN: scikit-learn's, with seeds 42 and 11.

    The stays are in the order of their record numbers; the code of mTAN does not document its order.

    Example:
        >>> [len(part) for part in mtan_split(4000)]
        [2560, 640, 800]
    """
    rest, test = _train_test(count, 42)
    train, valid = _train_test(len(rest), 11)
    return rest[train], rest[valid], test


def _train_test(count: int, seed: int) -> tuple[NDArray, NDArray]:
    """The indices that scikit-learn's train_test_split(train_size=0.8, random_state=seed) returns: training, test."""
    order = np.random.RandomState(seed).permutation(count)
    train = int(0.8 * count)
    test = count - train
    return order[test : test + train], order[:test]


def folds(died: Sequence[int], fold: int, valid: float) -> tuple[list[int], list[int], list[int]]:
    """Places of the training, validation and test stays, each with its share of deaths.

    Example:
        >>> [len(part) for part in folds([0, 1] * 10, fold=0, valid=0.25)]
        [12, 4, 4]
    """
    if fold >= FOLDS:
        raise LabError(f"--data.fold={fold}, but there are {FOLDS} folds, numbered from 0; pass a smaller one")
    fold_of: dict[int, int] = {}
    for label in (0, 1):
        own = [place for place in shuffled(len(died), 2012) if died[place] == label]
        if len(own) < FOLDS:
            raise LabError(f"{len(own)} stays have the outcome {label}, too few for {FOLDS} folds; use more stays")
        fold_of |= {place: turn % FOLDS for turn, place in enumerate(own)}
    test = [place for place in range(len(died)) if fold_of[place] == fold]
    rest = [place for place in range(len(died)) if fold_of[place] != fold]
    held_out = held_out_share([str(died[place]) for place in rest], valid, fold)
    validation = [rest[turn] for turn in held_out]
    return sorted({*rest} - {*validation}), validation, test
