"""Lines and tables of text, or one line that says what is wrong with them."""

import csv
from collections.abc import Iterator, Sequence
from pathlib import Path

from contmax_lab.errors import LabError


def existing_file(path: Path | None, what: str, where: str) -> Path:
    """The path itself, if there is a file.

    Args:
        path: what the user gave.
        what: what it should be.
        where: where the public original lives.

    Raises:
        LabError: if nothing was given, or there is no such file, or it is empty.
    """
    if path is None:
        raise LabError(f"no path was given for {what}; pass --data.path. The original: {where}")
    if not path.is_file():
        found = "a folder" if path.is_dir() else "no such file"
        raise LabError(f"{path}: {found}; pass the path of {what}. The original: {where}")
    if path.stat().st_size == 0:
        raise LabError(f"{path} is empty; expected {what}. The original: {where}")
    return path


def numbered_lines(path: Path) -> Iterator[tuple[int, str]]:
    """The lines of a UTF-8 file without their ends, counted from 1.

    Raises:
        LabError: at the first line that is not UTF-8 text, with its number.
    """
    with path.open("rb") as file:
        for number, line in enumerate(file, start=1):
            if b"\0" in line:
                raise LabError(f"{path}, line {number}: not UTF-8 text but UTF-16 or binary; convert the file")
            try:
                text = line.decode("utf-8-sig" if number == 1 else "utf-8")
            except UnicodeDecodeError as error:
                raise LabError(
                    f"{path}, line {number}: byte {line[error.start]:#04x} is not UTF-8; "
                    f"convert the file, e.g. iconv -f latin1 -t utf-8"
                ) from None
            yield number, text.rstrip("\r\n")


def read_csv(path: Path, columns: Sequence[str]) -> Iterator[tuple[int, dict[str, str]]]:
    """The named columns of a comma-separated file with a header, row by row with the line's number.

    Args:
        path: an existing file.
        columns: names that the header must have.

    Raises:
        LabError: if the file is empty, a column is missing, or a line has another number of fields.
    """
    lines = numbered_lines(path)
    header = next(csv.reader(text for _, text in lines), None)
    if not header:
        raise LabError(f"{path} is empty; expected a header with {', '.join(columns)}")
    missing = [name for name in columns if name not in header]
    if missing:
        raise LabError(f"{path}, line 1: no column {', '.join(missing)} among {', '.join(header)}")
    for number, text in lines:
        if not text.strip():
            continue
        fields = next(csv.reader([text]))
        if len(fields) != len(header):
            raise LabError(f"{path}, line {number}: {len(fields)} fields where the header has {len(header)}")
        row = dict(zip(header, fields, strict=True))
        yield number, {name: row[name] for name in columns}
