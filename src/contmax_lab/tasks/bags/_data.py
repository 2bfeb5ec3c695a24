"""Bags of instances from MATLAB files; folds that are a function of the repetition; normalised features."""

import dataclasses
import functools
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from contmax_lab.contract import Batch, Splits
from contmax_lab.data import existing_file, stratified_fold
from contmax_lab.errors import LabError
from contmax_lab.packages import require
from contmax_lab.tasks.bags import BagsData

_ORIGINAL = "Andrews et al. 2002, http://www.cs.columbia.edu/~andrews/mil/datasets.html"
# Normalised features are cut here.
_LARGEST = 3.0
_ARRAYS = ("features", "bag_ids", "labels")


@dataclasses.dataclass(frozen=True)
class Bags:
    """Bags, padded to the longest of their file.

    Args:
        features: shape (B, L, F); 0 where padded.
        mask: True = an instance, False = padding, shape (B, L).
        labels: 0 or 1, shape (B,).
    """

    features: Tensor
    mask: Tensor
    labels: Tensor

    def __len__(self) -> int:
        return len(self.labels)

    def __getitem__(self, indices: Sequence[int]) -> "Bags":
        chosen = torch.as_tensor(indices, dtype=torch.long)
        return Bags(**{field.name: getattr(self, field.name)[chosen] for field in dataclasses.fields(self)})

    def batch(self, indices: Sequence[int]) -> Batch:
        """Instances, which of them exist, and the labels of the bags."""
        return dict(vars(self[indices]))


def load(data: BagsData) -> Splits:
    """Read a file, take a fold to test, hold some of the other bags out for validation, normalise."""
    path = None if data.path is None else data.path / f"{data.name}.mat"
    file = existing_file(path, "a MATLAB file of bags (features, bag_ids, labels)", _ORIGINAL)
    bags = _read(file, file.stat().st_mtime_ns)
    parts = [bags[places] for places in divided(bags.labels.tolist(), data)]
    mean, scale = _location_and_scale(parts[0])
    train, valid, test = (_normalised(part, mean, scale) for part in parts)
    return Splits(train, valid, test, {"num_features": bags.features.shape[-1], "name": data.name})


def _location_and_scale(bags: Bags) -> tuple[Tensor, Tensor]:
    """Mean and deviation of each feature over all instances; 1 where a feature, like 90 of the 230, never varies."""
    instances = bags.features[bags.mask]
    mean, deviation = instances.mean(0), instances.std(0)
    return mean, torch.where(deviation > 0, deviation, 1)


def _normalised(bags: Bags, mean: Tensor, scale: Tensor) -> Bags:
    """Deviations from the mean, cut: some features are 0 but for a few segments, where they would be up to 66."""
    features = ((bags.features - mean) / scale).clamp(-_LARGEST, _LARGEST)
    return dataclasses.replace(bags, features=features.float() * bags.mask.unsqueeze(-1))


def divided(labels: Sequence[int], data: BagsData) -> tuple[list[int], list[int], list[int]]:
    """Places of the training, validation and test bags; they depend on the labels and the data's settings alone.

    In every repetition each bag is in one fold, and folds differ by at most one bag of each label.

    Example:
        >>> divided([0, 1] * 5, BagsData(folds=5, fold=2, valid=0.5))
        ([1, 2, 3, 6], [0, 4, 7, 9], [5, 8])
    """
    if data.folds < 2:
        raise LabError("--data.folds=1 leaves no bags to learn from; pass 2 or more")
    seeds = data.repetition, data.repetition * data.folds + data.fold
    return stratified_fold(labels, data.folds, data.fold, data.valid, seeds, "bags")


@functools.lru_cache(maxsize=4)
def _read(path: Path, changed: int) -> Bags:
    """All bags of a file, as they are; a table asks for each of its files hundreds of times."""
    scipy = require("scipy.io", "Reading bags in the format of MATLAB (pip install 'contmax[lab]')")
    try:
        # A damaged file may raise nearly any error.
        stored = scipy.loadmat(path, variable_names=_ARRAYS)
    except Exception as error:
        raise LabError(f"{path} is not a MATLAB file: {' '.join(str(error).split())[:120]}") from None
    if missing := [name for name in _ARRAYS if name not in stored]:
        raise LabError(f"{path} has no {', '.join(missing)}; a file of bags has {', '.join(_ARRAYS)}")
    features, ids, labels = (_dense(stored[name]) for name in _ARRAYS)
    ids, labels = ids.flatten(), labels.flatten() > 0
    if features.dim() != 2 or not len(features) == len(ids) == len(labels):
        shapes = f"{tuple(features.shape)}, {len(ids)} and {len(labels)}"
        raise LabError(f"{path}: features, bag_ids and labels have sizes {shapes}; each needs one entry per instance")
    if not bool(features.isfinite().all()):
        raise LabError(f"{path}: a feature is not finite; replace it, e.g. by the mean of its column")
    names, bag_of, lengths = torch.unique(ids, return_inverse=True, return_counts=True)
    positive = torch.zeros(len(names)).index_add(0, bag_of, labels.float())
    if bool((mixed := (positive > 0) & (positive < lengths)).any()):
        raise LabError(f"{path}: instances of bag {int(names[mixed][0])} differ in their label; a bag has one label")
    order = torch.argsort(bag_of, stable=True)
    mask = torch.arange(int(lengths.max())) < lengths.unsqueeze(-1)
    padded = features.new_zeros(*mask.shape, features.shape[-1])
    padded[mask] = features[order]
    return Bags(padded, mask, (positive > 0).long())


def _dense(stored: Any) -> Tensor:
    """An array of MATLAB, which may be sparse."""
    return torch.as_tensor((stored.toarray() if hasattr(stored, "toarray") else stored).astype("float64"))
