"""Files that are either the old ones or the new ones, whatever happens meanwhile."""

import contextlib
import errno
import json
import os
from pathlib import Path
from typing import Any

from contmax_lab.errors import CannotWrite


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
        _sync_folder(path.parent)
    except OSError as error:
        with contextlib.suppress(OSError):
            aside.unlink()
        full = error.errno in (errno.ENOSPC, errno.EDQUOT)
        way = "Free some space; continue the training with --resume." if full else "Choose a place that can be written."
        raise CannotWrite(
            f"cannot write {path}: {error.strerror or error}; what was saved before is untouched. {way}"
        ) from None


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


def _sync_folder(folder: Path) -> None:
    """The new name itself survives a power cut only once its folder is on disk."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
