"""Expectations over the line, in pieces between the points where a density is not smooth."""

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.distributions import Distribution

from contmax.numerics import float64_of, graded_rule

_NODES = 96
# An unbounded density is cut at its centre and at these multiples of its standard deviation.
_SPREAD = (-6.0, -2.0, 0.0, 2.0, 6.0)


def line_integral(function: Callable[[Tensor, Tensor], Tensor], density: Distribution, *others: Distribution) -> Tensor:
    """E_p of a function of t and of ln p(t), in float64.

    Args:
        function: of points ``(n, *batch)`` and ln p there. It may be singular like a logarithm where a support ends,
            and may have kinks where a density has its centre.
        density: p, on the line.
        *others: densities of the same batch shape whose ends and centres matter to the function.

    Returns:
        Shape ``(*batch)``.
    """
    low, high = ends(density)
    cuts = torch.cat([_cuts(d) for d in (density, *others)], 0)
    # Cuts outside the support fall on its ends and leave empty pieces; infinite ends are for the tails below.
    cuts = torch.minimum(torch.maximum(cuts, low), high).sort(0).values
    nodes, weights = graded_rule(_NODES, cuts.device)
    column = (-1, *([1] * cuts.ndim))
    x, w = nodes.reshape(column), weights.reshape(column)
    length = cuts[1:] - cuts[:-1]
    points = [cuts[:-1] + length * x]
    shares = [length * w]
    stretch, slope = (x / (1 - x))[:, 0], (w / (1 - x).square())[:, 0]
    spread = density.stddev.double()
    for end, cut, sign in ((low, cuts[0], -1.0), (high, cuts[-1], 1.0)):
        unbounded = torch.isinf(end)
        points.append((cut + sign * spread * stretch).unsqueeze(1))
        shares.append(torch.where(unbounded, spread * slope, 0.0).unsqueeze(1))
    at, share = torch.cat(points, 1).flatten(0, 1), torch.cat(shares, 1).flatten(0, 1)
    log_p = density.log_prob(at)
    alive = (log_p > -math.inf) & (share > 0)
    values = torch.where(alive, function(at, torch.where(alive, log_p, 0.0)), 0.0)
    return (share * torch.where(alive, log_p, -math.inf).exp() * values).sum(0)


def ends(density: Distribution) -> tuple[Tensor, Tensor]:
    """The ends of the support, ∓∞ where it has none, in float64."""
    component: Any = getattr(density, "component_distribution", None)
    if component is not None:
        low, high = ends(component)
        return low.amin(-1), high.amax(-1)
    mean = density.mean.double()
    support: Any = density.support
    bounds = [
        getattr(support, name, default) for name, default in (("lower_bound", -math.inf), ("upper_bound", math.inf))
    ]
    low, high = (float64_of(bound, mean).expand(mean.shape) for bound in bounds)
    return low, high


def _cuts(density: Distribution) -> Tensor:
    """Finite points (m, *batch) between which the density is smooth and well resolved."""
    component: Any = getattr(density, "component_distribution", None)
    if component is not None:
        return _cuts(component).movedim(-1, 1).flatten(0, 1)
    low, high = ends(density)
    centre, spread = density.mean.double(), density.stddev.double()
    inner = torch.stack([centre + step * spread for step in _SPREAD])
    bounded = torch.isfinite(low) & torch.isfinite(high)
    safe_low, safe_high = torch.where(bounded, low, centre), torch.where(bounded, high, centre)
    outer = torch.stack([safe_low, safe_low, centre, safe_high, safe_high])
    return torch.where(bounded, outer, inner)
