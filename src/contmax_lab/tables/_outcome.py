"""From the results of many trainings to means, differences between rows, distances from the paper, and text."""

import functools
import math
import statistics
from collections.abc import Callable, Sequence
from typing import Any

from contmax_lab.contract import Cell, Metric, Row, Table

# Cells that are done, with the content of their results.json.
Outcomes = list[tuple[Cell, dict[str, Any]]]
CONFIDENCE = 0.95
METHOD = (
    "Differences are paired: from each repetition of a row that of the other row with the same seed or split is "
    "taken. Mean of these differences, and in brackets Student's t interval of it, 95 %. Each interval stands for "
    "itself: of 20 rows that do not differ, one is expected to seem to."
)
CORRECTED = (
    "The repetitions divide the same examples again and again, so that their differences are not independent: in the "
    "intervals the variance of a mean is s²·(1/n + {overlap:.3g}) instead of s²/n, the corrected resampled t test of "
    "Nadeau and Bengio 2003, where {overlap:.3g} is the size of a test part over that of the rest."
)
DISTANCE = (
    "Distance from the paper: root mean square, over all figures that it prints, of log(ours / the paper's), in per "
    "cent, ours being the mean over the repetitions; and of each metric by itself how many times the paper's figure "
    "ours is, as geometric mean over the rows. The closest first."
)


def summary(table: Table, outcomes: Outcomes) -> list[dict[str, Any]]:
    """Mean, deviation and count of every metric, for each row and group.

    Returns:
        One mapping per row: ``label``, ``paper``, and ``groups``: group → metric → ``mean``, ``std`` (None for one
        value), ``count``; and ``each``, the values, of a metric that prints them.
    """
    every = {metric.key for metric in table.metrics if metric.each}

    def cell(row: Row, group: str, key: str) -> dict[str, Any]:
        found = list(values(outcomes, row.label, group, key).values())
        return {
            "mean": statistics.fmean(found) if found else None,
            "std": statistics.stdev(found) if len(found) > 1 else None,
            "count": len(found),
            **({"each": found} if key in every else {}),
        }

    def printed(figures: dict[str, dict[str, float]], group: str, metric: Metric) -> dict[str, Any]:
        figure = figures.get(group, {}).get(metric.key)
        return {"mean": None if figure is None else figure / metric.scale, "std": None, "count": 0}

    ours = [{"label": row.label, "paper": row.paper, "groups": _by_group(table, row, cell)} for row in table.rows]
    return ours + [
        {"label": label, "paper": {}, "groups": {g: {m.key: printed(of, g, m) for m in table.metrics} for g in of}}
        for label, of in table.published.items()
    ]


def _by_group(
    table: Table, row: Row, cell: Callable[[Row, str, str], dict[str, Any]], *, compared: bool = False
) -> dict[str, dict[str, Any]]:
    """Group → key of a metric → what `cell` finds for the row, the group and the key; perhaps of compared metrics."""
    metrics = [metric for metric in table.metrics if metric.compared or not compared]
    return {group: {metric.key: cell(row, group, metric.key) for metric in metrics} for group in group_names(table)}


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
        _mean_cell,
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
        table: its groups.
        rows: label, group → metric → entry, and the last cells of the line.
        corner, more: the first and the last cells of the head.
        metrics, cell: the columns of each group, and what stands there for an entry.
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
    """A metric, by its dotted key, of a row in the repetitions of a group: name of the repetition → value."""
    found: dict[str, float] = {}
    for cell, results in outcomes:
        if cell.row.label == label and group in cell.repetition.groups:
            value: Any = results
            for part in key.split("."):
                value = None if value is None else value.get(part)
            if value is not None:
                found[cell.repetition.name] = float(value)
    return found


def _mean_cell(entry: dict[str, Any], metric: Metric) -> str:
    if entry["mean"] is None:
        return "–"
    if entry.get("each"):
        printed = [f"{value * metric.scale:,.{metric.digits}f}" for value in entry["each"]]
        # Once is enough for what does not vary.
        return " · ".join(printed if len(set(printed)) > 1 else printed[:1])
    shown = entry["std"] is not None and metric.spread
    spread = f" ± {entry['std'] * metric.scale:.{metric.digits}f}" if shown else ""
    return f"{entry['mean'] * metric.scale:,.{metric.digits}f}{spread}"


def paired_differences(table: Table, outcomes: Outcomes) -> list[dict[str, Any]]:
    r"""How much each row differs from the one that it is compared with, by default the baseline of the table.

    .. math:: \bar d \pm t_{n-1,\,.975}\; s_d \sqrt{1/n + \rho}

    where d are the n differences between the two rows in one repetition, s their deviation, and ρ the `overlap` of the
    table: 0, or, where repetitions divide the same examples, the ratio of Nadeau and Bengio 2003. What two rows share
    in a repetition, the split or the seed of the data order, cancels in their difference.

    Returns:
        One mapping per row that is compared: ``label``, ``against``, and ``groups``: group → metric → ``mean``,
        ``low``, ``high`` (None for less than two repetitions), ``count``.
    """

    def cell(row: Row, group: str, key: str, against: str) -> dict[str, Any]:
        ours, others = (values(outcomes, label, group, key) for label in (row.label, against))
        return _interval([ours[name] - others[name] for name in ours if name in others], table.overlap)

    pairs = [(row, against) for row in table.rows for against in _others(table, row) if against != row.label]
    return [
        {
            "label": row.label,
            "against": against,
            "groups": _by_group(table, row, functools.partial(cell, against=against), compared=True),
        }
        for row, against in pairs
    ]


def _others(table: Table, row: Row) -> tuple[str, ...]:
    """Labels of the rows that a row is compared with."""
    return row.against or ((table.baseline,) if table.baseline else ())


def differences_text(table: Table, differences: list[dict[str, Any]]) -> str:
    """The differences in Markdown."""
    against = {entry["against"] for entry in differences}
    corner = f"minus {table.baseline}" if against == {table.baseline} else ""
    labels = [entry["label"] if corner else f"{entry['label']} minus {entry['against']}" for entry in differences]
    rows = [(label, entry["groups"], list[str]()) for label, entry in zip(labels, differences, strict=True)]
    metrics = [metric for metric in table.metrics if metric.compared]
    return as_markdown(blocks(table, rows, corner, metrics, _difference_cell))


def student_quantile(probability: float, degrees: int) -> float:
    """The quantile of Student's t, from its distribution function, which is elementary for whole degrees of freedom.

    Args:
        probability: above 1/2 and below 1.
        degrees: of freedom, 1 or more.

    Example:
        >>> round(student_quantile(0.975, 2), 4)
        4.3027
    """
    # t = √ν·tan θ, and the share between −t and t rises from 0 to 1 with θ from 0 to π/2.
    low, high = 0.0, math.pi / 2
    for _ in range(80):
        middle = (low + high) / 2
        low, high = (middle, high) if _share_within(middle, degrees) < 2 * probability - 1 else (low, middle)
    return math.sqrt(degrees) * math.tan((low + high) / 2)


def _share_within(angle: float, degrees: int) -> float:
    """P(|T| < √ν·tan θ), Abramowitz and Stegun 26.7.3 and 26.7.4."""
    odd = degrees % 2
    term, total = math.cos(angle) if odd else 1.0, 0.0
    for step in range(degrees // 2):
        total += term
        term *= math.cos(angle) ** 2 * (2 * step + 1 + odd) / (2 * step + 2 + odd)
    inner = math.sin(angle) * total
    return (angle + inner) * 2 / math.pi if odd else inner


def _interval(found: list[float], overlap: float) -> dict[str, Any]:
    """The mean of differences, and Student's t interval of it."""
    count = len(found)
    mean = statistics.fmean(found) if found else None
    if mean is None or count < 2:
        return {"mean": mean, "low": None, "high": None, "count": count}
    reach = student_quantile((1 + CONFIDENCE) / 2, count - 1) * statistics.stdev(found) / math.sqrt(count)
    reach *= math.sqrt(1 + count * overlap)
    return {"mean": mean, "low": mean - reach, "high": mean + reach, "count": count}


def _difference_cell(entry: dict[str, Any], metric: Metric) -> str:
    if entry["mean"] is None:
        return "–"
    mean, low, high = (
        None if entry[name] is None else f"{entry[name] * metric.scale:+.{metric.digits}f}"
        for name in ("mean", "low", "high")
    )
    return f"{mean} [{low}, {high}]" if low is not None else str(mean)


def distances_from_paper(table: Table, outcomes: Outcomes) -> list[dict[str, Any]]:
    r"""For each group of repetitions and each reading of the paper, the closest first.

    .. math:: \sqrt{\frac1n \sum_i \log^2 (x_i / \hat x_i)}

    where :math:`\hat x` are the n figures that the paper prints, and x ours.

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
            if everything and all(map(math.isfinite, everything)):
                distance = math.sqrt(statistics.fmean(value * value for value in everything))
                ratios = {metric: math.exp(statistics.fmean(entries)) for metric, entries in logs.items()}
                found.append({"group": group, "reading": name, "distance": distance, "ratios": ratios})
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
    """log(our mean / the figure of the paper); nan if there is no mean, or none above 0."""
    measured = values(outcomes, label, group, key).values()
    scale = next((metric.scale for metric in table.metrics if metric.key == key), 1.0)
    mean = statistics.fmean(measured) * scale if measured else math.nan
    return math.log(mean / paper) if mean > 0 else math.nan


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
