"""The suite `densities`: a truncated paraboloid on the plane against torch's MultivariateNormal."""

from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch.distributions import Distribution, MultivariateNormal

from contmax.densities import TruncatedParaboloid
from contmax_lab.bench._figure import Figure
from contmax_lab.bench._suite import Suite
from contmax_lab.bench._timing import Effort, Ratio, interleaved

_TABLE = "truncated paraboloid on the plane: time / torch's MultivariateNormal"
_MATRIX = [[0.5, 0.2], [0.2, 0.3]]


def _figures(effort: Effort) -> Iterator[Figure]:
    draws = 100_000 if effort.small else 10_000_000
    densities: dict[str, Distribution] = {
        "torch": MultivariateNormal(torch.zeros(2), torch.tensor(_MATRIX)),
        "contmax": TruncatedParaboloid(torch.zeros(2), torch.tensor(_MATRIX)),
    }
    points = 0.3 * torch.randn(draws // 10, 2)
    yield _figure({name: _sampler(d, draws) for name, d in densities.items()}, f"{draws:,} draws", 3.0, effort)
    log_probs = {name: _log_prob(d, points) for name, d in densities.items()}
    yield _figure(log_probs, f"log_prob of {len(points):,} points", 2.0, effort)


def _sampler(density: Distribution, draws: int) -> Callable[[], Any]:
    return lambda: density.sample((draws,))


def _log_prob(density: Distribution, points: torch.Tensor) -> Callable[[], Any]:
    return lambda: density.log_prob(points)


def _figure(passes: dict[str, Callable[[], Any]], row: str, limit: float, effort: Effort) -> Figure:
    times = interleaved(passes, effort)
    ratio = Ratio.of(times["contmax"], times["torch"])
    details = {"minimum": ratio.minimum, "rounds": ratio.rounds}
    return Figure(_TABLE, row, "ratio", ratio.median, at_most=limit, details=details)


DENSITIES = Suite("densities", _figures)
