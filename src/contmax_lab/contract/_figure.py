"""Figures and sections of a report, described: nothing is drawn before the page is written."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from contmax_lab.drawing import Theme


@dataclasses.dataclass(frozen=True)
class Figure:
    """A figure that can be drawn.

    Args:
        title: one line; also the name of the file.
        draw: theme → a figure of matplotlib; called once for light and once for dark screens. What models say is found
            out before, not in here.
        caption: what is to be seen.
    """

    title: str
    draw: Callable[[Theme], Any]
    caption: str = ""

    @property
    def filename(self) -> str:
        """The title as the name of a file.

        Example:
            >>> Figure("Learning curves: loss", lambda theme: None).filename
            'learning-curves-loss.png'
        """
        words = "".join(c if c.isalnum() else " " for c in self.title.lower()).split()
        return "-".join(words) + ".png"


@dataclasses.dataclass(frozen=True)
class Section:
    """A part of a report.

    Args:
        title: its heading.
        text: paragraphs below it, with empty lines between them.
        table: lines of cells, the first of which is the head; empty = none.
        figures: pictures.
        notes: small print.
    """

    title: str
    text: str = ""
    table: Sequence[Sequence[str]] = ()
    figures: Sequence[Figure] = ()
    notes: Sequence[str] = ()
