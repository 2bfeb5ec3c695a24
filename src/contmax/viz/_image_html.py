"""An image as a page: cells and ellipses drawn on it as vectors."""

import math
from typing import Any

import torch
from torch import Tensor
from torch.distributions import Distribution

from contmax.viz._arguments import Index, checked_weights, require_something
from contmax.viz._image import as_pixels
from contmax.viz._page import LEVELS, HtmlPage, levels, numbers, page, percent
from contmax.viz._plane import MassEllipse, grid_heights, mass_ellipses
from contmax.viz._png import png_address

_WIDTH = 1000
# Densities without ellipses are shaded on a grid with this many cells a side.
_GRID = 64

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
"use strict";
const map = document.getElementById("map"), said = document.getElementById("said");
const mark = document.getElementById("mark");
const {rows, columns, weight} = JSON.parse(document.getElementById("data").textContent);
const shown = share => share ? Number((100 * share).toPrecision(3)) + " %" : "0";
let row = -1, column = -1;
const inside = (value, count) => Math.max(0, Math.min(value, count - 1));
function go(r, c) {
  row = inside(r, rows); column = inside(c, columns);
  mark.setAttribute("x", column); mark.setAttribute("y", row); mark.style.visibility = "visible";
  said.textContent = `row ${row + 1} of ${rows}, column ${column + 1} of ${columns} · ` +
    `weight ${shown(weight[row * columns + column])}`;
}
function strongest() {
  const place = weight.indexOf(Math.max(...weight));
  go(Math.floor(place / columns), place % columns);
}
const keys = {
  ArrowRight: () => go(row, column + 1), ArrowLeft: () => go(row, column - 1),
  ArrowDown: () => go(row + 1, column), ArrowUp: () => go(row - 1, column),
  Home: () => go(row, 0), End: () => go(row, columns - 1), m: strongest,
};
map.addEventListener("keydown", event => {
  if (!weight.length || event.ctrlKey || event.altKey || event.metaKey || !(event.key in keys)) return;
  event.preventDefault();
  keys[event.key]();
});
map.addEventListener("click", event => {
  if (!weight.length) return;
  const box = map.getBoundingClientRect();
  go(Math.floor(rows * (event.clientY - box.top) / box.height),
     Math.floor(columns * (event.clientX - box.left) / box.width));
});
map.addEventListener("focusin", event => {
  const label = event.target.getAttribute("aria-label");
  if (event.target.tagName === "ellipse") said.textContent = label;
});
"""


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
        image: ``(H, W)``, ``(H, W, 3)`` or ``(3, H, W)``, bytes or numbers from 0 to 1, shrunk to 640 pixels a side;
            None draws attention alone.
        weights: weights of a grid of cells, ``(h, w)`` or ``(*batch, h, w)``.
        density: over the unit square, of any batch shape: all members are drawn.
        index: index into the batches of weights and density; one grid of weights must remain.
        title: title of the page.

    Returns:
        A page: ``page.save("image.html")``, or let a notebook show it.

    Raises:
        ValueError: if there is nothing to draw, a shape does not fit, or a number is NaN.
        TypeError: if the density does not lie in the plane.

    Example:
        >>> import torch
        >>> from contmax.densities import TruncatedParaboloid
        >>> region = TruncatedParaboloid.from_support(torch.tensor([0.5, 0.25]), 0.04 * torch.eye(2))
        >>> page = image_attention_html(torch.rand(28, 28), density=region)
        >>> "holds 100 % of density 1" in page.html
        True
    """
    pixels = None if image is None else as_pixels(image)
    require_something(weights, density)
    cells = None if weights is None else checked_weights(weights, (-1, -1), "a grid of weights (h, w)", index)
    members = None if density is None else mass_ellipses(density, index)
    high, wide = (1, 1) if pixels is None else pixels.shape[:2]
    height = _WIDTH * high / wide
    parts = []
    if pixels is not None:
        parts.append(
            f'<image href="{png_address(pixels)}" width="{_WIDTH}" height="{height:.1f}" preserveAspectRatio="none"/>'
        )
    if density is not None and members is None:
        places = (torch.arange(_GRID, dtype=torch.float64) + 0.5) / _GRID
        parts += [_cells(heights, height, "shade") for heights in grid_heights(density, places, places, index)]
    rows, columns = (0, 0) if cells is None else cells.shape
    if cells is not None:
        parts.append(_cells(cells, height, "cells"))
        parts.append(
            f'<g transform="{_scale(rows, columns, height)}"><rect id="mark" width="1" height="1" '
            'vector-effect="non-scaling-stroke"/></g>'
        )
    else:
        parts.append('<rect id="mark"/>')
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
        f"<ul>{listed}</ul>\n"
        f'<script type="application/json" id="data">{{"rows":{rows},"columns":{columns},"weight":{numbers(weight)}}}'
        "</script>"
    )
    return page(title, body, _RULES, _SCRIPT, height=620)


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
    angle = math.degrees(math.atan2(ellipse.axis[1], ellipse.axis[0]))
    return (
        f'<ellipse cx="{x:.5g}" cy="{y:.5g}" rx="{a:.5g}" ry="{b:.5g}" transform="rotate({angle:.3f} {x:.5g} {y:.5g})" '
        f'opacity="{ellipse.weight:.3g}" vector-effect="non-scaling-stroke" tabindex="0" role="img" '
        f'aria-label="{words}"/>'
    )


def _scale(rows: int, columns: int, height: float) -> str:
    return f"scale({_WIDTH / columns:.6g} {height / rows:.6g})"


def _cells(cells: Tensor, height: float, name: str) -> str:
    """One path for each strength, in units of cells."""
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
