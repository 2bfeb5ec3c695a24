"""The file of results of a table: JSON with each training on a line of its own."""

import dataclasses
import json
import shlex
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from contmax_lab.contract import Experiment, Recipe, Table
from contmax_lab.errors import Interrupted
from contmax_lab.files import make_folder, write_atomically
from contmax_lab.packages import version
from contmax_lab.provenance import provenance
from contmax_lab.recipes import SECTIONS, flattened
from contmax_lab.tables._outcome import (
    CORRECTED,
    DISTANCE,
    METHOD,
    Outcomes,
    as_text,
    differences_text,
    distances_from_paper,
    distances_text,
    findings,
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


def run_experiment(experiment: Experiment, runs: Path, output: Path, budget_minutes: float = 0.0) -> str:
    """Train what is missing, write the file of results and, if matplotlib is installed, a picture beside it.

    Args:
        experiment: what to make.
        runs: folder of the cells; those that are done are not trained again.
        output: the file of results.
        budget_minutes: stop cleanly after so long; 0 = no limit.

    Returns:
        The table as text.

    Raises:
        Interrupted: if time was up; the file has what is done.
    """
    table, stopped = experiment.table, None
    make_folder(output.parent)
    try:
        experiment.train(runs, budget_minutes)
    except Interrupted as error:
        stopped = error
    outcomes = list(experiment.outcomes(runs))
    # Cells say where and when they were trained; the table says it of the last one.
    origins = sorted((results["provenance"] for _, results in outcomes), key=lambda origin: str(origin["date"]))
    content = {
        "table": table.name,
        "title": table.title,
        "command": shlex.join(["contmax", "reproduce", table.name]),
        **(origins[-1] if origins else provenance(("contmax", "torch", "triton", "numpy"))),
        "notes": [*table.notes],
        **summarised(table, outcomes),
        "cells": [
            {"row": cell.row.label, "variant": cell.repetition.name, **results["test"], "results": results}
            for cell, results in outcomes
        ],
    }
    write_results(output, content)
    if version("matplotlib"):
        experiment.draw(content, output.with_suffix(".png"))
    if stopped is not None:
        raise stopped
    return printed(content)
