"""The suite `attention`: continuous attention against discrete attention on the same shapes."""

import math
from collections.abc import Callable, Iterator

import torch
from torch import Tensor
from torch.distributions import Distribution
from torch.nn.functional import scaled_dot_product_attention

import contmax
from contmax.basis import GaussianBasis, MultivariateGaussianBasis
from contmax.densities import BetaGaussian
from contmax_lab.bench._figure import Figure
from contmax_lab.bench._memory import peak_extra_memory
from contmax_lab.bench._suite import Suite
from contmax_lab.bench._timing import Effort, Ratio, interleaved

_LINE = "a sequence, given (μ, σ), forward + backward: time / discrete softmax attention"
_PLANE = "an image, given (μ, Σ), forward + backward: time / discrete softmax attention"
_QUERIES = "many queries, forward + backward: time / scaled_dot_product_attention"
_IRREGULAR = "a training step, where positions are given: time / that without positions"
_GROWTH = "one query of a materialized signal: time / that at the shortest length"
_GROWTH_MEMORY = "one query of a materialized signal: peak extra memory, MB"
_FIT = "fit of the signal, materialized, seconds"

Pass = Callable[[], object]


def _figures(effort: Effort) -> Iterator[Figure]:
    lengths = (1_000, 10_000) if effort.small else (1_000, 10_000, 100_000, 1_000_000)
    for alpha in (1.0, 2.0):
        for batch, limit in ((16, 2.0), (64, 1.5)):
            for functions in (32, 64, 128):
                yield _on_line(alpha, batch, functions, limit if alpha == 2 else None, effort)
    for alpha in (1.0, 2.0):
        yield _on_plane(alpha, 8 if effort.small else 64, 2.0 if alpha == 2 else None, effort)
    limits = {1.0: 0.35, 2.0: 1.0}
    for alpha in (1.0, 2.0, 1.5, 4 / 3):
        yield _many_queries(alpha, 256 if effort.small else 4096, limits.get(alpha), effort)
    for functions in (32, 64):
        yield _irregular(functions, effort)
    yield from _growth(lengths, effort)


ATTENTION = Suite("attention", _figures)


def _on_line(alpha: float, batch: int, functions: int, limit: float | None, effort: Effort) -> Figure:
    length, channels = 280, 256
    values, cotangent = _inputs(batch, length, channels)
    attend = contmax.nn.ContinuousAttention(GaussianBasis.linspace(functions, scale=(0.1, 0.5)), alpha=alpha)
    loc = torch.rand(batch).requires_grad_()
    scale = (0.05 + 0.2 * torch.rand(batch)).requires_grad_()
    passes = {
        "discrete": _discrete(values, cotangent),
        "continuous": lambda: torch.autograd.grad(attend(values, (loc, scale))[0], (values, loc, scale), cotangent),
    }
    row = f"α = {alpha:.3g}, B = {batch}, L = {length}, D = {channels}"
    return _ratio(passes, effort, table=_LINE, row=row, column=f"K = {functions}", at_most=limit)


def _on_plane(alpha: float, batch: int, limit: float | None, effort: Effort) -> Figure:
    grid, channels = (14, 14), 1024
    values, cotangent = _inputs(batch, math.prod(grid), channels)
    attend = contmax.nn.ContinuousAttention(MultivariateGaussianBasis.grid(10, scale=0.001**0.5), alpha=alpha)
    loc = torch.rand(batch, 2).requires_grad_()
    factor = 0.1 * torch.randn(batch, 2, 2)
    scale = (factor @ factor.mT + 0.005 * torch.eye(2)).requires_grad_()
    passes = {
        "discrete": _discrete(values, cotangent),
        "continuous": lambda: torch.autograd.grad(
            attend(values, (loc, scale), grid=grid)[0], (values, loc, scale), cotangent
        ),
    }
    row = f"α = {alpha:.3g}, B = {batch}, 14 × 14, D = {channels}"
    return _ratio(passes, effort, table=_PLANE, row=row, column="K = 10 × 10", at_most=limit)


def _many_queries(alpha: float, length: int, limit: float | None, effort: Effort) -> Figure:
    channels, functions = 64, 256
    values, cotangent = _inputs(1, length, channels, queries=length)
    query, key = (torch.randn(1, length, channels).requires_grad_() for _ in range(2))
    basis = GaussianBasis.linspace(functions, scale=0.01)
    loc = torch.rand(1, length).requires_grad_()
    scale = (0.01 + 0.1 * torch.rand(1, length)).requires_grad_()

    def discrete() -> object:
        return torch.autograd.grad(scaled_dot_product_attention(query, key, values), (query, key, values), cotangent)

    def continuous() -> object:
        context = contmax.continuous_attention(values, BetaGaussian(loc, scale, alpha), basis)
        return torch.autograd.grad(context, (values, loc, scale), cotangent)

    place = {"table": _QUERIES, "row": f"α = {alpha:.3g}", "column": f"Q = L = {length}, K = 256, D = 64"}
    return _ratio({"discrete": discrete, "continuous": continuous}, effort, **place, at_most=limit)


def _irregular(functions: int, effort: Effort) -> Figure:
    """A step with the default head: at positions of its own each sequence has a fit of its own."""
    batch, length, channels = 32, 280, 64
    values, cotangent = _inputs(batch, length, channels)
    attend = contmax.nn.ContinuousAttention(GaussianBasis.covering(functions), embed_dim=channels)
    positions, weights = torch.rand(batch, length), list(attend.parameters())
    passes = {
        "regular": lambda: torch.autograd.grad(attend(values)[0], [values, *weights], cotangent),
        "irregular": lambda: torch.autograd.grad(attend(values, positions=positions)[0], [values, *weights], cotangent),
    }
    times = interleaved(passes, effort)
    ratio = Ratio.of(times["irregular"], times["regular"])
    details = {"minimum": ratio.minimum, "rounds": ratio.rounds}
    row = f"B = {batch}, L = {length}, D = {channels}"
    return Figure(_IRREGULAR, row, f"K = {functions}", ratio.median, at_most=2.0, details=details)


def _growth(lengths: tuple[int, ...], effort: Effort) -> Iterator[Figure]:
    passes = {str(length): _one_query(length) for length in lengths}
    times = interleaved(passes, effort)
    for length in lengths:
        ratio = Ratio.of(times[str(length)], times[str(lengths[0])])
        details = {"minimum": ratio.minimum, "rounds": ratio.rounds}
        yield Figure(_GROWTH, "K = 64, D = 64", f"L = {length:,}", ratio.median, at_most=1.25, details=details)
    for length in lengths:
        extra = peak_extra_memory(_one_query, (length,), rehearsal=(16,))
        megabytes = None if extra is None else extra / 2**20
        yield Figure(_GROWTH_MEMORY, "K = 64, D = 64", f"L = {length:,}", megabytes, at_most=1.0)
    for length in lengths:
        values = torch.randn(length, 64)
        seconds = min(interleaved({"fit": lambda values=values: _materialized(values)}, effort)["fit"])  # type: ignore[misc]
        yield Figure(_FIT, "K = 64, D = 64", f"L = {length:,}", seconds)


def _materialized(values: Tensor) -> contmax.Signal:
    return contmax.fit_signal(values, GaussianBasis.linspace(64, scale=0.02)).materialize()


def _one_query(length: int) -> Pass:
    """A pass over one query of a signal through `length` observations, already fitted."""
    signal = _materialized(torch.randn(length, 64))
    loc, scale = torch.tensor(0.4, requires_grad=True), torch.tensor(0.1, requires_grad=True)
    cotangent = torch.ones(64)

    def query() -> object:
        density: Distribution = BetaGaussian(loc, scale, 2.0, validate_args=False)
        return torch.autograd.grad(signal.expectation(density), (loc, scale), cotangent)

    return query


def _inputs(batch: int, length: int, channels: int, queries: int | None = None) -> tuple[Tensor, Tensor]:
    """Values, and the cotangent of their context."""
    shape = (batch, channels) if queries is None else (batch, queries, channels)
    return torch.randn(batch, length, channels).requires_grad_(), torch.randn(shape)


def _discrete(values: Tensor, cotangent: Tensor) -> Pass:
    scores = torch.randn(values.shape[:-1]).requires_grad_()

    def attend() -> object:
        context = (torch.softmax(scores, -1).unsqueeze(-2) @ values).squeeze(-2)
        return torch.autograd.grad(context, (values, scores), cotangent)

    return attend


def _ratio(
    passes: dict[str, Pass], effort: Effort, *, table: str, row: str, column: str, at_most: float | None
) -> Figure:
    times = interleaved(passes, effort)
    ratio = Ratio.of(times["continuous"], times["discrete"])
    details = {"minimum": ratio.minimum, "rounds": ratio.rounds}
    return Figure(table, row, column, ratio.median, at_most=at_most, details=details)
