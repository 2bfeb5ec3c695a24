"""Integrals against a density on the line: its landmarks (where it lies and bends), and a quadrature rule from them.

Nodes are graded towards the ends of each piece between two breakpoints (``cuts``), and each tail beyond the outermost
breakpoints is mapped to a bounded piece. Breakpoints are differentiable functions of the parameters, so the sum has the
derivatives of the integral, to any order.
"""

import contextlib
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, cast

import torch
from torch import Tensor
from torch.distributions import Distribution, LogNormal, TransformedDistribution

from contmax._typing import Bool, Float
from contmax.numerics import float64_of, graded_rule

# Breakpoints lie at centre + step·width: with 32 graded nodes in each piece, and the tails beyond the last step, they
# resolve Gaussian, exponential and algebraic decay to 1e-14.
_STEPS = (-16.0, -8.0, -4.0, -2.0, -1.0, 1.0, 2.0, 4.0, 8.0, 16.0)
# Extra breakpoints for transformed distributions, near the ends of the support of the base distribution if it is
# bounded: distances from these ends, as shares of the length of the support.
_MARGINS = tuple(10.0**-k for k in range(1, 13))
# The number of nodes that a rule divides among its pieces, and the minimum number in each piece.
_NODES, _NODES_IN_PIECE = 256, 32
# Densities below e^_LOG_TINY count as zero.
_LOG_TINY = -690.0
# Let `reach` be half the distance between the outermost breakpoints, or the width of the density if that is larger. For
# a bend at a distance d > 2·reach from their middle, breakpoints are added at the distances reach·(d/reach)^share.
_SHARES = (0.25, 0.5, 0.75)
# Distances from an end of the support at which `growth` evaluates a density, as shares of the distance between this end
# and the next breakpoint.
_PROBES = (1e-9, 1e-7)


@dataclass(frozen=True)
class Landmarks:
    """The support, bends and breakpoints of a density on the line, and where its mass lies, in float64.

    Only points at which the density is not smooth need a gradient: an integral does not depend on other breakpoints.

    Attributes:
        low: lower end of the support, ``(*batch)``; −∞ where unbounded.
        high: upper end of the support, ``(*batch)``; +∞ where unbounded.
        centre: a point inside the support, where most of the mass is, ``(*batch)``.
        width: length scale of the density around the centre, without gradient, ``(*batch)``.
        bends: points at which the score is not smooth, ``(m, *batch)``; m may be 0.
        cuts: breakpoints between which the density is smooth and has one length scale, in any order, ``(n, *batch)``.
        bounded: whether low and high are known to be finite without reading values; a rule then has no tails.
    """

    low: Float[Tensor, "*batch"]
    high: Float[Tensor, "*batch"]
    centre: Float[Tensor, "*batch"]
    width: Float[Tensor, "*batch"]
    bends: Float[Tensor, "m *batch"]
    cuts: Float[Tensor, "n *batch"]
    bounded: bool = False


def landmarks_of(density: Distribution) -> Landmarks:
    """The landmarks of a density on the line, from this library or from torch."""
    source: Any = density
    if source.support is not None and source.support.is_discrete:
        raise NotImplementedError(
            f"{type(density).__name__} is discrete, so it has no density. Pass Empirical(points, weights)."
        )
    if callable(getattr(source, "landmarks", None)):
        return cast(Landmarks, source.landmarks())
    if getattr(source, "component_distribution", None) is not None:
        return union(landmarks_of(source.component_distribution))
    # Use the base distribution for these two only. That of torch's other transformed distributions may not show where
    # mass lies: Gumbel has a uniform base distribution.
    if type(density) in (TransformedDistribution, LogNormal):
        return _transformed_landmarks(source)
    return general_landmarks(density)


def general_landmarks(density: Distribution) -> Landmarks:
    """Landmarks from the ends of the support, mean and variance (or location and scale), and the mode."""
    centre = _first_finite(density, ("mean", "loc"), 0.0)
    with torch.no_grad():
        width = _first_finite(density, ("stddev", "scale"), 1.0)
    support: Any = density.support
    low, high = (
        float64_of(getattr(support, end, otherwise), centre).expand(density.batch_shape)
        for end, otherwise in (("lower_bound", -math.inf), ("upper_bound", math.inf))
    )
    modes = [
        torch.where(torch.isfinite(mode) & (mode != centre), mode.detach(), centre)
        for mode in _known(density, ("mode",))
    ]
    ends = [torch.where(torch.isfinite(end), end, centre) for end in (low, high)]
    return stepped(low, high, centre, width, [centre, *ends], modes)


def stepped(
    low: Tensor, high: Tensor, centre: Tensor, width: Tensor, bends: Sequence[Tensor], extra: Sequence[Tensor] = ()
) -> Landmarks:
    """Landmarks with breakpoints at the bends, at the extra points, and at centre + step·width."""
    points = [*bends, *extra, centre, *(centre.detach() + step * width.detach() for step in _STEPS)]
    shape = torch.broadcast_shapes(*(point.shape for point in (low, high, *points)))
    cuts = torch.stack([torch.minimum(torch.maximum(point.expand(shape), low), high) for point in points])
    low, high, centre, width = (part.expand(shape) for part in (low, high, centre, width.detach()))
    return Landmarks(low, high, centre, width, cuts[: len(bends)], cuts)


def union(components: Landmarks) -> Landmarks:
    """The landmarks of a mixture whose components lie along the last batch dimension."""
    return Landmarks(
        components.low.amin(-1),
        components.high.amax(-1),
        components.centre[..., 0],
        components.width.amax(-1),
        components.bends.movedim(-1, 1).flatten(0, 1),
        components.cuts.movedim(-1, 1).flatten(0, 1),
        components.bounded,
    )


def _transformed_landmarks(density: TransformedDistribution) -> Landmarks:
    """Transformed landmarks of the base, with extra breakpoints, because steep transforms change length scales."""
    base = landmarks_of(density.base_dist)
    ordered, length = base.cuts.detach().sort(0).values, (base.high - base.low).detach()
    bounded = torch.isfinite(length)
    start, span = torch.where(bounded, base.low.detach(), 0.0), torch.where(bounded, length, 0.0)
    quarters = [ordered[:-1] + share * ordered.diff(dim=0) for share in (0.25, 0.5, 0.75)]
    margins = torch.stack([start + span * share for margin in _MARGINS for share in (margin, 1 - margin)])

    def moved(points: Tensor) -> Tensor:
        for transform in density.transforms:
            points = transform(points)
        return points

    ends, centre = moved(torch.stack([base.low, base.high])), moved(base.centre)
    cuts = moved(torch.cat([base.cuts, *quarters, margins]))
    cuts = torch.where(torch.isfinite(cuts), cuts, centre)
    width = 0.5 * (cuts.amax(0) - cuts.amin(0)).detach()
    return Landmarks(ends.amin(0), ends.amax(0), centre, width, moved(base.bends), cuts)


def _first_finite(density: Distribution, names: Sequence[str], otherwise: float) -> Tensor:
    """For each batch element the first finite value of the properties ``names``, or ``otherwise``."""
    known = _known(density, names)
    if not known:
        raise NotImplementedError(
            f"{type(density).__name__} has neither mean and variance nor loc and scale, so its mass cannot be located. "
            "Give it a method landmarks() that returns contmax.densities.Landmarks, or pass samples as Empirical."
        )
    result = torch.full_like(known[-1], otherwise)
    for value in reversed(known):
        result = torch.where(torch.isfinite(value), value, result)
    return result


def _known(density: Distribution, names: Sequence[str]) -> list[Tensor]:
    """The values of the properties in ``names`` that the distribution has, in float64."""
    known = []
    for name in names:
        with contextlib.suppress(NotImplementedError):
            value = getattr(density, name, None)
            known += [value.double()] if isinstance(value, Tensor) else []
    return known


class LineRule:
    """Nodes and weights for integrals against a density on the line.

    Args:
        density: landmarks of the density, whose batch broadcasts to ``shape``.
        shape: shape of the integrals, ``(*sample, *batch)``.
        bends: further points where integrands may have a bend, ``(m, *shape)`` or broadcastable to it, or None.
        count: nodes in each piece and each tail; by default 256 shared among pieces and tails, but at least 32.
        window: ends of the interval, broadcastable to ``shape``, outside of which integrands are negligible, or None.

    Attributes:
        points: t, ``(n, *shape)``.
        shares: quadrature weights, ``(n, *shape)``, zero in the tails beyond a finite end of the support.
        beside_bends: ``points``; but where two breakpoints coincide, the piece between them has length 0, and its nodes
            are moved just above the breakpoint, where the density may have a kink.
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
        inner = density.centre.detach()
        self._low, self._high, self._inner = (x.expand(shape) for x in (density.low, density.high, inner))
        at = _aligned(density.cuts, shape).sort(0).values
        middle = (0.5 * (at[0] + at[-1])).detach()
        self._cuts = at.detach()
        self._reach = torch.maximum(0.5 * (at[-1] - at[0]), density.width).detach()
        if bends is not None and len(bends):
            bends = torch.minimum(torch.maximum(_aligned(bends, shape), self._low), self._high)
            farthest = [bends.detach().amin(0), bends.detach().amax(0)]
            way = [self._on_the_way(at[0], middle, bend) for bend in (farthest if len(bends) > 1 else farthest[:1])]
            # Sort stably, with bends before equal breakpoints, so that the empty piece between them begins at the bend.
            at = torch.cat([bends, at, *way]).sort(dim=0, stable=True).values
        self._count = count or max(_NODES // (len(density.cuts) + 1), _NODES_IN_PIECE)
        self._has_tails = not density.bounded
        nodes, weights = graded_rule(self._count, at.device)
        self._ratio = (nodes[1] / nodes[0]).log()
        x, w = (table.reshape(-1, *(1 for _ in shape)) for table in (nodes, weights))
        length = at[1:] - at[:-1]
        points, shares = _piece(at[:-1, None], length[:, None], x, w, window)
        # An empty piece lies on a breakpoint, which may be a kink of the density. `log_density` evaluates the density
        # just below the breakpoint, and `beside_bends` are points just above it.
        nudge = 1e-10 * self._reach + 1e-15 * torch.maximum(at[0].abs(), at[-1].abs()).detach()
        nudge = torch.where(length.detach() == 0, nudge, 0.0)[:, None]
        parts = [[x.flatten(0, 1) for x in (points, shares, points - nudge, points + nudge)]]
        if self._has_tails:
            reaches = (torch.maximum(side, density.width) for side in (middle - at[0], at[-1] - middle))
            for cut, end, reach, sign in zip((at[0], at[-1]), (self._low, self._high), reaches, (-1, 1), strict=True):
                t, share = _tail(cut, sign, reach.detach(), x, w, window)
                parts.append([t, torch.where(torch.isinf(end), share, 0.0), t, t])
        self.points, self.shares, self._seen, self.beside_bends = (torch.cat(x) for x in zip(*parts, strict=True))

    def _on_the_way(self, first: Tensor, middle: Tensor, bend: Tensor) -> Tensor:
        """Breakpoints from the middle to a far bend, at geometric distances, since a tail has no length scale.

        For a bend within 2·reach of the middle, these breakpoints all equal `first`, so their pieces are empty.
        """
        offset = bend - middle
        far = offset.abs() > 2 * self._reach
        ratio = torch.where(far & (self._reach > 0), offset.abs() / self._reach, 1.0)
        steps = [middle + offset.sign() * self._reach * ratio**share for share in _SHARES]
        return torch.stack([torch.where(far, step, first) for step in steps])

    def log_density(self, density: Distribution) -> tuple[Tensor, Tensor]:
        """ln p at the points, raised to _LOG_TINY where it is smaller, and whether it is larger than _LOG_TINY.

        The density must come from ``_density.unchecked``, which gives −inf off the support instead of an error.
        """
        with torch.no_grad():
            inside = (self._seen > self._low) & (self._seen < self._high)
            alive = inside & (density.log_prob(torch.where(inside, self._seen, self._inner)) > _LOG_TINY)
        # Where a density is zero its logarithm may have no derivative, so evaluate it at the centre instead.
        log_p = density.log_prob(torch.where(alive, self._seen, self._inner)).double()
        return torch.where(alive, log_p, _LOG_TINY), alive

    def masses(self, density: Distribution) -> Float[Tensor, "n *shape"]:
        """p·shares at the points: the weights of an expectation."""
        log_p, alive = self.log_density(density)
        return torch.where(alive, self.shares * log_p.exp(), 0.0)

    def diverges(self, values: Float[Tensor, "n *shape"]) -> Bool[Tensor, "*shape"]:
        """Whether the integral of the values diverges, because in a tail they decay like 1/|t| or slower."""
        with torch.no_grad():
            if not self._has_tails:
                return torch.zeros_like(self._reach, dtype=torch.bool)
            last = values[-2 * self._count :].unflatten(0, (2, -1)).abs().log()
            steep: Tensor = last[:, 1] - last[:, 0] <= (1 + 1e-6) * self._ratio
            return torch.any(steep & (last[:, 0] > -torch.inf), 0)

    def growth(self, density: Distribution) -> Float[Tensor, "*shape"]:
        """The largest s such that the density grows like x⁻ˢ, with x the distance from a finite end of the support."""
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


def line_expectation(density: Distribution, function: Callable[[Tensor, Tensor], Tensor]) -> Float[Tensor, "*batch"]:
    """E_p of a function of t and ln p(t), in float64, for a density from ``_density.unchecked``."""
    rule = LineRule(landmarks_of(density), density.batch_shape)
    log_p, alive = rule.log_density(density)
    return torch.where(alive, rule.shares * log_p.exp() * function(rule.points, log_p), 0.0).sum(0)


def _piece(
    start: Tensor, length: Tensor, x: Tensor, w: Tensor, window: tuple[Tensor, Tensor] | None
) -> tuple[Tensor, Tensor]:
    """Nodes t and weights of dt on pieces, or on the part of each that lies in a window."""
    if window is not None:
        with torch.no_grad():
            # Ends of the window as fractions of the piece have no gradient, so that nodes move with the piece only.
            size = length.clamp(min=torch.finfo(length.dtype).tiny)
            first, last = (((end - start) / size).clamp(0, 1) for end in window)
        x, w = first + (last - first) * x, (last - first) * w
    return start + length * x, length * w


def _tail(
    cut: Tensor, sign: int, reach: Tensor, x: Tensor, w: Tensor, window: tuple[Tensor, Tensor] | None
) -> tuple[Tensor, Tensor]:
    """Nodes t and weights of dt on a tail, t = cut ± reach·(1/x − 1), where algebraic decay becomes a power of x."""
    if window is not None:
        with torch.no_grad():
            near, far = window if sign > 0 else window[::-1]
            last, first = (reach / (reach + (sign * (end - cut)).clamp(min=0)) for end in (near, far))
        x, w = first + (last - first) * x, (last - first) * w
    return cut + sign * reach * (1 / x - 1), reach * w / x.square()


def _aligned(points: Float[Tensor, "m ..."], shape: torch.Size) -> Float[Tensor, "m *shape"]:
    """Points with their batch expanded to ``shape``."""
    lead = (points.shape[0],) + (1,) * (len(shape) + 1 - points.ndim) + points.shape[1:]
    return points.reshape(lead).expand(points.shape[0], *shape)
