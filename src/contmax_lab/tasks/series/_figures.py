"""Where trained models look in series."""

from collections.abc import Sequence
from typing import Any

from torch import Tensor

from contmax.viz import plot_series_attention
from contmax_lab.contract import Figure, TrainedRun
from contmax_lab.drawing import Theme
from contmax_lab.labelled import Panel, PanelPicture

_SERIES = 3
# Positions of the observations, (L,); channels and elapsed time, (L, C + 1).
Observed = tuple[Tensor, Tensor]


def followed_series(runs: Sequence[TrainedRun], examples: Sequence[int] = ()) -> Figure:
    """What each model attends to in some validation series, a row of panels for each.

    Args:
        runs: trained on the same data.
        examples: of the validation series; by default the first of three classes, or the first three.
    """
    return PICTURE.of_runs(
        runs, examples, _SERIES, lambda series, place: (series.positions[place], series.values[place])
    )


def _draw(axis: Any, panel: Panel[Observed], row: int, theme: Theme) -> None:
    positions, values = panel.shown
    plot_series_attention(positions, values[:, :-1], ax=axis, limits=(0, 1))
    for number, head in enumerate(panel.answer.heads):
        own, colour = axis.twinx(), theme.colour(row + number)
        plot_series_attention(positions, None, head.weights, head.density, ax=own, limits=(0, 1), color=colour)


def _finish(axes: list[Any], columns: int) -> None:
    for axis in axes[:-columns]:
        axis.set_xticklabels([])
    for axis in axes[-columns:]:
        axis.set_xlabel("time, as a share of the series")


PICTURE = PanelPicture[Observed](
    "Where the models look over time",
    "Channels over time (thin lines) and what each model attends to (colour, one for each head). Bars are weights of "
    "single observations, curves are densities over continuous time; outside the shaded interval sparse attention is "
    "exactly zero.",
    size=(3.1, 1.7),
    least_width=5.0,
    draw=_draw,
    finish=_finish,
    whole_text=True,
)
