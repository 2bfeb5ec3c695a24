"""How far a table is from the paper's, for every way to read what the paper leaves open."""

import math
import statistics
from typing import Any

from contmax_lab.contract import Table
from contmax_lab.tables._outcome import Outcomes, as_markdown, group_names, values

DISTANCE = (
    "Distance from the paper: root mean square, over all figures that it prints, of log(ours / the paper's), in per "
    "cent, ours being the mean over the repetitions; and of each metric by itself how many times the paper's figure "
    "ours is, as geometric mean over the rows. The closest first."
)


def distances_from_paper(table: Table, outcomes: Outcomes) -> list[dict[str, Any]]:
    r"""For each group of repetitions and each reading of the paper, the closest first.

    .. math:: \sqrt{\frac1n \sum_i \log^2 (x_i / \hat x_i)}

    where :math:`\hat x` are the n figures that the paper prints, and x ours.

    Args:
        table: the table that was trained, with its readings.
        outcomes: cells that are done, with the content of their results.json.

    Returns:
        One mapping per combination whose figures are all there: ``group``, ``reading``, ``distance``, and ``ratios``:
        metric of the paper → ours over the paper's.
    """
    found = []
    for group in group_names(table):
        for name, keys in table.readings.items():
            logs = {
                metric: [
                    _log_ratio(table, outcomes, row.label, group, key, row.paper[metric])
                    for row in table.rows
                    if metric in row.paper
                ]
                for metric, key in keys.items()
            }
            everything = [value for entries in logs.values() for value in entries]
            if everything and all(math.isfinite(value) for value in everything):
                found.append(
                    {
                        "group": group,
                        "reading": name,
                        "distance": math.sqrt(statistics.fmean(value * value for value in everything)),
                        "ratios": {metric: math.exp(statistics.fmean(entries)) for metric, entries in logs.items()},
                    }
                )
    return sorted(found, key=lambda entry: float(entry["distance"]))


def distances_text(table: Table, distances: list[dict[str, Any]]) -> str:
    """The distances in Markdown."""
    labels = {metric.key: metric.label for metric in table.metrics}
    metrics = list(distances[0]["ratios"])
    head = ["data", "read as", "distance, %", *(f"{labels.get(key, key)} / paper's" for key in metrics)]
    body = [
        [
            entry["group"],
            entry["reading"],
            f"{100 * entry['distance']:.1f}",
            *(f"{entry['ratios'][key]:.2f}" for key in metrics),
        ]
        for entry in distances
    ]
    return as_markdown([head, *body])


def _log_ratio(table: Table, outcomes: Outcomes, label: str, group: str, key: str, paper: float) -> float:
    """nan where nothing was measured, or nothing positive."""
    measured = values(outcomes, label, group, key).values()
    scale = next((metric.scale for metric in table.metrics if metric.key == key), 1.0)
    mean = statistics.fmean(measured) * scale if measured else math.nan
    return math.log(mean / paper) if mean > 0 else math.nan
