"""Passes that are measured, figures with their targets, the suites that yield them, and tables as text."""

import contextlib
import dataclasses
import importlib
import math
import statistics
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from types import ModuleType
from typing import Any

import torch
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.functional import scaled_dot_product_attention

from contmax_lab.bench._measuring import Call, Clock, Effort, interleaved, percentiles
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


def ratio(
    times: Mapping[str, Sequence[float]],
    name: str = "contmax",
    unit: str = "torch",
    details: Mapping[str, Any] = {},
    /,
    **place: Any,
) -> Figure:
    """The median of the rounds' ratios of two contenders' times; no value where one of them did not take part.

    Args:
        times: of each contender, one per round.
        name, unit: the contender, and the one whose time is the unit.
        details: of the figure; the smallest ratio, the number of rounds and the seconds of both join them.
        place: table, row, column and target.
    """
    if name not in times or unit not in times:
        return Figure(value=None, **place)
    ratios = [a / b for a, b in zip(times[name], times[unit], strict=True)]
    seconds = {key: percentiles(times[key]) for key in (name, unit)}
    known = {"minimum": min(ratios), "rounds": len(ratios), "seconds": seconds, **details}
    return Figure(value=statistics.median(ratios), details=known, **place)


def beside(ours: Call, unit: Call, effort: Effort, /, **place: Any) -> Figure:
    """Our pass beside the one whose time is the unit, by processor time."""
    return ratio(interleaved({"contmax": ours, "torch": unit}, effort), **place)


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
    """A suite whose figures are measured by a `Clock`."""
    return Suite(name, lambda effort: figures(effort, Clock()), peers)


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


# Examples of a batch that are computed again in float64.
_CHECKED = 32


@dataclasses.dataclass(frozen=True)
class Work:
    """A function of tensors and the cotangent of its result: what one forward and backward pass computes.

    Args:
        function: returns one tensor; it is called with tensors of another dtype too, where it is checked.
        inputs: its arguments. Tensors that require a gradient are differentiated; the first axis of a tensor is that of
            examples.
        cotangent: gradient of the result, with examples first, or a scalar.
        shared: places of inputs without an axis of examples.
    """

    function: Callable[..., Tensor]
    inputs: tuple[Any, ...]
    cotangent: Tensor
    shared: tuple[int, ...] = ()

    def __call__(self) -> tuple[Tensor, ...]:
        """The result and the gradients."""
        live = [x for x in self.inputs if isinstance(x, Tensor) and x.requires_grad]
        result = self.function(*self.inputs)
        return result.detach(), *torch.autograd.grad(result, live, self.cotangent)

    def part(self, dtype: torch.dtype | None = None) -> "Work":
        """This work for the last examples alone, in another dtype if one is given."""
        inputs = [_taken(x, place in self.shared, dtype) for place, x in enumerate(self.inputs)]
        cotangent = _taken(self.cotangent, self.cotangent.dim() == 0, dtype)
        return Work(self.function, tuple(inputs), cotangent, self.shared)

    def errors(self) -> list[float]:
        """Largest error of the result and of each gradient against float64, relative to the largest number of each."""
        return list(map(relative_error, self.part()(), self.part(torch.float64)()))


def _taken(x: Tensor, is_shared: bool, dtype: torch.dtype | None) -> Tensor:
    part = x.detach() if is_shared else x.detach()[-_CHECKED:].contiguous()
    moved = part.to(dtype) if dtype is not None and part.is_floating_point() else part
    return moved.clone().requires_grad_(x.requires_grad)


def relative_error(got: Tensor, exact: Tensor) -> float:
    """Largest error, relative to the largest number unless that is 0."""
    largest = float(exact.abs().max())
    error = float((got.double() - exact).abs().max())
    return error / largest if largest else error


@dataclasses.dataclass(frozen=True)
class Contest:
    """A pass of ours beside the torch operation it is measured by, and peers.

    Args:
        table: what is compared, in words.
        row: the size of the inputs.
        column: the operation.
        ours: our pass.
        unit: the pass whose time is the unit.
        moved_bytes: what any implementation must at least read and write.
        at_most: target of the ratio of device times, or None.
        eager_at_most: target of the ratio of wall clocks; no eager passes are timed without one.
        peers: name → another library's pass; an exception that one raises is noted, and the others go on.
        tolerance: largest relative error of our result and gradients that is allowed; by default twice the error of the
            unit's, and rounding.
    """

    table: str
    row: str
    column: str
    ours: Work
    unit: Work
    moved_bytes: int
    at_most: float | None = None
    eager_at_most: float | None = None
    peers: Mapping[str, Call] = dataclasses.field(default_factory=dict)
    tolerance: float | None = None

    def figures(self, clock: Clock, effort: Effort) -> Iterator[Figure]:
        """The ratio of device times, the share of the bandwidth, and the ratio of wall clocks."""
        place: dict[str, Any] = {"row": self.row, "column": self.column}
        details = self._checked()
        if "failed" not in details:
            try:
                times = clock.device_times({"contmax": self.ours, "torch": self.unit}, effort)
            except Exception as error:  # a pass that waits for the device cannot be captured
                details = {"failed": _said(error)}
        if "failed" in details:
            yield Figure(self.table, **place, value=math.nan, at_most=self.at_most, details=details)
            return
        yield ratio(times, "contmax", "torch", details, table=self.table, at_most=self.at_most, **place)
        seconds = percentiles(times["contmax"])["median"]
        yield Figure(share_table(self.table), **place, value=self.moved_bytes / seconds / clock.bandwidth())
        if self.eager_at_most is not None:
            yield self.eager_figure(clock, effort)

    def eager_figure(self, clock: Clock, effort: Effort) -> Figure:
        """The ratio of wall clocks of eager calls."""
        # Wall clocks vary with the load of the machine, unlike times of the device.
        patient = effort if effort.small else dataclasses.replace(effort, fewest_rounds=51, most_rounds=101, budget=2.0)
        wall = clock.wall_times({"contmax": self.ours, "torch": self.unit}, patient)
        place = {"table": eager_table(self.table), "row": self.row, "column": self.column}
        return ratio(wall, **place, at_most=self.eager_at_most)

    def peer_figures(self, clock: Clock, effort: Effort) -> Iterator[Figure]:
        """The ratios of device times of the peers, as rows of the table.

        A peer that fails may leave the memory of the device full; suites with large inputs time their peers last.
        """
        for name, call in self.peers.items():
            place: dict[str, Any] = {"table": self.table, "row": f"{self.row} by {name}", "column": self.column}
            try:
                times = clock.device_times({name: call, "torch": self.unit}, effort)
            except Exception as error:  # peers fail in ways of their own
                yield Figure(**place, value=None, details={"refused": _said(error)})
            else:
                yield ratio(times, name, **place)

    def _checked(self) -> dict[str, Any]:
        """Errors of both, and what is wrong with ours, if anything is."""
        try:
            ours, theirs = self.ours.errors(), self.unit.errors()
            self.ours()
        except Exception as error:  # the other rows are still measured
            return {"failed": _said(error)}
        # One rounding to the dtype of the result, after a computation in float32.
        dtype = next(x.dtype for x in self.ours.inputs if x.is_floating_point())
        rounding = torch.finfo(dtype).eps + 32 * torch.finfo(torch.float32).eps
        allowed = 2 * max(theirs) + rounding if self.tolerance is None else self.tolerance
        details: dict[str, Any] = {"errors": ours, "errors_of_torch": theirs, "allowed_error": allowed}
        if not max(ours) <= allowed:
            details["failed"] = f"an error of {max(ours):.3g} relative to float64; {allowed:.3g} is allowed"
        return details


def share_table(table: str) -> str:
    """Title of the table that says which share of the bandwidth of the memory was reached."""
    return f"{table}: share of the bandwidth of the memory"


def eager_table(table: str) -> str:
    """Title of the table of wall clocks."""
    return table.replace("device time", "wall clock of eager calls")


def checked(error: float, allowed: float) -> dict[str, Any]:
    """An error relative to float64 as details of a figure; ``failed`` says that it is too large, or NaN."""
    details = {"error": error, "allowed_error": allowed}
    return details if error <= allowed else {**details, "failed": f"an error of {error:.3g} relative to float64"}


def softmax_attention(kernels: SDPBackend, **options: Any) -> Callable[..., Tensor]:
    """scaled_dot_product_attention, on a GPU by certain kernels of torch."""

    def attend(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        with sdpa_kernel(kernels) if query.is_cuda else contextlib.nullcontext():
            return scaled_dot_product_attention(query, key, value, **options)

    return attend


def _said(error: Exception) -> str:
    first_line = (str(error).strip() or "no message").splitlines()[0]
    return f"{type(error).__name__}: {first_line[:200]}"
