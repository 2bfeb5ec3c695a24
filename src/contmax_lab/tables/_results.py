"""The file of results of a table: JSON with each training on a line of its own."""

import dataclasses
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from contmax_lab.contract import Recipe, Table
from contmax_lab.files import write_atomically
from contmax_lab.recipes import SECTIONS, flattened
from contmax_lab.tables._findings import findings
from contmax_lab.tables._outcome import (
    CORRECTED,
    DISTANCE,
    METHOD,
    Outcomes,
    as_text,
    differences_text,
    distances_from_paper,
    distances_text,
    paired_differences,
    summary,
)


def write_results(path: Path, content: dict[str, Any]) -> None:
    """Replace a file of results in one step; the last key of the content is ``cells``, a list.

    Tables have hundreds of trainings with dozens of numbers each: with one training on a line, the rest is not buried
    and a change is easy to find.
    """
    *_, last = content
    if last != "cells":
        raise ValueError(f"a file of results ends with its cells; got {last!r} as the last key")
    head = _as_json({**content, "cells": []}, indent=1).removesuffix("[]\n}")
    cells = ",\n  ".join(_as_json(cell) for cell in content["cells"])
    write_atomically(path, f"{head}[\n  {cells}\n ]\n}}\n".encode())


def _as_json(content: Any, indent: int | None = None) -> str:
    return json.dumps(content, indent=indent, ensure_ascii=False, allow_nan=False)


def shared_and_own(recipes: Mapping[str, Recipe]) -> tuple[dict[str, Any], dict[str, dict[str, Any]]]:
    """Dotted keys with one value in all cells; and for each cell, by its folder, the others.

    Defaults are included; of paths only the names, because folders differ between machines.
    """
    resolved = {folder: _keys(recipe) for folder, recipe in recipes.items()}
    first = next(iter(resolved.values()), {})
    shared = {key: value for key, value in first.items() if all(keys[key] == value for keys in resolved.values())}
    own = {
        folder: {key: value for key, value in keys.items() if key not in shared} for folder, keys in resolved.items()
    }
    return shared, own


def _keys(recipe: Recipe) -> dict[str, Any]:
    sections = {section: dataclasses.asdict(getattr(recipe, section)) for section in SECTIONS}
    plain = {key: value.name if isinstance(value, Path) else value for key, value in flattened(sections)}
    return {"task": recipe.task.name, "seed": recipe.seed, **plain}


def summarised(table: Table, outcomes: Outcomes) -> dict[str, Any]:
    """What follows from the cells that are done.

    Returns:
        ``complete``, ``metrics``, ``rows`` and ``text``; ``differences`` where rows are compared, ``distances``
        where the table has readings of the paper, ``findings`` where it has an order or families of rows.
    """
    rows = summary(table, outcomes)
    found = {
        "complete": len(outcomes) == len(list(table.cells())),
        "metrics": [dataclasses.asdict(metric) for metric in table.metrics],
        "rows": rows,
        "text": as_text(table, rows),
    }
    differences = paired_differences(table, outcomes)
    if differences:
        text = differences_text(table, differences)
        method = " ".join([METHOD, CORRECTED.format(overlap=table.overlap)]) if table.overlap else METHOD
        found["differences"] = {"method": method, "rows": differences, "text": text}
    distances = distances_from_paper(table, outcomes)
    if distances:
        text = distances_text(table, distances)
        found["distances"] = {"method": DISTANCE, "combinations": distances, "text": text}
    as_a_whole = findings(table, outcomes)
    return {**found, "findings": as_a_whole} if as_a_whole else found


def summarised_again(table: Table, content: dict[str, Any]) -> dict[str, Any]:
    """A file of results with its means, differences and text made anew from its cells, as the table says now.

    Nothing is trained, and what was noted when the cells were trained stays.

    Raises:
        ValueError: if a cell is not of the table.
    """
    results = {(cell["row"], cell["variant"]): cell["results"] for cell in content["cells"]}
    outcomes = [
        (cell, results.pop((cell.row.label, cell.repetition.name)))
        for cell in table.cells()
        if (cell.row.label, cell.repetition.name) in results
    ]
    if results:
        row, repetition = next(iter(results))
        raise ValueError(f"results/{table.name}.json has a cell {row}, {repetition}, which the table does not have")
    kept = {key: value for key, value in content.items() if key not in ("differences", "distances", "findings")}
    cells = kept.pop("cells")
    return {**kept, **summarised(table, outcomes), "cells": cells}


def printed(content: dict[str, Any]) -> str:
    """The text of a file of results: the table, and below it differences, distances and findings, where any are."""
    more = [content[part]["text"] for part in ("differences", "distances") if part in content]
    return "\n\n".join([content["text"], *more, *(found["text"] for found in content.get("findings", ()))])
