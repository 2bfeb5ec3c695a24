"""Confusion matrices as pictures: what each model takes for what."""

from collections.abc import Sequence
from typing import Any

from contmax_lab.contract import Figure, TrainedRun
from contmax_lab.drawing import Theme, new_axes, plain_text

_COLUMNS = 3
# Up to this many classes, numbers in the cells and all names can be read.
_READABLE = 12
_LONGEST_NAME = 14


def confusion_figures(trained: Sequence[TrainedRun]) -> list[Figure]:
    """One figure with the confusion matrix of each run, or none where no results have one.

    Args:
        trained: runs of one task.
    """
    found = [(entry.label, entry.results["confusion"]) for entry in trained if entry.results.get("confusion")]
    if not found:
        return []
    split = "test" if all("test" in stored for _, stored in found) else "valid"
    matrices = [(label, stored[split]) for label, stored in found]
    caption = (
        f"Counts of {'test' if split == 'test' else 'validation'} examples: what they are, row by row, and what the "
        "model takes them for, column by column. The colour is the share of the row, so that a rare class is seen as "
        "well as a frequent one."
    )
    return [Figure("Confusion matrix", lambda theme: _draw(matrices, theme), caption)]


def _draw(matrices: Sequence[tuple[str, dict[str, Any]]], theme: Theme) -> Any:
    columns = min(len(matrices), _COLUMNS)
    figure, axes = new_axes(-(-len(matrices) // columns), columns, width=max(3.4 * columns, 4.2), height=3.2)
    for axis, (label, stored) in zip(axes, matrices, strict=False):
        _draw_one(axis, stored["counts"], [plain_text(_short(name)) for name in stored["classes"]], theme)
        axis.set_title(plain_text(label), fontsize=8)
    for axis in axes[len(matrices) :]:
        axis.set_visible(False)
    return figure


def _draw_one(axis: Any, counts: Sequence[Sequence[int]], names: Sequence[str], theme: Theme) -> None:
    from matplotlib.colors import LinearSegmentedColormap

    shares = [[count / max(sum(row), 1) for count in row] for row in counts]
    colours = LinearSegmentedColormap.from_list("shares", [theme.plate, theme.colour(0)])
    axis.imshow(shares, cmap=colours, vmin=0, vmax=1)
    readable = len(names) <= _READABLE
    for row, line in enumerate(counts if readable else ()):
        for column, count in enumerate(line):
            # On a dark cell the colour of the paper is the one that can be read.
            ink = theme.plate if shares[row][column] > 0.6 else theme.ink
            axis.text(column, row, str(count), ha="center", va="center", color=ink, fontsize=8)
    ticks = range(0, len(names), 1 if readable else -(-len(names) // _READABLE))
    shown = [names[tick] for tick in ticks]
    axis.set_xticks(ticks, shown, rotation=45 if max(map(len, shown)) > 4 else 0, fontsize=8)
    axis.set_yticks(ticks, shown, fontsize=8)
    axis.set_xlabel("answer")
    axis.set_ylabel("label")


def _short(name: str) -> str:
    return name if len(name) <= _LONGEST_NAME else f"{name[: _LONGEST_NAME - 1]}…"
