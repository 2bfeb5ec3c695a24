"""From the results of many trainings to means, deviations and text."""

import statistics
from typing import Any

from contmax_lab.contract import Cell, Metric, Table

Outcomes = list[tuple[Cell, dict[str, Any]]]


def summary(table: Table, outcomes: Outcomes) -> list[dict[str, Any]]:
    """Mean, deviation and count of every metric, for each row and group.

    Args:
        table: of which these are the trainings.
        outcomes: cells that are done, with the content of their results.json.

    Returns:
        One mapping per row: ``label``, ``paper``, and ``groups``: group → metric → ``mean``, ``std`` (None for one
        value), ``count``; where the table has a reference also ``differences``, likewise by metric: the row less the
        reference, in repetitions that both have.
    """
    return [
        {
            "label": row.label,
            "paper": row.paper,
            "groups": {
                group: {
                    metric.key: _statistics(_values(outcomes, row.label, group, metric.key)) for metric in table.metrics
                }
                for group in dict.fromkeys(name for repetition in table.repetitions for name in repetition.groups)
            },
            **({"differences": _differences(table, outcomes, row.label)} if table.reference else {}),
        }
        for row in table.rows
    ]


def as_text(table: Table, rows: list[dict[str, Any]]) -> str:
    """The table for a terminal or a README, in Markdown."""
    head, *body = as_lines(table, rows)
    widths = [max(len(line[i]) for line in [head, *body]) for i in range(len(head))]
    lines = [" | ".join(text.ljust(width) for text, width in zip(line, widths, strict=True)) for line in [head, *body]]
    rule = "|".join("-" * (width + 2) for width in widths)
    return "\n".join([f"| {lines[0]} |", f"|{rule}|", *(f"| {line} |" for line in lines[1:])])


def as_lines(table: Table, rows: list[dict[str, Any]]) -> list[list[str]]:
    """The cells, line by line from the head on: mean ± deviation, and the paper's figure beside."""
    groups = list(rows[0]["groups"]) if rows else []
    columns = [(group, metric) for group in groups for metric in table.metrics]
    suffix = {group: f" ({group})" if len(groups) > 1 else "" for group in groups}
    published = [metric for metric in table.metrics if any(metric.key in row["paper"] for row in rows)]
    # Of the first metric: it is what a table is about.
    compared = table.metrics[:1] if table.reference else ()
    head = [
        "",
        *(m.label + suffix[g] for g, m in columns),
        *(f"less {table.reference}: {m.label}" for m in compared),
        *(f"paper: {m.label}" for m in published),
    ]
    body = [
        [
            row["label"],
            *(_cell(row["groups"][group][metric.key], metric) for group, metric in columns),
            *(_cell(row["differences"][m.key], m, "+") if row["label"] != table.reference else "–" for m in compared),
            *(f"{row['paper'][m.key]:.{m.digits}f}" if m.key in row["paper"] else "–" for m in published),
        ]
        for row in rows
    ]
    return [head, *body]


def _differences(table: Table, outcomes: Outcomes, label: str) -> dict[str, dict[str, Any]]:
    """Metric → statistics of the differences of a row to the reference, repetition by repetition."""
    found = {(cell.row.label, cell.repetition.name): results for cell, results in outcomes}

    def pairs(key: str) -> list[float]:
        values = (
            (_look_up(found.get((label, r.name)), key), _look_up(found.get((table.reference, r.name)), key))
            for r in table.repetitions
        )
        return [float(own) - float(other) for own, other in values if own is not None and other is not None]

    return {metric.key: _statistics(pairs(metric.key)) for metric in table.metrics}


def _values(outcomes: Outcomes, label: str, group: str, key: str) -> list[float]:
    found = (
        _look_up(results, key)
        for cell, results in outcomes
        if cell.row.label == label and group in cell.repetition.groups
    )
    return [float(value) for value in found if value is not None]


def _look_up(results: Any, key: str) -> Any:
    for part in key.split("."):
        if results is None:
            return None
        results = results.get(part)
    return results


def _statistics(values: list[float]) -> dict[str, Any]:
    return {
        "mean": statistics.fmean(values) if values else None,
        "std": statistics.stdev(values) if len(values) > 1 else None,
        "count": len(values),
    }


def _cell(entry: dict[str, Any], metric: Metric, sign: str = "") -> str:
    if entry["mean"] is None:
        return "–"
    shown = entry["std"] is not None and metric.spread
    spread = f" ± {entry['std'] * metric.scale:.{metric.digits}f}" if shown else ""
    return f"{entry['mean'] * metric.scale:{sign},.{metric.digits}f}{spread}"
