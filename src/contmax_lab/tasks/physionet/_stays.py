"""Stays as tensors: values in the scale of the training stays, times before the last observation of each variable."""

import dataclasses
import functools
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

import contmax
from contmax_lab.contract import Batch, Splits
from contmax_lab.data import limited, stratified_fold
from contmax_lab.errors import LabError
from contmax_lab.tasks.physionet import PhysionetData
from contmax_lab.tasks.physionet._reading import HOURS, STATIC, VARIABLES, Cohort, prepared, read

FOLDS = 5
# Values are clamped to these quantiles of the training observations, numbers of summaries to ±_LARGEST deviations.
_QUANTILES = (0.005, 0.995)
_LARGEST = 5.0
# A signal has CHANNELS channels: the value, and its excess above and below _HINGE standard deviations. The intensity is
# one more.
_HINGE = 0.5
CHANNELS = 3
# Sequences are fitted in groups by length: up to 1 observation, up to 2, and so on. No stay has more than the last.
_TOGETHER = (1, 2, 4, 8, 16, 32, 64, 128, 4096)
_ROWS = 4096


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
        signals = torch.zeros(0)
        if data.layout == "signals":
            weights, intensity = weights_and_intensity(cohort, data) if known is None else known
            hinges = values, (values - _HINGE).relu(), (-values - _HINGE).relu()
            fits = [weights.new_zeros(intensity.flatten(0, 1).shape) for _ in hinges]
            for fit, hinge in zip(fits, hinges, strict=True):
                fit.index_add_(0, cohort.group, weights * hinge.unsqueeze(-1))
            signals = torch.stack([*(fit.view(intensity.shape) for fit in fits), intensity], -1)
        return cls(cohort, scale, values, scale.summary(cohort, values), signals, is_test, data)

    @property
    def shows_observations(self) -> bool:
        """Whether batches hold the observations."""
        return self.data.layout == "observations" or (self.is_test and self.data.layout == "signals")

    def __len__(self) -> int:
        return len(self.cohort.died)

    @property
    def example_lengths(self) -> list[int] | None:
        """Observations of each stay, where batches hold them."""
        lengths: list[int] = self.cohort.counts.sum(-1).tolist()
        return lengths if self.shows_observations else None

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
        lengths = own.counts.sum(-1).tolist()
        hours = own.minutes / 60
        columns = {
            "values": self.values[places],
            "before": own.before,
            "hours": hours,
            "span": spans(own),
            "variable": own.variable,
            "mask": torch.ones(len(places), dtype=torch.bool),
        }
        padded = {name: _padded(column, lengths) for name, column in columns.items()}
        return {**batch, **padded}

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


def _padded(column: Tensor, lengths: Sequence[int]) -> Tensor:
    rows: Tensor = pad_sequence(list(column.split(list(lengths))), batch_first=True)
    # A network needs at least one column, even if no stay of the batch was observed.
    return rows if rows.shape[1] else rows.new_zeros(len(lengths), 1)


def spans(cohort: Cohort) -> Tensor:
    """The length of the position axis that each observation stands for, between the midpoints to its neighbours, (N,).

    The first observation of a variable reaches as far into its past as into its future, and so does the last.

    Example:
        >>> counts = torch.zeros(1, len(VARIABLES), dtype=torch.int64)
        >>> counts[0, 3] = 3
        >>> times = torch.tensor([0.0, 60.0, 120.0])
        >>> spans(Cohort(torch.zeros(1), torch.zeros(1, 4), counts, times, times))
        tensor([0.1042, 0.1411, 0.1781])
    """
    before, group = cohort.before, cohort.group
    if len(before) < 2:
        return torch.ones_like(before)
    gaps = before[:-1] - before[1:]
    inside = group[:-1] == group[1:]
    empty = gaps.new_full((1,), torch.nan)
    left = torch.cat([empty, torch.where(inside, gaps, torch.nan)])
    right = torch.cat([torch.where(inside, gaps, torch.nan), empty])
    both = torch.stack([torch.where(left.isnan(), right, left), torch.where(right.isnan(), left, right)])
    # The only observation of a variable stands for the whole axis.
    return both.mean(0).nan_to_num(1.0).clamp(min=1e-3)


def weights_and_intensity(cohort: Cohort, data: PhysionetData) -> tuple[Tensor, Tensor]:
    """Ridge weights of all observations, (N, K), and the coefficients of intensities, (B, C, K)."""
    basis = basis_of(data)
    counts, ends = cohort.counts.flatten(), cohort.ends.flatten()
    weights = torch.zeros(len(cohort.values), basis.num_functions)
    intensity = torch.zeros(len(counts), basis.num_functions)
    for low, high in zip((0, *_TOGETHER), _TOGETHER, strict=False):
        chosen = ((counts > low) & (counts <= high)).nonzero().squeeze(-1)
        for some in chosen.split(max(1, _ROWS * 16 // high)) if len(chosen) else ():
            steps = torch.arange(int(counts[some].max()))
            mask = steps < counts[some].unsqueeze(-1)
            places = torch.where(mask, (ends - counts)[some].unsqueeze(-1) + steps, 0)
            positions = cohort.before[places]
            fitted = contmax.signal.ridge_weights(positions, basis, mask=mask, penalty=data.penalty)
            weights[places[mask]] = fitted[mask]
            intensity[some] = contmax.fit_intensity(positions, basis, mask=mask, penalty=0.1).coefficients.squeeze(-1)
    return weights, intensity.view(*cohort.counts.shape, -1)


@functools.lru_cache(maxsize=4)
def basis_of(data: PhysionetData) -> contmax.basis.GaussianBasis:
    """The functions of a signal over positions in [0, 1]."""
    return contmax.basis.GaussianBasis.linspace(data.functions, scale=0.85 / max(data.functions - 1, 1))


@functools.lru_cache(maxsize=2)
def _known(folder: Path, data: PhysionetData) -> tuple[Cohort, tuple[Tensor, Tensor] | None]:
    """All stays, and the ridge weights and intensities of their signals, which do not depend on the split."""
    cohort = read(folder).cohort
    return cohort, weights_and_intensity(cohort, data) if data.layout == "signals" else None


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
    chosen = np.flatnonzero(records.in_b == 0) if data.sets == "a" else np.arange(len(records.in_b))
    chosen = chosen[limited(len(chosen), data.limit, data.fold)]
    divided = (
        mtan_split(len(chosen)) if data.split == "mtan" else folds(cohort.died[chosen].tolist(), data.fold, data.valid)
    )
    indices = [torch.from_numpy(chosen[places]) for places in divided]
    scale = Scale.of(cohort.part(indices[0])[0])
    parts = []
    for place, own in enumerate(indices):
        part, observations = cohort.part(own)
        fits = None if known is None else (known[0][observations], known[1][own])
        parts.append(Stays.of(part, scale, data, is_test=place == 2, known=fits))
    died = [f"{float(part.cohort.died.float().mean()):.1%}" for part in parts]
    info = {"numbers": parts[0].summary.shape[-1], "died": tuple(died), "data": data, "stays": parts}
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
    return stratified_fold(died, FOLDS, fold, valid, (2012, fold), "stays")
