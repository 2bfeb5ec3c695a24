"""Sections of a report from runs."""

from collections.abc import Sequence

from contmax_lab.report._curves import learning_curves
from contmax_lab.report._page import Section
from contmax_lab.runs import TrainedRun


def sections(trained: Sequence[TrainedRun]) -> list[Section]:
    """One section per task: a table of the runs, learning curves, and the pictures of the task.

    Args:
        trained: runs that are done, of any tasks.
    """
    by_task: dict[str, list[TrainedRun]] = {}
    for entry in trained:
        by_task.setdefault(entry.task.name, []).append(entry)
    return [_section(entries) for entries in by_task.values()]


def _section(entries: list[TrainedRun]) -> Section:
    task = entries[0].task
    labels = [entry.label for entry in entries]
    curves = learning_curves(
        [entry.run for entry in entries], labels, title=f"Learning curves, {task.name}", names=task.curves
    )
    figures = [curves, *task.figures(entries)]
    return Section(task.name.capitalize(), task.summary, _table(entries, labels), figures)


def _table(entries: list[TrainedRun], labels: list[str]) -> list[list[str]]:
    split = "test" if all(entry.results["test"] for entry in entries) else "valid"
    names = list(entries[0].results[split])
    head = ["run", *(f"{split} {name}" for name in names), "parameters", "ms per epoch"]
    lines = [
        [
            label,
            *(f"{entry.results[split][name]:.4f}" for name in names),
            f"{entry.results['parameters']:,}",
            f"{1000 * entry.results['timing']['seconds_per_epoch']:.1f}",
        ]
        for entry, label in zip(entries, labels, strict=True)
    ]
    return [head, *lines]
