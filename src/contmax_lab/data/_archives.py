"""Unpacking downloaded archives."""

import lzma
import os
import shutil
import tarfile
import tempfile
import zipfile
import zlib
from collections.abc import Sequence
from pathlib import Path, PurePosixPath

from contmax_lab.errors import LabError

# Errors that readers of archives raise; a RuntimeError means that a password is needed.
_BROKEN = (tarfile.TarError, zipfile.BadZipFile, lzma.LZMAError, zlib.error, EOFError, OSError, RuntimeError)


def unpack(archive: Path, folder: Path) -> list[Path]:
    """Unpack a tar (any compression) or zip archive: all of it or nothing, and never outside the folder.

    Args:
        archive: the file.
        folder: made if it does not exist.

    Returns:
        The files, sorted.

    Raises:
        LabError: if it is no archive, is damaged, or has members that point outside; or the folder cannot be written.
    """
    if not archive.is_file():
        raise LabError(f"{archive}: no such file; pass the archive that was downloaded")
    try:
        folder.mkdir(parents=True, exist_ok=True)
        # Unpack aside: an incomplete archive must not look like a small one.
        aside = Path(tempfile.mkdtemp(prefix=".partial-", dir=folder))
    except OSError as error:
        raise LabError(f"cannot write to {folder}: {error.strerror}; pass another --into FOLDER") from None
    try:
        _extract(archive, aside)
        found = [path for path in sorted(aside.rglob("*")) if path.is_symlink() or not path.is_dir()]
        _check_room(found, aside, folder)
        files = [folder / path.relative_to(aside) for path in found]
        for path, target in zip(found, files, strict=True):
            target.parent.mkdir(parents=True, exist_ok=True)
            os.replace(path, target)
    except _BROKEN as error:
        raise LabError(f"{archive} cannot be unpacked: {' '.join(str(error).split())}") from None
    finally:
        shutil.rmtree(aside, ignore_errors=True)
    if not files:
        raise LabError(f"{archive} is empty; download it again")
    return files


def _extract(archive: Path, folder: Path) -> None:
    if tarfile.is_tarfile(archive):
        with tarfile.open(archive) as tar:
            tar.extractall(folder, filter=_inside)
            # Read to the end, because the check sum follows the last member.
            while tar.fileobj is not None and tar.fileobj.read(1 << 20):
                pass
    elif zipfile.is_zipfile(archive):
        with zipfile.ZipFile(archive) as packed:
            packed.extractall(folder)
    else:
        raise LabError(f"{archive} is neither a tar nor a zip archive, or is damaged; download it again")


def _inside(member: tarfile.TarInfo, folder: str) -> tarfile.TarInfo | None:
    """The data filter of tarfile, which also refuses names and links with `..`.

    Before Python 3.11.13, 3.12.11 and 3.13.4 a long chain of links leads that filter outside (CVE-2025-4517).
    """
    if any(".." in PurePosixPath(name).parts for name in (member.name, member.linkname)):
        raise tarfile.TarError(f"{member.name[:80]} has '..' in its name or link, which may lead outside the folder")
    return tarfile.data_filter(member, folder)


def _check_room(found: Sequence[Path], aside: Path, folder: Path) -> None:
    """Refuse the whole archive if any of its files is in conflict with a folder, or the reverse."""
    for path in found:
        target = folder / path.relative_to(aside)
        parents = [parent for parent in target.parents if parent.is_relative_to(folder)]
        if target.is_dir() or any(parent.exists() and not parent.is_dir() for parent in parents):
            raise LabError(f"{target} is in the way: a folder where a file should be, or the reverse; move it")
