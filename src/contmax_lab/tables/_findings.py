"""What a table says as a whole, in sentences: how near its order is to the paper's, and differences of many pairs."""

import statistics
from typing import Any

from contmax_lab.contract import Metric, Table
from contmax_lab.tables._outcome import Outcomes, group_names, values


def findings(table: Table, outcomes: Outcomes) -> list[dict[str, Any]]:
    """What the table is asked for as a whole.

    Returns:
        One mapping per finding: ``what``, ``group``, numbers, and ``text``, a sentence; none where rows are missing.
    """
    return [*_orders(table, outcomes), *_families(table, outcomes)]


def rank_correlation(one: list[float], other: list[float]) -> float:
    r"""Spearman's correlation: Pearson's of the ranks, equal values having the mean of their ranks.

    Example:
        >>> rank_correlation([1.0, 2.0, 3.0], [10.0, 30.0, 20.0])
        0.5
    """
    return statistics.correlation(_ranks(one), _ranks(other))


def _ranks(values: list[float]) -> list[float]:
    order = sorted(values)
    return [order.index(value) + (order.count(value) - 1) / 2 for value in values]


def _orders(table: Table, outcomes: Outcomes) -> list[dict[str, Any]]:
    printed = {row.label: row.paper[table.ranked] for row in table.rows if table.ranked in row.paper}
    found = []
    for group in group_names(table) if printed else []:
        ours = {label: list(values(outcomes, label, group, table.ranked).values()) for label in printed}
        if all(ours.values()):
            means = [statistics.fmean(ours[label]) for label in printed]
            correlation = rank_correlation(means, list(printed.values()))
            text = (
                f"Order of the rows: Spearman's correlation of our mean {_metric(table, table.ranked).label} with the "
                f"paper's {len(printed)} figures is {correlation:.2f}."
            )
            found.append(
                {"what": "order", "group": group, "correlation": correlation, "rows": len(printed), "text": text}
            )
    return found


def _families(table: Table, outcomes: Outcomes) -> list[dict[str, Any]]:
    found = []
    for what, pairs in table.families.items():
        for group in group_names(table):
            for metric in (metric for metric in table.metrics if metric.compared):
                differences = []
                for label, other in pairs:
                    ours, theirs = (values(outcomes, one, group, metric.key) for one in (label, other))
                    differences += [ours[name] - theirs[name] for name in ours if name in theirs]
                if differences:
                    found.append(_family(what, group, metric, differences))
    return found


def _family(what: str, group: str, metric: Metric, differences: list[float]) -> dict[str, Any]:
    mean, above = statistics.fmean(differences), sum(difference > 0 for difference in differences)
    text = (
        f"{what}, {metric.label}: {mean * metric.scale:+.{metric.digits}f} in the mean of {len(differences)} pairs of "
        f"rows in one repetition, above zero in {above} of them."
    )
    return {"what": what, "group": group, "mean": mean, "above": above, "count": len(differences), "text": text}


def _metric(table: Table, key: str) -> Metric:
    return next(metric for metric in table.metrics if metric.key == key)
