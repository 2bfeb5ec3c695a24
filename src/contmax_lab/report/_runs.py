"""Sections of a report from runs."""

import contextlib
from collections.abc import Sequence
from pathlib import Path

from contmax_lab.contract import Section, TrainedRun
from contmax_lab.report._curves import learning_curves
from contmax_lab.report._signals import signals_note, watched_signals
from contmax_lab.runs import Run


def distinct_labels(folders: Sequence[Path]) -> list[str]:
    """What tells runs apart: the folder's name, or the parts in which paths of the same name differ.

    Example:
        >>> distinct_labels([Path("runs/a/seed-0"), Path("runs/b/seed-0")])
        ['a', 'b']
        >>> distinct_labels([Path("runs/a"), Path("elsewhere/b")])
        ['a', 'b']
    """
    names = [folder.resolve().name for folder in folders]
    if len(set(names)) == len(names):
        return names
    paths = [folder.resolve().parts for folder in folders]
    if len({len(path) for path in paths}) > 1:
        return [str(folder) for folder in folders]
    kept = [level for level, parts in enumerate(zip(*paths, strict=True)) if len(set(parts)) > 1]
    return ["/".join(path[level] for level in kept) or path[-1] for path in paths]


def sections(trained: Sequence[TrainedRun], examples: Sequence[int] = ()) -> list[Section]:
    """One section per task: a table of the runs, learning curves, and the pictures of the task.

    Where runs attend to continuous signals, a note says how much of the features these follow, in what is drawn.

    Args:
        trained: runs that are done, of any tasks.
        examples: which to draw, from 0; by default each task finds some.
    """
    by_task: dict[str, list[TrainedRun]] = {}
    for entry in trained:
        by_task.setdefault(entry.task.name, []).append(entry)
    return [_section(entries, examples) for entries in by_task.values()]


def _section(entries: list[TrainedRun], examples: Sequence[int]) -> Section:
    task = entries[0].task
    labels = [entry.label for entry in entries]
    curves = learning_curves(
        [Run(entry.folder) for entry in entries], labels, title=f"Learning curves, {task.name}", names=task.curves
    )
    with contextlib.ExitStack() as watching:
        shares = [watching.enter_context(watched_signals(entry.model)) for entry in entries]
        figures = [curves, *task.figures(entries, examples)]
    note = signals_note(list(zip(labels, shares, strict=True)))
    return Section(task.name.capitalize(), task.summary, _table(entries, labels), figures, [note] if note else [])


def _table(entries: list[TrainedRun], labels: list[str]) -> list[list[str]]:
    split = "test" if all(entry.results["test"] for entry in entries) else "valid"
    # Runs on different data may measure different things.
    names = dict.fromkeys(name for entry in entries for name in entry.results[split])
    head = ["run", *(f"{split} {name}" for name in names), "parameters", "ms per epoch"]
    lines = [
        [
            label,
            *(f"{found[name]:.4f}" if name in (found := entry.results[split]) else "–" for name in names),
            f"{entry.results['parameters']:,}",
            f"{1000 * entry.results['timing']['seconds_per_epoch']:.1f}",
        ]
        for entry, label in zip(entries, labels, strict=True)
    ]
    return [head, *lines]
