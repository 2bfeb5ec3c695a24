"""Three rules for r = E_p[ψ] of β-Gaussians of any α and Gaussian ψ on the line: bells, visible ends, heavy tails.

A window is the interval in which the integrand of a pair is not negligible; all nodes lie in it.

**Bells**, α from just below 1 to 5/4, have negligible mass near the ends of their support. With ε = α − 1, b the unit
of length of the density (`_gpu_any_alpha`), ξ = (t − μ)/b and z = (t − μ_j)/σ_j the integrand is
(1 − εξ²)^{1/ε} exp(−z²/2), a bell times a bell. The window is that of a product of two Gaussians, clipped to where the
density is not negligible, in units of the narrower of density and function.

**Visible ends**, α > 5/4: with t = μ + a y, k = 1/(α−1) and a = b√k the integrand is (1 − y²)ᵏ exp(−z²/2), in the
windows of `_gpu_windows`. Next to an end of the support the integrand is a fractional power of the distance to it, so
nodes are denser at both ends.

**Heavy tails**, α below the bells: the density is a mixture of Gaussians N(μ, V/s), with V its variance. The law of s,
the law of the scale, is a Gamma law given by ν = 1/(α−1) + 3/2 < 0. So r is a mean over s. The rule is that of
`_half_line` in `contmax.expectations._scale_mean`: nodes s with ln s = high − sinh w for equidistant w.
"""

import triton
import triton.language as tl

from contmax.kernels.means._gpu_windows import ROOT, add_node, distance, no_sums, values_and_slopes, window

_LOG2E = tl.constexpr(1.4426950408889634)
# The half-width of a window in standard deviations; and half of its square. Farther out even z² exp(−z²/2), which the
# integrands of slopes contain, is negligible.
_REACH, _LEFT_OUT = tl.constexpr(6.2), tl.constexpr(19.22)
_FAR = tl.constexpr(1e15)
_LN2 = tl.constexpr(0.6931471805599453)
BELL_NODES, EDGE_NODES = tl.constexpr(24), tl.constexpr(30)
# For heavy tails: the number of nodes, and −ln of the mass of the law of the scale that is neglected at either end.
_TAIL_NODES, _TAIL_LEFT_OUT = tl.constexpr(32), tl.constexpr(18.0)
# `_form` clamps distances to _FARTHEST standard deviations, where r is 0, and a = σ_j²/(V + σ_j²) to ≥ _LEAST_SHARE.
_FARTHEST, _LEAST_SHARE = tl.constexpr(1e12), tl.constexpr(1e-24)


@triton.jit
def bell_reach(gap):
    """The largest |ξ| where the density p is not negligible, and the least curvature of −ln p up to it; `gap` is ε."""
    square = (1.0 - tl.exp(gap * (_LEFT_OUT * -1.0))) / gap
    # Near α = 1 the difference 1 − exp(…) loses its digits: take two terms of its series.
    square = tl.where(tl.abs(gap) < 1e-3, _LEFT_OUT - gap * (0.5 * _LEFT_OUT * _LEFT_OUT), square)
    edge = 1.0 - tl.minimum(gap, 0.0) * square
    return tl.sqrt(square), 2.0 * (2.0 - edge) / (edge * edge)


@triton.jit
def _bell_window(mu, b, centre, width, inverse_width, reach, curvature):
    """The window of each pair: z = z₀ + dz·x, in units of √(2 ln 2), and ξ = ξ₀ + length·x, for x in [0, 1]."""
    inverse_b = 1.0 / b
    offset, s = distance(centre, mu) * inverse_b, width * inverse_b
    ratio = b * inverse_width
    # In ξ: the middle of the product of both Gaussians, and `extent`, _REACH standard deviations of the product.
    share = 1.0 / (1.0 + 2.0 * s * s)
    middle = offset * share
    small = s < 1.0
    root = tl.sqrt(tl.where(small, 1.0 + curvature * s * s, curvature + ratio * ratio))
    extent = tl.where(small, s, 1.0) / root * _REACH
    low, high = tl.maximum(extent * -1.0, (reach + middle) * -1.0), tl.minimum(extent, reach - middle)
    length = tl.maximum(high - low, 0.0)
    # z at `middle` is −2s·share·offset. For s ≥ 1, where s² may overflow, it is taken as (middle − offset)/s instead.
    z = tl.where(small, offset * (-2.0 * s * share), (middle - offset) * ratio) + low * ratio
    # Clamp, since empty windows may lie arbitrarily far away.
    z, xi = tl.minimum(tl.maximum(z, -_FAR), _FAR), tl.minimum(tl.maximum(middle + low, -reach), reach)
    return z * ROOT, length * ratio * ROOT, xi, length


@triton.jit
def _bell_at(z, dz, xi, length, rule, n, gap, order):
    """At node n: z, ξ, ln(1 − εξ²), and the integrand times its weight; `order` is log₂(e)/ε."""
    x, log_weight = tl.load(rule + n), tl.load(rule + 2 * BELL_NODES + n)
    u, place = z + dz * x, xi + length * x
    y = gap * (place * place)
    room = tl.maximum(1.0 - y, 1e-30)
    # The second term corrects the logarithm for the rounding error of 1 − y.
    log_room = tl.log(room) + ((1.0 - room) - y) * (1.0 + y)
    return u, place, log_room, tl.exp2(log_weight + order * log_room - u * u)


@triton.jit
def _shape(y, square, log_room, inverse, gap):
    """−∂/∂ε ln (1 − εξ²)^{1/ε} = (ln(1 − y) + y/(1 − y))/ε²; y = εξ², `square` is ξ², `inverse` 1/(1−y), `gap` ε."""
    series = 5.0 / 6.0 + y * (6.0 / 7.0 + y * (7.0 / 8.0 + y * (8.0 / 9.0)))
    series = 0.5 + y * (2.0 / 3.0 + y * (0.75 + y * (0.8 + y * series)))
    slope = 1.0 / gap
    return tl.where(tl.abs(y) < 0.1, square * square * series, (log_room + y * inverse) * (slope * slope))


@triton.jit
def bell(mu, b, centre, width, gap, reach, curvature, log_slope, rule):
    """r, its slopes in μ, b, σ_j, and in ε at fixed b, all divided by C/√(2π); `log_slope` is d ln C/dε.

    C is the normaliser of the density in ξ.
    """
    inverse_width = 1.0 / width
    z, dz, xi, length = _bell_window(mu, b, centre, width, inverse_width, reach, curvature)
    sums, by_gap = no_sums(z), tl.zeros_like(z)
    order = _LOG2E / gap
    for n in range(BELL_NODES):
        u, place, log_room, mass = _bell_at(z, dz, xi, length, rule, n, gap, order)
        # exp2 costs less than a division by 1 − εξ².
        square, inverse = place * place, tl.exp2(log_room * -_LOG2E)
        sums = add_node(sums, u, place, mass, mass * inverse)
        by_gap += mass * _shape(gap * square, square, log_room, inverse, gap)
    size, narrow = length * inverse_width, b * inverse_width <= 1.27
    r, by_loc, by_b, by_width = values_and_slopes(sums, size, inverse_width, 1.0 / b, narrow, 1.0, 2.0)
    return r, by_loc, by_b, by_width, r * log_slope - by_gap * size


@triton.jit
def edges(mu, a, centre, width, k, log_slope, rule):
    """r, its slopes in μ, a, σ_j, and in ε with a held fixed, all divided by C√k/√(2π); `log_slope` is d ln(C√k)/dε."""
    inverse_width, inverse_a = 1.0 / width, 1.0 / a
    wide_from = 2.0 * tl.sqrt(tl.maximum((2.0 * k + 3.0) * 0.2, 1.0))
    z, dz, left, right, span, narrow = window(mu, a, inverse_a, centre, width, inverse_width, wide_from)
    # Rounding may put an end of the window beyond the end of the support.
    left, right, span = tl.maximum(left, 0.0), tl.maximum(right, 0.0), tl.maximum(span, 0.0)
    sums, logs = no_sums(z), tl.zeros_like(z)
    for n in range(EDGE_NODES):
        x, rest, log_weight = tl.load(rule + n), tl.load(rule + EDGE_NODES + n), tl.load(rule + 2 * EDGE_NODES + n)
        u, low, high = z + dz * x, left + span * x, right + span * rest
        log_room = tl.log2(tl.maximum(low * high, 1e-30))
        log_mass = log_weight + k * log_room - u * u
        mass = tl.exp2(log_mass)
        # exp2 costs less than a division by 1 − y².
        sums = add_node(sums, u, low - high, mass, tl.exp2(log_mass - log_room))
        logs += mass * log_room
    # For k < 1 the escort (1 − y²)^{k−1} has poles at the ends of the support. If a window reaches a pole, take slopes
    # from E[ψ′], which has no escort.
    narrow = narrow | (tl.minimum(left, right) < tl.where(k < 1.0, 1e-6, -1.0))
    size = span * inverse_width
    r, by_loc, by_a, by_width = values_and_slopes(sums, size, inverse_width, inverse_a, narrow, 0.5, 2.0 * k)
    return r, by_loc, by_a, by_width, r * log_slope - (k * k * _LN2) * logs * size


@triton.jit
def _form(mu, deviation, centre, width):
    """1/D, z = (μ − μ_j)/D, a = σ_j²/D² and b = V/D², with D² = V + σ_j² and V the variance; `deviation` is √V."""
    larger = tl.maximum(deviation, width)
    ratio = tl.minimum(deviation, width) / larger
    inverse = 1.0 / (larger * tl.sqrt(1.0 + ratio * ratio))
    z = tl.minimum(tl.maximum(distance(mu, centre) * inverse, -_FARTHEST), _FARTHEST)
    own, other = width * inverse, deviation * inverse
    return inverse, z, tl.maximum(own * own, _LEAST_SHARE), other * other


@triton.jit
def _half_line(b, n, x):
    """For each pair, `high` and the step of w, for the nodes s with ln s = high − sinh w.

    b and z are from `_form`; n = z² and x = −ν.
    """
    t = _TAIL_LEFT_OUT / (x + 1.0)
    root = tl.sqrt(2.0 * t)
    above = tl.log(1.0 + t + root)
    length = tl.minimum(root, 1.0) + t + tl.log(1.0 + n * b / (2.0 * (x + 1.0))) + above
    return tl.log(1.0 + 1.0 / x) + above, tl.log(length + tl.sqrt(length * length + 1.0)) / (_TAIL_NODES - 1)


@triton.jit
def _tail_at(a, b, n, high, w, x):
    """At the node w: s; 1/e, e = as + b; n s/e; s − 1 − ln s; and the integrand in w. a, b are from `_form`, x = −ν."""
    growth, shrink = tl.exp(w), tl.exp(-w)
    log_s = high - 0.5 * (growth - shrink)
    s = tl.exp(log_s)
    # Near s = 1 the difference s − 1 − ln s loses all its digits, but its series loses none.
    series = 1.0 / 5040.0 + log_s * (1.0 / 40320.0 + log_s * (1.0 / 362880.0))
    series = 1.0 / 24.0 + log_s * (1.0 / 120.0 + log_s * (1.0 / 720.0 + log_s * series))
    series = log_s * log_s * (0.5 + log_s * (1.0 / 6.0 + log_s * series))
    rate = tl.where(tl.abs(log_s) < 0.6, series, s - 1.0 - log_s)
    e = a * s + b
    inverse = 1.0 / e
    q = n * s * inverse
    term = tl.exp(1.5 * log_s - x * rate - 0.5 * tl.log(e) - 0.5 * q) * (0.5 * (growth + shrink))
    return s, inverse, q, rate, term


@triton.jit
def tails(mu, deviation, centre, width, x, log_slope):
    """r, its slopes in μ, √V, σ_j, and in |ν| with V held fixed, all without the law's normaliser and 1/√(2π).

    `deviation` is √V, x is −ν, and `log_slope` is the derivative of ln(normaliser) in |ν|.
    """
    inverse, z, a, b = _form(mu, deviation, centre, width)
    n = z * z
    high, step = _half_line(b, n, x)
    total, by_a, by_b = tl.zeros_like(n), tl.zeros_like(n), tl.zeros_like(n)
    by_n, by_law = tl.zeros_like(n), tl.zeros_like(n)
    for i in range(_TAIL_NODES):
        s, e, q, rate, term = _tail_at(a, b, n, high, step * i, x)
        share = term * e
        turned = share - share * q
        total += term
        by_a += turned * s
        by_b += turned
        by_n += share * s
        by_law += term * rate
    size = step * inverse
    common = n * by_n - total
    by_deviation = (common + a * (by_a - by_b)) * (deviation * inverse) * (size * inverse)
    by_width = (common + b * (by_b - by_a)) * (width * inverse) * (size * inverse)
    by_loc = z * by_n * (size * inverse * -1.0)
    return total * step * inverse, by_loc, by_deviation, by_width, (total * log_slope - by_law) * size
