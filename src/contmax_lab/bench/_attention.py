"""The suites `attention`, `densities` and `growth`: continuous beside softmax attention, over sizes and lengths."""

import copy
import dataclasses
import functools
import math
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.distributions import Distribution, MultivariateNormal
from torch.nn.functional import scaled_dot_product_attention

import contmax
from contmax.basis import Basis, GaussianBasis, MultivariateGaussianBasis
from contmax.densities import BetaGaussian, TruncatedParabola, TruncatedParaboloid
from contmax_lab.bench._figure import Contest, Figure, Suite, Work, beside, checked, gpu_suite, ratio, relative_error
from contmax_lab.bench._measuring import Call, Clock, Effort, interleaved, peak_extra_memory, percentiles

# Titles of tables; {} is what measures the time.
_LINE = "a sequence, given (μ, σ), forward + backward: {} / discrete softmax attention"
_PLANE = "an image, given (μ, Σ), forward + backward: {} / discrete softmax attention"
_QUERIES = "many queries, forward + backward: time / scaled_dot_product_attention"
_IRREGULAR = "a training step, where positions are given: time / that without positions"
_GROWTH = "one query of a materialized signal: time / that at the shortest length"
_GROWTH_MEMORY = "one query of a materialized signal: peak extra memory, MB"
_FIT_SECONDS = "fit of the signal, materialized, seconds"
_PARABOLOID = "truncated paraboloid on the plane: time / torch's MultivariateNormal"
_EXPECTATION = "expectation on the line, forward + backward: device time / elementwise product of that size"
_RAGGED = "sequences of L/4 to L observations, forward + backward: device time / full sequences"
_QUERY = "one of many queries, forward, microseconds of the device"
_FIT = "fit of the signal, once for all queries, milliseconds"
_OURS, _THEIRS = "a materialized signal, α = 2", "scaled_dot_product_attention"
_LENGTHS = (4_096, 16_384, 65_536, 262_144, 1_048_576, 4_194_304)
# If all queries together take longer than this many seconds, softmax attention over longer sequences is not measured.
_TOO_LONG = 2.0
_ALPHAS = (1.0, 1.5, 2.0)
# B, L, D and K.
_SEQUENCES = [(64, 280, 256, 32), (64, 280, 1024, 128), (512, 280, 1024, 128), (512, 280, 2048, 512)]
# Coefficients of a fit have both signs and cancel, so that twice the error of softmax attention is too strict.
_TOLERANCE = 3e-5


# -- on a CPU ----------------------------------------------------------------------------------------------------------


def _figures(effort: Effort) -> Iterator[Figure]:
    for alpha in (1.0, 2.0):
        for batch, limit in ((16, 2.0), (64, 1.5)):
            for functions in (32, 64, 128):
                size = (batch, 280, 256, functions)
                row = f"α = {alpha:.3g}, B = {batch}, L = 280, D = 256"
                place = {"table": _LINE.format("time"), "row": row, "column": f"K = {functions}"}
                yield beside(*_sequence(size, alpha, "cpu"), effort, **place, at_most=limit if alpha == 2 else None)
    for alpha in (1.0, 2.0):
        batch = 8 if effort.small else 64
        row = f"α = {alpha:.3g}, B = {batch}, 14 × 14, D = 1024"
        place = {"table": _PLANE.format("time"), "row": row, "column": "K = 10 × 10"}
        yield beside(*_image(batch, 1024, alpha, "cpu"), effort, **place, at_most=2.0 if alpha == 2 else None)
    limits = {1.0: 0.35, 2.0: 1.0}
    for alpha in (1.0, 2.0, 1.5, 4 / 3):
        yield _many_queries(alpha, 256 if effort.small else 4096, limits.get(alpha), effort)
    for functions in (32, 64):
        yield _irregular(functions, effort)
    yield from _growth((1_000, 10_000) if effort.small else (1_000, 10_000, 100_000, 1_000_000), effort)


def _many_queries(alpha: float, length: int, limit: float | None, effort: Effort) -> Figure:
    draw = _Draw("cpu")
    query, key, values = (draw.normal(1, length, 64).requires_grad_() for _ in range(3))
    basis, cotangent = GaussianBasis.linspace(256, scale=0.01), draw.normal(1, length, 64)
    loc, scale = draw.uniform(1, length).requires_grad_(), (0.01 + 0.1 * draw.uniform(1, length)).requires_grad_()

    def attend(values: Tensor, loc: Tensor, scale: Tensor) -> Tensor:
        return contmax.continuous_attention(values, BetaGaussian(loc, scale, alpha), basis)

    discrete = Work(scaled_dot_product_attention, (query, key, values), cotangent)
    place = {"table": _QUERIES, "row": f"α = {alpha:.3g}", "column": f"Q = L = {length}, K = 256, D = 64"}
    return beside(Work(attend, (values, loc, scale), cotangent), discrete, effort, **place, at_most=limit)


def _irregular(functions: int, effort: Effort) -> Figure:
    """A step with the default head, where every sequence has its own positions and so its own ridge fit."""
    draw = _Draw("cpu")
    values, positions, cotangent = draw.normal(32, 280, 64).requires_grad_(), draw.uniform(32, 280), draw.normal(32, 64)
    attend = contmax.nn.ContinuousAttention(GaussianBasis.covering(functions), embed_dim=64)
    live = (values, *attend.parameters())
    irregular = Work(lambda v, *_: attend(v, positions=positions)[0], live, cotangent)
    place = {"table": _IRREGULAR, "row": "B = 32, L = 280, D = 64", "column": f"K = {functions}"}
    return beside(irregular, Work(lambda v, *_: attend(v)[0], live, cotangent), effort, **place, at_most=2.0)


def _growth(lengths: tuple[int, ...], effort: Effort) -> Iterator[Figure]:
    columns = {length: f"L = {length:,}" for length in lengths}
    times = interleaved({column: _materialized_query(length) for length, column in columns.items()}, effort)
    for column in times:
        place = {"table": _GROWTH, "row": "K = 64, D = 64", "column": column}
        yield ratio(times, column, columns[lengths[0]], **place, at_most=1.25)
    for length, column in columns.items():
        extra = peak_extra_memory(_materialized_query, (length,), rehearsal=(16,))
        megabytes = None if extra is None else extra / 2**20
        yield Figure(_GROWTH_MEMORY, "K = 64, D = 64", column, megabytes, at_most=1.0)
    for length, column in columns.items():
        values = torch.randn(length, 64)
        seconds = min(interleaved({"fit": functools.partial(_materialized, values)}, effort)["fit"])
        yield Figure(_FIT_SECONDS, "K = 64, D = 64", column, seconds)


def _materialized(values: Tensor) -> contmax.Signal:
    return contmax.fit_signal(values, GaussianBasis.linspace(64, scale=0.02)).materialize()


def _materialized_query(length: int) -> Call:
    """A pass over one query of a signal through `length` observations, already fitted."""
    signal = _materialized(torch.randn(length, 64))
    where = (torch.tensor(0.4, requires_grad=True), torch.tensor(0.1, requires_grad=True))

    def expected(loc: Tensor, scale: Tensor) -> Tensor:
        return signal.expectation(BetaGaussian(loc, scale, 2.0, validate_args=False))

    return Work(expected, where, torch.ones(64))


def _density_figures(effort: Effort) -> Iterator[Figure]:
    draws = 100_000 if effort.small else 10_000_000
    points = 0.3 * torch.randn(draws // 10, 2)
    matrix = torch.tensor([[0.5, 0.2], [0.2, 0.3]])
    theirs: Distribution = MultivariateNormal(torch.zeros(2), matrix)
    ours = TruncatedParaboloid(torch.zeros(2), matrix)
    rows: list[tuple[str, Callable[[Any], object], float]] = [
        (f"{draws:,} draws", lambda p: p.sample((draws,)), 3.0),
        (f"log_prob of {len(points):,} points", lambda p: p.log_prob(points), 2.0),
    ]
    for row, call, limit in rows:
        place = {"table": _PARABOLOID, "row": row, "column": "ratio"}
        yield beside(functools.partial(call, ours), functools.partial(call, theirs), effort, **place, at_most=limit)


# -- on a GPU ----------------------------------------------------------------------------------------------------------


def attention_figures(effort: Effort, clock: Clock) -> Iterator[Figure]:
    """The figures of the suite, by a clock."""
    for contest in _contests(effort.small, clock.device):
        yield from contest.figures(clock, effort)


def _contests(small: bool, device: str) -> Iterator[Contest]:
    for alpha in (*_ALPHAS, None):
        yield _expectation(64 if small else 16384, 32 if small else 512, alpha, device)
    sizes = [(4, 40, 16, 8)] if small else _SEQUENCES
    for size in sizes:
        for alpha in _ALPHAS:
            yield _on_line(size, alpha, device)
    for size in sizes[:3]:
        yield _ragged(size, device)
    for batch, channels in ((4, 16),) if small else ((64, 1024), (512, 2048)):
        for alpha in (1.0, 2.0):
            yield _on_plane(batch, channels, alpha, device)


def _expectation(batch: int, functions: int, alpha: float | None, device: str) -> Contest:
    draw = _Draw(device)
    basis = _of_each_dtype(GaussianBasis.linspace(functions, scale=(0.05, 0.2)), device)
    loc, scale = draw.uniform(batch).requires_grad_(), (0.02 + 0.2 * draw.uniform(batch)).requires_grad_()
    index = (1.1 + 0.8 * draw.uniform(batch)).requires_grad_()
    cotangent = draw.normal(batch, functions)

    def expected(loc: Tensor, scale: Tensor, *learned: Tensor) -> Tensor:
        density = BetaGaussian(loc, scale, learned[0] if alpha is None else alpha, validate_args=False)
        return contmax.expectation(density, basis(loc))

    factors = (draw.normal(batch, functions).requires_grad_(), draw.normal(batch, functions).requires_grad_())
    return Contest(
        table=_EXPECTATION,
        row=f"{batch} × {functions} float32",
        column="learned α" if alpha is None else f"α = {alpha:g}",
        ours=Work(expected, (loc, scale, index) if alpha is None else (loc, scale), cotangent),
        unit=Work(torch.mul, factors, cotangent),
        # The expectations are written, and their gradient is read.
        moved_bytes=2 * cotangent.numel() * 4,
        at_most=10.0 if alpha is None else 3.0,
    )


def _on_line(size: tuple[int, int, int, int], alpha: float, device: str) -> Contest:
    batch, length, channels, functions = size
    row = f"B = {batch}, L = {length}, D = {channels}, K = {functions}"
    targets = (1.5, 2.0) if batch <= 64 else (1.15, 1.3)
    return _contest(_LINE, row, alpha, _sequence(size, alpha, device), targets)


def _contest(table: str, row: str, alpha: float, works: tuple[Work, Work], targets: tuple[float, float]) -> Contest:
    """Continuous beside discrete attention, with the targets of device times and of wall clocks."""
    ours, discrete = works
    values: Tensor = ours.inputs[0]
    return Contest(
        table=table.format("device time"),
        row=row,
        column=f"α = {alpha:g}",
        ours=ours,
        unit=discrete,
        # The values are read, and their gradient is written.
        moved_bytes=2 * values.numel() * values.element_size(),
        tolerance=_TOLERANCE,
        at_most=targets[0],
        eager_at_most=targets[1],
    )


def _ragged(size: tuple[int, int, int, int], device: str) -> Contest:
    """Sequences of different lengths, beside those of full length."""
    batch, length, *_ = size
    full = _on_line(size, 2.0, device)
    attend, inputs = full.ours.function, full.ours.inputs
    lengths = (length * (0.25 + 0.75 * _Draw(device).uniform(batch, 1))).long()
    mask = torch.arange(length, device=device) < lengths
    ours = Work(lambda mask, *rest: attend(*rest, mask=mask), (mask, *inputs), full.ours.cotangent)
    return dataclasses.replace(full, table=_RAGGED, ours=ours, unit=full.ours, at_most=3.0, eager_at_most=None)


def _on_plane(batch: int, channels: int, alpha: float, device: str) -> Contest:
    row = f"B = {batch}, 14 × 14, D = {channels}, K = 10 × 10"
    targets = (2.0, 3.0) if batch <= 64 else (1.2, 1.5)
    return _contest(_PLANE, row, alpha, _image(batch, channels, alpha, device), targets)


# -- passes ------------------------------------------------------------------------------------------------------------


def _sequence(size: tuple[int, int, int, int], alpha: float, device: str) -> tuple[Work, Work]:
    """Continuous attention to sequences, given (μ, σ), and discrete attention; `size` is B, L, D and K."""
    batch, length, channels, functions = size
    draw = _Draw(device)
    loc, scale = draw.uniform(batch).requires_grad_(), (0.05 + 0.2 * draw.uniform(batch)).requires_grad_()
    basis = GaussianBasis.linspace(functions, scale=(0.1, 0.5))
    return _beside_discrete(basis, alpha, draw, (batch, length, channels), (loc, scale))


def _image(batch: int, channels: int, alpha: float, device: str) -> tuple[Work, Work]:
    """Continuous attention to images of 14 × 14 cells, given (μ, Σ), and discrete attention."""
    draw = _Draw(device)
    loc, factor = draw.uniform(batch, 2).requires_grad_(), 0.1 * draw.normal(batch, 2, 2)
    matrix = (factor @ factor.mT + 0.005 * torch.eye(2, device=device)).requires_grad_()
    basis = MultivariateGaussianBasis.grid(10, scale=0.001**0.5)
    return _beside_discrete(basis, alpha, draw, (batch, 14 * 14, channels), (loc, matrix), grid=(14, 14))


def _beside_discrete(
    basis: Basis, alpha: float, draw: "_Draw", shape: tuple[int, int, int], where: tuple[Tensor, Tensor], **options: Any
) -> tuple[Work, Work]:
    """Both attentions to values of this shape; `where` is what a density is given by."""
    values, cotangent = draw.normal(*shape).requires_grad_(), draw.normal(shape[0], shape[-1])
    attend = _of_each_dtype(contmax.nn.ContinuousAttention(basis, alpha=alpha, **options), cotangent.device)

    def context(values: Tensor, loc: Tensor, scale: Tensor, mask: Tensor | None = None) -> Tensor:
        result: Tensor = attend(values)(values, (loc, scale), mask=mask, need_density=False)[0]
        return result

    scores = draw.normal(*shape[:-1]).requires_grad_()
    return Work(context, (values, *where), cotangent), Work(softmax_context, (scores, values), cotangent)


def softmax_context(scores: Tensor, values: Tensor) -> Tensor:
    """The context of discrete attention: c = softmax(scores) · values."""
    return (torch.softmax(scores, -1).unsqueeze(-2) @ values).squeeze(-2)


class _Draw:
    """Random tensors on a device, by a fixed seed."""

    def __init__(self, device: str) -> None:
        self._options: dict[str, Any] = {"device": device, "generator": torch.Generator(device).manual_seed(0)}

    def normal(self, *shape: int) -> Tensor:
        return torch.randn(shape, **self._options)

    def uniform(self, *shape: int) -> Tensor:
        return torch.rand(shape, **self._options)


def _of_each_dtype(module: torch.nn.Module, device: torch.device | str) -> Callable[[Tensor], Any]:
    """The module in the dtype of a given tensor: float32, or float64 to check it."""
    copies = {dtype: copy.deepcopy(module).to(device, dtype) for dtype in (torch.float32, torch.float64)}
    return lambda like: copies[like.dtype]


# -- growth ------------------------------------------------------------------------------------------------------------


def growth_figures(effort: Effort, clock: Clock) -> Iterator[Figure]:
    """The figures of the suite, by a clock."""
    queries, functions, channels = (16, 8, 4) if effort.small else (8192, 512, 128)
    dtype = torch.bfloat16
    basis = GaussianBasis.linspace(functions, scale=1 / functions).to(clock.device)
    loc, scale = (torch.rand(queries, device=clock.device).to(dtype) for _ in range(2))
    density = TruncatedParabola(loc, 0.001 + 0.01 * scale, validate_args=False)
    query = torch.randn(1, 1, queries, channels, device=clock.device, dtype=dtype)
    discrete_goes_on = True
    for length in (64, 256) if effort.small else _LENGTHS:
        column = f"L = {length:,}"
        values = torch.randn(length, channels, device=clock.device, dtype=dtype)
        try:
            times = clock.wall_times({"fit": functools.partial(_fitted, values, basis)}, effort)["fit"]
            milliseconds = {name: 1e3 * seconds for name, seconds in percentiles(times).items()}
            fit = Figure(_FIT, "K = 512, D = 128", column, milliseconds["median"], details=milliseconds)
            yield from [fit, _one_query(values, basis, density, clock, effort)]
        except torch.OutOfMemoryError as error:
            yield Figure(_QUERY, _OURS, column, math.nan, details={"length": length, "failed": str(error)[:200]})
        if discrete_goes_on:
            key = torch.randn(1, 1, length, channels, device=clock.device, dtype=dtype)
            attend = functools.partial(scaled_dot_product_attention, query, key, values[None, None])
            theirs = _microseconds(attend, queries, clock, effort)
            discrete_goes_on = theirs["median"] * queries * 1e-6 <= _TOO_LONG
            yield Figure(_QUERY, _THEIRS, column, theirs["median"], details={"length": length, **theirs})


def _one_query(
    values: Tensor, basis: GaussianBasis, density: TruncatedParabola, clock: Clock, effort: Effort
) -> Figure:
    signal, length = _fitted(values, basis), len(values)
    # The largest error of the first queries against float64, relative to the largest number.
    few, exact = (
        TruncatedParabola(density.loc[:32].to(dtype), density.scale[:32].to(dtype), validate_args=False)
        for dtype in (values.dtype, torch.float64)
    )
    error = relative_error(signal.expectation(few), signal.to(torch.float64).expectation(exact))
    details = {"length": length, **checked(error, 2 * torch.finfo(values.dtype).eps)}
    if "failed" in details:
        return Figure(_QUERY, _OURS, f"L = {length:,}", math.nan, details=details)
    times = _microseconds(lambda: signal.expectation(density), density.batch_shape.numel(), clock, effort)
    return Figure(_QUERY, _OURS, f"L = {length:,}", times["median"], details={**details, **times})


def _fitted(values: Tensor, basis: GaussianBasis) -> contmax.Signal:
    # A copy of the basis has no cached weights of an earlier fit.
    with torch.no_grad():
        return contmax.fit_signal(values, copy.deepcopy(basis)).materialize()


def _microseconds(call: Callable[[], Tensor], queries: int, clock: Clock, effort: Effort) -> dict[str, float]:
    with torch.no_grad():
        times = clock.device_times({"queries": call}, effort)["queries"]
    return {name: 1e6 * seconds / queries for name, seconds in percentiles(times).items()}


def draw_growth(results: dict[str, Any], path: Path) -> None:
    """The costs of a query over the length of the sequence, as a picture.

    Args:
        results: what the suite stored, as read from its file.
        path: where to put the picture; matplotlib makes it.
    """
    from matplotlib.figure import Figure as Picture

    picture = Picture(figsize=(6, 3.6), layout="constrained")
    axes = picture.add_subplot()
    for row in (_OURS, _THEIRS):
        points = [f for f in results["figures"] if f["table"] == _QUERY and f["row"] == row]
        axes.loglog([p["details"]["length"] for p in points], [p["value"] for p in points], marker="o", label=row)
    axes.set_xlabel("observations L")
    axes.set_ylabel("microseconds per query")
    axes.set_title(", ".join(results["machine"].get("gpus") or [results["machine"]["cpu"]]), fontsize="medium")
    axes.legend(frameon=False)
    axes.grid(alpha=0.3)
    picture.savefig(path, dpi=150)


ATTENTION = Suite("attention", _figures)
DENSITIES = Suite("densities", _density_figures)
GPU_ATTENTION = gpu_suite("attention", attention_figures)
GPU_GROWTH = gpu_suite("growth", growth_figures)
