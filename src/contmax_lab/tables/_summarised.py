"""The part of a file of results that follows from its cells."""

import dataclasses
from typing import Any

from contmax_lab.contract import Table
from contmax_lab.tables._outcome import Outcomes, as_text, summary
from contmax_lab.tables._paired import METHOD, differences_text, paired_differences


def summarised(table: Table, outcomes: Outcomes) -> dict[str, Any]:
    """Means, deviations, differences and text.

    Args:
        table: of which these are the trainings.
        outcomes: cells that are done, with the content of their results.json.

    Returns:
        ``complete``, ``metrics``, ``rows`` and ``text``; ``differences`` where the table has a baseline.
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
        found["differences"] = {"baseline": table.baseline, "method": METHOD, "rows": differences, "text": text}
    return found


def summarised_again(table: Table, content: dict[str, Any]) -> dict[str, Any]:
    """A file of results whose means, differences and text are made from its cells as the table says now.

    Nothing is trained, and what was noted when the cells were trained stays.

    Args:
        table: as it is now.
        content: of the file.

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
    kept = {key: value for key, value in content.items() if key != "differences"}
    cells = kept.pop("cells")
    return {**kept, **summarised(table, outcomes), "cells": cells}


def printed(content: dict[str, Any]) -> str:
    """The text of a file of results: the table, and where there are any the differences below it."""
    differences = content.get("differences")
    return "\n\n".join([content["text"], *([differences["text"]] if differences else [])])
