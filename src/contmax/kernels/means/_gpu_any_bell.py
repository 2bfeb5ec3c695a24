"""β-Gaussians whose support does not show, α from just below 1 to 5/4, against Gaussians: sums over windows.

In ξ = (t − μ)/b the integrand is (1 − εξ²)^{1/ε} exp(−z²/2), a bell times a bell. The window is that of the product of
two Gaussians, as far as the density itself reaches; nodes are placed in units of the narrower of the two.
"""

import triton
import triton.language as tl

from contmax.kernels.means._gpu_lengths import distance
from contmax.kernels.means._gpu_line_window import INVERSE_ROOT, ROOT

_LOG2E = tl.constexpr(1.4426950408889634)
# How far a window reaches, in standard deviations: so far that z² is negligible there too; and half its square.
_REACH, _LEFT_OUT = tl.constexpr(6.2), tl.constexpr(19.22)
_FAR = tl.constexpr(1e15)


@triton.jit
def bell_reach(gap):
    """How far the density reaches in ξ, and the least curvature of −ln of it on the way, of one row."""
    square = (1.0 - tl.exp(gap * (_LEFT_OUT * -1.0))) / gap
    # Close to α = 1 the difference of two numbers that are nearly one has few digits.
    square = tl.where(tl.abs(gap) < 1e-3, _LEFT_OUT - gap * (0.5 * _LEFT_OUT * _LEFT_OUT), square)
    edge = 1.0 - tl.minimum(gap, 0.0) * square
    return tl.sqrt(square), 2.0 * (2.0 - edge) / (edge * edge)


@triton.jit
def _bell_window(mu, b, centre, width, inverse_width, reach, curvature):
    """Where the integrand of each pair is: z = z₀ + dz·x, in units of √(2/ln 2), and ξ = ξ₀ + length·x."""
    inverse_b = 1.0 / b
    offset, s = distance(centre, mu) * inverse_b, width * inverse_b
    ratio = b * inverse_width
    # The middle of the product, in units of either, and the standard deviation of the product in ξ.
    share = 1.0 / (1.0 + 2.0 * s * s)
    middle = offset * share
    small = s < 1.0
    root = tl.sqrt(tl.where(small, 1.0 + curvature * s * s, curvature + ratio * ratio))
    extent = tl.where(small, s, 1.0) / root * _REACH
    low, high = tl.maximum(extent * -1.0, (reach + middle) * -1.0), tl.minimum(extent, reach - middle)
    length = tl.maximum(high - low, 0.0)
    # Where the function is much the wider 2s² may be infinite: there the middle is that of the density.
    z = tl.where(small, offset * (-2.0 * s * share), (middle - offset) * ratio) + low * ratio
    # An empty window may be far beyond all bounds.
    z, xi = tl.minimum(tl.maximum(z, -_FAR), _FAR), tl.minimum(tl.maximum(middle + low, -reach), reach)
    return z * ROOT, length * ratio * ROOT, xi, length


@triton.jit
def _bell_at(z, dz, xi, length, rule, n, gap, order, NODES: tl.constexpr):
    """At node n: z, ξ, ln(1 − εξ²), and the mass; `order` is k log₂ e."""
    x, log_weight = tl.load(rule + n), tl.load(rule + 2 * NODES + n)
    u, place = z + dz * x, xi + length * x
    y = gap * (place * place)
    room = tl.maximum(1.0 - y, 1e-30)
    # What 1 − y has lost in rounding is added to its logarithm.
    log_room = tl.log(room) + ((1.0 - room) - y) * (1.0 + y)
    return u, place, log_room, tl.exp2(log_weight + order * log_room - u * u)


@triton.jit
def bell_value(mu, b, centre, width, gap, reach, curvature, rule, NODES: tl.constexpr):
    """r without C/√2π."""
    inverse_width = 1.0 / width
    z, dz, xi, length = _bell_window(mu, b, centre, width, inverse_width, reach, curvature)
    total = tl.zeros_like(z)
    order = _LOG2E / gap
    for n in range(NODES):
        _u, _place, _log, mass = _bell_at(z, dz, xi, length, rule, n, gap, order, NODES)
        total += mass
    return total * (length * inverse_width)


@triton.jit
def _shape(y, square, log_room, inverse, gap):
    """ξ⁴ (ln(1 − y) + y/(1 − y))/y² with y = εξ², by its series where it cancels; `square` is ξ²."""
    series = 5.0 / 6.0 + y * (6.0 / 7.0 + y * (7.0 / 8.0 + y * (8.0 / 9.0)))
    series = 0.5 + y * (2.0 / 3.0 + y * (0.75 + y * (0.8 + y * series)))
    slope = 1.0 / gap
    return tl.where(tl.abs(y) < 0.1, square * square * series, (log_room + y * inverse) * (slope * slope))


@triton.jit
def bell_slopes(mu, b, centre, width, gap, reach, curvature, log_slope, rule, NODES: tl.constexpr):
    """Slopes in μ, b, σ_j and, at fixed b, ε, without C/√2π; E[ψ′] forms for a narrow density, escort forms else."""
    inverse_width = 1.0 / width
    z, dz, xi, length = _bell_window(mu, b, centre, width, inverse_width, reach, curvature)
    masses, by_loc, by_b, by_width = tl.zeros_like(z), tl.zeros_like(z), tl.zeros_like(z), tl.zeros_like(z)
    wide_loc, wide_b, by_gap = tl.zeros_like(z), tl.zeros_like(z), tl.zeros_like(z)
    order = _LOG2E / gap
    for n in range(NODES):
        u, place, log_room, mass = _bell_at(z, dz, xi, length, rule, n, gap, order, NODES)
        # A power costs less than a division.
        moved, square, inverse = mass * u, place * place, tl.exp2(log_room * -_LOG2E)
        masses += mass
        by_loc += moved
        by_b += moved * place
        by_width += moved * u
        escort = mass * place * inverse
        wide_loc += escort
        wide_b += escort * place
        by_gap += mass * _shape(gap * square, square, log_room, inverse, gap)
    size = length * inverse_width
    narrow = b * inverse_width <= 1.27
    share = size * tl.where(narrow, inverse_width * -INVERSE_ROOT, 1.0 / b)
    by_loc = tl.where(narrow, by_loc, 2.0 * wide_loc) * share
    by_b = tl.where(narrow, by_b, 2.0 * wide_b - masses) * share
    by_width = (by_width * (INVERSE_ROOT * INVERSE_ROOT) - masses) * size * inverse_width
    return by_loc, by_b, by_width, (masses * log_slope - by_gap) * size
