"""Windows of β-Gaussians on the line, in float32: where the integrand of a pair is not negligible, and sums over nodes.

The support of a density is [μ − a, μ + a]. With t = μ + a y and z = (t − μ_j)/σ_j the integrand of a pair is
(1 − y²)ᵏ exp(−z²/2), and (1 − y²)^{k−1} is called the escort. `contmax.expectations._line_gaussian` has the rules for
k = 1/(α−1) = 0, …, 4. Lengths, distances and slopes are clamped, so that no parameters make them overflow.
"""

import triton
import triton.language as tl

# Lengths are clamped to [SHORTEST, LONGEST], distances to ±LONGEST, slopes to ±STEEPEST. So products of two lengths are
# finite, while (for lengths up to 1e16) a clamped distance still lets r = E_p[ψ] underflow to 0, as it should.
SHORTEST, LONGEST, STEEPEST = tl.constexpr(1e-18), tl.constexpr(1e18), tl.constexpr(1e33)
# The half-width of a window, in standard deviations.
REACH, INVERSE_REACH = tl.constexpr(5.6), tl.constexpr(1 / 5.6)
# exp(−z²/2) = 2^{−(z·ROOT)²}.
ROOT, INVERSE_ROOT = tl.constexpr(0.8493218002880191), tl.constexpr(1.1774100225154747)


@triton.jit
def length_in_range(x):
    """Clamp x to [SHORTEST, LONGEST]."""
    return tl.minimum(tl.maximum(x, SHORTEST), LONGEST)


@triton.jit
def nan_from(x, y):
    """NaN where x or y is NaN, else 0. Minima and maxima lose NaN, so kernels add this to results."""
    return tl.where((x == x) & (y == y), 0.0, float("nan"))


@triton.jit
def distance(x, y):
    """x − y, clamped to ±LONGEST."""
    return tl.minimum(tl.maximum(x - y, -LONGEST), LONGEST)


@triton.jit
def bounded(slope):
    """The slope, clamped to ±STEEPEST."""
    return tl.minimum(tl.maximum(slope, -STEEPEST), STEEPEST)


@triton.jit
def load_functions(centre_ptr, width_ptr, column, known):
    """Load μ_j and σ_j of a block of functions, σ_j clamped to its range; and NaN where either is NaN, else 0."""
    centre = tl.load(centre_ptr + column, known, other=0.0)
    width = tl.load(width_ptr + column, known, other=1.0)
    return centre, length_in_range(width), nan_from(centre, width)


@triton.jit
def half_width(scale, stretch, K: tl.constexpr):
    """a = F σ^{2k/(2k+1)}, F = `stretch`: a step of Newton's method makes σ^{−1/(2k+1)} exact to rounding."""
    if K == 0:
        half = scale * 0.0 + stretch
    else:
        inverse = tl.exp2(-tl.log2(scale) / (2 * K + 1))
        one = scale
        for _ in tl.static_range(2 * K + 1):
            one *= inverse
        inverse += inverse * (1.0 - one) / (2 * K + 1)
        half = stretch * (scale * inverse)
    return half


@triton.jit
def window(mu, a, inverse_a, centre, width, inverse_width, wide_from):
    """The window of each pair: z = z₀ + dz·x, 1 + y = left + span·x, 1 − y = right + span·(1 − x).

    x is in [0, 1], and z in units of √(2 ln 2), for exp2. The last result is whether p is narrow, a/σ_j ≤ `wide_from`.
    """
    offset, ratio, inverse_ratio = distance(centre, mu), width * inverse_a, a * inverse_width
    narrow = inverse_ratio <= wide_from
    # The coordinate is (t − μ)/a for narrow densities, where the support ends at ±1, else (t − μ_j)/σ_j, where it ends
    # at (±a − δ)/σ_j with δ = μ_j − μ.
    end = tl.where(narrow, 1.0, (a - offset) * inverse_width)
    start = tl.where(narrow, -1.0, (a + offset) * (inverse_width * -1.0))
    middle = tl.where(narrow, offset * inverse_a, 0.0)
    reach = tl.where(narrow, ratio, 1.0) * REACH
    nearest = tl.minimum(tl.maximum(middle, start), end)
    far = tl.abs(middle - nearest) * (tl.where(narrow, inverse_ratio, 1.0) * INVERSE_REACH)
    extent = reach / (tl.sqrt(far * far + 1.0) + far)
    low, high = tl.maximum(nearest - extent, start), tl.minimum(nearest + extent, end)
    length = high - low
    z = tl.where(narrow, (low * a - offset) * inverse_width, low)
    dz = length * tl.where(narrow, inverse_ratio, 1.0)
    left = 1.0 + tl.where(narrow, low, (offset + width * low) * inverse_a)
    right = 1.0 - tl.where(narrow, high, (offset + width * high) * inverse_a)
    span = length * tl.where(narrow, 1.0, ratio)
    # Take a wide span from `left` and `right`, so that 1 + y and 1 − y add up to 2 at every node. A rounding error then
    # only moves y, which hardly changes (1 − y²)ᵏ near y = 0. An error of one factor alone would be amplified by the
    # power k. (For a small span this difference would cancel.)
    span = tl.where(span > 1.0, 2.0 - (left + right), span)
    return z * ROOT, dz * ROOT, left, right, span, narrow


@triton.jit
def _at(z, dz, left, right, span, x, rest, log_weight, K: tl.constexpr):
    """At the node x = 1 − rest: z, 2y, 1 − y², and w (1 − y²)^{k−1} exp(−z²/2), without the power if k = 0."""
    u, low, high = z + dz * x, left + span * x, right + span * rest
    room = low * high
    escort = tl.exp2(log_weight - u * u)
    for _ in tl.static_range(K - 1):
        escort *= room
    return u, low - high, room, escort


@triton.jit
def node(rule, n, mirrored: tl.constexpr, PAIRS: tl.constexpr):
    """x, 1 − x and log₂ w of node n, or of its mirror image about the middle of the window."""
    x, rest = tl.load(rule + n), tl.load(rule + 2 * PAIRS - 1 - n)
    log_weight = tl.load(rule + 2 * PAIRS + n)
    if mirrored:
        x, rest = rest, x
    return x, rest, log_weight


@triton.jit
def no_sums(like):
    """The six sums of `add_node` before the first node: zeros."""
    zero = tl.zeros_like(like)
    return zero, zero, zero, zero, zero, zero


@triton.jit
def add_node(sums, u, place, mass, escort):
    """Add a node's mass, mass·u, mass·u·place, mass·u², escort·place and escort·place² to these six sums.

    u is z in units of √(2 ln 2); `place` is 2y, or ξ for the rule of bells.
    """
    masses, by_loc, by_half, by_width, wide_loc, wide_half = sums
    moved, tilted = mass * u, escort * place
    by_loc, by_half, by_width = by_loc + moved, by_half + moved * place, by_width + moved * u
    return masses + mass, by_loc, by_half, by_width, wide_loc + tilted, wide_half + tilted * place


@triton.jit
def values_and_slopes(sums, size, inverse_width, inverse_a, narrow, unit, power):
    """r and its slopes in μ, a and σ_j, without the constant of the density, from the sums of `add_node`.

    Slopes in μ and a are integrals of p ψ′ for narrow densities, else of p′ψ. y is `unit`·place, and dp/dy is
    −`power`·y·escort. `size`, the length of the window over σ_j, may contain constants.
    """
    masses, by_loc, by_half, by_width, wide_loc, wide_half = sums
    share = size * tl.where(narrow, inverse_width * -INVERSE_ROOT, inverse_a)
    by_loc = tl.where(narrow, by_loc, (power * unit) * wide_loc) * share
    # Sum (2k+1)y² − 1 as 2k y² − (1 − y²). As 2k − (2k+1)(1 − y²) it would lose digits: at y = 0 the terms are 2k and
    # 2k + 1, their difference −1.
    by_half = tl.where(narrow, unit * by_half, (power * unit * unit) * wide_half - masses) * share
    by_width = (by_width * (INVERSE_ROOT * INVERSE_ROOT) - masses) * size * inverse_width
    return masses * size, by_loc, by_half, by_width


@triton.jit
def window_sums(z, dz, left, right, span, rule, K: tl.constexpr, PAIRS: tl.constexpr):
    """Sums of `add_node`, called with place = 2y, over a window's nodes."""
    sums = no_sums(z)
    for n in tl.static_range(PAIRS):
        for mirrored in tl.static_range(2):
            x, rest, log_weight = node(rule, n, mirrored, PAIRS)
            u, twice, room, escort = _at(z, dz, left, right, span, x, rest, log_weight, K)
            sums = add_node(sums, u, twice, escort if K == 0 else escort * room, escort)
    return sums
