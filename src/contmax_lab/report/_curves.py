"""Learning curves from metrics.jsonl."""

import statistics
from collections.abc import Sequence
from typing import Any

from contmax_lab.contract import Figure
from contmax_lab.drawing import Theme, new_axes
from contmax_lab.runs import Run

_COLUMNS = 3
Curves = dict[str, list[list[dict[str, Any]]]]


def learning_curves(
    runs: Sequence[Run], labels: Sequence[str], *, title: str = "Learning curves", names: Sequence[str] = ()
) -> Figure:
    """Validation metrics against the epoch, one panel per metric and one line per label.

    Args:
        runs: of one task.
        labels: of the runs; runs that share one are repetitions, drawn as their mean and range.
        title: of the figure.
        names: of the metrics; by default all there are.
    """
    curves: Curves = {}
    for run, label in zip(runs, labels, strict=True):
        curves.setdefault(label, []).append(run.history())
    records = [record for repetitions in curves.values() for history in repetitions for record in history]
    shown = list(names) or list(dict.fromkeys(name for record in records for name in record["valid"]))
    repeated = max(map(len, curves.values()), default=1)
    caption = "Measured on the validation examples during the training"
    caption += f"; mean (line) and range (band) of {repeated} repetitions." if repeated > 1 else "."
    return Figure(title, lambda theme: _draw(curves, shown, theme), caption)


def _draw(curves: Curves, names: Sequence[str], theme: Theme) -> Any:
    columns = min(len(names), _COLUMNS) or 1
    figure, axes = new_axes(-(-len(names) // columns) or 1, columns, width=3.1 * columns, height=2.6)
    for axis, name in zip(axes, names, strict=False):
        for index, (label, repetitions) in enumerate(curves.items()):
            epochs, middle, low, high = _summary(repetitions, name)
            axis.plot(epochs, middle, label=label, color=theme.colour(index))
            axis.fill_between(epochs, low, high, color=theme.colour(index), alpha=0.18, linewidth=0)
        axis.set_title(name)
        axis.set_xlabel("epoch")
        axis.set_ylim(*_limits(curves, name))
        axis.grid(axis="y")
    for axis in axes[len(names) :]:
        axis.set_visible(False)
    if names:
        handles, labels = axes[0].get_legend_handles_labels()
        figure.legend(handles, labels, loc="outside lower center", ncols=min(len(labels), columns), fontsize=8.5)
    return figure


def _limits(curves: Curves, name: str) -> tuple[float, float] | tuple[None, None]:
    """Room for what comes after the first fifth of the training, where all models are still bad."""
    values = [
        record["valid"][name]
        for repetitions in curves.values()
        for history in repetitions
        for record in history[len(history) // 5 :]
        if name in record["valid"]
    ]
    low, high = min(values, default=0.0), max(values, default=0.0)
    margin = 0.06 * (high - low)
    return (low - margin, high + margin) if margin else (None, None)


def _summary(repetitions: Sequence[Sequence[dict[str, Any]]], name: str) -> tuple[list[Any], ...]:
    """Epochs, mean, least and greatest value, at the epochs that all repetitions have reached."""
    values = [{record["epoch"]: record["valid"][name] for record in h if name in record["valid"]} for h in repetitions]
    epochs = sorted(set.intersection(*(set(v) for v in values)))
    columns = [[v[epoch] for v in values] for epoch in epochs]
    return epochs, [statistics.fmean(c) for c in columns], [min(c) for c in columns], [max(c) for c in columns]
