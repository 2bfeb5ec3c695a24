"""Where a model looks in a text: bars for tokens, a curve for a stretch."""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.distributions import Distribution

from contmax.viz._arguments import Index, checked_tokens, checked_weights, require_something
from contmax.viz._density import draw_curve
from contmax.viz._line import one_line_member, unit_edges
from contmax.viz._matplotlib import axes_for, name_tokens

# Bars of more tokens than these touch each other anyway, and each takes a millisecond.
_MOST_BARS = 400
# More tokens than these cannot be read in one picture; the curve still can.
MOST_NAMED = 160
_INCHES_PER_TOKEN = 0.27


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
    words = checked_tokens("tokens", tokens)
    require_something(weights, density)
    count = len(words)
    shares = None if weights is None else checked_weights(weights, (count,), text_meaning(count), index)
    member = None if density is None else one_line_member(density, index)
    drawn = axes_for(ax, max(_INCHES_PER_TOKEN * min(count, MOST_NAMED), 5.0), 2.0)
    if shares is not None:
        if count <= _MOST_BARS:
            drawn.bar([place + 0.5 for place in range(count)], shares.tolist(), 0.8, color=colors[0])
        else:
            drawn.stairs(shares.tolist(), range(count + 1), fill=True, color=colors[0])
    if member is not None:
        # A few tokens have far more weight than a density that is spread over many: each has a scale of its own.
        curve = drawn if shares is None else drawn.twinx()
        draw_curve(curve, member, 0.0, 1.0, colors[1], scale=count)
        curve.set_ylim(bottom=0)
        curve.tick_params(axis="y", labelsize=7, colors=colors[1])
    drawn.set_xlim(0, count)
    drawn.set_ylim(bottom=0)
    drawn.set_ylabel("share", fontsize=8)
    drawn.tick_params(axis="y", labelsize=7)
    drawn.set_xticks([])
    if show_tokens and count <= MOST_NAMED:
        name_tokens(drawn, words, attended_tokens(count, shares, member).tolist())
    return drawn


def attended_tokens(count: int, shares: Tensor | None, member: Any) -> Tensor:
    """Which tokens have a positive weight, or their middle where the density is positive, (L,)."""
    attended = torch.zeros(count, dtype=torch.bool) if shares is None else shares > 0
    if member is not None:
        edges = unit_edges(count)
        attended = attended | member.holds((edges[1:] + edges[:-1]) / 2)
    return attended


def text_meaning(count: int) -> str:
    """What the shape of the weights stands for."""
    return f"one weight for each of {count} tokens, shape ({count},)"
