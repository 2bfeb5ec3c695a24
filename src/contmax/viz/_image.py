"""Where a model looks in an image: a picture and a page, with weights of cells and ellipses of densities."""

import base64
import struct
import zlib
from typing import Any

import torch
from torch import Tensor
from torch.distributions import Distribution

from contmax.viz._arguments import Index, axes_for, checked_weights, require_matplotlib, require_something, scaled
from contmax.viz._density import draw_contours, ellipse_patch
from contmax.viz._page import LEVELS, HtmlPage, levels, numbers, page, percent
from contmax.viz._plane import MassEllipse, grid_heights, mass_ellipses

# Grid points per side for a density without ellipses: for contours in a picture, and for shades in a page.
_CONTOUR_GRID, _SHADE_GRID = 161, 64
# Width of the SVG picture of a page, in units of its viewBox.
_WIDTH = 1000
# Longest side of an image in a page, in pixels; larger images are shrunk.
_LONGEST_SIDE = 640

_RULES = """
.map { padding: 0; border: 0; max-width: 40rem; }
svg.image { height: auto; border-radius: 0; }
.cells { fill: rgb(var(--first)); }
.shade { fill: rgb(var(--second)); }
ellipse { fill: rgb(var(--second) / .12); stroke: rgb(var(--second)); stroke-width: 2; }
ellipse:focus-visible { outline: none; fill: rgb(var(--second) / .4); stroke-width: 4; }
/* Seen on dark and on light parts of an image. */
#mark { fill: none; stroke: #fff; stroke-width: 2; visibility: hidden; filter: drop-shadow(0 0 .02px #000); }
"""

_SCRIPT = """
const mark = document.getElementById("mark"), {rows, columns, weight} = data;
function show() {
  mark.setAttribute("x", column); mark.setAttribute("y", row); mark.style.visibility = "visible";
  said.textContent = `row ${row + 1} of ${rows}, column ${column + 1} of ${columns} · ` +
    `weight ${shown(weight[row * columns + column])}`;
}
if (weight.length) {
  const go = grid(rows, columns, show, () => {
    const place = weight.indexOf(Math.max(...weight));
    return [Math.floor(place / columns), place % columns];
  });
  map.addEventListener("click", event => {
    const box = map.getBoundingClientRect();
    go(Math.floor(rows * (event.clientY - box.top) / box.height),
       Math.floor(columns * (event.clientX - box.left) / box.width));
  });
}
map.addEventListener("focusin", event => {
  if (event.target.tagName === "ellipse") said.textContent = event.target.getAttribute("aria-label");
});
"""


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
    if image is None:
        require_something(weights, density)
    pixels, cells, ellipses = _checked(image, weights, density, index)
    drawn = axes_for(ax, 4.0, 4.0)
    if pixels is not None:
        grey = {"cmap": "gray", "vmin": 0, "vmax": 1} if pixels.dim() == 2 else {}
        drawn.imshow(pixels.numpy(), extent=(0, 1, 1, 0), alpha=image_alpha, **grey)
    if cells is not None:
        squares = torch.tensor(require_matplotlib("matplotlib.colors").to_rgba(color)).repeat(*cells.shape, 1)
        # Take the square root, which makes small weights visible beside large weights.
        squares[..., 3] = weight_alpha * scaled(cells.flatten()).sqrt().reshape(cells.shape)
        drawn.imshow(squares.numpy(), extent=(0, 1, 1, 0), aspect=drawn.get_aspect())
    for ellipse in (ellipse for member in ellipses or () for ellipse in member):
        # Swap coordinates: positions are (row, column), pictures have (x, y).
        drawn.add_patch(ellipse_patch(ellipse.swapped(), color, halo=bool(drawn.images)))
    if density is not None and ellipses is None:
        places = torch.linspace(0, 1, _CONTOUR_GRID, dtype=torch.float64)
        for heights in grid_heights(density, places, places, index):
            draw_contours(drawn, places, places, heights, color, shade_support=True)
    drawn.set(xticks=[], yticks=[], xlim=(0, 1), ylim=(1, 0))
    # Without pixels, the Axes may already show an image that has set the aspect: leave the aspect unchanged.
    if pixels is not None or drawn.get_aspect() == "auto":
        high, wide = (1, 1) if pixels is None else pixels.shape[:2]
        drawn.set_aspect(high / wide)
    drawn.spines[:].set_visible(True)
    return drawn


def image_attention_html(
    image: Any = None,
    weights: Any = None,
    density: Distribution | None = None,
    *,
    index: Index = (),
    title: str = "Attention over the image",
) -> HtmlPage:
    """An image as a page of HTML, with weights of its cells and ellipses of densities as vectors on it.

    The image is the unit square; positions are (row, column) from its upper left corner. Ellipses as in
    :func:`plot_image_attention`; the share of the mass in each is also given as text. Arrow keys go from cell to cell.

    Args:
        image, weights, density, index: as for :func:`plot_image_attention`; the image is shrunk to 640 pixels a side.
        title: title of the page.

    Returns:
        A page: ``page.save("image.html")``, or let a notebook show it.

    Raises:
        ValueError: if there is nothing to draw, a shape does not fit, or a number is NaN.
        TypeError: if the density does not lie in the plane.

    Example:
        >>> page = image_attention_html(weights=[[0.1, 0.9], [0.0, 0.0]])
        >>> "the greatest, in row 1, column 2, is 90 %" in page.html
        True
    """
    require_something(weights, density)
    pixels, cells, members = _checked(image, weights, density, index)
    high, wide = (1, 1) if pixels is None else pixels.shape[:2]
    height = _WIDTH * high / wide
    parts = []
    if pixels is not None:
        parts.append(
            f'<image href="{_png_address(pixels)}" width="{_WIDTH}" height="{height:.1f}" preserveAspectRatio="none"/>'
        )
    if density is not None and members is None:
        places = (torch.arange(_SHADE_GRID, dtype=torch.float64) + 0.5) / _SHADE_GRID
        parts += [_cells(heights, height, "shade") for heights in grid_heights(density, places, places, index)]
    rows, columns = (1, 1) if cells is None else cells.shape
    if cells is not None:
        parts.append(_cells(cells, height, "cells"))
    parts.append(
        f'<g transform="{_scale(rows, columns, height)}"><rect id="mark" width="1" height="1" '
        'vector-effect="non-scaling-stroke"/></g>'
    )
    named = [(number, ellipse) for number, own in enumerate(members or (), 1) for ellipse in own]
    drawn = "".join(_ellipse(ellipse.swapped(), _words(number, ellipse)) for number, ellipse in named)
    parts.append(f'<g transform="scale({_WIDTH} {height:.1f})">{drawn}</g>')
    focus = ' tabindex="0"' if cells is not None else ""
    listed = "".join(f"<li>{_words(number, ellipse)}" for number, ellipse in named)
    weight = [] if cells is None else cells.flatten().tolist()
    body = (
        '<output id="said" aria-live="polite">Choose a cell or an ellipse to read its share.</output>\n'
        f'<div class="map" id="map"{focus} role="group" aria-label="Image" aria-describedby="keys">'
        f'<svg class="image" viewBox="0 0 {_WIDTH} {height:.1f}">{"".join(parts)}</svg></div>\n'
        f'<p id="keys">{_summary(cells)}{"<kbd>Tab</kbd> to an ellipse." if named else ""}</p>\n'
        f"<ul>{listed}</ul>"
    )
    data = f'"rows":{rows},"columns":{columns},"weight":{numbers(weight)}'
    return page(title, body, data, _RULES, _SCRIPT, height=620)


def _checked(
    image: Any, weights: Any, density: Distribution | None, index: Index
) -> tuple[Tensor | None, Tensor | None, list[list[MassEllipse]] | None]:
    """The checked arguments: the image as numbers from 0 to 1, the weights, and the ellipses of each density."""
    pixels = None if image is None else _pixels(image)
    cells = checked_weights(weights, (-1, -1), "a grid of weights (h, w)", index)
    return pixels, cells, None if density is None else mass_ellipses(density, index)


def _summary(cells: Tensor | None) -> str:
    if cells is None:
        return ""
    top, place = float(cells.max()), int(cells.argmax())
    row, column = divmod(place, cells.shape[1])
    return (
        f"Squares: weights of cells, the fuller the greater; the greatest, in row {row + 1}, column {column + 1}, is "
        f"{percent(top)}. <kbd>←</kbd> <kbd>→</kbd> <kbd>↑</kbd> <kbd>↓</kbd> from cell to cell, <kbd>m</kbd> to the "
        "greatest. "
    )


def _words(number: int, ellipse: MassEllipse) -> str:
    (row, column), (long, short) = ellipse.centre, ellipse.half_axes
    return (
        f"holds {percent(ellipse.share)} of density {number}: centre at row {row:.3g}, column {column:.3g}, half axes "
        f"{long:.3g} and {short:.3g}"
    )


def _ellipse(ellipse: MassEllipse, words: str) -> str:
    (x, y), (a, b) = ellipse.centre, ellipse.half_axes
    return (
        f'<ellipse cx="{x:.5g}" cy="{y:.5g}" rx="{a:.5g}" ry="{b:.5g}" '
        f'transform="rotate({ellipse.angle:.3f} {x:.5g} {y:.5g})" opacity="{ellipse.weight:.3g}" '
        f'vector-effect="non-scaling-stroke" tabindex="0" role="img" aria-label="{words}"/>'
    )


def _scale(rows: int, columns: int, height: float) -> str:
    return f"scale({_WIDTH / columns:.6g} {height / rows:.6g})"


def _cells(cells: Tensor, height: float, name: str) -> str:
    """An SVG group with a path of unit squares for each strength of shading; `name` is its CSS class."""
    rows, columns = cells.shape
    squares: dict[int, list[str]] = {}
    for place, level in enumerate(levels(cells)):
        if level:
            row, column = divmod(place, columns)
            squares.setdefault(level, []).append(f"M{column} {row}h1v1h-1z")
    paths = "".join(
        f'<path fill-opacity="{0.85 * level / LEVELS:.2f}" d="{"".join(found)}"/>'
        for level, found in sorted(squares.items())
    )
    return f'<g class="{name}" transform="{_scale(rows, columns, height)}">{paths}</g>'


def _pixels(image: Any) -> Tensor:
    """The image as numbers from 0 to 1, (H, W) or (H, W, C) with 3 or 4 channels, on the CPU."""
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


def _png_address(pixels: Tensor) -> str:
    """The image (H, W) or (H, W, C) of numbers from 0 to 1 as a PNG in a data URL, shrunk if it is large.

    Example:
        >>> _png_address(torch.zeros(2, 3))[:22]
        'data:image/png;base64,'
    """
    colours = pixels.unsqueeze(-1) if pixels.dim() == 2 else pixels
    shrink = _LONGEST_SIDE / max(colours.shape[:2])
    if shrink < 1:
        high, wide = (max(round(side * shrink), 1) for side in colours.shape[:2])
        colours = torch.nn.functional.adaptive_avg_pool2d(colours.movedim(-1, 0), (high, wide)).movedim(0, -1)
    high, wide, channels = colours.shape
    lines = (255 * colours).round().to(torch.uint8).reshape(high, -1).contiguous().numpy()
    # PNG: each row of pixels begins with its filter type, 0 (none).
    raw = b"".join(b"\0" + line.tobytes() for line in lines)
    kind = {1: 0, 3: 2, 4: 6}[channels]
    parts = (
        _part(b"IHDR", struct.pack(">IIBBBBB", wide, high, 8, kind, 0, 0, 0)),
        _part(b"IDAT", zlib.compress(raw, 9)),
        _part(b"IEND", b""),
    )
    return "data:image/png;base64," + base64.b64encode(b"\x89PNG\r\n\x1a\n" + b"".join(parts)).decode()


def _part(name: bytes, content: bytes) -> bytes:
    return struct.pack(">I", len(content)) + name + content + struct.pack(">I", zlib.crc32(name + content))
