"""A text as a page: its tokens shaded by attention, with an overview that leads to them."""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.distributions import Distribution

from contmax.viz._arguments import Index, checked_tokens, checked_weights, require_something, scaled
from contmax.viz._escape import escaped
from contmax.viz._line import LineMember, one_line_member, unit_edges
from contmax.viz._page import HtmlPage, levels, most_attended, numbers, page, shaded
from contmax.viz._text import text_meaning

# Of the overview, in its own units.
_WIDTH, _HEIGHT = 1000, 60

_RULES = """
.map { overflow-wrap: anywhere; }
.map b { font-weight: normal; unicode-bidi: isolate; border-radius: 3px; padding: .1em .12em; color: var(--soft); }
.map b[class^=l], .map b[class^=d] { color: var(--ink); }
svg.strip { height: 60px; cursor: pointer; }
.bars { fill: rgb(var(--first)); }
.curve { fill: rgb(var(--second) / .18); stroke: rgb(var(--second)); stroke-width: 1.5; }
.support { fill: rgb(var(--second) / .12); }
#mark { stroke: var(--ink); stroke-width: 1.5; visibility: hidden; }
"""

_SCRIPT = """
"use strict";
const map = document.getElementById("map"), said = document.getElementById("said");
const mark = document.getElementById("mark"), strip = document.getElementById("strip");
const tokens = map.querySelectorAll("b"), data = JSON.parse(document.getElementById("data").textContent);
const names = Object.keys(data), strength = data[names[0]];
const attended = [...tokens.keys()].filter(i => names.some(name => data[name][i] > 0));
const shown = share => share ? Number((100 * share).toPrecision(3)) + " %" : "0";
let here = -1;
function go(place, scroll = true) {
  if (!(place >= 0 && place < tokens.length)) return;
  if (here >= 0) tokens[here].classList.remove("here");
  here = place;
  tokens[here].classList.add("here");
  if (scroll) tokens[here].scrollIntoView({block: "center"});
  const x = 1000 * (here + .5) / tokens.length;
  mark.setAttribute("x1", x); mark.setAttribute("x2", x); mark.style.visibility = "visible";
  said.textContent = `“${tokens[here].textContent}” · token ${here + 1} of ${tokens.length} · ` +
    names.map(name => `${name} ${shown(data[name][here])}`).join(" · ");
}
const keys = {
  ArrowRight: () => Math.min(here + 1, tokens.length - 1),
  ArrowLeft: () => Math.max(here - 1, 0),
  ArrowDown: () => attended.find(place => place > here),
  ArrowUp: () => attended.findLast(place => place < here),
  Home: () => 0,
  End: () => tokens.length - 1,
  m: () => strength.indexOf(Math.max(...strength)),
};
map.addEventListener("keydown", event => {
  if (event.ctrlKey || event.altKey || event.metaKey || !(event.key in keys)) return;
  event.preventDefault();
  go(keys[event.key]());
});
map.addEventListener("click", event => {
  const token = event.target.closest("b");
  if (token) go([...tokens].indexOf(token), false);
});
strip.addEventListener("click", event => {
  const box = strip.getBoundingClientRect();
  go(Math.min(Math.floor(tokens.length * (event.clientX - box.left) / box.width), tokens.length - 1));
});
"""


def text_attention_html(
    tokens: Sequence[str],
    weights: Any = None,
    density: Distribution | None = None,
    *,
    index: Index = (),
    title: str = "Attention over the text",
) -> HtmlPage:
    """A text as a page of HTML, each token shaded by its weight or by its share of the density.

    With both, weights shade and the density underlines. Tokens without attention are grey. Click on the overview above
    the text to jump to a token; in the text, arrow keys go from token to token, or to the next attended token. 10,000
    tokens are fine.

    Args:
        tokens: L strings; they may contain any characters.
        weights: weights of the tokens, ``(L,)`` or ``(*batch, L)``.
        density: over the text as the unit interval, of batch shape ``()`` or ``(*batch)``.
        index: index into both batches; what remains must be one text.
        title: title of the page.

    Returns:
        A page: ``page.save("attention.html")``, or let a notebook show it.

    Raises:
        ValueError: if there are no tokens, neither weights nor density, weights that do not fit or are NaN.

    Example:
        >>> from contmax.densities import TruncatedParabola
        >>> span = TruncatedParabola.from_support(0.25, 0.75)
        >>> page = text_attention_html(["not", "<bad>", "at", "all"], density=span)
        >>> "<b>not</b> <b class=l9>&lt;bad&gt;</b>" in page.html
        True
    """
    words = checked_tokens("tokens", tokens)
    require_something(weights, density)
    count = len(words)
    shares = None if weights is None else checked_weights(weights, (count,), text_meaning(count), index)
    member = None if density is None else one_line_member(density, index)
    mass = None if member is None else member.cell_mass(unit_edges(count))
    main = shares if shares is not None else mass
    assert main is not None
    under = torch.zeros(count) if shares is None or mass is None else mass
    attended = int(((main > 0) | (under > 0)).sum())
    written = " ".join(
        f"<b{shaded(first, second)}>{escaped(word)}</b>"
        for word, first, second in zip(words, levels(main), levels(under), strict=True)
    )
    named = {"weight": shares, "density": mass}
    data = ",".join(f'"{name}":{numbers(found.tolist())}' for name, found in named.items() if found is not None)
    body = (
        f"<p>{count:,} tokens, {attended:,} of them attended. {most_attended(words, main)}</p>\n"
        f'<div class="top">\n{_strip(shares, member)}\n'
        '<output id="said" aria-live="polite">Choose a token to read its share.</output>\n</div>\n'
        f'<div class="map" id="map" tabindex="0" role="group" aria-label="Text, {count} tokens" '
        f'aria-describedby="keys">{written}</div>\n'
        '<p id="keys"><kbd>←</kbd> <kbd>→</kbd> token by token, <kbd>↑</kbd> <kbd>↓</kbd> to the next that is '
        "attended, <kbd>m</kbd> to the most attended, <kbd>Home</kbd> <kbd>End</kbd>. "
        f'{_legend(shares, member)}</p>\n<script type="application/json" id="data">{{{data}}}</script>'
    )
    return page(title, body, _RULES, _SCRIPT, height=min(260 + 2 * count, 520))


def _legend(shares: Tensor | None, member: LineMember | None) -> str:
    if shares is not None and member is not None:
        return "Shade: weight of a token. Underline: what of the density falls to it. Grey: neither."
    what = "weight of a token" if member is None else "what of the density falls to a token"
    return f"Shade: {what}. Grey: none."


def _strip(shares: Tensor | None, member: LineMember | None) -> str:
    """The overview: weights as bars, the density as a curve, each on its own scale."""
    parts = []
    if member is not None:
        for start, end in member.stretches():
            low, high = max(start, 0.0), min(end, 1.0)
            if low < high:
                parts.append(
                    f'<rect class="support" x="{_WIDTH * low:.1f}" y="0" width="{_WIDTH * (high - low):.1f}" '
                    f'height="{_HEIGHT}"/>'
                )
    if shares is not None:
        parts.append(f'<path class="bars" d="{_bars(shares)}"/>')
    if member is not None:
        parts.append(f'<path class="curve" vector-effect="non-scaling-stroke" d="{_curve(member)}"/>')
    inner = "".join(parts)
    return (
        f'<svg id="strip" class="strip" viewBox="0 0 {_WIDTH} {_HEIGHT}" preserveAspectRatio="none" role="img" '
        f'aria-label="Attention from the first token to the last">{inner}'
        f'<line id="mark" y1="0" y2="{_HEIGHT}" x1="0" x2="0" vector-effect="non-scaling-stroke"/></svg>'
    )


def _bars(shares: Tensor) -> str:
    """One step for each token, or for each of a thousand parts its greatest weight."""
    if len(shares) > _WIDTH:
        shares = torch.stack([part.max() for part in shares.tensor_split(_WIDTH)])
    heights = (_HEIGHT - (_HEIGHT - 4) * scaled(shares)).tolist()
    width = _WIDTH / len(heights)
    steps = "".join(f"V{height:.1f}H{width * (place + 1):.1f}" for place, height in enumerate(heights))
    return f"M0 {_HEIGHT}{steps}V{_HEIGHT}Z"


def _curve(member: LineMember) -> str:
    t = member.points(0.0, 1.0)
    heights = (_HEIGHT - (_HEIGHT - 4) * scaled(member.heights(t))).tolist()
    line = "L".join(f"{_WIDTH * place:.1f} {height:.1f}" for place, height in zip(t.tolist(), heights, strict=True))
    return f"M0 {_HEIGHT}L{line}L{_WIDTH} {_HEIGHT}Z"
