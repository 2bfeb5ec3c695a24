"""Where models look: weights of pixels, ellipses of densities over the image."""

from collections.abc import Sequence
from typing import Any, cast

import torch

from contmax_lab.attention import Attended
from contmax_lab.contract import Figure, TrainedRun
from contmax_lab.data import DIGIT_CLASSES, DIGIT_SIDE, Images
from contmax_lab.drawing import Theme, draw_cells, draw_ellipses, new_axes


def looking(runs: Sequence[TrainedRun], examples: Sequence[int] = ()) -> Figure:
    """What each model attends to in the first test image of every digit.

    Args:
        runs: trained on the same data; one row of panels each.
        examples: of the test images; by default the first of every digit.
    """
    test = cast(Images, runs[0].splits.test)
    chosen = examples or _first_of_digits(test)
    answers = [_attended(trained, chosen) for trained in runs]

    def draw(theme: Theme) -> Any:
        from matplotlib.colors import LinearSegmentedColormap

        ink = LinearSegmentedColormap.from_list("ink", [theme.plate, theme.ink])
        figure, axes = new_axes(len(runs), len(chosen), width=0.9 * len(chosen) + 1.2, height=0.94)
        for row, trained in enumerate(runs):
            for column, index in enumerate(chosen):
                axis = axes[row * len(chosen) + column]
                axis.imshow(test.pixels[index].numpy(), cmap=ink, vmin=0, vmax=1.8, extent=(0, 1, 1, 0))
                weights, density = answers[row].weights, answers[row].density
                if weights is not None:
                    draw_cells(axis, weights[column].reshape(DIGIT_SIDE, DIGIT_SIDE), theme.colour(row))
                if density is not None:
                    draw_ellipses(axis, density, column, theme.colour(row))
                axis.set(xticks=[], yticks=[], xlim=(0, 1), ylim=(1, 0))
                axis.spines[:].set(visible=True, color=theme.line)
                if column == 0:
                    axis.set_ylabel(trained.label.replace(" ", "\n"), rotation=0, ha="right", va="center")
        return figure

    return Figure(
        "Where the models look",
        draw,
        f"{'Test images' if examples else 'The first test image of every digit'}. "
        "Squares: weights of single pixels, the fuller the greater. Ellipses: "
        "continuous attention; of the sparse kind the support, outside which attention is exactly zero, and of the "
        "Gaussian, which has no edge, the regions that hold 50 % and 90 % of it.",
    )


def _first_of_digits(test: Images) -> list[int]:
    return [
        int((test.digit == digit).nonzero()[0]) for digit in range(DIGIT_CLASSES) if bool((test.digit == digit).any())
    ]


@torch.no_grad()
def _attended(trained: TrainedRun, chosen: Sequence[int]) -> Attended:
    attended: Attended = trained.model(trained.task.batch(trained.splits.test, chosen)).attended
    return attended
