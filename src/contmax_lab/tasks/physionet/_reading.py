"""Reads the files of the challenge, one per stay, into one small file, which is all that a training needs."""

import dataclasses
import functools
import json
import re
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from contmax_lab.channels import HOURS
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


@dataclasses.dataclass(frozen=True)
class Records:
    """All stays as they were measured, sorted by stay, variable and time.

    Args:
        record: number of each stay, rising, (B,).
        died: in hospital, 0 or 1, (B,).
        in_b: whether it is of set b, (B,).
        static: age, gender, height, type of ward; NaN = not known, (B, 4).
        counts: observations of each variable, (B, C).
        minutes: since admission, of each observation, (N,).
        values: (N,).
    """

    record: NDArray
    died: NDArray
    in_b: NDArray
    static: NDArray
    counts: NDArray
    minutes: NDArray
    values: NDArray


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
        found["values"] = found["values"][found.pop("codes")]
        records = Records(**found)
        if int(records.counts.sum()) != len(records.minutes) or len(records.died) != len(records.counts):
            raise ValueError("its arrays do not fit together")
    except (OSError, ValueError, KeyError, TypeError, IndexError) as error:
        raise LabError(f"{folder} is damaged: {' '.join(str(error).split())[:120]}; delete it") from None
    return records


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
