"""Folders of what was made from data once, so that many processes begin within a second."""

import contextlib
import fcntl
import hashlib
import json
import shutil
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from contmax_lab.errors import LabError


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
    with _alone(root):
        if not (folder / marker).is_file():
            _write(folder, marker, key, make)
    return folder


def fingerprint(files: Sequence[Path]) -> str:
    """What a look at the folder tells of files: names, sizes and times."""
    digest = hashlib.blake2b(digest_size=16)
    for path in files:
        stat = path.stat()
        digest.update(f"{path.name}/{stat.st_size}/{stat.st_mtime_ns}\n".encode())
    return digest.hexdigest()


@contextlib.contextmanager
def _alone(root: Path) -> Iterator[None]:
    try:
        root.mkdir(parents=True, exist_ok=True)
        lock = (root / "lock").open("w")
    except OSError as error:
        raise LabError(f"cannot write to {root}: {error.strerror}; pass --data.cache FOLDER") from None
    with lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def _write(folder: Path, marker: str, key: Mapping[str, Any], make: Callable[[Path], None]) -> None:
    aside = Path(tempfile.mkdtemp(dir=folder.parent))
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
