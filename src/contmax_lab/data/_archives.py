"""Unpacking what was downloaded."""

import tarfile
import zipfile
from pathlib import Path

from contmax_lab.errors import LabError


def unpack(archive: Path, folder: Path) -> list[Path]:
    """Unpack a tar (any compression) or zip archive; nothing is ever written outside the folder.

    Args:
        archive: the file.
        folder: made if it does not exist.

    Returns:
        The files, in the order of the archive.

    Raises:
        LabError: if it is no archive, is damaged, or has members that point outside.
    """
    if not archive.is_file():
        raise LabError(f"{archive}: no such file; pass the archive that was downloaded")
    folder.mkdir(parents=True, exist_ok=True)
    try:
        if tarfile.is_tarfile(archive):
            with tarfile.open(archive) as tar:
                tar.extractall(folder, filter="data")
                return [folder / member.name for member in tar.getmembers() if member.isfile()]
        if zipfile.is_zipfile(archive):
            with zipfile.ZipFile(archive) as packed:
                names = [name for name in packed.namelist() if not name.endswith("/")]
                return [Path(packed.extract(name, folder)) for name in names]
    except (tarfile.TarError, zipfile.BadZipFile, EOFError, OSError) as error:
        raise LabError(f"{archive} cannot be unpacked: {' '.join(str(error).split())}") from None
    raise LabError(f"{archive} is neither a tar nor a zip archive")
