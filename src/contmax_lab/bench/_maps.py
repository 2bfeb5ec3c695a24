"""The suite `maps`: finite maps and their loss against torch.softmax, cross-entropy and the `entmax` package."""

import dataclasses
import functools
import importlib
from collections.abc import Callable, Iterator
from types import ModuleType
from typing import Any, Literal

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy

import contmax
from contmax_lab.bench._figure import Figure, Suite, peer, ratio_figure
from contmax_lab.bench._measuring import Effort, interleaved, peak_extra_memory

Library = Literal["torch", "contmax", "entmax"]
Shape = tuple[int, int]

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

# How scores are drawn: as usual, and in two ways that leave whole rows in the support.
DRAWS: dict[str, Callable[[Shape, torch.Generator], Tensor]] = {
    "normal": lambda shape, generator: torch.randn(shape, generator=generator),
    "flat": lambda shape, generator: 0.01 * torch.randn(shape, generator=generator),
    "ties": lambda shape, generator: torch.randint(0, 2, shape, generator=generator).float(),
}


@dataclasses.dataclass(frozen=True)
class Operation:
    """One operation in three libraries, as functions of the scores and of a second argument (α, or class ids).

    Args:
        contmax: ours.
        entmax: the peer's, whose first argument is the package.
        second: draws the second argument for scores of a shape.
        torch: the operation whose time is the unit.
        per_row: whether the result has one number per row, not one per score.
        peer_is_exact: whether the peer computes it exactly, not by bisection.
    """

    contmax: Callable[[Tensor, Any], Tensor]
    entmax: Callable[[ModuleType, Tensor, Any], Tensor]
    second: Callable[[Shape, torch.Generator], float | Tensor]
    torch: Callable[[Tensor, Any], Tensor] = lambda scores, _: torch.softmax(scores, -1)
    per_row: bool = False
    peer_is_exact: bool = True

    def by(self, library: Library) -> Callable[[Tensor, Any], Tensor]:
        """The operation in one of the libraries, which must be installed."""
        if library == "contmax":
            return self.contmax
        if library == "torch":
            return self.torch
        return functools.partial(self.entmax, importlib.import_module("entmax"))


def _learned_alpha(shape: Shape, generator: torch.Generator) -> Tensor:
    return (1.1 + 0.8 * torch.rand(shape[0], 1, generator=generator)).requires_grad_()


def _class_ids(shape: Shape, generator: torch.Generator) -> Tensor:
    return torch.randint(0, shape[1], shape[:1], generator=generator)


_by_bisection: dict[str, Any] = {
    "contmax": contmax.entmax,
    "entmax": lambda package, x, alpha: package.entmax_bisect(x, alpha),
    "peer_is_exact": False,
}

TENSOR_ALPHA = "entmax, tensor α"

MAP_OPERATIONS = {
    "sparsemax": Operation(
        contmax=lambda x, _: contmax.sparsemax(x),
        entmax=lambda package, x, _: package.sparsemax(x),
        second=lambda *_: 2.0,
    ),
    "entmax α=1.5": Operation(
        contmax=contmax.entmax,
        entmax=lambda package, x, _: package.entmax15(x),
        second=lambda *_: 1.5,
    ),
    "entmax α=4/3": Operation(second=lambda *_: 4 / 3, **_by_bisection),
    TENSOR_ALPHA: Operation(second=_learned_alpha, **_by_bisection),
}

LOSS_OPERATIONS = {
    "entmax_loss α=1.5": Operation(
        torch=lambda z, ids: cross_entropy(z, ids, reduction="none"),
        contmax=lambda z, ids: contmax.losses.entmax_loss(z, ids, 1.5, reduction="none"),
        entmax=lambda package, z, ids: package.entmax15_loss(z, ids),
        second=_class_ids,
        per_row=True,
    ),
}

_OPERATIONS = MAP_OPERATIONS | LOSS_OPERATIONS


def drawn(name: str, shape: Shape, draw: str = "normal") -> tuple[Tensor, Any]:
    """Scores (float32) and second argument of an operation, by a fixed seed."""
    generator = torch.Generator().manual_seed(0)
    return DRAWS[draw](shape, generator), _OPERATIONS[name].second(shape, generator)


def prepared_pass(library: Library, name: str, shape: Shape, draw: str = "normal") -> Callable[[], None]:
    """A call that does one forward and backward pass with a given cotangent, by a library that is installed."""
    operation = _OPERATIONS[name]
    function = operation.by(library)
    scores, second = drawn(name, shape, draw)
    scores.requires_grad_()
    cotangent = torch.randn(shape[:1] if operation.per_row else shape, generator=torch.Generator().manual_seed(1))

    def forward_and_backward() -> None:
        scores.grad = None
        if isinstance(second, Tensor):
            second.grad = None
        result = function(scores, second)
        result.backward(cotangent)

    return forward_and_backward


def exact_entmax(scores: Tensor, alpha: float | Tensor) -> Tensor:
    r"""α-entmax over the last axis by bisection in float64: slow, and simple enough to be believed.

    .. math::
        p_i = [u_i - t]_+^{1/(\alpha-1)}, \quad u_i = (\alpha-1)(x_i - \max_j x_j), \quad -1 \le t \le -n^{1-\alpha}

    Args:
        scores: x (*batch, n), finite.
        alpha: α > 1, a float or a tensor of shape (*batch, 1).

    Returns:
        p (*batch, n) in float64.

    Example:
        >>> exact_entmax(torch.tensor([1.0, 0.5, -1.0]), 2.0)
        tensor([0.7500, 0.2500, 0.0000], dtype=torch.float64)
    """
    x = scores.detach().double()
    excess = (alpha.detach().double() if isinstance(alpha, Tensor) else torch.tensor(alpha, dtype=x.dtype)) - 1
    u = excess * (x - x.amax(-1, keepdim=True))
    # At the lower end the largest p alone is 1, at the upper end none exceeds 1/n.
    low = torch.full_like(u[..., :1], -1.0)
    high = -(float(x.shape[-1]) ** -excess).expand_as(low)
    for _ in range(60):
        middle = (low + high) / 2
        too_much = _powers(u - middle, excess).sum(-1, keepdim=True) > 1
        low, high = torch.where(too_much, middle, low), torch.where(too_much, high, middle)
    p = _powers(u - (low + high) / 2, excess)
    return p / p.sum(-1, keepdim=True)


@dataclasses.dataclass(frozen=True)
class Errors:
    """Largest errors of a map on one input.

    Args:
        float32: in a probability, float32.
        float32_sum: of the sum of a row, float32.
        bfloat16: in a probability, bfloat16, beyond the half unit in the last place that one rounding costs.
    """

    float32: float
    float32_sum: float
    bfloat16: float


@dataclasses.dataclass(frozen=True)
class Solved:
    """Scores with their exact probabilities, which are solved once for all libraries.

    Args:
        scores: float32.
        alpha: α > 1.
        exact: at the scores.
        exact_of_rounded: at the scores rounded to bfloat16.
    """

    scores: Tensor
    alpha: float | Tensor
    exact: Tensor
    exact_of_rounded: Tensor

    @classmethod
    def of(cls, scores: Tensor, alpha: float | Tensor) -> "Solved":
        """Solve for the probabilities."""
        return cls(scores, alpha, exact_entmax(scores, alpha), exact_entmax(scores.bfloat16(), alpha))


def errors(function: Callable[[Tensor, Any], Tensor], solved: Solved) -> Errors:
    """Errors of a map at float32 scores and at the same scores rounded to bfloat16."""
    scores, alpha, expected = solved.scores, solved.alpha, solved.exact_of_rounded
    with torch.no_grad():
        p, rounded = function(scores, alpha).double(), function(scores.bfloat16(), alpha).double()
    # frexp has mantissas in [½, 1), of which bfloat16 keeps 8 bits: half a unit in the last place is 2^(exponent − 9).
    one_rounding = torch.ldexp(torch.ones_like(expected), torch.frexp(expected).exponent - 9)
    return Errors(
        float32=float((p - solved.exact).abs().max()),
        float32_sum=float((p.sum(-1) - 1).abs().max()),
        bfloat16=float(((rounded - expected).abs() - one_rounding).clamp(min=0).max()),
    )


def _powers(base: Tensor, excess: Tensor) -> Tensor:
    return base.clamp(min=0) ** (1 / excess)


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


def _times_of_map(name: str, shape: Shape, effort: Effort) -> Iterator[Figure]:
    """Our time and the peer's in units of torch.softmax, and the speed-up over the peer."""
    times = _times(name, shape, "normal", ("torch", "contmax", "entmax"), effort)
    limit, over_exact, over_bisection = _targets(shape)
    faster = over_exact if MAP_OPERATIONS[name].peer_is_exact else over_bisection
    limit += name == TENSOR_ALPHA
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
    fastest = {library: min(times[library]) for library in (numerator, denominator) if library in times}
    return ratio_figure(times, numerator, denominator, more={"fastest_seconds": fastest}, **place)


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


MAPS = Suite("maps", _figures, peers=("entmax",))
