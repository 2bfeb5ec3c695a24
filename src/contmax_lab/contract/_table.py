"""What a table is: rows are variants of a recipe, repetitions are seeds or splits, a cell is one training."""

import dataclasses
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any


@dataclasses.dataclass(frozen=True)
class Row:
    """A line of the table.

    Args:
        label: as printed.
        variant: of the task's recipe; empty = what the recipe says without one.
        overrides: dotted, on top of it.
        paper: metric → the published figure, on the scale of the printed one.
        against: labels of the rows that it is compared with; empty = the baseline of the table.
        tries: settings that are tried in each repetition, each a tuple of overrides; each is a training of its own, and
            the one whose validation examples are best by the monitored metric counts. Empty = there is nothing to try.
    """

    label: str
    variant: str = ""
    overrides: tuple[str, ...] = ()
    paper: dict[str, float] = dataclasses.field(default_factory=dict)
    against: tuple[str, ...] = ()
    tries: tuple[tuple[str, ...], ...] = ()

    def __post_init__(self) -> None:
        against: object = self.against
        if isinstance(against, str):
            raise TypeError(f"against has to be a tuple of labels; got a text, pass ({against!r},)")


@dataclasses.dataclass(frozen=True)
class Repetition:
    """One repetition of every row.

    Args:
        name: of its folder.
        overrides: dotted, e.g. the seed.
        groups: over which means and deviations are taken, e.g. seeds of one split, and splits.
    """

    name: str
    overrides: tuple[str, ...]
    groups: tuple[str, ...] = ("seeds",)


def seeds(count: int) -> tuple[Repetition, ...]:
    """Repetitions with the seeds from 0 on.

    Example:
        >>> seeds(2)[1].name, seeds(2)[1].overrides
        ('seed-1', ('--seed=1',))
    """
    return tuple(Repetition(f"seed-{seed}", (f"--seed={seed}",)) for seed in range(count))


@dataclasses.dataclass(frozen=True)
class Metric:
    """A column of the table.

    Args:
        key: dotted place in results.json, e.g. ``test.accuracy``.
        label: as printed.
        scale: factor before printing, e.g. 100 for per cent.
        digits: after the point.
        spread: whether the deviation over repetitions says something; it does not for a number that has none.
        compared: whether rows are compared by it with the baseline of the table.
        each: whether the value of every repetition is printed, where a mean would hide that they are far apart.
    """

    key: str
    label: str
    scale: float = 1.0
    digits: int = 4
    spread: bool = True
    compared: bool = False
    each: bool = False


@dataclasses.dataclass(frozen=True)
class Start:
    """A training that comes before those of a table, which all begin with what it has learned.

    Args:
        recipe: ``TASK/VARIANT``, a recipe as the command line names it.
        key: dotted key of the rows' recipes that takes its folder.
        shared: beginnings of keys that, changed for the rows, are changed for it as well.
    """

    recipe: str
    key: str
    shared: tuple[str, ...] = ("data.",)


@dataclasses.dataclass(frozen=True)
class Cell:
    """One training of a table: a repetition of a row, perhaps one of several tries.

    Args:
        row, repetition: of the table.
        attempt: number of the try, from 0; None = the row has no tries, or all of them together are meant.
    """

    row: Row
    repetition: Repetition
    attempt: int | None = None

    @property
    def attempts(self) -> tuple["Cell", ...]:
        """The trainings that the cell takes: one for each try of its row."""
        numbers = range(len(self.row.tries))
        return tuple(dataclasses.replace(self, attempt=number) for number in numbers) or (self,)

    @property
    def folder(self) -> str:
        """The folder of the training, relative to that of the table."""
        words = "".join(c if c.isalnum() or c == "." else " " for c in self.row.label.lower()).split()
        place = f"{'-'.join(words)}/{self.repetition.name}"
        return place if self.attempt is None else f"{place}/try-{self.attempt}"

    @property
    def overrides(self) -> list[str]:
        """The overrides of the row, followed by those of the try and of the repetition."""
        tried = () if self.attempt is None else self.row.tries[self.attempt]
        return [*self.row.overrides, *tried, *self.repetition.overrides]


@dataclasses.dataclass(frozen=True)
class Table:
    """A table that one command can make.

    Args:
        name: what ``contmax reproduce`` calls it.
        title: one line.
        rows: the lines.
        repetitions: of each row.
        metrics: the columns.
        notes: what a reader must know: data, split, differences from the paper.
        needs_data: whether it needs ``--data PATH``, which becomes ``--data.path``.
        in_demo: whether the demo makes it too; only without data.
        about: for readers of a report: the task, the data, the models; paragraphs with empty lines between them.
        start: what all rows begin with.
        baseline: label of the row that the others are compared with, repetition by repetition; empty = none. Only what
            is the same in both rows, such as the seed or the split, may make up a repetition.
        overlap: size of a test part over that of the rest, where repetitions divide the same examples again, as folds
            do: intervals of differences are corrected for what the repetitions share. 0 = they share nothing.
        together: whether the repetitions of a row, the same except for data and seed, are trained as one ensemble.
        shown: groups of repetitions that the text shows, each as a block of lines; empty = all, as columns. The file of
            results has all of them.
        readings: ways to read the paper's figures, name → metric of the paper → key of what was measured; for each of
            them and for each group the file of results says how far it is from the paper.
        published: lines of others that were not trained here, label → group → metric → the figure as it is printed.
        ranked: key of a metric, empty = none: the file of results says how near the order of the rows is to that of the
            paper's figures.
        families: differences that are looked at over several pairs of rows together: what it is → pairs of labels, of
            which the second is taken from the first, in the metrics that are compared.
    """

    name: str
    title: str
    rows: tuple[Row, ...]
    repetitions: tuple[Repetition, ...]
    metrics: tuple[Metric, ...]
    notes: tuple[str, ...] = ()
    needs_data: bool = True
    in_demo: bool = False
    about: str = ""
    start: Start | None = None
    baseline: str = ""
    overlap: float = 0.0
    together: bool = False
    shown: tuple[str, ...] = ()
    readings: dict[str, dict[str, str]] = dataclasses.field(default_factory=dict)
    published: dict[str, dict[str, dict[str, float]]] = dataclasses.field(default_factory=dict)
    ranked: str = ""
    families: dict[str, tuple[tuple[str, str], ...]] = dataclasses.field(default_factory=dict)

    def cells(self) -> Iterator[Cell]:
        """All trainings; every row gets its first repetition before any gets its second."""
        for repetition in self.repetitions:
            for row in self.rows:
                yield Cell(row, repetition)


_KINDS = (
    "Discrete softmax",
    "Discrete sparsemax",
    "Continuous softmax",
    "Continuous sparsemax",
    "Combined sparsemax",
)


def attention_table(task: str, title: str, domain: str, about: str) -> Table:
    """One row for each kind of attention, three seeds, no data needed from outside.

    Args:
        task: its recipe has a variant for each kind, such as ``discrete-softmax``.
        title: of the table.
        domain: what is attended to, in a word: "image".
        about: what the data and the models are.
    """
    return Table(
        name=task,
        title=title,
        rows=tuple(Row(kind, kind.lower().replace(" ", "-")) for kind in _KINDS),
        repetitions=seeds(3),
        metrics=(
            Metric("test.accuracy", "accuracy, %", scale=100, digits=1),
            Metric("parameters", "parameters", digits=0, spread=False),
            Metric("timing.seconds_per_epoch", "ms per epoch", scale=1000, digits=0),
            Metric("test.attended", "attended, %", scale=100, digits=1),
        ),
        notes=(
            "Accuracy on the test examples, mean ± standard deviation over the seeds of the training. Attended: mean "
            f"share of the {domain} with any attention at all, that is of nonzero weights, of the support of the "
            "density, or of the union of the two. Time is by the clock, with evaluation, other trainings running "
            "beside.",
        ),
        needs_data=False,
        in_demo=True,
        about=about,
    )


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
