"""What a table is: rows are recipes, variants are seeds or splits, a cell is one training."""

import dataclasses
from collections.abc import Iterator


@dataclasses.dataclass(frozen=True)
class Row:
    """A line of the table.

    Args:
        label: as printed.
        recipe: name of a recipe.
        overrides: dotted, on top of the recipe.
        paper: metric → the published figure, on the scale of the printed one.
    """

    label: str
    recipe: str
    overrides: tuple[str, ...] = ()
    paper: dict[str, float] = dataclasses.field(default_factory=dict)


@dataclasses.dataclass(frozen=True)
class Variant:
    """One repetition of every row.

    Args:
        name: of its folder.
        overrides: dotted, e.g. the seed.
        groups: over which means and deviations are taken, e.g. seeds of one split, and splits.
    """

    name: str
    overrides: tuple[str, ...]
    groups: tuple[str, ...] = ("seeds",)


@dataclasses.dataclass(frozen=True)
class Metric:
    """A column of the table.

    Args:
        key: dotted place in results.json, e.g. ``test.accuracy``.
        label: as printed.
        scale: factor before printing, e.g. 100 for per cent.
        digits: after the point.
        spread: whether the deviation over repetitions says something; it does not for a number that has none.
    """

    key: str
    label: str
    scale: float = 1.0
    digits: int = 4
    spread: bool = True


@dataclasses.dataclass(frozen=True)
class Start:
    """A training that comes before those of a table, which all begin with what it has learned.

    Args:
        recipe: name of a recipe.
        key: dotted key of the rows' recipes that takes its folder.
        shared: beginnings of keys that, changed for the rows, are changed for it as well.
    """

    recipe: str
    key: str
    shared: tuple[str, ...] = ("data.",)


@dataclasses.dataclass(frozen=True)
class Cell:
    """One training of a table.

    Args:
        row, variant: whose it is.
        folder: relative to that of the table.
    """

    row: Row
    variant: Variant

    @property
    def folder(self) -> str:
        """Relative to the folder of the table."""
        words = "".join(c if c.isalnum() or c == "." else " " for c in self.row.label.lower()).split()
        return f"{'-'.join(words)}/{self.variant.name}"

    @property
    def overrides(self) -> list[str]:
        """Of the row, then of the variant."""
        return [*self.row.overrides, *self.variant.overrides]


@dataclasses.dataclass(frozen=True)
class Table:
    """A table that one command can make.

    Args:
        name: what ``contmax reproduce`` calls it.
        title: one line.
        rows: the lines.
        variants: the repetitions of each.
        metrics: the columns.
        notes: what a reader must know: data, split, differences from the paper.
        needs_data: whether it needs ``--data PATH``, which becomes ``--data.path``.
        in_demo: whether the demo makes it too; only without data.
        about: for readers of a report: the task, the data, the models; paragraphs with empty lines between them.
        start: what all rows begin with.
    """

    name: str
    title: str
    rows: tuple[Row, ...]
    variants: tuple[Variant, ...]
    metrics: tuple[Metric, ...]
    notes: tuple[str, ...] = ()
    needs_data: bool = True
    in_demo: bool = False
    about: str = ""
    start: Start | None = None

    def cells(self) -> Iterator[Cell]:
        """All trainings; every row gets its first repetition before any gets its second."""
        for variant in self.variants:
            for row in self.rows:
                yield Cell(row, variant)
