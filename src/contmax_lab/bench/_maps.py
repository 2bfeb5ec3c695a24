"""The suite `maps`: finite maps and their loss against torch.softmax, cross-entropy and the `entmax` package."""

import dataclasses
from collections.abc import Callable, Iterator
from typing import Any, Literal

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy

import contmax
from contmax_lab.bench._figure import Figure, Suite, Work, peer, ratio
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


_TIMED = ((64, 280), (4096, 128), (1024, 1024), (256, 32000))
# Shapes so large that resident memory can be measured to a few per cent.
_IN_MEMORY = ((16384, 128), (256, 32000))
# Shapes with few rows, because exact values take long to compute.
_CHECKED = (
    ((64, 280), "normal"),
    ((1024, 128), "normal"),
    ((256, 1024), "normal"),
    ((256, 1024), "flat"),
    ((256, 1024), "ties"),
    ((16, 32000), "normal"),
)

TENSOR_ALPHA = "entmax, tensor α"
# Maps and their α; the tensor α has one value per row, drawn at random.
_ALPHAS: dict[str, Any] = {"sparsemax": 2.0, "entmax α=1.5": 1.5, "entmax α=4/3": 4 / 3, TENSOR_ALPHA: None}
# The peer's names of maps that it solves exactly; it solves the others by bisection.
_EXACT_IN_PEER = {"sparsemax": "sparsemax", "entmax α=1.5": "entmax15"}
_ENTMAX_LOSS = "entmax_loss α=1.5"


def _function(library: Library, name: str) -> Callable[[Tensor, Any], Tensor]:
    """A map or the loss by a library that is installed, of the scores and of a second argument (α, or class ids)."""
    entmax: Any = peer("entmax")
    if name == _ENTMAX_LOSS:
        losses: dict[Library, Callable[[Tensor, Any], Tensor]] = {
            "torch": lambda z, ids: cross_entropy(z, ids, reduction="none"),
            "contmax": lambda z, ids: contmax.losses.entmax_loss(z, ids, 1.5, reduction="none"),
            "entmax": lambda z, ids: entmax.entmax15_loss(z, ids),
        }
        return losses[library]
    if library == "torch":
        return lambda scores, _: torch.softmax(scores, -1)
    if library == "contmax":
        return contmax.entmax if name != "sparsemax" else lambda scores, _: contmax.sparsemax(scores)
    if name in _EXACT_IN_PEER:
        return lambda scores, _: getattr(entmax, _EXACT_IN_PEER[name])(scores)
    return lambda scores, alpha: entmax.entmax_bisect(scores, alpha)


def drawn(name: str, shape: Shape, draw: str = "normal") -> tuple[Tensor, Any]:
    """Scores (float32) and second argument of a map or the loss, by a fixed seed.

    Flat scores and scores full of ties leave whole rows in the support.
    """
    generator = torch.Generator().manual_seed(0)
    if draw == "ties":
        scores = torch.randint(0, 2, shape, generator=generator).float()
    else:
        scores = torch.randn(shape, generator=generator) * (0.01 if draw == "flat" else 1)
    if name == _ENTMAX_LOSS:
        return scores, torch.randint(0, shape[1], shape[:1], generator=generator)
    if name == TENSOR_ALPHA:
        return scores, (1.1 + 0.8 * torch.rand(shape[0], 1, generator=generator)).requires_grad_()
    return scores, _ALPHAS[name]


def prepared_pass(library: Library, name: str, shape: Shape, draw: str = "normal") -> Work:
    """A call that does one forward and backward pass with a given cotangent, by a library that is installed."""
    function = _function(library, name)
    scores, second = drawn(name, shape, draw)
    if library == "torch" and name == TENSOR_ALPHA:
        second = None  # softmax has no α to differentiate by
    result = shape[:1] if name == _ENTMAX_LOSS else shape
    cotangent = torch.randn(result, generator=torch.Generator().manual_seed(1))
    return Work(function, (scores.requires_grad_(), second), cotangent)


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
    """Errors of a map at float32 scores, and at these scores rounded to bfloat16."""
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
    small = effort.small
    timed = ((64, 280), (128, 128)) if small else _TIMED
    for shape in timed:
        for name in _ALPHAS:
            yield from _times_of_map(name, shape, effort)
    for draw, title in (("flat", "flat logits"), ("ties", "rows full of ties")):
        for shape in timed:
            for name in _ALPHAS:
                times = _times(name, shape, draw, ("torch", "contmax"), effort)
                place = {"table": f"{_TIME}, {title}", "row": str(shape), "column": name}
                yield ratio(times, "contmax", "torch", **place, at_most=8.0)
    shape = (32, 1000) if small else (256, 32000)
    times = _times(_ENTMAX_LOSS, shape, "normal", ("torch", "contmax", "entmax"), effort)
    place = {"table": _LOSS, "row": f"{_ENTMAX_LOSS} {shape}"}
    yield ratio(times, "contmax", "torch", **place, column="time / F.cross_entropy", at_most=2.0)
    yield ratio(times, "entmax", "contmax", **place, column="times faster than entmax", at_least=10.0)
    for shape in () if small else _IN_MEMORY:
        yield from _memory(shape)
    for shape, draw in [((16, 280), draw) for draw in ("normal", "flat", "ties")] if small else _CHECKED:
        yield from _errors(shape, draw)


def _times_of_map(name: str, shape: Shape, effort: Effort) -> Iterator[Figure]:
    """Our time and the peer's in units of torch.softmax, and the speed-up over the peer."""
    times = _times(name, shape, "normal", ("torch", "contmax", "entmax"), effort)
    limit, over_exact, over_bisection = _targets(shape)
    faster = over_exact if name in _EXACT_IN_PEER else over_bisection
    limit += name == TENSOR_ALPHA
    yield ratio(times, "contmax", "torch", table=_TIME, row=str(shape), column=name, at_most=limit)
    yield ratio(times, "entmax", "torch", table=_TIME, row=f"{shape} by entmax", column=name)
    yield ratio(times, "entmax", "contmax", table=_SPEED_UP, row=str(shape), column=name, at_least=faster)


def _targets(shape: Shape) -> tuple[float, float, float]:
    """Targets: time / torch.softmax, speed-up over the peer's exact functions, speed-up over its bisection."""
    elements = shape[0] * shape[1]
    if elements >= 1_000_000:
        return 2.5, 9.0, 30.0
    # On few elements the overhead of calls dominates, and softmax has less of it.
    return (4.0, 6.0, 25.0) if elements >= 500_000 else (6.0, 4.0, 15.0)


def _times(
    name: str, shape: Shape, draw: str, libraries: tuple[Library, ...], effort: Effort
) -> dict[str, list[float]]:
    installed = [library for library in libraries if peer(library) is not None]
    return interleaved({library: prepared_pass(library, name, shape, draw) for library in installed}, effort)


def _memory(shape: Shape) -> Iterator[Figure]:
    for library, row, limit in _compared(str(shape), 3.0):
        for name in (*_ALPHAS, _ENTMAX_LOSS):
            extra = None
            if peer(library) is not None:
                small = (library, name, (2, shape[1]))
                extra = peak_extra_memory(prepared_pass, (library, name, shape), rehearsal=small)
            in_scores = None if extra is None else extra / (4 * shape[0] * shape[1])
            yield Figure(_MEMORY, row, name, in_scores, at_most=limit)


def _errors(shape: Shape, draw: str) -> Iterator[Figure]:
    solved = {name: Solved.of(*drawn(name, shape, draw)) for name in _ALPHAS}
    for library, row, limit in _compared(f"{shape} {draw}", 1e-6):
        for name in _ALPHAS:
            found: dict[str, float] = {}
            if peer(library) is not None:
                found = dataclasses.asdict(errors(_function(library, name), solved[name]))
            for kind, title in _ERRORS.items():
                yield Figure(title, row, name, found.get(kind), at_most=limit)


def _compared(row: str, limit: float) -> tuple[tuple[Library, str, float | None], ...]:
    """Our row with its target, and the peer's below it without one."""
    return ("contmax", row, limit), ("entmax", f"{row} by entmax", None)


MAPS = Suite("maps", _figures, peers=("entmax",))
