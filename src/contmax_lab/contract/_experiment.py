"""What an experiment is: a table whose cells are trained by code of its own."""

import dataclasses
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from contmax_lab.contract._table import Cell, Table


@dataclasses.dataclass(frozen=True)
class Experiment:
    """A table whose cells are not runs of a task: its own code trains many of them at a time, in slices.

    Args:
        table: what is shown.
        train: folder, minutes (0 = no limit) → trains the cells that are missing in the folder, or raises Interrupted
            when time is up, with everything stored.
        outcomes: folder → the cells that are done, with their results; ``test`` in these is what the table shows.
        draw: content of the file of results, path → a picture of it, by matplotlib.
    """

    table: Table
    train: Callable[[Path, float], object]
    outcomes: Callable[[Path], Sequence[tuple[Cell, dict[str, Any]]]]
    draw: Callable[[dict[str, Any], Path], None]
