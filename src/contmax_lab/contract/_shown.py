"""What people see of a model: figures and sections of a report, answers to one input, an input taken apart."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from torch import Tensor

    from contmax.basis import Basis
    from contmax_lab.attention import Attended
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


@dataclasses.dataclass(frozen=True)
class Prediction:
    """The answer to one input from the command line.

    Args:
        text: for the terminal; it may have several lines.
        figure: where the model looked, drawn only if somebody asks for it; None = there is nothing to see.
        filename: PNG file in the current folder that it is drawn into without being asked for; empty = none.
    """

    text: str
    figure: Figure | None = None
    filename: str = ""


@dataclasses.dataclass(frozen=True)
class FileAnswer:
    """The answer to one of the inputs of a file.

    Args:
        name: which input it is, and what shall stand beside its answer: column → text or number.
        told: the answer: column → text or number; empty where there is none.
        problem: why there is none; empty where there is one.
    """

    name: dict[str, Any]
    told: dict[str, Any] = dataclasses.field(default_factory=dict)
    problem: str = ""


@dataclasses.dataclass(frozen=True)
class Look:
    """A text or an image, what a model attends to in it, and how it decides.

    Args:
        values: what is attended to, (L, D).
        heads: what each head looked at, in a batch of one.
        decide: contexts of all heads, one after another, (B, heads·D) → probabilities (B, C), or numbers (B, 1).
        classes: their names; empty for numbers.
        words: of the text, L of them; empty for an image.
        pixels: of the image, bytes (3, H, W); None for a text.
        grid: rows and columns of the values of an image; None for a text.
        basis: ψ of the continuous attention; None where the model has none.
        penalty: of its ridge fit.
    """

    values: Tensor
    heads: Sequence[Attended]
    decide: Callable[[Tensor], Tensor]
    classes: Sequence[str]
    words: Sequence[str] = ()
    pixels: Tensor | None = None
    grid: tuple[int, int] | None = None
    basis: Basis | None = None
    penalty: float = 0.01
