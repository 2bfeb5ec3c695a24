"""Attention over a picture that is 1 wide and 1 high: weights of cells, ellipses of densities."""

import math
from typing import Any

import torch
from torch import Tensor

# Without a boundary of its own, a Gaussian is shown by the ellipses that hold 50 % and 90 % of it.
_GAUSSIAN_RADII = [math.sqrt(-2 * math.log(1 - mass)) for mass in (0.5, 0.9)]


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
