"""Measured numbers with their targets, the suites that yield them, and both as text."""

import dataclasses
import importlib
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from types import ModuleType
from typing import Any

from contmax_lab.bench._measuring import Clock, Effort, GraphClock, Ratio
from contmax_lab.provenance import provenance

MISSED = "✗"
_EMPTY = "–"


@dataclasses.dataclass(frozen=True)
class Figure:
    """A number at one row and column of a table, with the target it has to reach.

    Args:
        table: what was measured, in words; figures of one table are printed together.
        row: the size or kind of input.
        column: the operation.
        value: the number; None where it could not be measured (a peer that is not installed).
        at_most: upper bound to reach, or None.
        at_least: lower bound to reach, or None.
        details: how the number came about: repeats, extremes, seconds.

    Raises:
        ValueError: if both bounds are given.

    Example:
        >>> figure = Figure("time / torch.softmax", "(64, 280)", "sparsemax", 4.2, at_most=6.0)
        >>> figure.reached, figure.target
        (True, '≤ 6')
        >>> Figure("speed-up", "(64, 280)", "sparsemax", None, at_least=4.0).reached is None
        True
    """

    table: str
    row: str
    column: str
    value: float | None
    at_most: float | None = None
    at_least: float | None = None
    details: Mapping[str, Any] = dataclasses.field(default_factory=dict)

    def __post_init__(self) -> None:
        if self.at_most is not None and self.at_least is not None:
            raise ValueError(
                f"a figure has one target; got at_most={self.at_most} and at_least={self.at_least}. Pass one of them."
            )

    @property
    def target(self) -> str | None:
        """The target as it is printed, such as ``≤ 2.5``."""
        if self.at_most is not None:
            return f"≤ {self.at_most:g}"
        return None if self.at_least is None else f"≥ {self.at_least:g}"

    @property
    def reached(self) -> bool | None:
        """Whether the value meets the target (NaN does not); None without a value or without a target."""
        if self.value is None or self.target is None:
            return None
        return self.value <= self.at_most if self.at_most is not None else self.value >= (self.at_least or 0.0)

    def as_json(self) -> dict[str, Any]:
        """The figure for a JSON file. JSON has no NaN: there the value is null, but `reached` is false."""
        fields = dataclasses.asdict(self)
        if self.value is not None and not math.isfinite(self.value):
            fields["value"] = None
        return {**fields, "reached": self.reached}


Times = Mapping[str, Sequence[float]]


def ratio_figure(
    times: Times, numerator: str, denominator: str, more: Mapping[str, Any] = {}, /, **place: Any
) -> Figure:
    """The median ratio of two contenders' times by `interleaved`; no value where one of them did not take part.

    The smallest ratio and the number of rounds join the details; `place` is table, row, column and target.
    """
    if numerator not in times or denominator not in times:
        return Figure(value=None, **place)
    ratio = Ratio.of(times[numerator], times[denominator])
    return Figure(value=ratio.median, details={"minimum": ratio.minimum, "rounds": ratio.rounds, **more}, **place)


@dataclasses.dataclass(frozen=True)
class Suite:
    """A benchmark that can be run by name.

    Args:
        name: what the command line and the file of results call it.
        figures: yields the figures, table by table, with the given effort.
        peers: optional packages it compares with; without them their figures have no value.
    """

    name: str
    figures: Callable[[Effort], Iterator[Figure]]
    peers: tuple[str, ...] = ()

    def missing_peers(self) -> list[str]:
        """The names of the peers that cannot be imported."""
        return [name for name in self.peers if peer(name) is None]


def gpu_suite(name: str, figures: Callable[[Effort, Clock], Iterator[Figure]], peers: tuple[str, ...] = ()) -> Suite:
    """A suite whose figures are measured by a `GraphClock`."""
    return Suite(name, lambda effort: figures(effort, GraphClock()), peers)


def peer(name: str) -> ModuleType | None:
    """A package to compare with, or None where it is not installed or lacks what it needs."""
    try:
        return importlib.import_module(name)
    except ImportError:
        return None


def record() -> dict[str, Any]:
    """Commit, date, machine and versions, for the head of a file of figures.

    Example:
        >>> sorted(record())
        ['commit', 'date', 'dirty', 'machine', 'versions']
    """
    return provenance(("contmax", "torch", "numpy", "numba", "triton", "entmax"))


def tables(figures: Sequence[Figure]) -> str:
    """All tables of a suite, in the order in which their figures came.

    Where targets differ from row to row the header lists them from top to bottom; rows without one (a peer shown for
    comparison) are skipped.

    Example:
        >>> print(tables([
        ...     Figure("time / torch.softmax", "(64, 280)", "sparsemax", 4.21, at_most=6.0),
        ...     Figure("time / torch.softmax", "(64, 280) entmax", "sparsemax", 38.2),
        ...     Figure("time / torch.softmax", "(4096, 128)", "sparsemax", 4.5, at_most=4.0),
        ... ]))
        time / torch.softmax
                            sparsemax
                              ≤ 6/4
        (64, 280)              4.21
        (64, 280) entmax       38.2
        (4096, 128)             4.5 ✗
    """
    titles = _in_order(figure.table for figure in figures)
    return "\n\n".join(_table(title, [f for f in figures if f.table == title]) for title in titles)


def _table(title: str, figures: Sequence[Figure]) -> str:
    rows, columns = _in_order(f.row for f in figures), _in_order(f.column for f in figures)
    cells = {(f.row, f.column): _cell(f) for f in figures}
    grid = [["", *columns], ["", *(_targets([f for f in figures if f.column == column]) for column in columns)]]
    grid += [[row, *(cells.get((row, column), _EMPTY + "  ") for column in columns)] for row in rows]
    widths = [max(len(line[i]) for line in grid) for i in range(len(columns) + 1)]
    lines = [title]
    for number, (label, *others) in enumerate(grid):
        align = str.center if number < 2 else str.rjust
        aligned = map(align, others, widths[1:])
        lines.append("  ".join([label.ljust(widths[0]), *aligned]).rstrip())
    return "\n".join(lines)


def _targets(figures: Sequence[Figure]) -> str:
    """The targets of a column: one if all rows agree, else from top to bottom."""
    targets = [f.target for f in figures if f.target is not None]
    if len(set(targets)) <= 1:
        return "".join(targets[:1])
    sign = targets[0][0]
    return f"{sign} " + "/".join(target.removeprefix(f"{sign} ") for target in targets)


def _cell(figure: Figure) -> str:
    """Three digits, without an exponent where a large number is still readable; and a mark if it misses its target."""
    value = figure.value
    text = _EMPTY if value is None else f"{value:.0f}" if 1000 <= value < 1e6 else f"{value:.3g}"
    return f"{text} {MISSED if figure.reached is False else ' '}"


def _in_order(names: Iterable[str]) -> list[str]:
    return list(dict.fromkeys(names))
