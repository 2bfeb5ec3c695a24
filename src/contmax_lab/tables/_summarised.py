"""The part of a file of results that follows from its cells."""

import dataclasses
from typing import Any

from contmax_lab.contract import Table
from contmax_lab.tables._distance import DISTANCE, distances_from_paper, distances_text
from contmax_lab.tables._outcome import Outcomes, as_text, summary
from contmax_lab.tables._paired import METHOD, differences_text, paired_differences


def summarised(table: Table, outcomes: Outcomes) -> dict[str, Any]:
    """Means, deviations, differences and text.

    Args:
        table: the table that was trained.
        outcomes: cells that are done, with the content of their results.json.

    Returns:
        ``complete``, ``metrics``, ``rows`` and ``text``; ``differences`` where rows are compared, ``distances``
        where it has readings of the paper.
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
        found["differences"] = {"method": METHOD, "rows": differences, "text": text}
    distances = distances_from_paper(table, outcomes)
    if distances:
        text = distances_text(table, distances)
        found["distances"] = {"method": DISTANCE, "combinations": distances, "text": text}
    return found


def summarised_again(table: Table, content: dict[str, Any]) -> dict[str, Any]:
    """A file of results with its means, differences and text made anew from its cells, as the table says now.

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
    kept = {key: value for key, value in content.items() if key not in ("differences", "distances")}
    cells = kept.pop("cells")
    return {**kept, **summarised(table, outcomes), "cells": cells}


def printed(content: dict[str, Any]) -> str:
    """The text of a file of results: the table, and below it differences and distances where there are any."""
    more = [content[part]["text"] for part in ("differences", "distances") if part in content]
    return "\n\n".join([content["text"], *more])
