"""The suites `attention` and `growth` on a GPU: continuous beside softmax attention, over sizes and over lengths."""

import copy
import dataclasses
import functools
import math
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

import contmax
from contmax.basis import Basis, GaussianBasis, MultivariateGaussianBasis
from contmax.densities import BetaGaussian, TruncatedParabola
from contmax_lab.bench._attention import softmax_context
from contmax_lab.bench._figure import Figure, gpu_suite
from contmax_lab.bench._measuring import Clock, Effort, percentiles
from contmax_lab.bench._work import Contest, Work, checked, relative_error

_EXPECTATION = "expectation on the line, forward + backward: device time / elementwise product of that size"
_LINE = "a sequence, given (μ, σ), forward + backward: device time / discrete softmax attention"
_RAGGED = "sequences of L/4 to L observations, forward + backward: device time / full sequences"
_PLANE = "an image, given (μ, Σ), forward + backward: device time / discrete softmax attention"
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
    draw = _Draw(device)
    values, cotangent = draw.normal(batch, length, channels).requires_grad_(), draw.normal(batch, channels)
    loc, scale = draw.uniform(batch).requires_grad_(), (0.05 + 0.2 * draw.uniform(batch)).requires_grad_()
    attend = _attention(GaussianBasis.linspace(functions, scale=(0.1, 0.5)), alpha, device)
    return Contest(
        table=_LINE,
        row=f"B = {batch}, L = {length}, D = {channels}, K = {functions}",
        column=f"α = {alpha:g}",
        ours=Work(attend, (values, loc, scale), cotangent),
        unit=_discrete(values, cotangent, draw),
        moved_bytes=_least_bytes(values),
        tolerance=_TOLERANCE,
        at_most=1.5 if batch <= 64 else 1.15,
        eager_at_most=2.0 if batch <= 64 else 1.3,
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
    draw = _Draw(device)
    values, cotangent = draw.normal(batch, 14 * 14, channels).requires_grad_(), draw.normal(batch, channels)
    loc, factor = draw.uniform(batch, 2).requires_grad_(), 0.1 * draw.normal(batch, 2, 2)
    matrix = (factor @ factor.mT + 0.005 * torch.eye(2, device=device)).requires_grad_()
    basis = MultivariateGaussianBasis.grid(10, scale=0.001**0.5)
    return Contest(
        table=_PLANE,
        row=f"B = {batch}, 14 × 14, D = {channels}, K = 10 × 10",
        column=f"α = {alpha:g}",
        ours=Work(_attention(basis, alpha, device, grid=(14, 14)), (values, loc, matrix), cotangent),
        unit=_discrete(values, cotangent, draw),
        moved_bytes=_least_bytes(values),
        tolerance=_TOLERANCE,
        at_most=2.0 if batch <= 64 else 1.2,
        eager_at_most=3.0 if batch <= 64 else 1.5,
    )


class _Draw:
    """Random tensors on a device, by a fixed seed."""

    def __init__(self, device: str) -> None:
        self._options: dict[str, Any] = {"device": device, "generator": torch.Generator(device).manual_seed(0)}

    def normal(self, *shape: int) -> Tensor:
        return torch.randn(shape, **self._options)

    def uniform(self, *shape: int) -> Tensor:
        return torch.rand(shape, **self._options)


def _attention(basis: Basis, alpha: float, device: str, **options: Any) -> Callable[..., Tensor]:
    """Continuous attention with given densities, as a function of values, locations and scales."""
    attend = _of_each_dtype(contmax.nn.ContinuousAttention(basis, alpha=alpha, **options), device)

    def context(values: Tensor, loc: Tensor, scale: Tensor, mask: Tensor | None = None) -> Tensor:
        result: Tensor = attend(values)(values, (loc, scale), mask=mask, need_density=False)[0]
        return result

    return context


def _of_each_dtype(module: torch.nn.Module, device: str) -> Callable[[Tensor], Any]:
    """The module in the dtype of a given tensor: float32, or float64 to check it."""
    copies = {dtype: copy.deepcopy(module).to(device, dtype) for dtype in (torch.float32, torch.float64)}
    return lambda like: copies[like.dtype]


def _discrete(values: Tensor, cotangent: Tensor, draw: _Draw) -> Work:
    return Work(softmax_context, (draw.normal(*values.shape[:-1]).requires_grad_(), values), cotangent)


def _least_bytes(values: Tensor) -> int:
    """Bytes of the values, which are read, and of their gradient, which is written."""
    return 2 * values.numel() * values.element_size()


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


GPU_ATTENTION = gpu_suite("attention", attention_figures)
GPU_GROWTH = gpu_suite("growth", growth_figures)
