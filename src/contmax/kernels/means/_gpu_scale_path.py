"""The mean of a Gaussian on the plane over the law of its scale, for every pair of a block, in float32.

A β-Gaussian is a mixture of Gaussians N(μ, V/s); the law of the scale is the law of s, on a path in the complex plane.
The arithmetic is that of `contmax.expectations._scale_mean` and `contmax.expectations._gaussian_forms`, which explain
the numbers a, b, c, n, g of a pair and the path. Polynomials of arg, sin and cos are from Cephes.
"""

import triton
import triton.language as tl

from contmax.numerics import SINGLE

_NEWTON_STEPS = tl.constexpr(3)
# The constants of the path, from `contmax.numerics.SINGLE`, the rule for float32; `_BOW` is a factor of each path's κ.
_NODES, _TWO_STEPS = tl.constexpr(SINGLE.nodes), tl.constexpr(2 * SINGLE.end / SINGLE.nodes)
_STRETCH, _MOST_LEAN = tl.constexpr(SINGLE.stretch), tl.constexpr(SINGLE.lean)
_BOW = tl.constexpr(SINGLE.curvature * SINGLE.stretch / 3)
_SMALL, _FAR = tl.constexpr(1e-30), tl.constexpr(1e18)
# Below this exponent a term is negligible, whatever its phase, so the phase is replaced by 0.
_LOWEST = tl.constexpr(-87.0)
_TAN_EIGHTH, _QUARTER_TURN = tl.constexpr(0.41421356), tl.constexpr(0.78539816339)
# π/2 as a sum of three numbers, so that x − n·π/2 keeps its digits (Cody and Waite).
_TURN_HIGH, _TURN_MIDDLE = tl.constexpr(1.5703125), tl.constexpr(4.837512969970703125e-4)
_TURN_LOW, _QUARTERS_PER_RADIAN = tl.constexpr(7.549789948768648e-8), tl.constexpr(0.63661977236)


@triton.jit
def _angle(x, y, size):
    """The argument of x + iy, whose modulus is `size`, as twice an arctangent; it must lie between −135° and 135°."""
    height, base = tl.abs(y), size + x
    steep = height > base * _TAN_EIGHTH
    t = tl.where(steep, height - base, height) / tl.where(steep, height + base, base)
    q = t * t
    series = -3.33329491539e-1 + q * (1.99777106478e-1 + q * (-1.38776856032e-1 + q * 8.05374449538e-2))
    half = t + t * q * series + tl.where(steep, _QUARTER_TURN, 0.0)
    return 2.0 * tl.where(y >= 0.0, half, -half)


@triton.jit
def _sin_cos(x):
    """Sine and cosine of x, to rounding up to |x| = 1e4."""
    quarters = tl.floor(x * _QUARTERS_PER_RADIAN + 0.5)
    quarter = quarters.to(tl.int32)
    r = ((x - quarters * _TURN_HIGH) - quarters * _TURN_MIDDLE) - quarters * _TURN_LOW
    q = r * r
    sine = r + r * q * (-1.6666654611e-1 + q * (8.3321608736e-3 + q * -1.9515295891e-4))
    cosine = 1.0 - 0.5 * q + q * q * (4.166664568298827e-2 + q * (-1.388731625493765e-3 + q * 2.443315711809948e-5))
    odd = (quarter & 1) != 0
    first, second = tl.where(odd, cosine, sine), tl.where(odd, sine, cosine)
    first = tl.where((quarter & 2) != 0, -first, first)
    second = tl.where(((quarter + 1) & 2) != 0, -second, second)
    return first, second


@triton.jit
def _slopes(a, b, c, n, g, s):
    """s f′, −s² f″ and s³ f‴ of f(s) = ln s − ln N(μ; μ_j, Σ_j + V/s)."""
    x, z = a * s, c / s
    inverse = 1.0 / (x + b + z)
    x, y, z, n, g = x * inverse, b * inverse, z * inverse, n * s * inverse, g * inverse
    volume = y + 2.0 * x
    first = 0.5 * (volume + n * (y + 2.0 * z) + g * (z - x))
    across = 3.0 * x * z
    second = n * (x * y - z * z + across) - x + g * (y * z - x * x + across) + 0.5 * volume * volume
    left, right = n * y - g * x, g * y - n * z
    distance = x * x * (left + z * (4.0 * n + 6.0 * g)) + z * (right * (4.0 * x + y) - x * z * g)
    return first, second, volume * (volume * volume - 3.0 * x) + 3.0 * distance


@triton.jit
def _place(a, b, c, n, g, order):
    """Vertex, size and bend of each pair's path, s(u) = vertex + bend·(1 − cosh u) + i·size·sinh u.

    The vertex is the saddle point of the integrand, found by Newton's method in ln s.
    """
    rest = order - 1.0
    near = n / a
    middle = tl.maximum((near * b - g) / a, 0.0)
    # At μ = μ_j both n·c and g vanish, and this ratio is b/a.
    spread = tl.minimum((near * c + b * _SMALL) / (g + a * _SMALL), _FAR)
    part = (rest + a + 0.5 * b) / order
    p = near / (2.0 * order) - spread + 2.0 * part
    root = tl.sqrt(p * p + 8.0 * part * spread)
    narrow = tl.where(p > 0.0, (p + root) * 0.25, 2.0 * part * spread / (root - p))
    wide = 0.5 * part + tl.sqrt(0.25 * part * part + middle / (2.0 * order))
    s = tl.where(narrow < wide, narrow, wide)
    for _ in tl.static_range(_NEWTON_STEPS):
        first, second, _third = _slopes(a, b, c, n, g, s)
        total = rest + first
        step = tl.log(total / (order * s)) * total / (rest + second)
        s = tl.maximum(s * tl.exp(tl.minimum(tl.maximum(step, -2.0), 2.0)), rest / order)
    _first, second, third = _slopes(a, b, c, n, g, s)
    curvature = rest + second
    root = tl.sqrt(curvature)
    lean = (2.0 * rest + third) / (curvature * root) * _BOW
    size = s / root * _STRETCH
    return s, size, size * tl.minimum(tl.maximum(lean, 0.0), _MOST_LEAN)


@triton.jit
def _term(a, b, c, n, g, order, vertex, size, bend, rise, run):
    """At one node: the integrand times its weight, s, 1/s, 1/e and q = (ns + g)/e; e = as + b + c/s. All complex."""
    power = 0.5 - order
    s_re, s_im = vertex + bend * (1.0 - run), size * rise
    squared = s_re * s_re + s_im * s_im
    inverse = 1.0 / squared
    v_re, v_im = s_re * inverse, -s_im * inverse
    e_re, e_im = a * s_re + c * v_re + b, a * s_im + c * v_im
    e_squared = e_re * e_re + e_im * e_im
    inverse = 1.0 / e_squared
    f_re, f_im = e_re * inverse, -e_im * inverse
    near = n * s_re + g
    q_re, q_im = near * f_re - n * s_im * f_im, near * f_im + n * s_im * f_re
    height = order * (s_re - 1.0) + 0.5 * power * tl.log(squared) - 0.25 * tl.log(e_squared) - 0.5 * q_re
    angles = power * _angle(s_re, s_im, tl.sqrt(squared)) - 0.5 * _angle(e_re, e_im, tl.sqrt(e_squared))
    phase = order * s_im + angles - 0.5 * q_im
    sine, cosine = _sin_cos(tl.where(height > _LOWEST, phase, 0.0))
    modulus = tl.exp(height) * _TWO_STEPS
    m_re = modulus * (cosine * size * run - sine * bend * rise)
    m_im = modulus * (cosine * bend * rise + sine * size * run)
    return m_re, m_im, s_re, s_im, v_re, v_im, f_re, f_im, q_re, q_im


@triton.jit
def mean_and_slopes(a, b, c, n, g, order, rises, runs):
    """The mean of each pair and its slopes in a, b, c, n, g, without the normalisers of the Gaussian and of the law.

    `order` is ν of the law; `rises` and `runs` point to sinh u and cosh u at the nodes u. The compiler removes slopes
    that are not read.
    """
    vertex, size, bend = _place(a, b, c, n, g, order)
    value, by_a, by_b = tl.zeros_like(a), tl.zeros_like(a), tl.zeros_like(a)
    by_c, by_n, by_g = tl.zeros_like(a), tl.zeros_like(a), tl.zeros_like(a)
    for node in range(_NODES):
        rise, run = tl.load(rises + node).to(tl.float32), tl.load(runs + node).to(tl.float32)
        m_re, m_im, s_re, s_im, v_re, v_im, f_re, f_im, q_re, q_im = _term(
            a, b, c, n, g, order, vertex, size, bend, rise, run
        )
        r_re, r_im = m_re * f_re - m_im * f_im, m_re * f_im + m_im * f_re
        t_re, t_im = r_re - r_re * q_re + r_im * q_im, r_im - r_re * q_im - r_im * q_re
        value += m_re
        by_a += t_re * s_re - t_im * s_im
        by_b += t_re
        by_c += t_re * v_re - t_im * v_im
        by_n += r_re * s_re - r_im * s_im
        by_g += r_re
    return value, -0.5 * by_a, -0.5 * by_b, -0.5 * by_c, -0.5 * by_n, -0.5 * by_g
