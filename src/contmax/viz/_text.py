"""Where a model looks in a text: a picture with bars and a curve, and a page with shaded tokens."""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.distributions import Distribution

from contmax.viz._arguments import Index, axes_for, checked_tokens, name_tokens, scaled
from contmax.viz._density import draw_curve
from contmax.viz._line import LineMember, TokenAttention
from contmax.viz._page import HtmlPage, escaped, levels, most_attended, overlaid, page, shaded

# Largest number of tokens with separate bars: a bar takes a millisecond to draw, and more bars would touch.
_MOST_BARS = 400
# Largest number of tokens that can be read in one picture.
_MOST_NAMED = 160
_INCHES_PER_TOKEN = 0.27
# Size of the SVG overview of a page, in units of its viewBox.
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
const mark = document.getElementById("mark"), strip = document.getElementById("strip");
const tokens = map.querySelectorAll("b"), names = Object.keys(data), strength = data[names[0]];
const attended = [...tokens.keys()].filter(i => names.some(name => data[name][i] > 0));
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
listen({
  ArrowRight: () => go(inside(here + 1, tokens.length)),
  ArrowLeft: () => go(inside(here - 1, tokens.length)),
  ArrowDown: () => go(attended.find(place => place > here)),
  ArrowUp: () => go(attended.findLast(place => place < here)),
  Home: () => go(0),
  End: () => go(tokens.length - 1),
  m: () => go(strength.indexOf(Math.max(...strength))),
});
map.addEventListener("click", event => {
  const token = event.target.closest("b");
  if (token) go([...tokens].indexOf(token), false);
});
strip.addEventListener("click", event => {
  const box = strip.getBoundingClientRect();
  go(inside(Math.floor(tokens.length * (event.clientX - box.left) / box.width), tokens.length));
});
"""


def plot_text_attention(
    tokens: Sequence[str],
    weights: Any = None,
    density: Distribution | None = None,
    *,
    ax: Any = None,
    index: Index = (),
    colors: Sequence[Any] = ("C0", "C1"),
    show_tokens: bool = True,
) -> Any:
    r"""Weights of tokens as bars, a density over the text as a curve, both as the share of each token.

    Token l of L takes up :math:`[\tfrac{l-1}L, \tfrac lL]` of the unit interval. Where there are both, the density has
    its own scale, on the right. Tokens without attention are paler.

    Args:
        tokens: L strings.
        weights: weights of the tokens, ``(L,)`` or ``(*batch, L)``.
        density: over the text as the unit interval, of batch shape ``()`` or ``(*batch)``.
        ax: Axes to draw on; by default the Axes of a new figure that is wide enough to read.
        index: index into both batches; what remains must be one text.
        colors: colours of weights and density.
        show_tokens: write the tokens below the axis, unless there are more than 160.

    Returns:
        The Axes, with the weights if both are given.

    Raises:
        ImportError: if matplotlib is not installed.
        ValueError: if there are no tokens, neither weights nor density, weights that do not fit or are NaN.

    Example:
        >>> from contmax.densities import TruncatedParabola
        >>> span = TruncatedParabola.from_support(0.25, 0.75)
        >>> ax = plot_text_attention(["not", "bad", "at", "all"], [0.1, 0.6, 0.3, 0.0], span)
        >>> [float(bar.get_height()) for bar in ax.patches[:4]]
        [0.1, 0.6, 0.3, 0.0]
    """
    attention = TokenAttention.of(checked_tokens("tokens", tokens), weights, density, index)
    shares, member = _row(attention)
    count = len(attention.tokens)
    drawn = axes_for(ax, max(_INCHES_PER_TOKEN * min(count, _MOST_NAMED), 5.0), 2.0)
    if shares is not None:
        if count <= _MOST_BARS:
            drawn.bar([place + 0.5 for place in range(count)], shares.tolist(), 0.8, color=colors[0])
        else:
            drawn.stairs(shares.tolist(), range(count + 1), fill=True, color=colors[0])
    if member is not None:
        # Give weights and density separate scales: a density spreads over many tokens, weights over few.
        curve = drawn if shares is None else drawn.twinx()
        draw_curve(curve, member, 0.0, 1.0, colors[1], scale=count)
        curve.set_ylim(bottom=0)
        curve.tick_params(axis="y", labelsize=7, colors=colors[1])
    drawn.set_xlim(0, count)
    drawn.set_ylim(bottom=0)
    drawn.set_ylabel("share", fontsize=8)
    drawn.tick_params(axis="y", labelsize=7)
    drawn.set_xticks([])
    if show_tokens and count <= _MOST_NAMED:
        name_tokens(drawn, attention.tokens, size=8)
        found = [rows[0] > 0 for rows in (attention.weights, attention.in_support()) if rows is not None]
        for label, attended in zip(drawn.get_xticklabels(), torch.stack(found).any(0).tolist(), strict=True):
            label.set_alpha(1.0 if attended else 0.4)
    return drawn


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
        tokens, weights, density, index: as for :func:`plot_text_attention`; tokens may contain any characters.
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
    attention = TokenAttention.of(checked_tokens("tokens", tokens), weights, density, index)
    words, (shares, member) = attention.tokens, _row(attention)
    count = len(words)
    main, under, data = overlaid(attention)
    main, under = main[0], under[0]
    attended = int(((main > 0) | (under > 0)).sum())
    written = " ".join(
        f"<b{shaded(first, second)}>{escaped(word)}</b>"
        for word, first, second in zip(words, levels(main), levels(under), strict=True)
    )
    legend = f"Shade: {'weight of a token' if member is None else 'share of the density in a token'}. Grey: none."
    if shares is not None and member is not None:
        legend = "Shade: weight of a token. Underline: its share of the density. Grey: neither."
    body = (
        f"<p>{count:,} tokens, {attended:,} of them attended. {most_attended(words, main)}</p>\n"
        f'<div class="top">\n{_strip(shares, member)}\n'
        '<output id="said" aria-live="polite">Choose a token to read its share.</output>\n</div>\n'
        f'<div class="map" id="map" tabindex="0" role="group" aria-label="Text, {count} tokens" '
        f'aria-describedby="keys">{written}</div>\n'
        '<p id="keys"><kbd>←</kbd> <kbd>→</kbd> token by token, <kbd>↑</kbd> <kbd>↓</kbd> to the next that is '
        "attended, <kbd>m</kbd> to the most attended, <kbd>Home</kbd> <kbd>End</kbd>. "
        f"{legend}</p>"
    )
    return page(title, body, data, _RULES, _SCRIPT, height=min(260 + 2 * count, 520))


def _row(attention: TokenAttention) -> tuple[Tensor | None, LineMember | None]:
    """Weights (L,) and density of the only row of attention over a text."""
    weights, densities = attention.weights, attention.densities
    return None if weights is None else weights[0], None if densities is None else densities[0]


def _strip(shares: Tensor | None, member: LineMember | None) -> str:
    """The overview as SVG: weights as bars, the density as a curve, on separate scales."""
    support = "".join(
        f'<rect class="support" x="{_WIDTH * start:.1f}" width="{_WIDTH * (end - start):.1f}" height="{_HEIGHT}"/>'
        for start, end in ([] if member is None else member.stretches())
    )
    bars = "" if shares is None else f'<path class="bars" d="{_bars(shares)}"/>'
    curve = "" if member is None else f'<path class="curve" vector-effect="non-scaling-stroke" d="{_curve(member)}"/>'
    return (
        f'<svg id="strip" class="strip" viewBox="0 0 {_WIDTH} {_HEIGHT}" preserveAspectRatio="none" role="img" '
        f'aria-label="Attention from the first token to the last">{support}{bars}{curve}'
        f'<line id="mark" y1="0" y2="{_HEIGHT}" x1="0" x2="0" vector-effect="non-scaling-stroke"/></svg>'
    )


def _bars(shares: Tensor) -> str:
    """An SVG path with a bar per token; more than 1000 tokens share 1000 bars, as high as their largest weights."""
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
