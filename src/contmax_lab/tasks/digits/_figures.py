"""Where models look: weights of pixels, ellipses of densities over the image."""

import math
from collections.abc import Sequence
from typing import Any, cast

import torch
from torch import Tensor

from contmax_lab.attention import Attended
from contmax_lab.report import Figure, Theme, new_axes
from contmax_lab.runs import TrainedRun
from contmax_lab.tasks.digits._data import CLASSES, SIDE, Images

# Without a boundary of its own, a Gaussian is shown by the ellipses that hold 50 % and 90 % of it.
_GAUSSIAN_RADII = [math.sqrt(-2 * math.log(1 - mass)) for mass in (0.5, 0.9)]


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
                    draw_cells(axis, weights[column].reshape(SIDE, SIDE), theme.colour(row))
                if density is not None:
                    draw_ellipses(axis, density, column, theme.colour(row))
                axis.set(xticks=[], yticks=[], xlim=(0, 1), ylim=(1, 0))
                axis.spines[:].set(visible=True, color=theme.line)
                if column == 0:
                    axis.set_ylabel(trained.label.replace(" ", "\n"), rotation=0, ha="right", va="center")
        return figure

    return Figure.drawn(
        "Where the models look",
        draw,
        f"{'Test images' if examples else 'The first test image of every digit'}. "
        "Squares: weights of single pixels, the fuller the greater. Ellipses: "
        "continuous attention; of the sparse kind the support, outside which attention is exactly zero, and of the "
        "Gaussian, which has no edge, the regions that hold 50 % and 90 % of it.",
    )


def _first_of_digits(test: Images) -> list[int]:
    return [int((test.digit == digit).nonzero()[0]) for digit in range(CLASSES) if bool((test.digit == digit).any())]


@torch.no_grad()
def _attended(trained: TrainedRun, chosen: Sequence[int]) -> Attended:
    attended: Attended = trained.model(trained.task.batch(trained.splits.test, chosen)).attended
    return attended


def draw_cells(axis: Any, weights: Tensor, colour: str) -> None:
    """The weights (H, W) of the cells of a picture that is 1 wide and 1 high, the fuller the greater."""
    from matplotlib.colors import to_rgba

    squares = torch.tensor(to_rgba(colour)).repeat(*weights.shape, 1)
    squares[..., 3] = 0.85 * (weights / weights.max()).sqrt()
    axis.imshow(squares.numpy(), extent=(0, 1, 1, 0))


def draw_ellipses(axis: Any, density: Any, index: int, colour: str) -> None:
    """The support of the density with that index, or of each of its heads; of a Gaussian what holds most of it."""
    from matplotlib.colors import to_rgb
    from matplotlib.patches import Ellipse

    locs = density.loc[index].reshape(-1, 2)
    trils = density.scale_tril[index].reshape(-1, 2, 2)
    radii = density.radius.expand(density.batch_shape)[index].reshape(-1)
    for loc, tril, radius in zip(locs, trils, radii.tolist(), strict=True):
        widths, angle = _principal_axes(tril)
        for drawn in [radius] if math.isfinite(radius) else _GAUSSIAN_RADII:
            # Positions are (row, column), pictures (x, y).
            place, size = (float(loc[1]), float(loc[0])), (2 * drawn * widths).tolist()
            face = (*to_rgb(colour), 0.16)
            axis.add_patch(Ellipse(place, *size, angle=angle, facecolor=face, edgecolor=colour, lw=1.3))


def _principal_axes(tril: Tensor) -> tuple[Tensor, float]:
    """Half axes of the ellipse of Mahalanobis radius 1, and the angle of the first in degrees."""
    # Rows and columns change places with x and y.
    values, vectors = torch.linalg.eigh((tril @ tril.mT).flip(0, 1))
    angle = math.degrees(math.atan2(float(vectors[1, 0]), float(vectors[0, 0])))
    return values.clamp(min=0).sqrt(), angle
