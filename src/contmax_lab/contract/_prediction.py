"""What a model says of one input."""

import dataclasses

from contmax_lab.contract._figure import Figure


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
