"""The file of results of a table: JSON with each training on a line of its own."""

import json
from pathlib import Path
from typing import Any

from contmax_lab.files import write_atomically


def write_results(path: Path, content: dict[str, Any]) -> None:
    """Replace a file of results, in one step.

    Tables have hundreds of trainings with dozens of numbers each. Spread over lines these would bury the rest, and a
    change of one training would be hard to find.

    Args:
        path: of the file.
        content: its last key is ``cells``, a list.
    """
    *_, last = content
    if last != "cells":
        raise ValueError(f"a file of results ends with its cells; got {last!r} as the last key")
    head = _as_json({**content, "cells": []}, indent=1).removesuffix("[]\n}")
    cells = ",\n  ".join(_as_json(cell) for cell in content["cells"])
    write_atomically(path, f"{head}[\n  {cells}\n ]\n}}\n".encode())


def _as_json(content: Any, indent: int | None = None) -> str:
    return json.dumps(content, indent=indent, ensure_ascii=False, allow_nan=False)
