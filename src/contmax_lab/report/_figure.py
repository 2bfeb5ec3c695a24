"""A picture with its title and caption."""

import dataclasses
import io
from collections.abc import Callable
from typing import Any, Self

from contmax_lab.packages import require
from contmax_lab.report._theme import DARK, LIGHT, Theme, drawn_in

_DOTS_PER_INCH = 170


@dataclasses.dataclass(frozen=True)
class Figure:
    """A picture for a report.

    Args:
        title: one line; also the name of the file.
        png: the picture.
        caption: what is to be seen.
        dark: the picture for dark screens; empty = there is none.
    """

    title: str
    png: bytes
    caption: str = ""
    dark: bytes = b""

    @classmethod
    def of(cls, title: str, figure: Any, caption: str = "") -> Self:
        """From a figure of matplotlib."""
        return cls(title, _png(figure), caption)

    @classmethod
    def drawn(cls, title: str, draw: Callable[[Theme], Any], caption: str = "") -> Self:
        """From a function that draws a figure of matplotlib; it is called once for each theme.

        Raises:
            LabError: if matplotlib is not installed.
        """
        pictures = []
        for theme in (LIGHT, DARK):
            with drawn_in(theme):
                pictures.append(_png(draw(theme)))
        return cls(title, pictures[0], caption, pictures[1])

    @property
    def filename(self) -> str:
        """The title as the name of a file.

        Example:
            >>> Figure("Learning curves: loss", b"").filename
            'learning-curves-loss.png'
        """
        words = "".join(c if c.isalnum() else " " for c in self.title.lower()).split()
        return "-".join(words) + ".png"


def _png(figure: Any) -> bytes:
    """The figure in 256 colours, which takes a third of the bytes; it has few, and their shades at edges."""
    # Pillow, which matplotlib itself writes PNG files with.
    from PIL import Image

    drawn, small = io.BytesIO(), io.BytesIO()
    # Not compressed on the way: it is read again at once.
    figure.savefig(drawn, format="png", dpi=_DOTS_PER_INCH, pil_kwargs={"compress_level": 0})
    Image.open(drawn).convert("RGB").quantize(256).save(small, "PNG", optimize=True)
    return small.getvalue()


def new_axes(rows: int = 1, columns: int = 1, width: float = 6.0, height: float = 3.0) -> tuple[Any, list[Any]]:
    """A figure of matplotlib and its axes row by row; no window, no state shared with other figures.

    Args:
        rows, columns: of axes.
        width: of the figure, inches.
        height: of one row, inches.

    Raises:
        LabError: if matplotlib is not installed.
    """
    require("matplotlib", "Drawing figures")
    from matplotlib.figure import Figure as Canvas

    canvas = Canvas(figsize=(width, height * rows), layout="constrained")
    axes = canvas.subplots(rows, columns, squeeze=False).flatten().tolist()
    for axis in axes:
        axis.spines[["top", "right"]].set_visible(False)
    return canvas, axes
