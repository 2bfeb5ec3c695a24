"""Images of the user's own: a folder for each class, or a table of files and labels."""

import dataclasses
from collections.abc import Sequence
from pathlib import Path

import torch
from torch import Tensor

from contmax_lab.contract import Splits
from contmax_lab.data import IMAGE_SUFFIXES, BrokenImageError, Place, pixels, read_table
from contmax_lab.errors import LabError
from contmax_lab.labelled import Label, Targets, read_parts
from contmax_lab.tasks.images import ImagesData

# Broken images whose errors are shown; the rest is counted.
_NAMED = 5
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
        if not path.exists():
            raise LabError(f"{path}: there is no such folder or table; pass {_WHAT}")
        files: dict[Path, _File] = {}
        for row in read_table(path, [data.file, data.label]):
            named = path.parent / row.text(data.file)
            if named in files:
                raise row.place.problem(f"{named} is also in line {files[named].label.place.line}")
            files[named] = _File(named, Label(row.text(data.label), row.place))
        return list(files.values())

    broken: list[BrokenImageError] = []

    def part(files: Sequence[_File], target: Tensor) -> Pictures:
        own: dict[int, Tensor] = {}
        for place, file in enumerate(files):
            found = _pixels(file, data)
            if isinstance(found, BrokenImageError):
                broken.append(found)
            else:
                own[place] = found
        if files and not own:
            raise LabError(f"all images of a part of the data, {len(files)}, are broken, e.g. {broken[-1]}")
        stacked = torch.stack([*own.values()]) if own else torch.empty(0, 3, data.size, data.size, dtype=torch.uint8)
        return Pictures(stacked, target[[*own]], [files[place].path.name for place in own])

    splits = read_parts(read, data, _WHAT).splits(part, size=int(data.size), of_table={"column": data.file})
    _require_every_class(splits.info["targets"])
    if not broken:
        return splits
    more = f"; and {len(broken) - _NAMED} more" if len(broken) > _NAMED else ""
    images = "1 broken image was" if len(broken) == 1 else f"{len(broken)} broken images were"
    told = f"{images} skipped: {'; '.join(map(str, broken[:_NAMED]))}{more}"
    return dataclasses.replace(splits, info={**splits.info, "remarks": [told, *splits.info["remarks"]]})


def _pixels(file: _File, data: ImagesData) -> Tensor | BrokenImageError:
    """The image, or where broken images are skipped the error."""
    try:
        # Errors name the line of a table; in a folder the file itself is the place.
        return pixels(file.path, data.size, file.label.place if file.label.place.line else None)
    except BrokenImageError as error:
        if data.skip_broken:
            return error
        raise LabError(f"{error}; to leave out images that cannot be read pass --data.skip_broken true") from None


def _require_every_class(targets: Targets) -> None:
    """Raise an error if a class has lost all its training examples."""
    for name, count in zip(targets.classes, targets.counts, strict=False):
        if not count:
            raise LabError(f"every training image of the class {name} is broken; mend one, or leave the class out")


def images_below(folder: Path) -> list[Path]:
    """Images in a folder and in all folders in it, by name; hidden files and files with another suffix are left out.

    Raises:
        LabError: if there are none.
    """
    found = sorted(path for path in folder.rglob("*") if path.suffix.lower() in IMAGE_SUFFIXES and path.is_file())
    found = [path for path in found if not path.name.startswith(".")]
    if not found:
        raise LabError(f"{folder}: no images, files that end in {', '.join(IMAGE_SUFFIXES)}")
    return found


def _files_of_folders(folder: Path) -> list[_File]:
    """Images of every folder."""
    files: list[_File] = []
    for inner in sorted(path for path in folder.iterdir() if path.is_dir() and not path.name.startswith(".")):
        found = images_below(inner)
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
