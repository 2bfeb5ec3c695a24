"""What the model says of a text, in brackets and as a picture."""

import dataclasses
from typing import Any

from contmax.viz import plot_text_attention
from contmax_lab.contract import Figure
from contmax_lab.drawing import Theme, new_axes, picture_width
from contmax_lab.tasks.documents._reading import Reading


@dataclasses.dataclass(frozen=True)
class Verdict:
    """What the model says of one text.

    Args:
        words: of the text, as the model reads them.
        probability: of being positive.
        reading: where it looked, a batch with one text.
    """

    words: list[str]
    probability: float
    reading: Reading

    @property
    def attended(self) -> list[bool]:
        """Which words were attended."""
        inside: list[bool] = self.reading.inside[0].tolist()
        return inside

    def marked(self) -> str:
        """The text with every attended stretch in brackets."""
        pieces: list[str] = []
        attended = [False, *self.attended, False]
        for place, word in enumerate(self.words, start=1):
            begins = attended[place] and not attended[place - 1]
            ends = attended[place] and not attended[place + 1]
            pieces.append(f"{'[' if begins else ''}{word}{']' if ends else ''}")
        return " ".join(pieces)


def verdict_figure(verdict: Verdict, title: str) -> Figure:
    """Where the model looks in a text."""

    def draw(theme: Theme) -> Any:
        figure, axes = new_axes(width=picture_width(verdict.words), height=1.6)
        plot_text_attention(verdict.words, verdict.reading.weights, verdict.reading.density, ax=axes[0])
        axes[0].set_title(f"{verdict.probability:.0%} positive", loc="left", fontsize=9)
        return figure

    caption = (
        "Bars: weights of single words. Curve: the density over the text, on the scale to the right; what it selects "
        "is shaded."
    )
    return Figure(title, draw, caption)
