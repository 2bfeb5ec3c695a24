"""Text and tables that users bring: CSV, TSV and JSON lines, also gzipped; complaints name the file and the line."""

import contextlib
import csv
import dataclasses
import gzip
import json
import zlib
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import IO, Any, TypeVar, cast

from contmax_lab.errors import LabError

T = TypeVar("T")
TABLE_SUFFIXES = (".csv", ".tsv", ".jsonl", ".ndjson")
# A file with a longer line is no table, or an attack on the memory.
_LONGEST_LINE = 1 << 24


@dataclasses.dataclass(frozen=True)
class Place:
    """Where something was read.

    Args:
        file: that was read.
        line: in it, from 1; 0 = the file as a whole.
    """

    file: Path
    line: int = 0

    def problem(self, text: str) -> LabError:
        """What is wrong here, as an error to be raised.

        Example:
            >>> print(Place(Path("reviews.csv"), 7).problem("no label"))
            reviews.csv, line 7: no label
        """
        return LabError(f"{self.file}{f', line {self.line}' if self.line else ''}: {text}")


@dataclasses.dataclass(frozen=True)
class TableRow:
    """One row of a table.

    Args:
        place: where it begins.
        fields: column → text, in the order of the columns.
    """

    place: Place
    fields: dict[str, str]

    def text(self, column: str) -> str:
        """The text of a column without spaces around it.

        Raises:
            LabError: if there is none.
        """
        found = self.fields.get(column, "").strip()
        if not found:
            raise self.place.problem(f"nothing in the column {column}")
        return found

    def number(self, column: str) -> float:
        """The finite number in a column.

        Raises:
            LabError: if there is none.
        """
        return finite_number(self.text(column), column, self.place)


def finite_number(text: str, what: str, place: Place) -> float:
    """A number that was written as text.

    Raises:
        LabError: if it cannot be read, or is NaN or infinite.

    Example:
        >>> finite_number("1e-3", "level", Place(Path("sensors.csv"), 2))
        0.001
    """
    try:
        value = float("no number" if "_" in text else text)
    except ValueError:
        point = "; write a point, not a comma" if "," in text else ""
        raise place.problem(f"{what} is {_short(text)}, which is not a number{point}") from None
    if value != value or value in (float("inf"), float("-inf")):
        raise place.problem(f"{what} is {_short(text)}; it must be finite")
    return value


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


@dataclasses.dataclass(frozen=True)
class BrokenRow:
    """A row or a line that cannot be read.

    Args:
        place: where it begins.
        text: what is wrong with it.
        line: its bytes, where these are no text.
    """

    place: Place
    text: str
    line: bytes = b""


def read_table(path: Path, columns: Sequence[str] = (), kind: str = "") -> Iterator[TableRow]:
    """The rows of a table, one at a time.

    Args:
        path: .csv, .tsv, .jsonl or .ndjson, also with .gz behind; UTF-8, the first line of CSV and TSV a header.
        columns: that must be there.
        kind: one of these endings, whatever the name of the file is; by default that of the name.

    Raises:
        LabError: if there is no such file, it is empty or of another kind, a column is missing, or a row is not
            like the others; with the line.
    """
    return _unbroken(read_rows(path, columns, kind=kind))


def read_rows(path: Path, columns: Sequence[str] = (), way: str = "", kind: str = "") -> Iterator[TableRow | BrokenRow]:
    """`read_table` that goes on after a row which cannot be read.

    Args:
        path, columns, kind: as `read_table` takes them.
        way: what to do where a header has no such column, for the message.

    Raises:
        LabError: if the file as a whole cannot be read, or a column is missing.
    """
    kind = kind or table_kind(path)
    # A file that is missing has a name with another ending more often than not, and that it is missing matters more.
    if path.is_file() and not kind:
        raise LabError(f"{path}: the name must end in {', '.join(TABLE_SUFFIXES)}, with or without .gz")
    empty = True
    with _opened(path, "a table") as file:
        is_json = kind in (".jsonl", ".ndjson")
        rows = _json_rows(path, file, columns) if is_json else _rows(path, file, kind, columns, way)
        for row in rows:
            empty = False
            yield row
    if empty:
        raise LabError(f"{path} has no rows")


def _unbroken(rows: Iterator[T | BrokenRow]) -> Iterator[T]:
    """The rows up to the first that cannot be read, at which an error is raised."""
    for row in rows:
        if isinstance(row, BrokenRow):
            raise row.place.problem(row.text)
        yield row


def table_kind(path: Path) -> str:
    """The ending that says how a table is written, without .gz; empty where a name is not that of a table.

    Example:
        >>> table_kind(Path("reviews.CSV.gz")), table_kind(Path("reviews.txt"))
        ('.csv', '')
    """
    suffixes = [suffix.lower() for suffix in path.suffixes]
    kind = "".join((suffixes[:-1] if suffixes[-1:] == [".gz"] else suffixes)[-1:])
    return kind if kind in TABLE_SUFFIXES else ""


def numbered_lines(path: Path) -> Iterator[tuple[int, str]]:
    """The lines of a UTF-8 file without their ends, counted from 1; the file may be compressed by gzip.

    Raises:
        LabError: if there is no such file, or at the first line that is not UTF-8 text, with its number.
    """
    return _unbroken(read_lines(path))


def read_lines(path: Path) -> Iterator[tuple[int, str] | BrokenRow]:
    """`numbered_lines` that goes on after a line which is not UTF-8 text.

    Raises:
        LabError: if there is no such file, or it cannot be decompressed.
    """
    with _opened(path, "a text file") as file:
        for number, line in _lines(path, file):
            yield line if isinstance(line, BrokenRow) else (number, line.rstrip("\r\n"))


@contextlib.contextmanager
def _opened(path: Path, what: str) -> Iterator[IO[bytes]]:
    if not path.is_file():
        raise LabError(f"{path}: {'a folder' if path.is_dir() else 'no such file'}; pass the path of {what}")
    try:
        with gzip.open(path) if path.suffix.lower() == ".gz" else path.open("rb") as file:
            yield cast(IO[bytes], file)
    except (EOFError, zlib.error, gzip.BadGzipFile) as error:
        raise LabError(f"{path} cannot be decompressed: {error}") from None


def _lines(path: Path, file: IO[bytes]) -> Iterator[tuple[int, str | BrokenRow]]:
    """The lines with their ends, counted from 1; of one that is no text, why not."""
    for number, line in enumerate(iter(lambda: file.readline(_LONGEST_LINE), b""), start=1):
        place = Place(path, number)
        if len(line) == _LONGEST_LINE:
            raise place.problem("longer than 16 MB; is it a table?")
        if b"\0" in line:
            yield number, BrokenRow(place, "not UTF-8 text but UTF-16 or binary; convert the file", line)
            continue
        try:
            yield number, line.decode("utf-8-sig" if number == 1 else "utf-8")
        except UnicodeDecodeError as error:
            byte = f"byte {line[error.start]:#04x} is not UTF-8"
            yield number, BrokenRow(place, f"{byte}; convert the file, e.g. iconv -f latin1 -t utf-8", line)


def _rows(path: Path, file: IO[bytes], kind: str, columns: Sequence[str], way: str) -> Iterator[TableRow | BrokenRow]:
    lines = _lines(path, file)
    first = next((line for _, line in lines), "")
    if isinstance(first, BrokenRow):
        raise first.place.problem(first.text)
    if not first.strip():
        raise LabError(f"{path} is empty; the first line must name the columns")
    # Spreadsheets in half of Europe write semicolons.
    comma = ";" if first.count(";") > first.count(",") else ","
    csv.field_size_limit(_LONGEST_LINE)  # by default 131,072 characters, less than a book has
    delimiter = "\t" if kind == ".tsv" else comma
    broken: list[BrokenRow] = []
    reached = 1

    def noted() -> Iterator[str]:
        # Lines that are no text are noted: only who sees them all knows where a quoted cell ends.
        nonlocal reached
        yield first
        for number, line in lines:
            reached = number
            if isinstance(line, BrokenRow):
                broken.append(line)
                yield line.line.decode("utf-8", "replace").replace("\0", "")
            else:
                yield line

    reader = csv.reader(noted(), delimiter=delimiter, strict=True)
    header: list[str] | None = None
    while True:
        broken.clear()
        # The first line was read to find its separator.
        place = Place(path, reached + 1 if header else 1)
        try:
            fields = next(reader)
        except StopIteration:
            return
        except csv.Error as error:
            told = f"{error}; is a quote not closed?"
            if reached > place.line:
                told += f" The row reaches to line {reached}"
            if "new-line character" in str(error):
                told = "lines end in a carriage return alone; convert the file, e.g. tr '\\r' '\\n'"
            if header is None:
                raise place.problem(told) from None
            yield BrokenRow(place, told)
            continue
        if broken:
            bad = broken[0]
            if header is None:
                raise bad.place.problem(bad.text)
            where = f"in line {bad.place.line}: " if bad.place.line != place.line else ""
            yield BrokenRow(place, f"{where}{bad.text}")
        elif header is None:
            header = _header(place, fields, columns, way)
        elif any(field.strip() for field in fields):
            if len(fields) != len(header):
                yield BrokenRow(place, f"{len(fields)} fields where the header has {len(header)}")
            else:
                yield TableRow(place, dict(zip(header, fields, strict=True)))


def _header(place: Place, fields: Sequence[str], columns: Sequence[str], way: str) -> list[str]:
    header = [name.strip() for name in fields]
    missing = [name for name in columns if name not in header]
    if missing:
        raise place.problem(f"no column {', '.join(missing)} among {', '.join(map(_short, header[:20]))}{way}")
    twice = [name for name in dict.fromkeys(header) if header.count(name) > 1]
    if twice:
        raise place.problem(f"two columns are called {_short(twice[0])}")
    return header


def _json_rows(path: Path, file: IO[bytes], columns: Sequence[str]) -> Iterator[TableRow | BrokenRow]:
    for number, line in _lines(path, file):
        if isinstance(line, BrokenRow):
            yield line
        elif line.strip():
            place = Place(path, number)
            try:
                yield TableRow(place, _object(line, columns))
            except ValueError as error:
                yield BrokenRow(place, str(error))


def _object(line: str, columns: Sequence[str]) -> dict[str, str]:
    """The cells of a line of JSON; a ValueError says why it has none."""
    try:
        found = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise ValueError(f"not JSON: {error}") from None
    if not isinstance(found, dict):
        raise ValueError(f"expected an object, {{…}}, got {_short(line.strip())}")
    missing = [name for name in columns if name not in found]
    if missing:
        raise ValueError(f"no key {', '.join(missing)} among {', '.join(map(_short, list(found)[:20]))}")
    return {key: _as_text(value, key, key in columns) for key, value in found.items()}


def _as_text(value: Any, key: str, needed: bool) -> str:
    if isinstance(value, str):
        if needed and any("\ud800" <= character <= "\udfff" for character in value):
            raise ValueError(f"{key} has half of a character, {_short(value)}; was a text cut inside an emoji?")
        return value
    if isinstance(value, bool | int | float):
        return json.dumps(value)
    if needed and value is not None:
        raise ValueError(f"{key} must be a text or a number, got {_short(json.dumps(value, ensure_ascii=False))}")
    return ""


def _short(text: str) -> str:
    return repr(text if len(text) <= 40 else f"{text[:40]}…")
