"""Which source tokens each target token of a translation attends to: a picture, and a page with a table."""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.distributions import Distribution

from contmax.viz._arguments import (
    Index,
    axes_for,
    checked_tokens,
    literal,
    name_tokens,
    require_matplotlib,
    scaled,
)
from contmax.viz._line import TokenAttention
from contmax.viz._page import HtmlPage, escaped, levels, overlaid, page, shaded

# Cells per source token in which the mass of a density is drawn.
_CELLS = 12
_INCHES_PER_TOKEN = 0.24

_RULES = """
.map { overflow: auto; max-height: 80vh; padding: 0; width: fit-content; max-width: 100%; }
table { border-collapse: separate; border-spacing: 1px; line-height: 1.3; }
th { font-weight: normal; font-size: .85rem; background: var(--plate); white-space: nowrap; position: sticky;
     padding: .15rem .4rem; unicode-bidi: isolate; max-width: 16rem; overflow: hidden; text-overflow: ellipsis; }
thead th { top: 0; z-index: 1; vertical-align: bottom; max-width: none; max-height: 12rem; }
thead th span { writing-mode: vertical-rl; transform: rotate(180deg); max-height: 11rem; overflow: hidden; }
tbody th { left: 0; text-align: right; }
td { min-width: 1.9rem; height: 1.7rem; text-align: center; font-size: .72rem; font-variant-numeric: tabular-nums;
     border-radius: 2px; }
"""

_SCRIPT = """
const names = Object.keys(data), rows = [...map.querySelectorAll("tbody tr")];
const columns = [...map.querySelectorAll("thead th")].slice(1);
let marked = null;
function show() {
  if (marked) marked.classList.remove("here");
  marked = rows[row].cells[column + 1];
  marked.classList.add("here");
  marked.scrollIntoView({block: "nearest", inline: "nearest"});
  const place = row * columns.length + column;
  said.textContent = `“${rows[row].cells[0].textContent}” looks at “${columns[column].textContent}” · ` +
    names.map(name => `${name} ${shown(data[name][place])}`).join(" · ");
}
const go = grid(rows.length, columns.length, show, () => {
  const own = data[names[0]].slice(inside(row, rows.length) * columns.length).slice(0, columns.length);
  return [row, own.indexOf(Math.max(...own))];
});
map.addEventListener("click", event => {
  const cell = event.target.closest("td");
  if (cell) go(cell.parentNode.sectionRowIndex, cell.cellIndex - 1);
});
"""


def plot_alignment(
    source: Sequence[str],
    target: Sequence[str],
    weights: Any = None,
    density: Distribution | None = None,
    *,
    ax: Any = None,
    index: Index = (),
    colors: Sequence[Any] = ("C0", "C1"),
) -> Any:
    """For each target token, from top to bottom, where in the source it looks; each row has its own scale.

    Weights or a density shade the rows; where there are both, squares are weights. Dots mark the source tokens in the
    support of the density, or without a density those with a positive weight, unless all have one.

    Args:
        source: L tokens, which divide the unit interval into equal parts.
        target: T tokens.
        weights: ``(T, L)`` or ``(*batch, T, L)``.
        density: over the source as the unit interval, of batch shape ``(T,)`` or ``(*batch, T)``.
        ax: Axes to draw on; by default the Axes of a new figure that is large enough to read.
        index: index into the batches of weights and density; what remains must be one alignment.
        colors: colours of weights and density.

    Returns:
        The Axes.

    Raises:
        ImportError: if matplotlib is not installed.
        ValueError: if there are no tokens, neither weights nor density, shapes that do not fit, or NaN.

    Example:
        >>> ax = plot_alignment(["ein", "Hund"], ["a", "dog"], [[0.9, 0.1], [0.0, 1.0]])
        >>> [label.get_text() for label in ax.get_yticklabels()]
        ['a', 'dog']
    """
    attention, said = _checked(source, target, weights, density, index)
    shares, rows, columns = attention.weights, len(said), len(attention.tokens)
    drawn = axes_for(ax, max(columns * _INCHES_PER_TOKEN, 1.6) + 1.0, rows * _INCHES_PER_TOKEN + 1.2)
    mass, inside = attention.mass(_CELLS), attention.in_support()
    if mass is not None:
        _shade(drawn, mass, (rows, columns), colors[1])
        if shares is not None:
            sizes = (40 * shares.flatten()).tolist()
            drawn.scatter(*_middles(shares), s=sizes, marker="s", color=colors[0])
    elif shares is not None:
        _shade(drawn, shares, (rows, columns), colors[0])
        inside = shares > 0
    if inside is not None and not bool(inside.all()):
        ink = require_matplotlib().rcParams["text.color"]
        drawn.scatter(*_middles(inside), s=(4.0 * inside.flatten()).tolist(), color=ink, linewidths=0)
    name_tokens(drawn, attention.tokens, size=7)
    drawn.set_yticks([place + 0.5 for place in range(rows)], [literal(token) for token in said], fontsize=7)
    drawn.tick_params(axis="y", length=0, pad=1)
    return drawn


def alignment_html(
    source: Sequence[str],
    target: Sequence[str],
    weights: Any = None,
    density: Distribution | None = None,
    *,
    index: Index = (),
    title: str = "Attention of the translation",
) -> HtmlPage:
    """A page of HTML with a row for each target token, a column for each source token, and the share in per cent.

    Each row is shaded on its own scale; cells without attention are empty. With weights and density, weights shade and
    the density underlines. Arrow keys go from cell to cell.

    Args:
        source, target, weights, density, index: as for :func:`plot_alignment`; tokens may contain any characters.
        title: title of the page.

    Returns:
        A page: ``page.save("alignment.html")``, or let a notebook show it.

    Raises:
        ValueError: if there are no tokens, neither weights nor density, shapes that do not fit, or NaN.

    Example:
        >>> page = alignment_html(["ein", "Hund"], ["a", "dog"], [[0.75, 0.25], [0.0, 1.0]])
        >>> "<th scope=row>dog<td><td class=l9>100" in page.html
        True
    """
    attention, said = _checked(source, target, weights, density, index)
    read, both = attention.tokens, attention.weights is not None and attention.densities is not None
    main, under, data = overlaid(attention)
    heads = "".join(f"<th scope=col><span>{escaped(token)}</span>" for token in read)
    rows = "\n".join(
        f"<tr><th scope=row>{escaped(token)}{_cells(own, other)}"
        for token, own, other in zip(said, main, under, strict=True)
    )
    legend = " Shade and number: weight. Underline: share of the density." if both else ""
    body = (
        "<p>For each target token, from top to bottom, where in the source it looks, in per cent. Each row has its own "
        f"scale; an empty cell is exactly 0.{legend}</p>\n"
        '<div class="top"><output id="said" aria-live="polite">Choose a cell to read its share.</output></div>\n'
        f'<div class="map" id="map" tabindex="0" role="group" aria-label="Alignment, {len(said)} target tokens, '
        f'{len(read)} source tokens" aria-describedby="keys"><table>\n<thead><tr><th>{heads}</thead>\n<tbody>\n{rows}\n'
        "</tbody></table></div>\n"
        '<p id="keys"><kbd>←</kbd> <kbd>→</kbd> <kbd>↑</kbd> <kbd>↓</kbd> from cell to cell, <kbd>m</kbd> to the most '
        "attended of a row, <kbd>Home</kbd> <kbd>End</kbd>.</p>"
    )
    return page(title, body, data, _RULES, _SCRIPT, height=min(240 + 30 * len(said), 620))


def _cells(own: Tensor, other: Tensor) -> str:
    """Table cells of a row, with `own` in per cent: a dot below 0.5 %, empty at 0; `other` underlines the cells."""
    short = [f"{100 * share:.0f}" if share >= 0.005 else "·" if share else "" for share in own.tolist()]
    return "".join(
        f"<td{shaded(first, second)}>{number}"
        for number, first, second in zip(short, levels(own), levels(other), strict=True)
    )


def _checked(
    source: Sequence[str], target: Sequence[str], weights: Any, density: Distribution | None, index: Index
) -> tuple[TokenAttention, list[str]]:
    """The checked attention over the source, one row for each target token, and the list of target tokens."""
    read, said = checked_tokens("source", source), checked_tokens("target", target)
    return TokenAttention.of(read, weights, density, index, len(said)), said


def _shade(ax: Any, rows: Tensor, shape: tuple[int, int], color: Any) -> None:
    from matplotlib.colors import LinearSegmentedColormap

    ax.imshow(
        scaled(rows).numpy(),
        extent=(0, shape[1], shape[0], 0),
        aspect="auto",
        cmap=LinearSegmentedColormap.from_list("attention", [ax.get_facecolor(), color]),
        vmin=0,
        vmax=1.3,
        interpolation="nearest",
    )


def _middles(cells: Tensor) -> tuple[list[float], list[float]]:
    """x and y of the midpoints of all cells (T, L), row by row."""
    rows, columns = torch.meshgrid(*(torch.arange(n) + 0.5 for n in cells.shape), indexing="ij")
    return columns.flatten().tolist(), rows.flatten().tolist()
