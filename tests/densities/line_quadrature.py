"""Double-exponential quadrature of densities on the line: an oracle that shares no code with the library."""

import math
from collections.abc import Callable

import torch
from torch import Tensor

from contmax.densities import Density, Mixture

_STEP = 1 / 32
_Z = _STEP * torch.arange(-128, 129, dtype=torch.float64)


def line_rule(p: Density) -> tuple[Tensor, Tensor]:
    """Nodes and weights (n, *batch) over the support of p, in pieces between its kinks."""
    knots = _knots(p)
    pieces = [_interval(knots[i], knots[i + 1]) for i in range(len(knots) - 1)]
    if not _bounded(p):
        pieces += [_half_line(knots[0], -p.stddev), _half_line(knots[-1], p.stddev)]
    return torch.cat([nodes for nodes, _ in pieces]), torch.cat([weights for _, weights in pieces])


def expectation(p: Density, function: Callable[[Tensor], Tensor]) -> Tensor:
    """E_p of a function of t."""
    nodes, weights = line_rule(p)
    return (weights * p.density(nodes) * function(nodes)).sum(0)


def integral(function: Callable[[Tensor], Tensor], points: list[float]) -> float:
    """∫ of a function of t, smooth between the points, from the first of them to the last, which may be infinite."""
    edges = torch.tensor([point for point in points if math.isfinite(point)], dtype=torch.float64)
    pieces = [_interval(edges[:-1], edges[1:])]
    pieces += [_half_line(edges[:1], -torch.ones(1).double())] if points[0] == -math.inf else []
    pieces += [_half_line(edges[-1:], torch.ones(1).double())] if points[-1] == math.inf else []
    return sum(float((weights * function(nodes)).sum()) for nodes, weights in pieces)


def mass_below(p: Density, points: Tensor) -> Tensor:
    """∫ p up to each point, (m, *batch)."""
    knots = _knots(p)
    total = torch.zeros_like(points)
    for i in range(len(knots) - 1):
        nodes, weights = _interval(torch.minimum(knots[i], points), torch.minimum(knots[i + 1], points))
        total = total + (weights * p.density(nodes)).sum(0)
    if not _bounded(p):
        nodes, weights = _half_line(torch.minimum(knots[0], points), -p.stddev)
        total = total + (weights * p.density(nodes)).sum(0)
        nodes, weights = _interval(knots[-1].expand(points.shape), torch.maximum(points, knots[-1]))
        total = total + (weights * p.density(nodes)).sum(0)
    return total


def _bounded(p: Density) -> bool:
    q = p.component_distribution if isinstance(p, Mixture) else p
    return bool(torch.isfinite(q.half_width).all())


def _knots(p: Density) -> Tensor:
    """Sorted points (m, *batch) between which p is smooth; a batch may mix bounded and unbounded members."""
    q = p.component_distribution if isinstance(p, Mixture) else p
    width = torch.where(torch.isfinite(q.half_width), q.half_width, 3 * q.stddev)
    knots = torch.stack((q.loc - width, q.loc, q.loc + width))
    if isinstance(p, Mixture):
        knots = knots.movedim(-1, 1).flatten(0, 1)
    return knots.sort(0).values


def _interval(low: Tensor, high: Tensor) -> tuple[Tensor, Tensor]:
    z = _Z.reshape(-1, *[1] * low.ndim)
    angle = 0.5 * math.pi * torch.sinh(z)
    # 1 − tanh without cancellation: a density that is singular at its edge needs the distance from it.
    gap = 1 / (1 + torch.exp(2 * angle.abs()))
    nodes = torch.where(z < 0, low + (high - low) * gap, high - (high - low) * gap)
    weights = _STEP * 0.25 * math.pi * torch.cosh(z) / torch.cosh(angle) ** 2 * (high - low)
    return nodes, weights


def _half_line(start: Tensor, scale: Tensor) -> tuple[Tensor, Tensor]:
    z = _Z.reshape(-1, *[1] * start.ndim)
    offset = torch.exp(0.5 * math.pi * torch.sinh(z))
    nodes = start + scale * offset
    return nodes, (_STEP * 0.5 * math.pi * torch.cosh(z) * offset * scale).abs()
