"""An alignment as a page: a table with a row for each target token."""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.distributions import Distribution

from contmax.viz._alignment import alignment_meaning, alignment_members
from contmax.viz._arguments import Index, checked_tokens, checked_weights, require_something
from contmax.viz._escape import escaped
from contmax.viz._line import unit_edges
from contmax.viz._page import HtmlPage, levels, numbers, page, shaded

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
"use strict";
const map = document.getElementById("map"), said = document.getElementById("said");
const data = JSON.parse(document.getElementById("data").textContent), names = Object.keys(data);
const columns = [...map.querySelectorAll("thead th")].slice(1), rows = [...map.querySelectorAll("tbody tr")];
const shown = share => share ? Number((100 * share).toPrecision(3)) + " %" : "0";
let row = -1, column = -1, marked = null;
const inside = (value, count) => Math.max(0, Math.min(value, count - 1));
function go(r, c) {
  row = inside(r, rows.length); column = inside(c, columns.length);
  if (marked) marked.classList.remove("here");
  marked = rows[row].cells[column + 1];
  marked.classList.add("here");
  marked.scrollIntoView({block: "nearest", inline: "nearest"});
  const place = row * columns.length + column;
  said.textContent = `“${rows[row].cells[0].textContent}” looks at “${columns[column].textContent}” · ` +
    names.map(name => `${name} ${shown(data[name][place])}`).join(" · ");
}
function strongest() {
  const own = data[names[0]].slice(inside(row, rows.length) * columns.length).slice(0, columns.length);
  return own.indexOf(Math.max(...own));
}
const keys = {
  ArrowRight: () => go(row, column + 1), ArrowLeft: () => go(row, column - 1),
  ArrowDown: () => go(row + 1, column), ArrowUp: () => go(row - 1, column),
  Home: () => go(row, 0), End: () => go(row, columns.length - 1), m: () => go(row, strongest()),
};
map.addEventListener("keydown", event => {
  if (event.ctrlKey || event.altKey || event.metaKey || !(event.key in keys)) return;
  event.preventDefault();
  keys[event.key]();
});
map.addEventListener("click", event => {
  const cell = event.target.closest("td");
  if (cell) go(cell.parentNode.sectionRowIndex, cell.cellIndex - 1);
});
"""


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
        source: L tokens, which divide the unit interval into equal parts; they may contain any characters.
        target: T tokens.
        weights: ``(T, L)`` or ``(*batch, T, L)``.
        density: over the source as the unit interval, of batch shape ``(T,)`` or ``(*batch, T)``.
        index: index into the batches of weights and density; what remains must be one alignment.
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
    read, said = checked_tokens("source", source), checked_tokens("target", target)
    require_something(weights, density)
    shape = (len(said), len(read))
    shares = None if weights is None else checked_weights(weights, shape, alignment_meaning(*shape), index)
    mass: Tensor | None = None
    if density is not None:
        edges = unit_edges(len(read))
        mass = torch.stack([member.cell_mass(edges) for member in alignment_members(density, len(said), index)])
    main = shares if shares is not None else mass
    assert main is not None
    under = torch.zeros(shape) if shares is None or mass is None else mass
    heads = "".join(f"<th scope=col><span>{escaped(token)}</span>" for token in read)
    rows = "\n".join(
        f"<tr><th scope=row>{escaped(token)}{_cells(own, other)}"
        for token, own, other in zip(said, main, under, strict=True)
    )
    named = {"weight": shares, "density": mass}
    data = ",".join(
        f'"{name}":{numbers(found.flatten().tolist())}' for name, found in named.items() if found is not None
    )
    body = (
        "<p>For each target token, from top to bottom, where in the source it looks, in per cent. Each row has its own "
        f"scale; an empty cell is exactly 0.{_legend(shares, mass)}</p>\n"
        '<div class="top"><output id="said" aria-live="polite">Choose a cell to read its share.</output></div>\n'
        f'<div class="map" id="map" tabindex="0" role="group" aria-label="Alignment, {shape[0]} target tokens, '
        f'{shape[1]} source tokens" aria-describedby="keys"><table>\n<thead><tr><th>{heads}</thead>\n<tbody>\n{rows}\n'
        "</tbody></table></div>\n"
        '<p id="keys"><kbd>←</kbd> <kbd>→</kbd> <kbd>↑</kbd> <kbd>↓</kbd> from cell to cell, <kbd>m</kbd> to the most '
        "attended of a row, <kbd>Home</kbd> <kbd>End</kbd>.</p>\n"
        f'<script type="application/json" id="data">{{{data}}}</script>'
    )
    return page(title, body, _RULES, _SCRIPT, height=min(240 + 30 * shape[0], 620))


def _legend(shares: Tensor | None, mass: Tensor | None) -> str:
    if shares is None or mass is None:
        return ""
    return " Shade and number: weight. Underline: what of the density falls to the token."


def _cells(own: Tensor, other: Tensor) -> str:
    return "".join(
        f"<td{shaded(first, second)}>{_short(share)}"
        for share, first, second in zip(own.tolist(), levels(own), levels(other), strict=True)
    )


def _short(share: float) -> str:
    """Per cent in two letters; a point for less than one half."""
    if not share:
        return ""
    return f"{100 * share:.0f}" if share >= 0.005 else "·"
