"""Axes of matplotlib, which is imported when a picture is drawn and not before."""

import importlib
from types import ModuleType
from typing import Any

from contmax.viz._escape import visible


def require_matplotlib(module: str = "matplotlib") -> ModuleType:
    """The module, or an error that says how to install it.

    Raises:
        ImportError: if matplotlib is not installed.
    """
    try:
        return importlib.import_module(module)
    except ModuleNotFoundError as error:
        raise ImportError(
            "contmax.viz draws with matplotlib, which is not installed: pip install contmax[viz]"
        ) from error


def axes_for(ax: Any, width: float = 6.0, height: float = 3.0) -> Any:
    """The given Axes, or those of a new figure.

    Args:
        ax: Axes of matplotlib, or None.
        width, height: of a new figure, inches.

    Raises:
        ImportError: if matplotlib is not installed.
        TypeError: if ``ax`` is something else, such as a figure or an array of Axes.
    """
    axes_class = require_matplotlib("matplotlib.axes").Axes
    if ax is None:
        pyplot = require_matplotlib("matplotlib.pyplot")
        return pyplot.subplots(figsize=(width, height), layout="constrained")[1]
    if not isinstance(ax, axes_class):
        raise TypeError(
            f"ax must be Axes of matplotlib; got {type(ax).__name__}. Pass one of those that plt.subplots() returns."
        )
    return ax


def literal(text: str) -> str:
    r"""A text as it is: to matplotlib, a dollar sign begins a formula, and controls have no letters.

    Example:
        >>> print(literal("5 $\x00"))
        5 \$�
    """
    # Symbols for controls are in few fonts, the replacement character is in all.
    shown = "".join("\ufffd" if 0x2400 <= ord(letter) <= 0x2421 else letter for letter in visible(text))
    return shown.replace("$", r"\$")


def name_tokens(ax: Any, tokens: Any, attended: Any) -> None:
    """Tokens below the axis, one for each unit of it; those that are not attended are paler."""
    places = [place + 0.5 for place in range(len(tokens))]
    ax.set_xticks(places, [literal(token) for token in tokens], rotation=60, ha="right", fontsize=8)
    ax.tick_params(axis="x", length=0, pad=1)
    for label, inside in zip(ax.get_xticklabels(), attended, strict=True):
        label.set_rotation_mode("anchor")
        label.set_alpha(1.0 if inside else 0.4)
