"""Where trained models look in series."""

import dataclasses
from collections.abc import Sequence
from typing import Any, cast

import torch
from torch import Tensor

from contmax.viz import plot_series_attention
from contmax_lab.contract import Figure, TrainedRun
from contmax_lab.drawing import Theme, draw_panels
from contmax_lab.labelled import Answer, first_of_classes, said, truth
from contmax_lab.tasks.series._data import Series

_SERIES = 3


@dataclasses.dataclass(frozen=True)
class Panel:
    """A series and what a model says of it.

    Args:
        title: above it, if it is in the first row.
        text: below that.
        positions: of the observations, (L,).
        values: channels and elapsed time, (L, C + 1).
        answer: of a batch with that series alone.
    """

    title: str
    text: str
    positions: Tensor
    values: Tensor
    answer: Answer


def followed_series(runs: Sequence[TrainedRun], examples: Sequence[int] = ()) -> Figure:
    """What each model attends to in some validation series, a row of panels for each.

    Args:
        runs: trained on the same data.
        examples: of the validation series; by default the first of three classes, or the first three.
    """
    chosen = examples or first_of_classes(cast(Series, runs[0].splits.valid).target, _SERIES)
    rows = [[_panel(trained, place) for place in chosen] for trained in runs]
    return time_figure(rows, [trained.label for trained in runs])


@torch.no_grad()
def _panel(trained: TrainedRun, place: int) -> Panel:
    valid, info = cast(Series, trained.splits.valid), trained.splits.info
    answer: Answer = trained.model(trained.task.batch(valid, [place]))
    title = f"{valid.names[place]}: {truth(valid.target[place], info)}"
    return Panel(title, said(answer, info), valid.positions[place], valid.values[place], answer)


def time_figure(rows: Sequence[Sequence[Panel]], labels: Sequence[str] = ("",)) -> Figure:
    """Panels of series, all heads of a model in one panel.

    Args:
        rows: of each model.
        labels: of the models.
    """
    columns = len(rows[0])

    def draw(theme: Theme) -> Any:
        def fill(axis: Any, row: int, column: int) -> str:
            panel = rows[row][column]
            plot_series_attention(panel.positions, panel.values[:, :-1], ax=axis, limits=(0, 1))
            for number, head in enumerate(panel.answer.heads):
                own, colour = axis.twinx(), theme.colour(row + number)
                plot_series_attention(
                    panel.positions, None, head.weights, head.density, ax=own, limits=(0, 1), color=colour
                )
            # Side by side there is room for the first answer.
            text = panel.text if columns == 1 else panel.text.split(", ")[0]
            return f"{panel.title}\n{text}" if row == 0 else text

        figure, axes = draw_panels(labels, columns, width=max(3.1 * columns, 5.0), height=1.7, fill=fill)
        for axis in axes[:-columns]:
            axis.set_xticklabels([])
        for axis in axes[-columns:]:
            axis.set_xlabel("time, as a share of the series")
        return figure

    return Figure(
        "Where the models look over time",
        draw,
        "Channels over time (thin lines) and what each model attends to (colour, one for each head). Bars are weights "
        "of single observations, curves are densities over continuous time; outside the shaded interval sparse "
        "attention is exactly zero.",
    )
