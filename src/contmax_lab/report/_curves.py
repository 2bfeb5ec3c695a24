"""Learning curves from metrics.jsonl."""

from collections.abc import Sequence

from contmax_lab.report._figure import Figure, new_axes
from contmax_lab.runs import Run


def learning_curves(runs: Sequence[Run], labels: Sequence[str]) -> Figure:
    """Every validation metric against the epoch, one panel per metric and one line per run.

    Args:
        runs: of one task.
        labels: of the runs.
    """
    histories = [run.history() for run in runs]
    names = list(dict.fromkeys(name for history in histories for record in history for name in record["valid"]))
    columns = min(len(names), 3) or 1
    figure, axes = new_axes(-(-len(names) // columns) or 1, columns, width=4.2 * columns, height=2.8)
    for axis, name in zip(axes, names, strict=False):
        for history, label in zip(histories, labels, strict=True):
            points = [(record["epoch"], record["valid"][name]) for record in history if name in record["valid"]]
            axis.plot([x for x, _ in points], [y for _, y in points], label=label, linewidth=1.2)
        axis.set_title(name, loc="left", fontsize=10)
        axis.set_xlabel("epoch")
    for axis in axes[len(names) :]:
        axis.set_visible(False)
    if names:
        axes[0].legend(fontsize=7, frameon=False)
    return Figure.of("Learning curves", figure, "Metrics on the validation examples.")
