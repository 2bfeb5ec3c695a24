"""The suites `attention` and `densities`: continuous attention against discrete, densities against those of torch."""

import functools
import math
from collections.abc import Iterator

import torch
from torch import Tensor
from torch.distributions import Distribution, MultivariateNormal
from torch.nn.functional import scaled_dot_product_attention

import contmax
from contmax.basis import GaussianBasis, MultivariateGaussianBasis
from contmax.densities import BetaGaussian, TruncatedParaboloid
from contmax_lab.bench._figure import Figure, Suite, ratio_figure
from contmax_lab.bench._measuring import Call, Effort, interleaved, peak_extra_memory
from contmax_lab.bench._work import Work

_LINE = "a sequence, given (μ, σ), forward + backward: time / discrete softmax attention"
_PLANE = "an image, given (μ, Σ), forward + backward: time / discrete softmax attention"
_QUERIES = "many queries, forward + backward: time / scaled_dot_product_attention"
_IRREGULAR = "a training step, where positions are given: time / that without positions"
_GROWTH = "one query of a materialized signal: time / that at the shortest length"
_GROWTH_MEMORY = "one query of a materialized signal: peak extra memory, MB"
_FIT = "fit of the signal, materialized, seconds"
_PARABOLOID = "truncated paraboloid on the plane: time / torch's MultivariateNormal"
_MATRIX = [[0.5, 0.2], [0.2, 0.3]]


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


def _on_line(alpha: float, batch: int, functions: int, limit: float | None, effort: Effort) -> Figure:
    length, channels = 280, 256
    values, cotangent = _inputs(batch, length, channels)
    attend = contmax.nn.ContinuousAttention(GaussianBasis.linspace(functions, scale=(0.1, 0.5)), alpha=alpha)
    loc = torch.rand(batch).requires_grad_()
    scale = (0.05 + 0.2 * torch.rand(batch)).requires_grad_()
    ours = Work(lambda v, loc, scale: attend(v, (loc, scale))[0], (values, loc, scale), cotangent)
    times = interleaved({"discrete": _discrete(values, cotangent), "continuous": ours}, effort)
    row = f"α = {alpha:.3g}, B = {batch}, L = {length}, D = {channels}"
    place = {"table": _LINE, "row": row, "column": f"K = {functions}"}
    return ratio_figure(times, "continuous", "discrete", **place, at_most=limit)


def _on_plane(alpha: float, batch: int, limit: float | None, effort: Effort) -> Figure:
    grid, channels = (14, 14), 1024
    values, cotangent = _inputs(batch, math.prod(grid), channels)
    attend = contmax.nn.ContinuousAttention(MultivariateGaussianBasis.grid(10, scale=0.001**0.5), alpha=alpha)
    loc = torch.rand(batch, 2).requires_grad_()
    factor = 0.1 * torch.randn(batch, 2, 2)
    scale = (factor @ factor.mT + 0.005 * torch.eye(2)).requires_grad_()
    ours = Work(lambda v, loc, scale: attend(v, (loc, scale), grid=grid)[0], (values, loc, scale), cotangent)
    times = interleaved({"discrete": _discrete(values, cotangent), "continuous": ours}, effort)
    place = {"table": _PLANE, "row": f"α = {alpha:.3g}, B = {batch}, 14 × 14, D = {channels}", "column": "K = 10 × 10"}
    return ratio_figure(times, "continuous", "discrete", **place, at_most=limit)


def _many_queries(alpha: float, length: int, limit: float | None, effort: Effort) -> Figure:
    values, cotangent = _inputs(1, length, 64, queries=length)
    query, key = (torch.randn(1, length, 64).requires_grad_() for _ in range(2))
    basis = GaussianBasis.linspace(256, scale=0.01)
    loc = torch.rand(1, length).requires_grad_()
    scale = (0.01 + 0.1 * torch.rand(1, length)).requires_grad_()

    def attend(values: Tensor, loc: Tensor, scale: Tensor) -> Tensor:
        return contmax.continuous_attention(values, BetaGaussian(loc, scale, alpha), basis)

    discrete = Work(scaled_dot_product_attention, (query, key, values), cotangent)
    ours = Work(attend, (values, loc, scale), cotangent)
    times = interleaved({"discrete": discrete, "continuous": ours}, effort)
    place = {"table": _QUERIES, "row": f"α = {alpha:.3g}", "column": f"Q = L = {length}, K = 256, D = 64"}
    return ratio_figure(times, "continuous", "discrete", **place, at_most=limit)


def _irregular(functions: int, effort: Effort) -> Figure:
    """A step with the default head, where every sequence has its own positions and so its own ridge fit."""
    batch, length, channels = 32, 280, 64
    values, cotangent = _inputs(batch, length, channels)
    attend = contmax.nn.ContinuousAttention(GaussianBasis.covering(functions), embed_dim=channels)
    positions, live = torch.rand(batch, length), (values, *attend.parameters())
    passes = {
        "regular": Work(lambda v, *_: attend(v)[0], live, cotangent),
        "irregular": Work(lambda v, *_: attend(v, positions=positions)[0], live, cotangent),
    }
    place = {"row": f"B = {batch}, L = {length}, D = {channels}", "column": f"K = {functions}"}
    times = interleaved(passes, effort)
    return ratio_figure(times, "irregular", "regular", table=_IRREGULAR, **place, at_most=2.0)


def _growth(lengths: tuple[int, ...], effort: Effort) -> Iterator[Figure]:
    columns = {length: f"L = {length:,}" for length in lengths}
    times = interleaved({column: _one_query(length) for length, column in columns.items()}, effort)
    for column in times:
        place = {"table": _GROWTH, "row": "K = 64, D = 64", "column": column}
        yield ratio_figure(times, column, columns[lengths[0]], **place, at_most=1.25)
    for length, column in columns.items():
        extra = peak_extra_memory(_one_query, (length,), rehearsal=(16,))
        megabytes = None if extra is None else extra / 2**20
        yield Figure(_GROWTH_MEMORY, "K = 64, D = 64", column, megabytes, at_most=1.0)
    for length, column in columns.items():
        values = torch.randn(length, 64)
        seconds = min(interleaved({"fit": functools.partial(_materialized, values)}, effort)["fit"])
        yield Figure(_FIT, "K = 64, D = 64", column, seconds)


def _materialized(values: Tensor) -> contmax.Signal:
    return contmax.fit_signal(values, GaussianBasis.linspace(64, scale=0.02)).materialize()


def _one_query(length: int) -> Call:
    """A pass over one query of a signal through `length` observations, already fitted."""
    signal = _materialized(torch.randn(length, 64))
    where = (torch.tensor(0.4, requires_grad=True), torch.tensor(0.1, requires_grad=True))

    def expected(loc: Tensor, scale: Tensor) -> Tensor:
        return signal.expectation(BetaGaussian(loc, scale, 2.0, validate_args=False))

    return Work(expected, where, torch.ones(64))


def _inputs(batch: int, length: int, channels: int, queries: int | None = None) -> tuple[Tensor, Tensor]:
    """Random values, and the cotangent of their context."""
    shape = (batch, channels) if queries is None else (batch, queries, channels)
    return torch.randn(batch, length, channels).requires_grad_(), torch.randn(shape)


def _discrete(values: Tensor, cotangent: Tensor) -> Call:
    return Work(softmax_context, (torch.randn(values.shape[:-1]).requires_grad_(), values), cotangent)


def softmax_context(scores: Tensor, values: Tensor) -> Tensor:
    """The context of discrete attention: c = softmax(scores) · values."""
    return (torch.softmax(scores, -1).unsqueeze(-2) @ values).squeeze(-2)


def _density_figures(effort: Effort) -> Iterator[Figure]:
    draws = 100_000 if effort.small else 10_000_000
    points = 0.3 * torch.randn(draws // 10, 2)
    theirs: Distribution = MultivariateNormal(torch.zeros(2), torch.tensor(_MATRIX))
    ours = TruncatedParaboloid(torch.zeros(2), torch.tensor(_MATRIX))
    samples = {"torch": lambda: theirs.sample((draws,)), "contmax": lambda: ours.sample((draws,))}
    log_probs = {"torch": lambda: theirs.log_prob(points), "contmax": lambda: ours.log_prob(points)}
    rows = ((f"{draws:,} draws", samples, 3.0), (f"log_prob of {len(points):,} points", log_probs, 2.0))
    for row, passes, limit in rows:
        place = {"table": _PARABOLOID, "row": row, "column": "ratio"}
        yield ratio_figure(interleaved(passes, effort), "contmax", "torch", **place, at_most=limit)


ATTENTION = Suite("attention", _figures)
DENSITIES = Suite("densities", _density_figures)
