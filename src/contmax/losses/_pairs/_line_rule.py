"""Integrals against a density on the line, in pieces between the points where the integrand is not smooth.

Each piece has 32 Gauss nodes, graded towards its ends, and what lies beyond the last cut is mapped to a bounded piece.
Cuts move with the parameters they come from, so derivatives of the sum are those of the integral, to any order.
"""

import math

import torch
from torch import Tensor
from torch.distributions import Distribution

from contmax._typing import Bool, Float
from contmax.numerics import graded_rule

from ._cuts import cuts, ends

_NODES = 32
_NODES_ON_CPU, _WEIGHTS_ON_CPU = graded_rule(_NODES, torch.device("cpu"))
# Below this logarithm a density counts for nothing, whatever it multiplies.
_LOG_TINY = -690.0
# How far to go, in logarithms, from the cuts of the density towards a kink beyond them.
_SHARES = (0.25, 0.5, 0.75)
# Where to look for a power law at an end of the support, in units of the distance to the next cut.
_PROBES = (1e-9, 1e-7)


class LineRule:
    """Nodes and weights for integrals against a density on the line.

    Args:
        target: the density.
        kink: another point where integrands may have a kink, ``(*batch)``, or None.
        shape: the common batch shape.

    Attributes:
        points: ``(n, *shape)``; the last 2·32 lie far out, where the support is unbounded.
        shares: weights, of the same shape, zero where there is nothing to integrate.
        side: ±1, on which side of the kink a node lies, also where its piece is empty; None without a kink.
    """

    def __init__(self, target: Distribution, kink: Tensor | None, shape: torch.Size) -> None:
        self._low, self._high = (end.expand(shape) for end in ends(target))
        at = _aligned(cuts(target), shape)
        self._inner = at[0].detach()
        at = at.sort(0).values
        middle = (0.5 * (at[0] + at[-1])).detach()
        self._cuts, self._reach = at.detach(), (0.5 * (at[-1] - at[0])).detach()
        side = None
        if kink is not None:
            kink = torch.minimum(torch.maximum(kink, self._low), self._high).expand(shape)
            at = torch.cat([at, self._on_the_way(at[0], middle, kink.detach())]).sort(0).values
            at, side = _split(at, kink)
        nodes, weights = _rule(at.device)
        self._ratio = (nodes[1] / nodes[0]).log()
        column = (-1, *(1 for _ in shape))
        x, w = nodes.reshape(column), weights.reshape(column)
        length = at[1:] - at[:-1]
        pieces = (at[:-1, None] + length[:, None] * x).flatten(0, 1)
        # t = cut ± reach·(1/x − 1): algebraic tails become powers of x.
        reaches = (middle - at[0]).detach(), (at[-1] - middle).detach()
        tails = [at[0] - reaches[0] * (1 / x - 1), at[-1] + reaches[1] * (1 / x - 1)]
        beyond = [
            torch.where(torch.isinf(end), reach * w / x.square(), 0.0)
            for end, reach in zip((self._low, self._high), reaches, strict=True)
        ]
        self.points = torch.cat([pieces, *tails])
        self.shares = torch.cat([(length[:, None] * w).flatten(0, 1), *beyond])
        self.side = None if side is None else side.repeat_interleave(_NODES).reshape(column)
        # An empty piece ends at a kink of the target, if it has one there, and must see what lies before it.
        empty = (length.detach() == 0).repeat_interleave(_NODES, 0)
        nudge = 1e-10 * self._reach + 1e-15 * torch.maximum(at[0].abs(), at[-1].abs()).detach()
        self._seen = torch.cat([torch.where(empty, pieces - nudge, pieces), *tails])

    def _on_the_way(self, first: Tensor, middle: Tensor, kink: Tensor) -> Tensor:
        """Cuts between those of the density and a kink far out, each farther by the same ratio: a tail has no scale.

        Where the kink is near they fall on the first cut and leave empty pieces.
        """
        offset = kink - middle
        far = offset.abs() > 2 * self._reach
        ratio = torch.where(far & (self._reach > 0), offset.abs() / self._reach, 1.0)
        steps = [middle + offset.sign() * self._reach * ratio**share for share in _SHARES]
        return torch.stack([torch.where(far, step, first) for step in steps])

    def log_density(self, target: Distribution) -> tuple[Tensor, Tensor]:
        """ln p at the points, not below a tiny value, and where it counts."""
        with torch.no_grad():
            inside = (self._seen > self._low) & (self._seen < self._high)
            alive = inside & (target.log_prob(torch.where(inside, self._seen, self._inner)) > _LOG_TINY)
        # Where a density vanishes its logarithm may have no derivative, so it is evaluated elsewhere.
        log_p = target.log_prob(torch.where(alive, self._seen, self._inner)).double()
        return torch.where(alive, log_p, _LOG_TINY), alive

    def diverges(self, values: Float[Tensor, "n *shape"]) -> Bool[Tensor, "*shape"]:
        """Whether the integral of these values diverges in a tail: whether in x they grow like 1/x or faster."""
        with torch.no_grad():
            first, second = (torch.stack([values[i - _NODES], values[i - 2 * _NODES]]).abs().log() for i in (0, 1))
            steep = second - first <= (1 + 1e-6) * self._ratio
            return (steep & (first > -torch.inf)).any(0)

    def growth(self, target: Distribution) -> Float[Tensor, "*shape"]:
        """The largest s for which the density grows like x⁻ˢ in the distance x from a finite end of its support."""
        with torch.no_grad():
            slopes = [torch.zeros_like(self._reach)]
            for end, sign in ((self._low, 1.0), (self._high, -1.0)):
                distance = (self._cuts - end).abs()
                distance = torch.where(distance > 0, distance, math.inf).amin(0)
                finite = torch.isfinite(end) & torch.isfinite(distance)
                near, far = (
                    target.log_prob(torch.where(finite, end + sign * probe * distance, self._inner)).double()
                    for probe in _PROBES
                )
                slope = (near - far) / math.log(_PROBES[1] / _PROBES[0])
                slopes.append(torch.where(finite & torch.isfinite(slope), slope, 0.0))
            return torch.stack(slopes).amax(0)


def _split(
    at: Float[Tensor, "m *shape"], middle: Float[Tensor, "*shape"]
) -> tuple[Float[Tensor, "n *shape"], Float[Tensor, "k"]]:
    """Sorted cuts with one more, every piece on one side of it, and the sides of the pieces and of the two tails."""
    # Not minimum and maximum, which share their derivative between the two where they agree.
    left, right = torch.where(at < middle, at, middle), torch.where(at < middle, middle, at)
    ones = torch.ones(at.shape[0], dtype=at.dtype, device=at.device)
    return torch.cat([left, middle[None], right]), torch.cat([-ones, ones, -ones[:1], ones[:1]])


def _rule(device: torch.device) -> tuple[Tensor, Tensor]:
    # torch.compile does not see through the cache of rules.
    if torch.compiler.is_compiling():
        return _NODES_ON_CPU.to(device), _WEIGHTS_ON_CPU.to(device)
    return graded_rule(_NODES, device)


def _aligned(points: Float[Tensor, "m *batch"], shape: torch.Size) -> Float[Tensor, "m *shape"]:
    """Points for every member of a batch that the batch of the target broadcasts to."""
    lead = (points.shape[0],) + (1,) * (len(shape) + 1 - points.ndim) + points.shape[1:]
    return points.reshape(lead).expand(points.shape[0], *shape)
