"""Where a model looks in a text: bars for words, a curve for a stretch."""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from contmax_lab.drawing._theme import Theme

# Bars of more words than these touch each other anyway, and each takes a millisecond.
_MOST_BARS = 400
# More words than these cannot be read in one picture; the curve still can.
_MOST_NAMED = 160
_INCHES_PER_WORD = 0.27


def picture_width(words: Sequence[str]) -> float:
    """Inches for a text, so that its words can be read where that is possible."""
    return max(_INCHES_PER_WORD * min(len(words), _MOST_NAMED), 5.0)


def draw_words(axis: Any, weights: Tensor | None, density: Any, words: Sequence[str], theme: Theme) -> None:
    """Weights and density over one text, as the share that falls to a word.

    Where there are both, the density has a scale of its own, on the right.

    Args:
        axis: of matplotlib.
        weights: of the words, (1, L), or None.
        density: a β-Gaussian over the text as the unit interval, of batch shape (1,), or None.
        words: of that text; L may be greater.
        theme: whose colours to use.
    """
    count = len(words)
    if weights is not None:
        heights, bars = weights[0, :count].tolist(), theme.colour(0)
        if count <= _MOST_BARS:
            axis.bar([place + 0.5 for place in range(count)], heights, 0.8, color=bars)
        else:
            axis.stairs(heights, range(count + 1), fill=True, color=bars)
    if density is not None:
        # A few words have far more weight than a density that is spread over many: each has a scale of its own.
        _draw_density(axis if weights is None else axis.twinx(), density, count, theme.colour(1))
    axis.set_xlim(0, count)
    axis.set_ylim(bottom=0)
    axis.set_ylabel("share", fontsize=8)
    axis.tick_params(axis="y", labelsize=7)
    axis.set_xticks([])


def _draw_density(axis: Any, density: Any, count: int, colour: str) -> None:
    t = torch.linspace(0, 1, 501)
    share = (density.density(t.unsqueeze(-1)).squeeze(-1) / count).tolist()
    axis.plot((t * count).tolist(), share, color=colour, linewidth=1.4)
    axis.fill_between((t * count).tolist(), share, color=colour, alpha=0.15)
    low, high = (float(density.loc + side * density.half_width) * count for side in (-1, 1))
    axis.axvspan(max(low, 0), min(high, count), color=colour, alpha=0.10, linewidth=0)
    axis.set_ylim(bottom=0)
    axis.tick_params(axis="y", labelsize=7, colors=colour)


def name_words(axis: Any, words: Sequence[str], inside: Sequence[bool], theme: Theme) -> None:
    """The words of the review below the axis, those that are not attended paler; none where there are too many."""
    if len(words) > _MOST_NAMED:
        return
    axis.set_xticks([place + 0.5 for place in range(len(words))], words, rotation=60, ha="right", fontsize=8)
    axis.tick_params(axis="x", length=0, pad=1)
    axis.set_xticks([place + 0.5 for place in range(len(words))])
    for label, attended in zip(axis.get_xticklabels(), inside, strict=True):
        label.set_rotation_mode("anchor")
        label.set_color(theme.ink if attended else theme.observed)
