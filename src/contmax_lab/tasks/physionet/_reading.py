"""Reads the files of the challenge, one per stay, into one small file, which is all that a training needs."""

import dataclasses
import functools
import json
import math
import re
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from contmax_lab.errors import LabError
from contmax_lab.files import fingerprint, prepared_folder
from contmax_lab.tasks.physionet import PhysionetData

ORIGINAL = "PhysioNet/CinC Challenge 2012, Silva et al. 2012, https://physionet.org/content/challenge-2012"
KEY_FILE = "physionet.json"
_FILE = "stays.npz"
# Part of the key of the cache; raise it when the format of the prepared file changes.
_FORMAT = 1
STATIC = ("Age", "Gender", "Height", "ICUType")
VARIABLES = (
    *("ALP", "ALT", "AST", "Albumin", "BUN", "Bilirubin", "Cholesterol", "Creatinine", "DiasABP", "FiO2", "GCS"),
    *("Glucose", "HCO3", "HCT", "HR", "K", "Lactate", "MAP", "MechVent", "Mg", "NIDiasABP", "NIMAP", "NISysABP", "Na"),
    *("PaCO2", "PaO2", "Platelets", "RespRate", "SaO2", "SysABP", "Temp", "TroponinI", "TroponinT", "Urine", "WBC"),
    *("Weight", "pH"),
)
_NUMBER = {name: place for place, name in enumerate(VARIABLES)}
_TIME = re.compile(r"(\d\d):([0-5]\d)")
HOURS = 48.0


def warped(hours: Tensor) -> Tensor:
    """Hours before the last observation as a position in [0, 1]; the last hours take most of it.

    Example:
        >>> warped(torch.tensor([0.0, 6.0, 48.0]))
        tensor([0.0000, 0.5000, 1.0000])
    """
    return torch.log1p(hours) / math.log1p(HOURS)


def hours_of(position: Tensor) -> Tensor:
    """The inverse of `warped`, inside of the 48 hours."""
    return torch.expm1(position.clamp(0, 1) * math.log1p(HOURS))


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


class Records(NamedTuple):
    """All stays: the number of each, rising, (B,); whether it is of set b, (B,); and what was measured."""

    record: NDArray
    in_b: NDArray
    cohort: Cohort


def prepared(data: PhysionetData) -> Path:
    """The folder with the small file: made now, or by an earlier call, or given as the path.

    Raises:
        LabError: if a file is missing or is not as it should be.
    """
    if data.path is None:
        raise LabError(f"no path was given for the stays; pass --data.path FOLDER. The original: {ORIGINAL}")
    if (data.path / KEY_FILE).is_file():
        return data.path
    sets = {name: _files_of_set(data.path, name) for name in "ab" if name == "a" or (data.path / "set-b").exists()}
    files = [path for outcomes, stays in sets.values() for path in (outcomes, *stays)]
    key = {"format": _FORMAT, "sets": str(data.path.resolve()), "of": fingerprint(files)}
    root = data.path / ".contmax" if data.cache is None else data.cache
    return prepared_folder(root, KEY_FILE, key, lambda folder: write(folder, sets))


def _files_of_set(path: Path, name: str) -> tuple[Path, list[Path]]:
    """The outcomes of a set and the files of its stays, sorted by the number of the record."""
    outcomes, folder = path / f"Outcomes-{name}.txt", path / f"set-{name}"
    for missing in (outcomes, folder):
        if not missing.exists():
            raise LabError(f"{missing}: no such file; unpack set-{name}.tar.gz and Outcomes-{name}.txt of {ORIGINAL}")
    stays = sorted(folder.glob("*.txt"))
    if not stays:
        raise LabError(f"{folder} holds no stays, files such as 132539.txt; unpack set-{name}.tar.gz there")
    return outcomes, stays


def write(folder: Path, sets: dict[str, tuple[Path, list[Path]]]) -> None:
    """Read all stays and write the small file."""
    stays = []
    for name, (outcomes, files) in sets.items():
        died = _read_outcomes(outcomes)
        for path in files:
            record, static, observations = _read_stay(path)
            if record not in died:
                raise LabError(f"{outcomes} has no line for the record {record} of {path}")
            stays.append((record, died[record], name == "b", static, observations))
    stays.sort(key=lambda stay: stay[0])
    observations = [one for stay in stays for one in sorted(stay[4])]
    counts = np.zeros((len(stays), len(VARIABLES)), np.uint16)
    for place, stay in enumerate(stays):
        for variable, _, _ in stay[4]:
            counts[place, variable] += 1
    values, codes = np.unique(np.array([value for _, _, value in observations], np.float32), return_inverse=True)
    np.savez_compressed(
        folder / _FILE,
        record=np.array([stay[0] for stay in stays], np.int32),
        died=np.array([stay[1] for stay in stays], np.uint8),
        in_b=np.array([stay[2] for stay in stays], np.uint8),
        static=np.array([stay[3] for stay in stays], np.float32).reshape(-1, len(STATIC)),
        counts=counts,
        minutes=np.array([minute for _, minute, _ in observations], np.uint16),
        values=values,
        # There are fewer than 2¹⁶ distinct values: store an index for each value, because indices compress better.
        codes=codes.astype(np.uint16 if len(values) <= 2**16 else np.uint32),
    )


@functools.lru_cache(maxsize=2)
def read(folder: Path) -> Records:
    """The stays of a prepared folder, cached because the cells of a table read them hundreds of times.

    Raises:
        LabError: if the file is damaged.
    """
    try:
        json.loads((folder / KEY_FILE).read_text(encoding="utf-8"))
        with np.load(folder / _FILE, allow_pickle=False) as stored:
            found = {name: stored[name] for name in stored.files}
        kinds = {"died": np.int64, "static": np.float32, "counts": np.int64, "minutes": np.float32}
        columns = {name: torch.from_numpy(found[name].astype(kind)) for name, kind in kinds.items()}
        cohort = Cohort(**columns, values=torch.from_numpy(found["values"][found["codes"]]))
        if int(cohort.counts.sum()) != len(cohort.minutes) or len(cohort.died) != len(cohort.counts):
            raise ValueError("its arrays do not fit together")
    except (OSError, ValueError, KeyError, TypeError, IndexError) as error:
        raise LabError(f"{folder} is damaged: {' '.join(str(error).split())[:120]}; delete it") from None
    return Records(found["record"], found["in_b"], cohort)


def _read_outcomes(path: Path) -> dict[int, int]:
    """Record → whether the patient died in hospital."""
    lines = path.read_text(encoding="utf-8").splitlines()
    head = lines[0].split(",") if lines else []
    if "RecordID" not in head or "In-hospital_death" not in head:
        raise LabError(
            f"{path}:1: got {','.join(head) or 'nothing'}; the columns RecordID and In-hospital_death are needed"
        )
    record, death = head.index("RecordID"), head.index("In-hospital_death")
    died = {}
    for number, line in enumerate(lines[1:], start=2):
        cells = line.split(",")
        if len(cells) != len(head) or not cells[record].isdecimal() or cells[death] not in ("0", "1"):
            raise LabError(f"{path}:{number}: got {line!r}; a record, and 0 or 1 as In-hospital_death are needed")
        died[int(cells[record])] = int(cells[death])
    return died


def _read_stay(path: Path) -> tuple[int, list[float], list[tuple[int, int, float]]]:
    """The record number, the static numbers, and the observations as (variable, minute, value).

    Unknown static values are −1, as are unknown weights; a weight of 0 is unknown too.
    """
    lines = path.read_text(encoding="utf-8").splitlines()
    if not lines or lines[0] != "Time,Parameter,Value":
        raise LabError(
            f"{path}:1: got {lines[0] if lines else 'nothing'!r}; the first line has to be Time,Parameter,Value"
        )
    record, static, found = -1, dict.fromkeys(STATIC, float("nan")), []
    for number, line in enumerate(lines[1:], start=2):
        time, _, rest = line.partition(",")
        name, _, text = rest.partition(",")
        matched, value = _TIME.fullmatch(time), _as_number(text)
        if not line or (matched and not name and value is not None):
            # Skip empty lines, and a value without a name, which one file of set a has.
            continue
        known = name in _NUMBER or name in static or name == "RecordID"
        if matched is None or value is None or not known:
            wanted = "hh:mm, a variable of the challenge and a number"
            raise LabError(f"{path}:{number}: got {line!r}; a line has {wanted}, with commas between them")
        minute = 60 * int(matched[1]) + int(matched[2])
        if name == "RecordID":
            record = int(value)
        elif name in static:
            static[name] = value if value >= 0 else float("nan")
        elif minute > 60 * HOURS:
            raise LabError(f"{path}:{number}: got the time {time}; stays have 48 hours")
        elif not (name == "Weight" and value <= 0):
            found.append((_NUMBER[name], minute, value))
    if record < 0:
        raise LabError(f"{path} has no RecordID; its second line should be 00:00,RecordID,{path.stem}")
    return record, [static[name] for name in STATIC], found


def _as_number(text: str) -> float | None:
    try:
        value = float(text)
    except ValueError:
        return None
    return value if np.isfinite(value) else None
