"""Images of the user's own: a folder for each class, or a table of files and labels."""

import dataclasses
from collections.abc import Sequence
from pathlib import Path

import torch
from torch import Tensor

from contmax_lab.contract import Splits
from contmax_lab.data import IMAGE_SUFFIXES, Place, pixels, read_table
from contmax_lab.errors import LabError
from contmax_lab.labelled import Label, read_parts
from contmax_lab.tasks.images import ImagesData

_WHAT = "FOLDER, with a folder for each class in it, or a table with the columns file and label"


@dataclasses.dataclass(frozen=True)
class Pictures:
    """Images of one part.

    Args:
        pixels: bytes, (B, 3, size, size).
        target: classes or numbers, (B,).
        names: of the files.
    """

    pixels: Tensor
    target: Tensor
    names: list[str]

    def __len__(self) -> int:
        return len(self.names)


@dataclasses.dataclass(frozen=True)
class _File:
    path: Path
    label: Label


def load(data: ImagesData) -> Splits:
    """Find the files, then read those that the limit leaves."""

    def read(path: Path) -> list[_File]:
        if path.is_dir():
            return _files_of_folders(path)
        files: dict[Path, _File] = {}
        for row in read_table(path, [data.file, data.label]):
            named = path.parent / row.text(data.file)
            if named in files:
                raise row.place.problem(f"{named} is also in line {files[named].label.place.line}")
            files[named] = _File(named, Label(row.text(data.label), row.place))
        return list(files.values())

    def part(files: Sequence[_File], target: Tensor) -> Pictures:
        # Errors name the line of a table; in a folder the file itself is the place.
        own = [pixels(f.path, data.size, f.label.place if f.label.place.line else None) for f in files]
        stacked = torch.stack(own) if own else torch.empty(0, 3, data.size, data.size, dtype=torch.uint8)
        return Pictures(stacked, target, [f.path.name for f in files])

    return read_parts(read, data, _WHAT).splits(part, size=int(data.size))


def _files_of_folders(folder: Path) -> list[_File]:
    """Images of every folder, by name; hidden files and files with another suffix are left out."""
    files: list[_File] = []
    for inner in sorted(path for path in folder.iterdir() if path.is_dir() and not path.name.startswith(".")):
        found = sorted(path for path in inner.rglob("*") if path.suffix.lower() in IMAGE_SUFFIXES and path.is_file())
        found = [path for path in found if not path.name.startswith(".")]
        if not found:
            raise LabError(f"{inner}: no images, files that end in {', '.join(IMAGE_SUFFIXES)}")
        for path in found:
            # Names of classes and files are shown and stored, as UTF-8.
            try:
                str(path.relative_to(folder)).encode()
            except UnicodeEncodeError:
                raise Place(path).problem("the name is not UTF-8; rename it") from None
        files += [_File(path, Label(inner.name, Place(path))) for path in found]
    if not files:
        raise LabError(f"{folder}: no folders in it; there must be one for each class, with its images")
    return files
