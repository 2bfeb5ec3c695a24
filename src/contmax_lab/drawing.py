"""Figures of matplotlib without windows, as PNG files, in the look of contmax.viz."""

import html
import io
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from contmax.viz import DARK as DARK
from contmax.viz import LIGHT as LIGHT
from contmax.viz import THEMES as THEMES
from contmax.viz import Theme as Theme
from contmax.viz import drawn_in as drawn_in
from contmax_lab.packages import require

_DOTS_PER_INCH = 170
_INCHES_PER_WORD = 0.27
# Most words whose names are readable in one picture.
_MOST_NAMED = 160


def css_colours(more: Callable[[Theme], Mapping[str, str]]) -> str:
    """The colours of both themes as variables of CSS, for light and dark screens.

    Args:
        more: theme → further variables of a page.

    Example:
        >>> "prefers-color-scheme: dark" in css_colours(lambda theme: {"accent": theme.colour(0)})
        True
    """

    def variables(theme: Theme) -> str:
        roles = {role: getattr(theme, role) for role in ("paper", "plate", "ink", "soft", "line")}
        values = " ".join(f"--{role}: {colour};" for role, colour in {**roles, **more(theme)}.items())
        return f":root {{ color-scheme: {theme.name}; {values} }}"

    return f"{variables(LIGHT)}\n@media (prefers-color-scheme: dark) {{ {variables(DARK)} }}\n"


def html_page(title: str, head: str, body: str) -> str:
    """A page of HTML that fetches nothing but what its head and its body name; the title is plain text."""
    return (
        '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        # Without an icon of its own, browsers request one.
        f'<link rel="icon" href="data:,">\n<title>{html.escape(title)}</title>\n{head}</head>\n<body>\n{body}'
        "</body>\n</html>\n"
    )


def rendered(draw: Callable[[Theme], Any], theme: Theme) -> bytes:
    """A PNG file in the colours of a theme.

    Args:
        draw: theme → a figure of matplotlib.
        theme: light or dark.

    Raises:
        LabError: if matplotlib is not installed.
    """
    return _drawn(draw, theme)[1]


def rendered_twice(draw: Callable[[Theme], Any]) -> tuple[bytes, bytes]:
    """PNG files in the light and in the dark colours; the layout of the axes is computed once.

    Args:
        draw: theme → a figure of matplotlib; the theme may change its colours only.

    Raises:
        LabError: if matplotlib is not installed.
    """
    light, first = _drawn(draw, LIGHT)
    return first, _drawn(draw, DARK, places=[axis.get_position(original=True) for axis in light.axes])[1]


def _drawn(draw: Callable[[Theme], Any], theme: Theme, places: Sequence[Any] | None = None) -> tuple[Any, bytes]:
    """A figure and its PNG file, its axes at the given places or where its layout puts them."""
    require("matplotlib", "Drawing figures")
    with drawn_in(theme):
        figure = draw(theme)
        figure.set_dpi(_DOTS_PER_INCH)
        # The layout is computed here, once: matplotlib would draw the figure twice, for the layout and for the picture.
        if places is None and (engine := figure.get_layout_engine()) is not None:
            engine.execute(figure)
        figure.set_layout_engine("none")
        for axis, place in zip(figure.axes, places or (), strict=places is not None):
            axis.set_position(place)
        return figure, _png(figure)


def _png(figure: Any) -> bytes:
    """The figure in 256 colours, which takes a third of the bytes; it has few, and their shades at edges."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg

    # Pillow, which matplotlib itself writes PNG files with.
    from PIL import Image

    canvas = FigureCanvasAgg(figure)
    canvas.draw()
    drawn = Image.frombuffer("RGBA", canvas.get_width_height(), canvas.buffer_rgba())
    small = io.BytesIO()
    # The highest level takes five times as long, for a tenth of the bytes.
    drawn.convert("RGB").quantize(256).save(small, "PNG", compress_level=7)
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


def picture_width(words: Sequence[str]) -> float:
    """Inches for a text, so that its words can be read where that is possible."""
    return max(_INCHES_PER_WORD * min(len(words), _MOST_NAMED), 5.0)


def plain_text(text: str) -> str:
    """A text as it is: to matplotlib, a dollar sign begins a formula.

    Example:
        >>> print(plain_text("5 $"))
        5 \\$
    """
    return text.replace("$", r"\$")
