"""A page of HTML in one file, which needs no network, has a light and a dark theme and can be shown in a notebook."""

import base64
import hashlib
import html
import math
import os
from collections.abc import Sequence
from pathlib import Path

import torch
from torch import Tensor

from contmax.viz._arguments import scaled, visible
from contmax.viz._line import TokenAttention
from contmax.viz._theme import page_colours

#: Greatest strength of shading; strength 0 means no attention at all.
LEVELS = 9
# Opacity of the strongest shade; text on this shade has a contrast above 4.5.
_FULLEST = 0.5

_RULES = """
* { box-sizing: border-box; }
body { margin: 0 auto; max-width: 62rem; padding: 1rem; color: var(--ink); background: var(--paper);
       font: 1rem/1.75 system-ui, -apple-system, "Segoe UI", Roboto, "DejaVu Sans", sans-serif; }
h1 { font-size: 1.25rem; line-height: 1.3; margin: 0 0 .3rem; overflow-wrap: anywhere; }
p { margin: .3rem 0; color: var(--soft); font-size: .9rem; line-height: 1.5; overflow-wrap: anywhere; }
kbd { font: inherit; border: 1px solid var(--line); border-radius: 3px; padding: 0 .3em; }
svg { display: block; width: 100%; background: var(--plate); border: 1px solid var(--line); border-radius: 6px; }
output { display: block; min-height: 1.75em; font-size: .95rem; font-variant-numeric: tabular-nums;
         overflow-wrap: anywhere; }
.top { position: sticky; top: 0; z-index: 3; background: var(--paper); padding: .3rem 0; }
.map { background: var(--plate); border: 1px solid var(--line); border-radius: 6px; padding: .7rem .9rem; }
:focus-visible { outline: 2px solid rgb(var(--first)); outline-offset: 2px; }
.map:focus-visible { outline-offset: 0; }
.here { outline: 2px solid var(--ink); outline-offset: 1px; }
"""

# `listen` takes a function for each key. `grid` binds arrow keys, Home and End to moves between cells, and m to a move
# to the cell that `strongest` returns. `grid` returns the function `go(r, c)`, which moves to a cell: it sets `row` and
# `column` and calls `show`, which shows this cell.
_SCRIPT = """
"use strict";
const map = document.getElementById("map"), said = document.getElementById("said");
const data = JSON.parse(document.getElementById("data").textContent);
const shown = share => share ? Number((100 * share).toPrecision(3)) + " %" : "0";
const inside = (value, count) => Math.max(0, Math.min(value, count - 1));
function listen(keys) {
  map.addEventListener("keydown", event => {
    if (event.ctrlKey || event.altKey || event.metaKey || !(event.key in keys)) return;
    event.preventDefault();
    keys[event.key]();
  });
}
let row = -1, column = -1;
function grid(rows, columns, show, strongest) {
  const go = (r, c) => { row = inside(r, rows); column = inside(c, columns); show(); };
  listen({
    ArrowRight: () => go(row, column + 1), ArrowLeft: () => go(row, column - 1),
    ArrowDown: () => go(row + 1, column), ArrowUp: () => go(row - 1, column),
    Home: () => go(row, 0), End: () => go(row, columns - 1), m: () => go(...strongest()),
  });
  return go;
}
"""


class HtmlPage:
    """A page that needs no other file and no network: ``save`` it, or let a notebook show it.

    Args:
        source: the whole page.
        height: height of the frame in a notebook, in pixels.

    Example:
        >>> from contmax.viz import text_attention_html
        >>> page = text_attention_html(["hello", "world"], weights=[0.0, 1.0])
        >>> page.html.startswith("<!doctype html>")
        True
    """

    def __init__(self, source: str, height: int = 420) -> None:
        self.html = source
        self._height = height

    def save(self, path: str | os.PathLike[str]) -> Path:
        """Write the page.

        Args:
            path: path of the file, such as "attention.html".

        Returns:
            The path.
        """
        written = Path(path)
        written.write_text(self.html, encoding="utf-8")
        return written

    def _repr_html_(self) -> str:
        # Use a frame, which separates the styles and keys of the page from those of the notebook.
        return (
            f'<iframe title="attention" sandbox="allow-scripts" style="width:100%;height:{self._height}px;border:0" '
            f'srcdoc="{html.escape(self.html, quote=True)}"></iframe>'
        )

    def __repr__(self) -> str:
        return f"HtmlPage({len(self.html):,} characters)"


def page(title: str, body: str, data: str, rules: str, script: str, height: int) -> HtmlPage:
    """The complete page with this body.

    Args:
        title: title as plain text; this function escapes it. All other arguments are escaped already.
        body: HTML.
        data: JSON members of the object that the script reads as `data`, without braces.
        rules: CSS.
        script: JavaScript; the page's security policy prevents other scripts and all network access.
        height: height of the frame in a notebook, in pixels.
    """
    script = _SCRIPT + script
    # Classes l1 … l9 shade with the first colour, d1 … d9 underline with the second colour.
    shades = "".join(
        f".l{level} {{ background: rgb(var(--first) / {_FULLEST * level / LEVELS:.2f}); }}\n"
        f".d{level} {{ box-shadow: inset 0 -.28em rgb(var(--second) / {0.15 + 0.85 * level / LEVELS:.2f}); }}\n"
        for level in range(1, LEVELS + 1)
    )
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    policy = f"default-src 'none'; img-src data:; style-src 'unsafe-inline'; script-src 'sha256-{digest}'"
    return HtmlPage(
        f'<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        f'<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f'<meta http-equiv="Content-Security-Policy" content="{policy}">\n<title>{escaped(title)}</title>\n'
        f"<style>\n{page_colours()}{_RULES}{shades}{rules}</style>\n</head>\n<body>\n<main>\n"
        f'<h1>{escaped(title)}</h1>\n{body}\n<script type="application/json" id="data">{{{data}}}</script>\n</main>\n'
        f"<script>{script}</script>\n</body>\n</html>\n",
        height,
    )


def escaped(text: str) -> str:
    """The text with HTML escapes, for the body of a page or for a quoted attribute.

    Example:
        >>> escaped('<b title="x">')
        '&lt;b title=&quot;x&quot;&gt;'
    """
    return html.escape(visible(text), quote=True)


def overlaid(attention: TokenAttention) -> tuple[Tensor, Tensor, str]:
    """Shares to shade and shares to underline, (T, L), and the shares of weights and density as JSON members.

    With weights and densities, weights shade and densities underline. If only one is given, it shades.
    """
    both = (("weight", attention.weights), ("density", attention.mass()))
    found = {name: given for name, given in both if given is not None}
    main, *rest = found.values()
    data = ",".join(f'"{name}":{numbers(given.flatten().tolist())}' for name, given in found.items())
    return main, rest[0] if rest else torch.zeros_like(main), data


def levels(shares: Tensor) -> list[int]:
    """Strengths of shading from 0 to 9, ⌈9·√(share/largest share)⌉: 0 only for exact zeros.

    Example:
        >>> import torch
        >>> levels(torch.tensor([0.0, 1e-9, 0.2, 0.8]))
        [0, 1, 5, 9]
    """
    return [math.ceil(LEVELS * value) for value in scaled(shares.flatten()).sqrt().tolist()]


def shaded(first: int, second: int) -> str:
    """The class attribute of an element shaded with strength `first` and underlined with strength `second`.

    Example:
        >>> shaded(3, 0), shaded(0, 0), shaded(2, 5)
        (' class=l3', '', ' class="l2 d5"')
    """
    names = [f"{letter}{level}" for letter, level in (("l", first), ("d", second)) if level]
    quote = '"' if len(names) > 1 else ""
    return f" class={quote}{' '.join(names)}{quote}" if names else ""


def percent(share: float) -> str:
    """A share in per cent with three digits; "0" is an exact zero.

    Example:
        >>> percent(0.1234), percent(0.0), percent(1e-7)
        ('12.3 %', '0', '1e-05 %')
    """
    return f"{100 * share:.3g} %" if share else "0"


def numbers(shares: Sequence[float]) -> str:
    """Shares as a JSON list, with three digits.

    Example:
        >>> numbers([0.0, 0.12345, 1e-7])
        '[0,0.123,1e-7]'
    """
    short = (f"{share:.3g}".replace("e-0", "e-") for share in shares)
    return f"[{','.join(short)}]"


def most_attended(names: Sequence[str], shares: Tensor) -> str:
    """A sentence, escaped for HTML, that lists the eight names with the largest shares above 0."""
    values, order = shares.sort(descending=True, stable=True)
    found = [
        f"<bdi>“{escaped(names[place])}”</bdi> {percent(value)}"
        for value, place in zip(values[:8].tolist(), order[:8].tolist(), strict=True)
        if value > 0
    ]
    return f"Most attended: {', '.join(found)}." if found else "Nothing is attended."
