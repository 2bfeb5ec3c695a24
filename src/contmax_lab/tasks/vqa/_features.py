"""Features of images: a memory-mapped array, or a folder with a file for each image, grids or regions."""

import abc
import dataclasses
import json
import re
import zipfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from contmax_lab.data import Place
from contmax_lab.errors import LabError

_DIGITS = re.compile(r"\d+$")


class Features(abc.ABC):
    """What a network has seen in images.

    Attributes:
        channels: C.
        grid: (H, W) of the cells; None for regions.
    """

    channels: int
    grid: tuple[int, int] | None

    @abc.abstractmethod
    def check(self, image: str, place: Place) -> None:
        """Complain if there are none of an image, with the place where it is named."""

    @abc.abstractmethod
    def take(self, images: Sequence[str]) -> dict[str, Tensor]:
        """``features`` (B, L, C); of regions also their centres, ``positions`` (B, L, 2), and ``regions`` (B, L)."""


class GridFile(Features):
    """The array that `extract` has written.

    Args:
        path: of the array; the names of its images stand in ``PATH.json``.

    Raises:
        LabError: if one of the two is missing, damaged or not complete.
    """

    def __init__(self, path: Path) -> None:
        note = path.with_name(path.name + ".json")
        try:
            content = json.loads(note.read_text(encoding="utf-8"))
            names, done = content["images"], content["done"]
            self.array: NDArray[np.float16] = np.load(path, mmap_mode="r", allow_pickle=False)
        except FileNotFoundError as error:
            raise LabError(f"{error.filename}: no such file; make it with contmax data features") from None
        except (OSError, ValueError, KeyError, TypeError, EOFError) as error:
            raise LabError(f"{path} is damaged: {' '.join(str(error).split())}; delete it and make it again") from None
        if self.array.ndim != 4 or len(self.array) != len(names) or done != len(names):
            raise LabError(
                f"{path}: features of {done} of {len(names)} images, of shape {self.array.shape}; "
                "run contmax data features to continue"
            )
        self.path, self.rows = path, {name: row for row, name in enumerate(names)}
        self.grid, self.channels = self.array.shape[1:3], self.array.shape[3]

    def check(self, image: str, place: Place) -> None:
        """As it says."""
        if image not in self.rows:
            raise place.problem(f"the image {image} is not among the {len(self.rows):,} of {self.path}")

    def take(self, images: Sequence[str]) -> dict[str, Tensor]:
        """Cells row by row."""
        rows = self.array[[self.rows[image] for image in images]]
        return {"features": torch.from_numpy(rows).flatten(1, 2)}


class GridFolder(Features):
    """A folder with an array [H, W, C] for each image, ``STEM.npy`` or ``STEM.npz``.

    Args:
        folder: all arrays in it have one shape.

    Raises:
        LabError: if there are none.
    """

    def __init__(self, folder: Path) -> None:
        self._files = _Files(folder)
        first = self._read(next(iter(self._files.paths.values())))
        self.grid, self.channels = first.shape[:2], first.shape[2]
        self._shape = first.shape

    def check(self, image: str, place: Place) -> None:
        """As it says."""
        self._files.find(image, place)

    def take(self, images: Sequence[str]) -> dict[str, Tensor]:
        """Cells row by row."""
        paths = [self._files.find(image) for image in images]
        arrays = [self._read(path) for path in paths]
        for path, array in zip(paths, arrays, strict=True):
            if array.shape != (expected := self._shape):
                raise LabError(f"{path}: features of shape {array.shape}; the first file has {expected}")
        return {"features": torch.from_numpy(np.stack(arrays)).flatten(1, 2)}

    @staticmethod
    def _read(path: Path) -> NDArray[np.floating]:
        content = _load(path)
        array = next(iter(content.values())) if len(content) == 1 else content.get("features")
        if array is None or array.ndim != 3 or not np.issubdtype(array.dtype, np.floating) or not array.size:
            found = "no single array" if array is None else f"{array.dtype} of shape {array.shape}"
            raise LabError(f"{path}: {found}; expected floats of shape [H, W, C]")
        return _finite(array, path)


@dataclasses.dataclass(frozen=True)
class _Regions:
    features: NDArray[np.floating]
    centres: NDArray[np.float32]


class RegionFolder(Features):
    """A folder with regions of each image, ``STEM.npz``: ``features`` [R, C] and ``boxes`` [R, 4].

    A box is left, top, right, bottom, as shares of the image; or in pixels, if there is also ``size``, (height, width).
    The centre of a box is the position of its features. R may differ from image to image.

    Args:
        folder: of the files.
    """

    grid = None

    def __init__(self, folder: Path) -> None:
        self._files = _Files(folder)
        self.channels = self._read(next(iter(self._files.paths.values()))).features.shape[1]

    def check(self, image: str, place: Place) -> None:
        """As it says."""
        self._files.find(image, place)

    def take(self, images: Sequence[str]) -> dict[str, Tensor]:
        """Padded to the largest number of regions."""
        regions = [self._read(self._files.find(image)) for image in images]
        most = max(len(found.features) for found in regions)
        features = torch.zeros(len(regions), most, self.channels)
        # Where nothing is, a position is still a point of the image.
        positions = torch.full((len(regions), most, 2), 0.5)
        there = torch.zeros(len(regions), most, dtype=torch.bool)
        for row, (found, image) in enumerate(zip(regions, images, strict=True)):
            count, channels = found.features.shape
            if channels != self.channels:
                raise LabError(f"{self._files.find(image)}: {channels} channels; the first file has {self.channels}")
            features[row, :count] = torch.from_numpy(found.features)
            positions[row, :count] = torch.from_numpy(found.centres)
            there[row, :count] = True
        return {"features": features, "positions": positions, "regions": there}

    @staticmethod
    def _read(path: Path) -> _Regions:
        content = _load(path)
        features, boxes = content.get("features"), content.get("boxes")
        if features is None or boxes is None or features.ndim != 2 or boxes.shape != (len(features), 4):
            shapes = {key: value.shape for key, value in content.items()}
            raise LabError(f"{path}: {shapes}; expected features of shape [R, C] and boxes of shape [R, 4]")
        if not len(features):
            raise LabError(f"{path} has no regions; there must be at least one")
        height, width = np.asarray(content.get("size", (1, 1)), dtype=np.float32).reshape(-1)[:2]
        rows, columns = boxes[:, 1::2].mean(1) / height, boxes[:, 0::2].mean(1) / width
        centres = np.stack([rows, columns], -1).astype(np.float32)
        if not ((centres >= 0) & (centres <= 1)).all():
            raise LabError(
                f"{path}: a box has its centre outside the image; in pixels, size = (height, width) is needed"
            )
        return _Regions(_finite(features, path), centres)


def open_features(path: Path) -> Features:
    """The features at a path, whatever they are.

    Args:
        path: the array that `extract` has written, or a folder of grids or regions.

    Raises:
        LabError: if there are none.
    """
    if not path.is_dir():
        return GridFile(path)
    first = next(iter(_Files(path).paths.values()))
    return RegionFolder(path) if "boxes" in _load(first) else GridFolder(path)


class _Files:
    """The files of features in a folder by the names of their images; also by a number at the end, as COCO has it."""

    def __init__(self, folder: Path) -> None:
        found = sorted(path for path in folder.iterdir() if path.suffix in (".npy", ".npz"))
        if not found:
            raise LabError(f"{folder}: no features, files that end in .npy or .npz")
        self.folder = folder
        self.paths = {path.stem: path for path in found}
        self._by_number = {int(end.group()): path for path in found if (end := _DIGITS.search(path.stem))}

    def find(self, image: str, place: Place | None = None) -> Path:
        found = self.paths.get(image) or (self._by_number.get(int(image)) if image.isdecimal() else None)
        if found is None:
            raise (place or Place(self.folder)).problem(f"there are no features {image}.npy in {self.folder}")
        return found


def _load(path: Path) -> dict[str, NDArray[Any]]:
    """The arrays of a file, never unpickled."""
    try:
        with path.open("rb") as file:
            content = np.load(file, allow_pickle=False)
            return dict(content.items()) if isinstance(content, np.lib.npyio.NpzFile) else {"features": content}
    except (OSError, ValueError, EOFError, zipfile.BadZipFile) as error:
        raise LabError(f"{path} is not a numpy file, or is damaged: {' '.join(str(error).split())[:120]}") from None


def _finite(array: NDArray[np.floating], path: Path) -> NDArray[np.floating]:
    if not np.isfinite(array).all():
        raise LabError(f"{path}: a feature is not finite")
    return array
