"""Where trained models look in images."""

import math
from collections.abc import Sequence
from typing import Any

from torch import Tensor

from contmax.viz import plot_image_attention
from contmax_lab.contract import Figure, TrainedRun
from contmax_lab.drawing import Theme
from contmax_lab.labelled import Panel, PanelPicture

_IMAGES = 5


def seen_images(runs: Sequence[TrainedRun], examples: Sequence[int] = ()) -> Figure:
    """What each model attends to in some validation images, a row of panels for each.

    Args:
        runs: trained on the same data.
        examples: of the validation images; by default the first of each of five classes, or the first five.
    """
    return PICTURE.of_runs(runs, examples, _IMAGES, lambda pictures, place: pictures.pixels[place])


def _draw(axis: Any, panel: Panel[Tensor], row: int, theme: Theme) -> None:
    # Paler than it is, so that attention can be seen on dark images too.
    plot_image_attention(panel.shown, ax=axis, image_alpha=0.7)
    for number, head in enumerate(panel.answer.heads):
        cells = None if head.weights is None else head.weights.unflatten(-1, 2 * [math.isqrt(head.weights.shape[-1])])
        plot_image_attention(None, cells, head.density, ax=axis, color=theme.colour(row + number))
    axis.spines[:].set_color(theme.line)


# Of panels that show pixels, bytes (3, H, W).
PICTURE = PanelPicture[Tensor](
    "Where the models look in images",
    "Squares: weights of single cells, the fuller the greater. Ellipses, one for each head: continuous attention; of "
    "the sparse kind the support, outside which attention is exactly zero, and what holds half of it; of the Gaussian, "
    "which has no edge, the regions that hold 50 % and 90 %.",
    size=(2.2, 2.5),
    least_width=3.0,
    draw=_draw,
)
