"""Where trained models look in images."""

import dataclasses
import math
from collections.abc import Sequence
from typing import Any, cast

import torch
from torch import Tensor

from contmax.viz import plot_image_attention
from contmax_lab.contract import Figure, TrainedRun
from contmax_lab.drawing import Theme, draw_panels
from contmax_lab.labelled import Answer, first_of_classes, said, truth
from contmax_lab.tasks.images._data import Pictures

_IMAGES = 5


@dataclasses.dataclass(frozen=True)
class Panel:
    """An image and what a model says of it.

    Args:
        title: above it, if it is in the first row.
        text: below that.
        pixels: bytes, (3, H, W).
        answer: of a batch with that image alone.
    """

    title: str
    text: str
    pixels: Tensor
    answer: Answer


def seen_images(runs: Sequence[TrainedRun], examples: Sequence[int] = ()) -> Figure:
    """What each model attends to in some validation images, a row of panels for each.

    Args:
        runs: trained on the same data.
        examples: of the validation images; by default the first of each of five classes, or the first five.
    """
    chosen = examples or first_of_classes(cast(Pictures, runs[0].splits.valid).target, _IMAGES)
    rows = [[_panel(trained, place) for place in chosen] for trained in runs]
    return plane_figure(rows, [trained.label for trained in runs])


@torch.no_grad()
def _panel(trained: TrainedRun, place: int) -> Panel:
    valid, info = cast(Pictures, trained.splits.valid), trained.splits.info
    answer: Answer = trained.model(trained.task.batch(valid, [place]))
    title = f"{valid.names[place]}: {truth(valid.target[place], info)}"
    return Panel(title, said(answer, info), valid.pixels[place], answer)


def plane_figure(rows: Sequence[Sequence[Panel]], labels: Sequence[str] = ("",)) -> Figure:
    """Panels of images, all heads of a model in one panel.

    Args:
        rows: of each model.
        labels: of the models.
    """
    columns = len(rows[0])

    def draw(theme: Theme) -> Any:
        def fill(axis: Any, row: int, column: int) -> str:
            panel = rows[row][column]
            # Paler than it is, so that attention can be seen on dark images too.
            plot_image_attention(panel.pixels, ax=axis, image_alpha=0.7)
            for number, head in enumerate(panel.answer.heads):
                cells = (
                    None
                    if head.weights is None
                    else head.weights.unflatten(-1, 2 * [math.isqrt(head.weights.shape[-1])])
                )
                plot_image_attention(None, cells, head.density, ax=axis, color=theme.colour(row + number))
            axis.spines[:].set_color(theme.line)
            said_first = panel.text.split(", ")[0]
            return f"{panel.title}\n{said_first}" if row == 0 and panel.title else said_first

        return draw_panels(labels, columns, width=max(2.2 * columns, 3.0), height=2.5, fill=fill)[0]

    return Figure(
        "Where the models look in images",
        draw,
        "Squares: weights of single cells, the fuller the greater. Ellipses, one for each head: continuous attention; "
        "of the sparse kind the support, outside which attention is exactly zero, and what holds half of it; of the "
        "Gaussian, which has no edge, the regions that hold 50 % and 90 %.",
    )
