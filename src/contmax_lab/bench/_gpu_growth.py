"""The suite `growth` on a GPU: what a query costs as the sequence grows, beside scaled_dot_product_attention."""

import copy
import math
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

import contmax
from contmax.basis import GaussianBasis
from contmax.densities import TruncatedParabola
from contmax_lab.bench._figure import Figure
from contmax_lab.bench._gpu_timing import Clock, GraphClock, percentiles
from contmax_lab.bench._suite import Suite
from contmax_lab.bench._timing import Effort

_QUERY = "one of many queries, forward, microseconds of the device"
_FIT = "fit of the signal, once for all queries, milliseconds"
_OURS, _THEIRS = "a materialized signal, α = 2", "scaled_dot_product_attention"
_LENGTHS = (4_096, 16_384, 65_536, 262_144, 1_048_576, 4_194_304)
# Where all queries take longer than this many seconds, longer sequences are not measured.
_TOO_LONG = 2.0


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
            yield from [_fit(values, basis, column, clock, effort), _one_query(values, basis, density, clock, effort)]
        except torch.OutOfMemoryError as error:
            yield Figure(_QUERY, _OURS, column, math.nan, details={"length": length, "failed": str(error)[:200]})
        if discrete_goes_on:
            key = torch.randn(1, 1, length, channels, device=clock.device, dtype=dtype)
            theirs = _microseconds(_attend(query, key, values[None, None]), queries, clock, effort)
            discrete_goes_on = theirs["median"] * queries * 1e-6 <= _TOO_LONG
            yield Figure(_QUERY, _THEIRS, column, theirs["median"], details={"length": length, **theirs})


def _one_query(
    values: Tensor, basis: GaussianBasis, density: TruncatedParabola, clock: Clock, effort: Effort
) -> Figure:
    signal, length = _fitted(values, basis), len(values)
    error = _error(signal, density)
    details: dict[str, Any] = {"length": length, "error": error}
    if error > 2 * torch.finfo(values.dtype).eps:
        details["failed"] = f"an error of {error:.3g} relative to float64"
        return Figure(_QUERY, _OURS, f"L = {length:,}", math.nan, details=details)
    times = _microseconds(lambda: signal.expectation(density), density.batch_shape.numel(), clock, effort)
    return Figure(_QUERY, _OURS, f"L = {length:,}", times["median"], details={**details, **times})


def _fitted(values: Tensor, basis: GaussianBasis) -> contmax.Signal:
    # A copy of the basis, so that weights kept from the fit before are not used.
    with torch.no_grad():
        return contmax.fit_signal(values, copy.deepcopy(basis)).materialize()


def _error(signal: contmax.Signal, density: TruncatedParabola) -> float:
    """Largest error of the first queries against float64, relative to the largest number."""
    loc, scale = (x[:32] for x in (density.loc, density.scale))
    got = signal.expectation(TruncatedParabola(loc, scale, validate_args=False)).double()
    exact = signal.to(torch.float64).expectation(TruncatedParabola(loc.double(), scale.double(), validate_args=False))
    return float((got - exact).abs().max() / exact.abs().max())


def _fit(values: Tensor, basis: GaussianBasis, column: str, clock: Clock, effort: Effort) -> Figure:
    times = clock.wall_times({"fit": lambda: _fitted(values, basis)}, effort)["fit"]
    milliseconds = {name: 1e3 * seconds for name, seconds in percentiles(times).items()}
    return Figure(_FIT, "K = 512, D = 128", column, milliseconds["median"], details=milliseconds)


def _attend(query: Tensor, key: Tensor, values: Tensor) -> Callable[[], Tensor]:
    return lambda: scaled_dot_product_attention(query, key, values)


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


GPU_GROWTH = Suite("growth", lambda effort: growth_figures(effort, GraphClock()))
