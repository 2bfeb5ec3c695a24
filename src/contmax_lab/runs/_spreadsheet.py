"""Metrics as a spreadsheet reads them: what metrics.jsonl says, one column per metric."""

import csv
import io
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any


def as_row(record: Mapping[str, Any]) -> dict[str, Any]:
    """A record with parts as one row.

    Example:
        >>> as_row({"epoch": 1, "valid": {"loss": 0.5}})
        {'epoch': 1, 'valid.loss': 0.5}
    """
    row: dict[str, Any] = {}
    for key, value in record.items():
        row |= {f"{key}.{name}": entry for name, entry in value.items()} if isinstance(value, dict) else {key: value}
    return row


def as_csv(rows: Sequence[Mapping[str, Any]], *, head: bool = True) -> str:
    """Rows as CSV; a cell is empty where a row does not have the column.

    Example:
        >>> as_csv([{"epoch": 1}, {"epoch": 2, "valid.loss": 0.5}]).splitlines()
        ['epoch,valid.loss', '1,', '2,0.5']
    """
    text = io.StringIO()
    writer = csv.DictWriter(text, list(dict.fromkeys(name for row in rows for name in row)), lineterminator="\n")
    if head and rows:
        writer.writeheader()
    writer.writerows(rows)
    return text.getvalue()


def append_rows(path: Path, rows: Sequence[Mapping[str, Any]]) -> bool:
    """Add rows to a file, if their columns are those of the file; whether they are."""
    if not path.exists():
        return False
    with path.open("r+", encoding="utf-8", newline="") as file:
        head = next(csv.reader([file.readline()]), [])
        if any(list(row) != head for row in rows):
            return False
        file.seek(0, io.SEEK_END)
        file.write(as_csv(rows, head=False))
    return True
