"""Checkpoints: tensors and a JSON state in one safetensors file, with a check sum over both."""

from __future__ import annotations

import dataclasses
import json
import zlib
from pathlib import Path
from typing import TYPE_CHECKING, Any

import safetensors

from contmax_lab.errors import LabError
from contmax_lab.files._atomic import write_atomically

if TYPE_CHECKING:
    from torch import Tensor


@dataclasses.dataclass(frozen=True)
class Checkpoint:
    """What is stored.

    Args:
        tensors: by name.
        state: whatever JSON can hold; floats come back bit for bit.
    """

    tensors: dict[str, Tensor]
    state: dict[str, Any]


def write_checkpoint(path: Path, checkpoint: Checkpoint) -> None:
    """Store a checkpoint; the file is there completely or not at all.

    Raises:
        LabError: if it cannot be written.
    """
    import safetensors.torch

    # Clones, because tensors that share memory (tied weights) have no place in the format.
    tensors = {name: tensor.detach().cpu().contiguous().clone() for name, tensor in checkpoint.tensors.items()}
    state = json.dumps(checkpoint.state, allow_nan=False)
    metadata = {"state": state, "crc32": _checksum(tensors, state)}
    write_atomically(path, safetensors.torch.save(tensors, metadata))


def read_checkpoint(path: Path) -> Checkpoint:
    """Read a checkpoint back.

    Raises:
        LabError: if the file is missing, damaged or something else.
    """
    try:
        with safetensors.safe_open(path, framework="pt") as file:
            metadata = file.metadata() or {}
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118, the file is no mapping
    except (safetensors.SafetensorError, OSError, ValueError) as error:
        raise LabError(f"{path} is damaged or not a checkpoint: {' '.join(str(error).split())}") from None
    if "state" not in metadata:
        raise LabError(f"{path} is not a checkpoint: it has no state")
    if metadata.get("crc32") != _checksum(tensors, metadata["state"]):
        raise LabError(f"{path} is damaged: its check sum does not match")
    return Checkpoint(tensors, json.loads(metadata["state"]))


def _checksum(tensors: dict[str, Tensor], state: str) -> str:
    import torch

    total = zlib.crc32(state.encode("utf-8"))
    for name in sorted(tensors):
        tensor = tensors[name]
        total = zlib.crc32(f"{name} {tensor.dtype} {tuple(tensor.shape)}".encode(), total)
        total = zlib.crc32(tensor.reshape(-1).view(torch.uint8).numpy().data, total)
    return f"{total:08x}"
