"""Files that are either the old ones or the new ones, whatever happens meanwhile."""

import contextlib
import json
import os
from pathlib import Path
from typing import Any

from contmax_lab.errors import LabError


def write_atomically(path: Path, content: bytes) -> None:
    """Replace a file in one step: written aside, forced to disk, renamed.

    Raises:
        LabError: if the disk is full or the folder cannot be written; the old file is then untouched.
    """
    aside = path.with_name(f".{path.name}.partial")
    try:
        with aside.open("wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        os.replace(aside, path)
        _sync_folder(path.parent)
    except OSError as error:
        with contextlib.suppress(OSError):
            aside.unlink()
        raise LabError(
            f"cannot write {path}: {error.strerror or error}; what was saved before is untouched. "
            "Free some space and pass --resume."
        ) from None


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
