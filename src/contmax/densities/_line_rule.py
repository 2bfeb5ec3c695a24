"""Integrals against a density on the line: pieces between its landmarks, windows inside pieces, tails beyond them.

Nodes are graded towards the ends of each piece, and what lies beyond the last cut is mapped to a bounded piece. Cuts
move with the parameters they come from, so derivatives of the sum are those of the integral, to any order.
"""

import math

import torch
from torch import Tensor
from torch.distributions import Distribution

from contmax._typing import Bool, Float
from contmax.densities._landmarks import Landmarks
from contmax.numerics import graded_rule

# Nodes in all, and the fewest in each piece.
_NODES, _NODES_IN_PIECE = 256, 32
# Below this logarithm a density counts for nothing, whatever it multiplies.
_LOG_TINY = -690.0
# How far to go, in logarithms, from the cuts of the density towards a bend beyond them.
_SHARES = (0.25, 0.5, 0.75)
# Where to look for a power law at an end of the support, in units of the distance to the next cut.
_PROBES = (1e-9, 1e-7)


class LineRule:
    """Nodes and weights for integrals against a density on the line.

    Args:
        density: its landmarks, whose batch broadcasts to ``shape``.
        shape: ``(*sample, *batch)``, one integral each.
        bends: further points where integrands may have a bend, ``(m, *shape)`` or broadcastable to it, or None.
        count: nodes in each piece and each tail; by default the more, the fewer pieces there are.
        window: ends of the interval, broadcastable to ``shape``, outside of which integrands are negligible, or None.

    Attributes:
        points: t, ``(n, *shape)``.
        shares: weights of dt, of the same shape, zero where there is nothing to integrate.
        beside_bends: the points, those in an empty piece moved off the bend that they lie on, to the side of the piece.
    """

    def __init__(
        self,
        density: Landmarks,
        shape: torch.Size,
        bends: Tensor | None = None,
        *,
        count: int | None = None,
        window: tuple[Tensor, Tensor] | None = None,
    ) -> None:
        self._low, self._high, self._inner = (x.expand(shape) for x in (density.low, density.high, density.centre))
        self._inner = self._inner.detach()
        at = _aligned(density.cuts, shape).sort(0).values
        middle = (0.5 * (at[0] + at[-1])).detach()
        self._cuts = at.detach()
        self._reach = torch.maximum(0.5 * (at[-1] - at[0]), density.width).detach()
        if bends is not None and len(bends):
            bends = torch.minimum(torch.maximum(_aligned(bends, shape), self._low), self._high)
            farthest = [bends.detach().amin(0), bends.detach().amax(0)]
            way = [self._on_the_way(at[0], middle, bend) for bend in (farthest if len(bends) > 1 else farthest[:1])]
            # A bend before a cut with which it coincides: a piece between the two lies behind the bend, before the cut.
            at = torch.cat([bends, at, *way]).sort(dim=0, stable=True).values
        self._count = count or max(_NODES // (len(density.cuts) + 1), _NODES_IN_PIECE)
        self._tails = 0 if density.bounded else 2
        nodes, weights = graded_rule(self._count, at.device)
        self._ratio = (nodes[1] / nodes[0]).log()
        x, w = (table.reshape(-1, *(1 for _ in shape)) for table in (nodes, weights))
        length = at[1:] - at[:-1]
        points, shares = _pieces(at[:-1, None], length[:, None], x, w, window)
        # An empty piece ends at a kink of the density, if it has one there, and must see what lies before it.
        nudge = 1e-10 * self._reach + 1e-15 * torch.maximum(at[0].abs(), at[-1].abs()).detach()
        nudge = torch.where(length.detach() == 0, nudge, 0.0)[:, None]
        seen = [(points - nudge).flatten(0, 1)]
        beside = [(points + nudge).flatten(0, 1)]
        everything = [points.flatten(0, 1)], [shares.flatten(0, 1)]
        if self._tails:
            reaches = (torch.maximum(side, density.width) for side in (middle - at[0], at[-1] - middle))
            for cut, end, reach, sign in zip((at[0], at[-1]), (self._low, self._high), reaches, (-1, 1), strict=True):
                t, share = _tail(cut, sign, reach.detach(), x, w, window)
                for part, value in zip(
                    (*everything, seen, beside), (t, _where_infinite(end, share), t, t), strict=True
                ):
                    part.append(value)
        self.points, self.shares = (torch.cat(parts) for parts in everything)
        self._seen, self.beside_bends = torch.cat(seen), torch.cat(beside)

    def _on_the_way(self, first: Tensor, middle: Tensor, bend: Tensor) -> Tensor:
        """Cuts between those of the density and a bend far out, each farther by the same ratio: a tail has no scale.

        Where the bend is near they fall on the first cut and leave empty pieces.
        """
        offset = bend - middle
        far = offset.abs() > 2 * self._reach
        ratio = torch.where(far & (self._reach > 0), offset.abs() / self._reach, 1.0)
        steps = [middle + offset.sign() * self._reach * ratio**share for share in _SHARES]
        return torch.stack([torch.where(far, step, first) for step in steps])

    def log_density(self, density: Distribution) -> tuple[Tensor, Tensor]:
        """ln p at the points, not below a tiny value, and where it counts; p must answer off its support."""
        with torch.no_grad():
            inside = (self._seen > self._low) & (self._seen < self._high)
            alive = inside & (density.log_prob(torch.where(inside, self._seen, self._inner)) > _LOG_TINY)
        # Where a density vanishes its logarithm may have no derivative, so it is evaluated elsewhere.
        log_p = density.log_prob(torch.where(alive, self._seen, self._inner)).double()
        return torch.where(alive, log_p, _LOG_TINY), alive

    def masses(self, density: Distribution) -> Float[Tensor, "n *shape"]:
        """p(t)·dt at the points: the weights of an expectation."""
        log_p, alive = self.log_density(density)
        return torch.where(alive, self.shares * log_p.exp(), 0.0)

    def diverges(self, values: Float[Tensor, "n *shape"]) -> Bool[Tensor, "*shape"]:
        """Whether the integral of these values diverges in a tail: whether in x they grow like 1/x or faster."""
        with torch.no_grad():
            if not self._tails:
                return torch.zeros_like(self._reach, dtype=torch.bool)
            last = values[-2 * self._count :].unflatten(0, (2, -1)).abs().log()
            steep: Tensor = last[:, 1] - last[:, 0] <= (1 + 1e-6) * self._ratio
            return torch.any(steep & (last[:, 0] > -torch.inf), 0)

    def growth(self, density: Distribution) -> Float[Tensor, "*shape"]:
        """The largest s for which the density grows like x⁻ˢ in the distance x from a finite end of its support."""
        with torch.no_grad():
            slopes = [torch.zeros_like(self._reach)]
            for end, sign in ((self._low, 1.0), (self._high, -1.0)):
                distance = (self._cuts - end).abs()
                distance = torch.where(distance > 0, distance, math.inf).amin(0)
                finite = torch.isfinite(end) & torch.isfinite(distance)
                near, far = (
                    density.log_prob(torch.where(finite, end + sign * probe * distance, self._inner)).double()
                    for probe in _PROBES
                )
                slope = (near - far) / math.log(_PROBES[1] / _PROBES[0])
                slopes.append(torch.where(finite & torch.isfinite(slope), slope, 0.0))
            return torch.stack(slopes).amax(0)


def _pieces(
    start: Tensor, length: Tensor, x: Tensor, w: Tensor, window: tuple[Tensor, Tensor] | None
) -> tuple[Tensor, Tensor]:
    """Nodes t and weights of dt on pieces, or on the part of each that lies in a window."""
    if window is None:
        return start + length * x, length * w
    with torch.no_grad():
        # As shares of the piece: what moves with the density is its ends, not the window.
        size = length.clamp(min=torch.finfo(length.dtype).tiny)
        first, last = (((end - start) / size).clamp(0, 1) for end in window)
    return start + length * (first + (last - first) * x), length * (last - first) * w


def _tail(
    cut: Tensor, sign: int, reach: Tensor, x: Tensor, w: Tensor, window: tuple[Tensor, Tensor] | None
) -> tuple[Tensor, Tensor]:
    """The same on a tail, t = cut ± reach·(1/x − 1): algebraic tails become powers of x."""
    if window is not None:
        with torch.no_grad():
            near, far = window if sign > 0 else window[::-1]
            last, first = (reach / (reach + (sign * (end - cut)).clamp(min=0)) for end in (near, far))
        x, w = first + (last - first) * x, (last - first) * w
    return cut + sign * reach * (1 / x - 1), reach * w / x.square()


def _where_infinite(end: Tensor, share: Tensor) -> Tensor:
    return torch.where(torch.isinf(end), share, 0.0)


def _aligned(points: Float[Tensor, "m ..."], shape: torch.Size) -> Float[Tensor, "m *shape"]:
    """Points for every member of a batch that the batch of the points broadcasts to."""
    lead = (points.shape[0],) + (1,) * (len(shape) + 1 - points.ndim) + points.shape[1:]
    return points.reshape(lead).expand(points.shape[0], *shape)
