"""β-Gaussians with ends that show, α > 5/4, against Gaussians: sums over windows with nodes denser at both ends.

With t = μ + a y, k = 1/(α−1) and a = b√k the integrand is (1 − y²)ᵏ exp(−z²/2), in the windows of `_line_window`.
Where a window ends with the support the integrand is a broken power of the distance, which the denser nodes allow for.
"""

import triton
import triton.language as tl

from contmax.kernels.means._gpu_line_window import INVERSE_ROOT, window

_LN2 = tl.constexpr(0.6931471805599453)


@triton.jit
def _edge_window(mu, a, centre, width, inverse_width, k):
    wide_from = 2.0 * tl.sqrt(tl.maximum((2.0 * k + 3.0) * 0.2, 1.0))
    z, dz, left, right, span, narrow = window(mu, a, 1.0 / a, centre, width, inverse_width, wide_from)
    # Rounding may put an end of the window beyond that of the support.
    return z, dz, tl.maximum(left, 0.0), tl.maximum(right, 0.0), tl.maximum(span, 0.0), narrow


@triton.jit
def _edge_at(z, dz, left, right, span, rule, n, k, NODES: tl.constexpr):
    """At node n: z, 2y, log₂(1 − y²), the mass, and log₂ of it."""
    x, rest, log_weight = tl.load(rule + n), tl.load(rule + NODES + n), tl.load(rule + 2 * NODES + n)
    u, low, high = z + dz * x, left + span * x, right + span * rest
    log_room = tl.log2(tl.maximum(low * high, 1e-30))
    log_mass = log_weight + k * log_room - u * u
    return u, low - high, log_room, tl.exp2(log_mass), log_mass


@triton.jit
def edge_value(mu, a, centre, width, k, rule, NODES: tl.constexpr):
    """r without C√k/√2π."""
    inverse_width = 1.0 / width
    z, dz, left, right, span, _narrow = _edge_window(mu, a, centre, width, inverse_width, k)
    total = tl.zeros_like(z)
    for n in range(NODES):
        _u, _twice, _log_room, mass, _log = _edge_at(z, dz, left, right, span, rule, n, k, NODES)
        total += mass
    return total * (span * inverse_width)


@triton.jit
def edge_slopes(mu, a, centre, width, k, log_slope, rule, NODES: tl.constexpr):
    """Slopes in μ, a, σ_j and, at fixed a, ε, without C√k/√2π; the forms are those of `sums_of_slopes`."""
    inverse_width = 1.0 / width
    z, dz, left, right, span, narrow = _edge_window(mu, a, centre, width, inverse_width, k)
    masses, by_loc, by_a, by_width = tl.zeros_like(z), tl.zeros_like(z), tl.zeros_like(z), tl.zeros_like(z)
    wide_loc, squares, logs = tl.zeros_like(z), tl.zeros_like(z), tl.zeros_like(z)
    for n in range(NODES):
        u, twice, log_room, mass, log_mass = _edge_at(z, dz, left, right, span, rule, n, k, NODES)
        # A power costs less than a division by 1 − y².
        moved, escort = mass * u, tl.exp2(log_mass - log_room)
        masses += mass
        by_loc += moved
        by_a += moved * twice
        by_width += moved * u
        tilted = escort * twice
        wide_loc += tilted
        squares += tilted * twice
        logs += mass * log_room
    # Below k = 1 the escort has a pole at the ends, and E[ψ′] is the better form wherever they are in the window.
    narrow = narrow | (tl.minimum(left, right) < tl.where(k < 1.0, 1e-6, -1.0))
    size = span * inverse_width
    share = size * tl.where(narrow, inverse_width * -INVERSE_ROOT, 1.0 / a)
    by_loc = tl.where(narrow, by_loc, k * wide_loc) * share
    by_a = tl.where(narrow, 0.5 * by_a, 0.5 * k * squares - masses) * share
    by_width = (by_width * (INVERSE_ROOT * INVERSE_ROOT) - masses) * size * inverse_width
    return by_loc, by_a, by_width, (masses * log_slope - (k * k * _LN2) * logs) * size
