"""Pictures of where models look: a row of panels for each model, a column for each example; texts."""

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any, Generic, TypeVar

import torch

from contmax.viz import plot_text_attention
from contmax_lab.contract import Figure, TrainedRun
from contmax_lab.drawing import Theme, new_axes, picture_width, plain_text
from contmax_lab.labelled._answer import Answer
from contmax_lab.labelled._task import first_of_classes, said, truth

T = TypeVar("T")


@dataclasses.dataclass(frozen=True)
class Panel(Generic[T]):
    """An example and what a model says of it.

    Args:
        title: above it, if it is in the first row.
        text: below that.
        shown: what is drawn of the example.
        answer: of a batch with that example alone.
    """

    title: str
    text: str
    shown: T
    answer: Answer


@dataclasses.dataclass(frozen=True)
class PanelPicture(Generic[T]):
    """How the examples of a task are drawn.

    Args:
        title, caption: of the figure.
        size: width and height of a panel, inches.
        least_width: of the figure, inches.
        shown: validation examples, place → what is drawn of that example.
        most: examples at most, where nobody has chosen them.
        draw: axis, panel, row, theme → nothing; draws an example and all heads of a model.
        finish: axes row by row, number of columns → nothing; what concerns all panels.
        whole_text: whether the one panel of a figure has room for all that a model says, not for its first words only.
    """

    title: str
    caption: str
    size: tuple[float, float]
    least_width: float
    shown: Callable[[Any, int], T]
    most: int
    draw: Callable[[Any, Panel[T], int, Theme], None]
    finish: Callable[[list[Any], int], None] = lambda axes, columns: None
    whole_text: bool = False

    def of_runs(self, runs: Sequence[TrainedRun], examples: Sequence[int]) -> Figure:
        """What each model attends to in some validation examples, by default the first of each class.

        The runs were trained on one data set, whose validation examples have ``names`` and ``target``.
        """
        valid: Any = runs[0].splits.valid
        chosen = examples or first_of_classes(valid.target, self.most)
        rows = [[_panel(trained, place, self.shown) for place in chosen] for trained in runs]
        return self.of_panels(rows, [trained.label for trained in runs])

    def of_panels(self, rows: Sequence[Sequence[Panel[T]]], labels: Sequence[str] = ("",)) -> Figure:
        """A row of panels for each model."""
        columns = len(rows[0])

        def draw(theme: Theme) -> Any:
            width = max(self.size[0] * columns, self.least_width)
            figure, axes = new_axes(len(rows), columns, width, self.size[1])
            for index, axis in enumerate(axes):
                row, column = divmod(index, columns)
                panel = rows[row][column]
                self.draw(axis, panel, row, theme)
                text = panel.text if self.whole_text and columns == 1 else panel.text.split(", ")[0]
                title = f"{panel.title}\n{text}" if row == 0 and panel.title else text
                axis.set_title(plain_text(title), fontsize=8)
                if column == 0:
                    label = plain_text(labels[row]).replace("-", "\n").replace(" ", "\n")
                    axis.set_ylabel(label, rotation=0, ha="right", va="center", fontsize=8)
            self.finish(axes, columns)
            return figure

        return Figure(self.title, draw, self.caption)


@torch.no_grad()
def _panel(trained: TrainedRun, place: int, shown: Callable[[Any, int], T]) -> Panel[T]:
    valid: Any = trained.splits.valid
    info = trained.splits.info
    answer: Answer = trained.model(trained.task.batch(valid, [place]))
    title = f"{valid.names[place]}: {truth(valid.target[place], info)}"
    return Panel(title, said(answer, info), shown(valid, place), answer)


def text_figure(
    title: str, words: Sequence[str], panels: Sequence[tuple[str, Any]], caption: str, height: float = 1.3
) -> Figure:
    """A text with a panel for each attention over it: its heading, and an object with its weights and its density."""

    def draw(theme: Theme) -> Any:
        figure, axes = new_axes(rows=len(panels), width=picture_width(words), height=height)
        for axis, (heading, looked) in zip(axes, panels, strict=True):
            plot_text_attention(words, looked.weights, looked.density, ax=axis, show_tokens=axis is axes[-1])
            axis.set_title(plain_text(heading), loc="left", fontsize=8)
        return figure

    return Figure(title, draw, caption)
