"""The suite `maps`: finite maps and their loss against torch.softmax, cross-entropy and the `entmax` package."""

import dataclasses
from collections.abc import Iterator
from typing import Any

from contmax_lab.bench._accuracy import Solved, errors
from contmax_lab.bench._figure import Figure
from contmax_lab.bench._memory import peak_extra_memory
from contmax_lab.bench._passes import (
    LOSS_OPERATIONS,
    MAP_OPERATIONS,
    TENSOR_ALPHA,
    Library,
    Shape,
    drawn,
    prepared_pass,
)
from contmax_lab.bench._suite import Suite, peer
from contmax_lab.bench._timing import Effort, Ratio, interleaved

_TIME = "forward + backward: time / torch.softmax"
_SPEED_UP = "forward + backward: times faster than the entmax package"
_MEMORY = "peak extra memory / memory of the scores"
_LOSS = "loss, forward + backward"
_ERRORS = {
    "float32": "largest error in p, float32",
    "float32_sum": "largest error of a row's sum, float32",
    "bfloat16": "largest error in p beyond one rounding, bfloat16",
}


@dataclasses.dataclass(frozen=True)
class _Sizes:
    timed: tuple[Shape, ...]
    loss: Shape
    memory: tuple[Shape, ...]
    accuracy: tuple[tuple[Shape, str], ...]


_FULL = _Sizes(
    timed=((64, 280), (4096, 128), (1024, 1024), (256, 32000)),
    loss=(256, 32000),
    # Large enough for resident memory to be read off to a few per cent.
    memory=((16384, 128), (256, 32000)),
    # Fewer rows than above: the exact values take their time.
    accuracy=(
        ((64, 280), "normal"),
        ((1024, 128), "normal"),
        ((256, 1024), "normal"),
        ((256, 1024), "flat"),
        ((256, 1024), "ties"),
        ((16, 32000), "normal"),
    ),
)
_SMALL = _Sizes(
    timed=((64, 280), (128, 128)),
    loss=(32, 1000),
    memory=(),
    accuracy=(((16, 280), "normal"), ((16, 280), "flat"), ((16, 280), "ties")),
)


def _figures(effort: Effort) -> Iterator[Figure]:
    sizes = _SMALL if effort.small else _FULL
    for shape in sizes.timed:
        for name in MAP_OPERATIONS:
            yield from _times_of_map(name, shape, effort)
    for draw, title in (("flat", "flat logits"), ("ties", "rows full of ties")):
        for shape in sizes.timed:
            for name in MAP_OPERATIONS:
                times = _times(name, shape, draw, ("torch", "contmax"), effort)
                place = {"table": f"{_TIME}, {title}", "row": str(shape), "column": name}
                yield _ratio(times, "contmax", "torch", **place, at_most=8.0)
    yield from _times_of_loss(sizes.loss, effort)
    for shape in sizes.memory:
        yield from _memory(shape)
    for shape, draw in sizes.accuracy:
        yield from _errors(shape, draw)


MAPS = Suite("maps", _figures, peers=("entmax",))


def _times_of_map(name: str, shape: Shape, effort: Effort) -> Iterator[Figure]:
    """Our time and the peer's in units of torch.softmax, and the speed-up over the peer."""
    times = _times(name, shape, "normal", ("torch", "contmax", "entmax"), effort)
    limit, over_exact, over_bisection = _targets(shape)
    if name == TENSOR_ALPHA:
        limit += 1
    faster = over_exact if MAP_OPERATIONS[name].peer_is_exact else over_bisection
    yield _ratio(times, "contmax", "torch", table=_TIME, row=str(shape), column=name, at_most=limit)
    yield _ratio(times, "entmax", "torch", table=_TIME, row=f"{shape} by entmax", column=name)
    yield _ratio(times, "entmax", "contmax", table=_SPEED_UP, row=str(shape), column=name, at_least=faster)


def _targets(shape: Shape) -> tuple[float, float, float]:
    """Most time in units of torch.softmax, least speed-up over the peer's exact functions and over its bisection."""
    elements = shape[0] * shape[1]
    if elements >= 1_000_000:
        return 2.5, 9.0, 30.0
    # A pass over few elements is mostly the cost of calling, which softmax has less of.
    return (4.0, 6.0, 25.0) if elements >= 500_000 else (6.0, 4.0, 15.0)


def _times_of_loss(shape: Shape, effort: Effort) -> Iterator[Figure]:
    for name in LOSS_OPERATIONS:
        times = _times(name, shape, "normal", ("torch", "contmax", "entmax"), effort)
        place = {"table": _LOSS, "row": f"{name} {shape}"}
        yield _ratio(times, "contmax", "torch", **place, column="time / F.cross_entropy", at_most=2.0)
        yield _ratio(times, "entmax", "contmax", **place, column="times faster than entmax", at_least=10.0)


def _times(
    name: str, shape: Shape, draw: str, libraries: tuple[Library, ...], effort: Effort
) -> dict[str, list[float]]:
    installed = [library for library in libraries if peer(library) is not None]
    return interleaved({library: prepared_pass(library, name, shape, draw) for library in installed}, effort)


def _ratio(times: dict[str, list[float]], numerator: Library, denominator: Library, **place: Any) -> Figure:
    """A figure of the median ratio; without a value where one of the libraries did not take part."""
    if numerator not in times or denominator not in times:
        return Figure(value=None, **place)
    ratio = Ratio.of(times[numerator], times[denominator])
    details = {
        "minimum": ratio.minimum,
        "rounds": ratio.rounds,
        "fastest_seconds": {library: min(times[library]) for library in (numerator, denominator)},
    }
    return Figure(value=ratio.median, details=details, **place)


def _memory(shape: Shape) -> Iterator[Figure]:
    for library, row, limit in _compared(str(shape), 3.0):
        for name in (*MAP_OPERATIONS, *LOSS_OPERATIONS):
            yield Figure(_MEMORY, row, name, _memory_in_scores(library, name, shape), at_most=limit)


def _memory_in_scores(library: Library, name: str, shape: Shape) -> float | None:
    if peer(library) is None:
        return None
    extra = peak_extra_memory(prepared_pass, (library, name, shape), rehearsal=(library, name, (2, shape[1])))
    return None if extra is None else extra / (4 * shape[0] * shape[1])


def _errors(shape: Shape, draw: str) -> Iterator[Figure]:
    solved = {name: Solved.of(*drawn(name, shape, draw)) for name in MAP_OPERATIONS}
    for library, row, limit in _compared(f"{shape} {draw}", 1e-6):
        for name, operation in MAP_OPERATIONS.items():
            found: dict[str, float] = {}
            if peer(library) is not None:
                found = dataclasses.asdict(errors(operation.by(library), solved[name]))
            for kind, title in _ERRORS.items():
                yield Figure(title, row, name, found.get(kind), at_most=limit)


def _compared(row: str, limit: float) -> tuple[tuple[Library, str, float | None], ...]:
    """Our row with its target, and the peer's below it without one."""
    return ("contmax", row, limit), ("entmax", f"{row} by entmax", None)
