"""A common look of pages and pictures, light and dark, with colours that the colour-blind can tell apart."""

import contextlib
import dataclasses
from collections.abc import Iterator
from typing import Any

from contmax.viz._arguments import require_matplotlib


@dataclasses.dataclass(frozen=True)
class Theme:
    """Colours by their role.

    Args:
        name: light or dark.
        paper: background of the page.
        plate: background of tables and pictures.
        ink: text.
        soft: captions, axes.
        line: rules and grids.
        observed: data, in contrast to what a model makes of it.
        colours: colours of the rows of a table, in this order. After Okabe & Ito (2008).
    """

    name: str
    paper: str
    plate: str
    ink: str
    soft: str
    line: str
    observed: str
    colours: tuple[str, ...]

    def colour(self, index: int) -> str:
        """The colour of the row with this index.

        Example:
            >>> LIGHT.colour(0)
            '#0072b2'
        """
        return self.colours[index % len(self.colours)]

    @property
    def settings(self) -> dict[str, Any]:
        """The theme as settings of matplotlib: ``plt.rcParams.update(LIGHT.settings)`` applies it to a whole script.

        Example:
            >>> LIGHT.settings["text.color"]
            '#1b2130'
        """
        cycler = require_matplotlib().cycler
        return {
            "font.size": 9.5,
            "font.sans-serif": ["DejaVu Sans"],
            "axes.titlesize": 10,
            "axes.titlelocation": "left",
            "axes.titlecolor": self.ink,
            "axes.labelcolor": self.soft,
            "axes.edgecolor": self.soft,
            "axes.linewidth": 0.7,
            "axes.facecolor": self.plate,
            "axes.axisbelow": True,
            "axes.spines.top": False,
            "axes.spines.right": False,
            "axes.prop_cycle": cycler(color=self.colours),
            "axes.unicode_minus": True,
            "figure.facecolor": self.plate,
            "savefig.facecolor": self.plate,
            "grid.color": self.line,
            "grid.linewidth": 0.6,
            "lines.linewidth": 1.5,
            "legend.frameon": False,
            "text.color": self.ink,
            "xtick.color": self.soft,
            "ytick.color": self.soft,
            "xtick.labelsize": 8.5,
            "ytick.labelsize": 8.5,
            "xtick.major.width": 0.7,
            "ytick.major.width": 0.7,
        }


# Maps each field of Theme to its values in the light and the dark theme.
_COLOURS: dict[str, Any] = {
    "name": ("light", "dark"),
    "paper": ("#fafbfc", "#11141a"),
    "plate": ("#ffffff", "#181c24"),
    "ink": ("#1b2130", "#e6e9ef"),
    "soft": ("#5a6375", "#9ba4b5"),
    "line": ("#dde1e8", "#2e3542"),
    "observed": ("#b9c0cc", "#4a5364"),
    "colours": (
        ("#0072b2", "#d55e00", "#3f9fd8", "#e69f00", "#009e73", "#b8629b"),
        ("#4ba3e3", "#f07f3c", "#93cdf2", "#f3c04b", "#34c79a", "#dd93c2"),
    ),
}
LIGHT, DARK = (Theme(**{role: both[dark] for role, both in _COLOURS.items()}) for dark in (False, True))
THEMES = (LIGHT, DARK)


@contextlib.contextmanager
def drawn_in(theme: Theme) -> Iterator[None]:
    """Context manager in which everything that matplotlib draws has this theme.

    Raises:
        ImportError: if matplotlib is not installed.

    Example:
        >>> from contmax.densities import TruncatedParabola
        >>> from contmax.viz import DARK, drawn_in, plot_density
        >>> with drawn_in(DARK):
        ...     ax = plot_density(TruncatedParabola(0.0, 1.0))
        >>> ax.lines[0].get_color()
        '#4ba3e3'
    """
    matplotlib = require_matplotlib()
    with matplotlib.rc_context(theme.settings):
        yield


def page_colours() -> str:
    """CSS variables for paper, plate, ink, soft and line, and for the first two row colours, as three numbers each.

    Example:
        >>> "prefers-color-scheme: dark" in page_colours()
        True
    """
    return f"{_variables(LIGHT)}\n@media (prefers-color-scheme: dark) {{ {_variables(DARK)} }}"


def _variables(theme: Theme) -> str:
    colours = {role: getattr(theme, role) for role in ("paper", "plate", "ink", "soft", "line")}
    for role, colour in zip(("first", "second"), theme.colours, strict=False):
        colours[role] = " ".join(str(part) for part in bytes.fromhex(colour[1:]))
    values = " ".join(f"--{role}: {colour};" for role, colour in colours.items())
    return f":root {{ color-scheme: {theme.name}; {values} }}"
