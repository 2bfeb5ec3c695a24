"""What has one value in a series, such as the age of a patient, as inputs of the classifier."""

import dataclasses
import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from contmax_lab.data import Place
from contmax_lab.errors import LabError

_MOST_NAMES = 100


@dataclasses.dataclass(frozen=True)
class Static:
    """A static column, which holds numbers or names, with its scale from the training series.

    A number becomes its standardised value, a name becomes one input for each name of the training series. Where
    nothing is known all inputs are 0; where that happens in training too, one more input says so.

    Args:
        name: of the column.
        names: that the training series have; empty for numbers.
        centre, deviation: of the numbers.
        gaps: whether a training series has no value.

    Example:
        >>> from pathlib import Path
        >>> place = Place(Path("patients.csv"))
        >>> Static.of("age", [("60", place), ("80", place)]).inputs([("80", place), ("", place)])
        tensor([[1.],
                [0.]], dtype=torch.float64)
        >>> Static.of("sex", [("m", place), ("f", place), ("", place)]).inputs([("m", place), ("", place)])
        tensor([[0., 1., 0.],
                [0., 0., 1.]], dtype=torch.float64)
    """

    name: str
    names: tuple[str, ...] = ()
    centre: float = 0.0
    deviation: float = 1.0
    gaps: bool = False

    @classmethod
    def of(cls, name: str, cells: Sequence[tuple[str, Place]]) -> "Static":
        """From the cells of the training series, empty where nothing is known.

        Raises:
            LabError: if no cell has a value, or numbers and names are mixed, or there are too many names.
        """
        known = [(text, place) for text, place in cells if text]
        file = cells[0][1].file
        if not known:
            raise LabError(
                f"{file}: no training series has a value of the static column {name}; look for it under another name, "
                "or leave it out of --data.static"
            )
        numbers = [(_number(text), text, place) for text, place in known]
        words = [(text, place) for number, text, place in numbers if number is None]
        gaps = len(known) < len(cells)
        if not words:
            found = torch.tensor([number for number, _, _ in numbers], dtype=torch.float64)
            # Divide by the greatest number, so that squares cannot overflow.
            greatest = float(found.abs().max()) or 1.0
            shares = found / greatest
            centre, deviation = float(shares.mean()), float(shares.std(correction=0))
            # A column that never changes has a deviation of rounding errors.
            return cls(name, (), centre * greatest, deviation * greatest if deviation > 1e-12 else 1.0, gaps)
        if len(words) < len(known):
            number = next(text for value, text, _ in numbers if value is not None)
            raise words[0][1].problem(
                f"the static column {name} is {words[0][0]!r} here and {number!r} elsewhere; write numbers or names, "
                "not both"
            )
        names = tuple(sorted({text for text, _ in known}))
        if len(names) > _MOST_NAMES:
            raise LabError(
                f"{file}: the static column {name} has {len(names)} different names, each of which would be an input; "
                f"group them into {_MOST_NAMES} or fewer, or leave the column out of --data.static"
            )
        return cls(name, names, gaps=gaps)

    @classmethod
    def of_plain(cls, stored: dict[str, Any]) -> "Static":
        """From JSON."""
        return cls(**{**stored, "names": tuple(stored["names"])})

    @property
    def width(self) -> int:
        """The number of inputs."""
        return (len(self.names) or 1) + self.gaps

    def inputs(self, cells: Sequence[tuple[str, Place]]) -> Tensor:
        """Inputs of series, (B, width) in float64.

        Raises:
            LabError: if the training series have numbers, and a cell holds something else.
        """
        inputs = torch.zeros(len(cells), self.width, dtype=torch.float64)
        for row, (text, place) in enumerate(cells):
            if not text:
                inputs[row, -1] = float(self.gaps)
            elif self.names:
                # A name that no training series has means nothing to the model.
                inputs[row, : len(self.names)] = torch.tensor([text == name for name in self.names])
            elif (number := _number(text)) is None:
                raise place.problem(f"the static column {self.name} is {text!r}, which is not a number as in training")
            else:
                # Clamp: values far outside of the training data must not overflow.
                inputs[row, 0] = max(-100.0, min((number - self.centre) / self.deviation, 100.0))
        return inputs


def _number(text: str) -> float | None:
    try:
        value = float("no number" if "_" in text else text)
    except ValueError:
        return None
    return value if math.isfinite(value) else None
