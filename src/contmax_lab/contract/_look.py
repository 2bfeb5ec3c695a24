"""One input as a model sees it, taken apart, so that somebody can look elsewhere with the same model."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch import Tensor

    from contmax.basis import Basis
    from contmax_lab.attention import Attended


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
