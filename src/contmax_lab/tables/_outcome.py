"""From the results of many trainings to means, deviations and text."""

import statistics
from collections.abc import Callable, Sequence
from typing import Any

from contmax_lab.contract import Cell, Metric, Table

Outcomes = list[tuple[Cell, dict[str, Any]]]


def summary(table: Table, outcomes: Outcomes) -> list[dict[str, Any]]:
    """Mean, deviation and count of every metric, for each row and group.

    Args:
        table: the table that was trained.
        outcomes: cells that are done, with the content of their results.json.

    Returns:
        One mapping per row: ``label``, ``paper``, and ``groups``: group → metric → ``mean``, ``std`` (None for one
        value), ``count``.
    """
    return [
        {
            "label": row.label,
            "paper": row.paper,
            "groups": {
                group: {
                    metric.key: _statistics(list(values(outcomes, row.label, group, metric.key).values()))
                    for metric in table.metrics
                }
                for group in group_names(table)
            },
        }
        for row in table.rows
    ]


def as_text(table: Table, rows: list[dict[str, Any]]) -> str:
    """The table for a terminal or a README, in Markdown."""
    return as_markdown(as_lines(table, rows))


def as_markdown(lines: list[list[str]]) -> str:
    """Cells, line by line from the head on, in columns.

    Example:
        >>> print(as_markdown([["", "MSE"], ["Row", "0.5"]]))
        |     | MSE |
        |-----|-----|
        | Row | 0.5 |
    """
    head, *body = lines
    widths = [max(len(line[i]) for line in [head, *body]) for i in range(len(head))]
    aligned = [" | ".join(text.ljust(width) for text, width in zip(line, widths, strict=True)) for line in lines]
    rule = "|".join("-" * (width + 2) for width in widths)
    return "\n".join([f"| {aligned[0]} |", f"|{rule}|", *(f"| {line} |" for line in aligned[1:])])


def as_lines(table: Table, rows: list[dict[str, Any]]) -> list[list[str]]:
    """The cells, line by line from the head on: mean ± deviation, and the paper's figure beside."""
    published = [metric for metric in table.metrics if any(metric.key in row["paper"] for row in rows)]

    def printed(row: dict[str, Any]) -> list[str]:
        return [f"{row['paper'][m.key]:.{m.digits}f}" if m.key in row["paper"] else "–" for m in published]

    return blocks(
        table,
        [(row["label"], row["groups"], printed(row)) for row in rows],
        "",
        table.metrics,
        _cell,
        [f"paper: {m.label}" for m in published],
    )


def blocks(
    table: Table,
    rows: list[tuple[str, dict[str, Any], list[str]]],
    corner: str,
    metrics: Sequence[Metric],
    cell: Callable[[dict[str, Any], Metric], str],
    more: Sequence[str] = (),
) -> list[list[str]]:
    """Lines of a table: its groups beside each other, or those that it shows below each other.

    Args:
        table: says which.
        rows: label, group → metric → entry, and the last cells of the line.
        corner: the first cell of the head.
        metrics: the columns of each group.
        cell: what stands for an entry.
        more: the last cells of the head.
    """
    groups = group_names(table)
    if table.shown:
        head = [[corner, *(metric.label for metric in metrics), *more]]
        empty = [""] * (len(metrics) + len(more))
        return head + [
            line
            for group in table.shown
            for line in [
                [f"**{group}**", *empty],
                *([label, *(cell(found[group][m.key], m) for m in metrics), *last] for label, found, last in rows),
            ]
        ]
    suffix = {group: f" ({group})" if len(groups) > 1 else "" for group in groups}
    columns = [(group, metric) for group in groups for metric in metrics]
    return [
        [corner, *(metric.label + suffix[group] for group, metric in columns), *more],
        *(
            [label, *(cell(found[group][metric.key], metric) for group, metric in columns), *last]
            for label, found, last in rows
        ),
    ]


def group_names(table: Table) -> list[str]:
    """The groups of repetitions over which means are taken."""
    return list(dict.fromkeys(name for repetition in table.repetitions for name in repetition.groups))


def values(outcomes: Outcomes, label: str, group: str, key: str) -> dict[str, float]:
    """What was measured of a row in the repetitions of a group, by the name of the repetition.

    Args:
        outcomes: cells that are done, with the content of their results.json.
        label: of the row.
        group: of the repetitions.
        key: dotted, of the metric.
    """
    found = {
        cell.repetition.name: _look_up(results, key)
        for cell, results in outcomes
        if cell.row.label == label and group in cell.repetition.groups
    }
    return {name: float(value) for name, value in found.items() if value is not None}


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


def _cell(entry: dict[str, Any], metric: Metric) -> str:
    if entry["mean"] is None:
        return "–"
    shown = entry["std"] is not None and metric.spread
    spread = f" ± {entry['std'] * metric.scale:.{metric.digits}f}" if shown else ""
    return f"{entry['mean'] * metric.scale:,.{metric.digits}f}{spread}"
