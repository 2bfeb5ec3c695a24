"""Where a model looks in an image: weights of cells, ellipses of densities."""

from typing import Any

import torch
from torch import Tensor
from torch.distributions import Distribution

from contmax._typing import Float
from contmax.viz._arguments import Index, checked_weights, require_something, scaled
from contmax.viz._density import draw_contours, ellipse_patch
from contmax.viz._matplotlib import axes_for
from contmax.viz._plane import grid_heights, mass_ellipses

_GRID = 161


def plot_image_attention(
    image: Any = None,
    weights: Any = None,
    density: Distribution | None = None,
    *,
    ax: Any = None,
    index: Index = (),
    color: Any = "C0",
    image_alpha: float = 1.0,
    weight_alpha: float = 0.85,
) -> Any:
    """An image with weights of its cells as squares, more opaque for larger weights, and densities as ellipses.

    The image is the unit square; positions are (row, column) from its upper left corner. Of a bounded density the outer
    ellipse is the support, which holds all of the mass, and the inner one holds half of it; of an unbounded one they
    hold nine tenths and a half. A mixture has the ellipses of its components, fainter for smaller weights. Other
    densities have contours.

    Args:
        image: ``(H, W)``, ``(H, W, 3)`` or ``(3, H, W)``, bytes or numbers from 0 to 1; None draws attention alone.
        weights: weights of a grid of cells, ``(h, w)`` or ``(*batch, h, w)``.
        density: over the unit square, of any batch shape: all members are drawn, such as the heads of a model.
        ax: Axes to draw on; by default the Axes of a new figure.
        index: index into the batches of weights and density; one grid of weights must remain.
        color: colour of the attention.
        image_alpha: opacity of the image; below 1 it is paler, so that attention can be seen on dark images too.
        weight_alpha: opacity of the largest weight; a smaller value lets more of the image show through.

    Returns:
        The Axes.

    Raises:
        ImportError: if matplotlib is not installed.
        ValueError: if there is nothing to draw, a shape does not fit, or a number is NaN.
        TypeError: if the density does not lie in the plane.

    Example:
        >>> import torch
        >>> from contmax.densities import TruncatedParaboloid
        >>> region = TruncatedParaboloid.from_support(torch.tensor([0.5, 0.25]), 0.04 * torch.eye(2))
        >>> ax = plot_image_attention(torch.rand(28, 28), density=region)
        >>> outer = ax.patches[0]
        >>> outer.center, round(outer.width, 3)
        ((0.25, 0.5), 0.4)
    """
    pixels = None if image is None else as_pixels(image)
    if pixels is None:
        require_something(weights, density)
    cells = None if weights is None else checked_weights(weights, (-1, -1), "a grid of weights (h, w)", index)
    ellipses = None if density is None else mass_ellipses(density, index)
    drawn = axes_for(ax, 4.0, 4.0)
    if pixels is not None:
        grey = {"cmap": "gray", "vmin": 0, "vmax": 1} if pixels.dim() == 2 else {}
        drawn.imshow(pixels.numpy(), extent=(0, 1, 1, 0), alpha=image_alpha, **grey)
    if cells is not None:
        drawn.imshow(_coloured(cells, color, weight_alpha), extent=(0, 1, 1, 0), aspect=drawn.get_aspect())
    for ellipse in (ellipse for member in ellipses or () for ellipse in member):
        # Positions are (row, column), pictures (x, y).
        drawn.add_patch(ellipse_patch(ellipse.swapped(), color, halo=bool(drawn.images)))
    if density is not None and ellipses is None:
        places = torch.linspace(0, 1, _GRID, dtype=torch.float64)
        for heights in grid_heights(density, places, places, index):
            draw_contours(drawn, places, places, heights, color, shade_support=True)
    drawn.set(xticks=[], yticks=[], xlim=(0, 1), ylim=(1, 0))
    # Attention alone may be drawn on an image that is there already and has set the shape.
    if pixels is not None or drawn.get_aspect() == "auto":
        high, wide = (1, 1) if pixels is None else pixels.shape[:2]
        drawn.set_aspect(high / wide)
    drawn.spines[:].set_visible(True)
    return drawn


def _coloured(cells: Tensor, color: Any, opacity: float) -> Any:
    from matplotlib.colors import to_rgba

    squares = torch.tensor(to_rgba(color)).repeat(*cells.shape, 1)
    squares[..., 3] = opacity * cell_strength(cells)
    return squares.numpy()


def cell_strength(cells: Float[Tensor, "h w"]) -> Float[Tensor, "h w"]:
    """How full the cells are drawn, from 0 to 1: the root shows small weights beside large ones."""
    return scaled(cells.flatten()).sqrt().reshape(cells.shape)


def as_pixels(image: Any) -> Tensor:
    """The image as numbers from 0 to 1, (H, W) or (H, W, C) with 3 or 4 colours, on the CPU.

    Raises:
        ValueError: if the shape or the numbers are not those of an image.
    """
    given = torch.as_tensor(image).detach().cpu()
    whole = not given.is_floating_point()
    pixels = given.to(torch.float32) / (255 if whole else 1)
    if pixels.dim() == 3 and pixels.shape[-1] not in (3, 4) and pixels.shape[0] in (1, 3, 4):
        pixels = pixels.movedim(0, -1)
    if pixels.dim() == 3 and pixels.shape[-1] == 1:
        pixels = pixels.squeeze(-1)
    colours = pixels.dim() == 2 or (pixels.dim() == 3 and pixels.shape[-1] in (3, 4))
    if not colours or not pixels.numel():
        raise ValueError(
            f"image must have shape (H, W), (H, W, 3) or (3, H, W); got {tuple(given.shape)}. Pass one image."
        )
    if not bool(((pixels >= 0) & (pixels <= 1)).all()):
        raise ValueError(
            "image must be bytes or numbers from 0 to 1; got numbers outside. Undo the normalisation of the model."
        )
    return pixels
