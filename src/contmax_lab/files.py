"""Files of our own: each is complete or absent, and none is ever unpickled."""

from __future__ import annotations

import contextlib
import dataclasses
import errno
import fcntl
import hashlib
import json
import os
import shutil
import tempfile
import typing
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

import safetensors
import yaml

from contmax_lab.errors import CannotWrite, LabError, UsageError

if TYPE_CHECKING:
    from torch import Tensor

# If PyYAML was built with libyaml, it reads nine times and writes four times as fast.
_Loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
_Dumper = getattr(yaml, "CSafeDumper", yaml.SafeDumper)


def write_atomically(path: Path, content: bytes) -> None:
    """Replace a file in one step: written aside, forced to disk, renamed. Its folder is made if it does not exist.

    Raises:
        CannotWrite: if the disk is full or the folder cannot be written; the old file is then untouched.
    """
    aside = path.with_name(f".{path.name}.partial")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with aside.open("wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        os.replace(aside, path)
        # The new name itself survives a power cut only once its folder is on disk.
        descriptor = os.open(path.parent, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
    except OSError as error:
        with contextlib.suppress(OSError):
            aside.unlink()
        full = error.errno in (errno.ENOSPC, errno.EDQUOT)
        way = "Free some space; continue the training with --resume." if full else "Choose a place that can be written."
        raise CannotWrite(
            f"cannot write {path}: {error.strerror or error}; what was saved before is untouched. {way}"
        ) from None


@contextlib.contextmanager
def written_aside(path: Path) -> Iterator[IO[str]]:
    """A text file that is written piece by piece as ``NAME.partial``, and takes its name when it is complete.

    If anything stops it before, a file that had the name stays as it was, and ``NAME.partial`` stays unless empty.

    Raises:
        CannotWrite: if the disk is full or the folder, which is made, cannot be written.
        LabError: that of the body, which then says where its beginning is.
    """
    aside = path.with_name(f"{path.name}.partial")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        # Names of files that are not UTF-8 come out as they are.
        with aside.open("w", encoding="utf-8", errors="surrogateescape", newline="") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        os.replace(aside, path)
    except LabError as error:
        if not aside.stat().st_size:
            raise
        raise LabError(f"{error}; what was written before is in {aside}") from None
    except OSError as error:
        # The body reads files too, whose errors are not ours.
        if error.filename is not None and Path(error.filename) not in (aside, path, *path.parents):
            raise
        raise CannotWrite(f"cannot write {path}: {error.strerror or error}; pass another name") from None
    finally:
        with contextlib.suppress(OSError):
            if not aside.stat().st_size:
                aside.unlink()


def make_folder(folder: Path) -> Path:
    """Make a folder, if there is none: before hours of work, not after them.

    Raises:
        CannotWrite: if it cannot be made.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise CannotWrite(f"cannot make {folder}: {error.strerror}; choose a place that can be written") from None
    return folder


def write_json(path: Path, content: Any) -> None:
    """Replace a file by JSON, in one step."""
    text = json.dumps(content, indent=1, ensure_ascii=False, allow_nan=False) + "\n"
    write_atomically(path, text.encode("utf-8"))


def read_yaml(path: Path) -> Any:
    """The content of a YAML file: mappings, lists, strings and numbers, nothing that runs.

    Raises:
        UsageError: if it cannot be read.
    """
    try:
        return yaml.load(path.read_text(encoding="utf-8"), Loader=_Loader)
    except (yaml.YAMLError, UnicodeDecodeError, OSError) as error:
        raise UsageError(f"{path} cannot be read as YAML: {' '.join(str(error).split())}") from None


def yaml_text(content: Any) -> str:
    """Mappings, lists, strings and numbers as YAML, in the order that they have.

    Example:
        >>> print(yaml_text({"task": "vowels", "seed": 0}), end="")
        task: vowels
        seed: 0
    """
    return str(yaml.dump(content, Dumper=_Dumper, sort_keys=False, allow_unicode=True))


def plain(value: Any) -> Any:
    """Dataclasses, restricted numbers, paths and dates as what JSON and YAML know.

    Example:
        >>> from pathlib import Path
        >>> plain({"sizes": (1, 2.5), "path": Path("data"), "none": None})
        {'sizes': [1, 2.5], 'path': 'data', 'none': None}
    """
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {field.name: plain(getattr(value, field.name)) for field in dataclasses.fields(value)}
    if isinstance(value, dict):
        return {str(key): plain(entry) for key, entry in value.items()}
    if isinstance(value, list | tuple):
        return [plain(entry) for entry in value]
    for kind in (bool, int, float):
        if isinstance(value, kind):
            return kind(value)  # without what a restricted type adds
    return None if value is None else str(value)


def unplain(kind: Any, stored: Any) -> Any:
    """The opposite of `plain` for dataclasses of texts, numbers, dataclasses, and tuples of one of these.

    Raises:
        KeyError, TypeError, ValueError: if what is stored is not of that kind.

    Example:
        >>> unplain(tuple[float, ...], [1, 2.5])
        (1.0, 2.5)
    """
    if dataclasses.is_dataclass(kind):
        hints = typing.get_type_hints(kind)
        return kind(**{name: unplain(hints[name], entry) for name, entry in dict(stored).items()})  # type: ignore[operator]
    if typing.get_origin(kind) is tuple:
        return tuple(unplain(typing.get_args(kind)[0], entry) for entry in stored)
    return kind(stored) if kind in (float, str) else stored


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

    # Clones, because safetensors refuses tensors that share memory (tied weights).
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


def prepared_folder(root: Path, marker: str, key: Mapping[str, Any], make: Callable[[Path], None]) -> Path:
    """The folder below `root` that was made for this key, or is made now; it appears when it is complete.

    Of several processes one makes it, and the others wait.

    Args:
        root: where such folders lie.
        marker: name of a file that gets the key as JSON, and by which the folder is known.
        key: what the content depends on.
        make: writes the other files into the folder it is given.

    Raises:
        LabError: if it cannot be written, or what `make` raises.
    """
    name = hashlib.blake2b(json.dumps(key, sort_keys=True).encode(), digest_size=8).hexdigest()
    folder = root / name
    with alone(root / "lock", "pass --data.cache FOLDER"):
        if (folder / marker).is_file():
            return folder
        aside = Path(tempfile.mkdtemp(dir=root))
        try:
            make(aside)
            (aside / marker).write_text(json.dumps(key, indent=1) + "\n", encoding="utf-8")
            shutil.rmtree(folder, ignore_errors=True)
            aside.chmod(0o755)
            aside.rename(folder)
        except OSError as error:
            raise LabError(f"cannot write {folder}: {error.strerror}; free some space or pass --data.cache") from None
        finally:
            shutil.rmtree(aside, ignore_errors=True)
    return folder


def fingerprint(files: Sequence[Path]) -> str:
    """Names, sizes and times of files, which are found without reading the files."""
    digest = hashlib.blake2b(digest_size=16)
    for path in files:
        stat = path.stat()
        digest.update(f"{path.name}/{stat.st_size}/{stat.st_mtime_ns}\n".encode())
    return digest.hexdigest()


@contextlib.contextmanager
def alone(lock: Path, way: str) -> Iterator[None]:
    """Let one process work, and others wait for it.

    Args:
        lock: a file that is made for this, with its folder.
        way: what to do where it cannot be made.

    Raises:
        LabError: if it cannot be made.
    """
    try:
        lock.parent.mkdir(parents=True, exist_ok=True)
        file = lock.open("w")
    except OSError as error:
        raise LabError(f"cannot write to {lock.parent}: {error.strerror}; {way}") from None
    with file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield
