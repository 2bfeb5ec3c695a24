"""The mean of a Gaussian over the law of its scale, and slopes of this mean, by blocks of pairs, float32 or float64.

A β-Gaussian is a mixture of Gaussians N(μ, V/s), and the law of the scale is the law of s. The torch reference
in `contmax.expectations` (`_scale_mean`, `_gaussian_forms`) explains the algorithm, the numbers a, b, c, n, g of a
pair, the number ν (`order`) of the law, and the path of s in the complex plane.

A block is one array `w`; its rows lie at known distances, so that LLVM sees that they do not overlap. `f`, the dtype of
the array, converts constants to its precision. The polynomials of sin and cos are from Cephes, the polynomial of arctan
is minimax (Remez).
"""

import math

import numpy as np
from numba import njit

from contmax.kernels.cpu import _elementary as fast
from contmax.kernels.cpu._compiled import inlined, kernel
from contmax.kernels.cpu._lanes import wide_vectors

# Rows of a block: the five numbers a, b, c, n, g of a pair (`contmax.expectations._gaussian_forms`); vertex, size and
# bend of the path of s; the mean; its slopes in a, b, c, n, g, without the factor −½; and its slope in ν, or in η = 1/ν
# if the nodes lie on a circle (`integrate`).
A, B, C, N, G, VERTEX, SIZE, BEND, VALUE, BY_A, BY_B, BY_C, BY_N, BY_G, BY_LAW, ROWS = range(16)
_NEWTON_STEPS = 3
# arctan x = x + x³ P(x²) for |x| ≤ tan π/8, to 6e-17; sin x = x + x³ S(x²), cos x = 1 − x²/2 + x⁴ C(x²) for |x| ≤ π/4.
_TAN_EIGHTH, _QUARTER_TURN = 0.41421356237309503, 0.78539816339744831
_P0, _P1, _P2 = -0.33333333333333252192, 0.19999999999903985724, -0.14285714266959355111
_P3, _P4, _P5 = 0.11111109687944398363, -0.090908540924669627502, 0.076910809221266607492
_P6, _P7, _P8, _P9 = -0.066498677254732111608, 0.057377922565271096693, -0.044878609394871468065, 0.022809000412487702
_S0, _S1, _S2 = -1.66666666666666307295e-1, 8.33333333332211858878e-3, -1.98412698295895385996e-4
_S3, _S4, _S5 = 2.75573136213857245213e-6, -2.50507477628578072866e-8, 1.58962301576546568060e-10
_C0, _C1, _C2 = 4.16666666666665929218e-2, -1.38888888888730564116e-3, 2.48015872888517045348e-5
_C3, _C4, _C5 = -2.75573141792967388112e-7, 2.08757008419747316778e-9, -1.13585365213876817300e-11
# π/2 as a sum of three numbers, so that x − n·π/2 keeps its digits (Cody and Waite).
_TURN_HIGH, _TURN_MIDDLE, _TURN_LOW = 1.57079625129699707031, 7.54978941586159635335e-8, 5.39030285815811905290e-15
_QUARTERS_PER_RADIAN = 0.63661977236758134308


@inlined()
def of(f, single, double):  # type: ignore[no-untyped-def]
    """`single` if f is np.float32, `double` if f is np.float64."""
    return double if f(0.1) == 0.1 else single


@inlined(fastmath=fast.CONTRACT, error_model="numpy")
def angle(x, y, size, f):  # type: ignore[no-untyped-def]
    """The argument of x + iy, whose modulus is `size`, as twice an arctangent; it must lie between −135° and 135°."""
    height, base = abs(y), size + x
    steep = height > f(_TAN_EIGHTH) * base
    t = (height - base if steep else height) / (height + base if steep else base)
    q = t * t
    tail = f(_P5) + q * (f(_P6) + q * (f(_P7) + q * (f(_P8) + q * f(_P9))))
    series = f(_P0) + q * (f(_P1) + q * (f(_P2) + q * (f(_P3) + q * (f(_P4) + q * tail))))
    half = t + t * q * series + (f(_QUARTER_TURN) if steep else f(0))
    return f(2) * (half if y >= f(0) else -half)


@inlined(fastmath=fast.CONTRACT, error_model="numpy")
def sin_cos(x, f):  # type: ignore[no-untyped-def]
    """Sine and cosine of x, exact to rounding for |x| ≤ 1e6 in float64, and for |x| ≤ 1e4 in float32."""
    n = np.floor(x * f(_QUARTERS_PER_RADIAN) + f(0.5))
    quarter = np.int32(n)
    r = ((x - n * f(_TURN_HIGH)) - n * f(_TURN_MIDDLE)) - n * f(_TURN_LOW)
    q = r * r
    tail = f(_S2) + q * (f(_S3) + q * (f(_S4) + q * f(_S5)))
    sine = r + r * q * (f(_S0) + q * (f(_S1) + q * tail))
    tail = f(_C2) + q * (f(_C3) + q * (f(_C4) + q * f(_C5)))
    cosine = f(1) - f(0.5) * q + q * q * (f(_C0) + q * (f(_C1) + q * tail))
    odd = (quarter & np.int32(1)) != 0
    first, second = (cosine if odd else sine), (sine if odd else cosine)
    first = -first if (quarter & np.int32(2)) != 0 else first
    second = -second if ((quarter + np.int32(1)) & np.int32(2)) != 0 else second
    return first, second


@inlined(fastmath=fast.CONTRACT, error_model="numpy")
def _derivatives(a, b, c, n, g, s, f):  # type: ignore[no-untyped-def]
    """s f′, −s² f″ and s³ f‴ of f(s) = ln s − ln N(μ; μ_j, Σ_j + V/s) from the pair's five numbers a, b, c, n, g."""
    x, z = a * s, c / s
    inverse = f(1) / (x + b + z)
    x, y, z, n, g = x * inverse, b * inverse, z * inverse, n * s * inverse, g * inverse
    volume, across = y + f(2) * x, f(3) * x * z
    first = f(0.5) * (volume + n * (y + f(2) * z) + g * (z - x))
    left, right = x * y - z * z + across, y * z - x * x + across
    second = n * left - x + g * right + f(0.5) * volume * volume
    left, right = n * y - g * x, g * y - n * z
    distance = x * x * (left + z * (f(4) * n + f(6) * g)) + z * (right * (f(4) * x + y) - x * z * g)
    return first, second, volume * (volume * volume - f(3) * x) + f(3) * distance


@inlined(fastmath=fast.CONTRACT, error_model="numpy")
def _start(a, b, c, n, g, order, f):  # type: ignore[no-untyped-def]
    """Where Newton's method begins: the lower of two estimates of the saddle point."""
    near = n / a
    middle = fast.maximum((near * b - g) / a, f(0))
    spread = (near * c + f(1e-30) * b) / (g + f(1e-30) * a)
    far = f(of(f, 1e18, 1e100))
    spread = spread if spread < far else far
    share = (order - f(1) + a + f(0.5) * b) / order
    p = near / (f(2) * order) - spread + f(2) * share
    root = np.sqrt(p * p + f(8) * share * spread)
    upward = p > f(0)
    narrow = (p + root if upward else f(2) * share * spread) / (f(4) if upward else root - p)
    wide = f(0.5) * share + np.sqrt(f(0.25) * share * share + middle / (f(2) * order))
    return narrow if narrow < wide else wide


@njit(fastmath=fast.CONTRACT, error_model="numpy")
def _place(w, order, stretch, most, share):  # type: ignore[no-untyped-def]
    """Write vertex, size and bend of each pair's path, s(u) = vertex + bend·(1 − cosh u) + i·size·sinh u.

    `most` is the largest lean κ of a path, `share` its curvature as a share of that of steepest descent (the fields
    `lean` and `curvature` of `Hyperbola`).
    """
    wide_vectors()
    f = w.dtype.type
    block = of(f, 128, 32)
    rest, bow = order - f(1), share * stretch / f(3)
    lowest = rest / order
    for i in range(block):
        a, b, c, n, g = w[A * block + i], w[B * block + i], w[C * block + i], w[N * block + i], w[G * block + i]
        s = _start(a, b, c, n, g, order, f)
        for _ in range(_NEWTON_STEPS):
            first, second, _third = _derivatives(a, b, c, n, g, s, f)
            total = rest + first
            step = fast.log(total / (order * s)) * total / (rest + second)
            step = fast.maximum(step, f(-2))
            step = step if step < f(2) else f(2)
            s = fast.maximum(s * fast.exp(step), lowest)
        _first, second, third = _derivatives(a, b, c, n, g, s, f)
        curvature = rest + second
        root = np.sqrt(curvature)
        lean = fast.maximum((f(2) * rest + third) / (curvature * root) * bow, f(0))
        lean = lean if lean < most else most
        size = s / root * stretch
        w[VERTEX * block + i], w[SIZE * block + i], w[BEND * block + i] = s, size, size * lean


@njit(fastmath=fast.CONTRACT, error_model="numpy")
def _add_node(w, order, node):  # type: ignore[no-untyped-def]
    """Add the terms of one node to the value and slopes of every pair of the block."""
    wide_vectors()
    f = w.dtype.type
    block = of(f, 128, 32)
    rise, run, across, along, law_re, law_im = node[0], node[1], node[2], node[3], node[4], node[5]
    power, lowest = f(0.5) - order, f(of(f, -87.0, -700.0))
    on_path = order > f(0)
    for i in range(block):
        a, b, c, n, g = w[A * block + i], w[B * block + i], w[C * block + i], w[N * block + i], w[G * block + i]
        size, bend = w[SIZE * block + i], w[BEND * block + i]
        s_re, s_im = w[VERTEX * block + i] + bend * (f(1) - run), size * rise
        squared = s_re * s_re + s_im * s_im
        inverse = f(1) / squared
        v_re, v_im = s_re * inverse, -s_im * inverse
        e_re, e_im = a * s_re + c * v_re + b, a * s_im + c * v_im
        e_squared = e_re * e_re + e_im * e_im
        inverse = f(1) / e_squared
        f_re, f_im = e_re * inverse, -e_im * inverse
        q_re = (n * s_re + g) * f_re - n * s_im * f_im
        q_im = (n * s_re + g) * f_im + n * s_im * f_re
        log_re, log_im = f(0.5) * fast.log(squared), angle(s_re, s_im, np.sqrt(squared), f)
        height = order * (s_re - f(1)) + power * log_re - f(0.25) * fast.log(e_squared) - f(0.5) * q_re
        turn = f(0.5) * (angle(e_re, e_im, np.sqrt(e_squared), f) + q_im)
        phase = order * s_im + power * log_im - turn
        sine, cosine = sin_cos(phase if height > lowest else f(0), f)
        modulus = fast.exp(height)
        cosine, sine = modulus * cosine, modulus * sine
        m_re = cosine * (size * across) - sine * (bend * along)
        m_im = cosine * (bend * along) + sine * (size * across)
        r_re, r_im = m_re * f_re - m_im * f_im, m_re * f_im + m_im * f_re
        t_re, t_im = r_re - r_re * q_re + r_im * q_im, r_im - r_re * q_im - r_im * q_re
        w[VALUE * block + i] += m_re
        w[BY_A * block + i] += t_re * s_re - t_im * s_im
        w[BY_B * block + i] += t_re
        w[BY_C * block + i] += t_re * v_re - t_im * v_im
        w[BY_N * block + i] += r_re * s_re - r_im * s_im
        w[BY_G * block + i] += r_re
        by_law = m_re * (s_re - f(1) - log_re) - m_im * (s_im - log_im)
        w[BY_LAW * block + i] += by_law if on_path else cosine * law_re - sine * law_im


@njit(error_model="numpy")
def path_nodes(rule, f):  # type: ignore[no-untyped-def]
    """One row per node u for `integrate`: sinh u, cosh u, the factors of size and bend in the weight, and two zeros."""
    step = rule[1] / rule[0]
    nodes = np.zeros((int(rule[0]), 6), f)
    for q in range(nodes.shape[0]):
        rise, run = math.sinh((q + 0.5) * step), math.cosh((q + 0.5) * step)
        nodes[q, 0], nodes[q, 1], nodes[q, 2], nodes[q, 3] = rise, run, 2.0 * step * run, 2.0 * step * rise
    return nodes


@njit(error_model="numpy")
def integrate(w, order, rule, nodes):  # type: ignore[no-untyped-def]
    """Write the value and slopes of a block; slopes in a, b, c, n, g lack the factor −½.

    If `order` is 0, the nodes s lie on a circle about 1, not on a path. The six numbers of a node are then Im s,
    2 − Re s, and real and imaginary part of its weight and of the weight's derivative in η = 1/ν.
    """
    f = w.dtype.type
    block = of(f, 128, 32)
    w[VALUE * block :] = f(0)
    if order == f(0):
        w[VERTEX * block : VALUE * block] = f(1)
    else:
        _place(w, order, f(rule[2]), f(rule[3]), f(rule[4]))
    for q in range(nodes.shape[0]):
        _add_node(w, order, nodes[q])


@kernel(error_model="numpy")
def plane_rows(form, order, rule, out, start, stop):  # type: ignore[no-untyped-def]
    """out[j] ← the mean and its slopes in a, b, c, n, g of the pairs j of [start, stop), from form[j].

    Args:
        form: a, b, c, n, g, (P, 5).
        order: ν > 1.
        rule: a `contmax.numerics.Hyperbola`, as an array.
        out: (P, 6).
        start: the first pair.
        stop: one past the last pair.
    """
    f = form.dtype.type
    block = of(f, 128, 32)
    w = np.empty(ROWS * block, f)
    nodes = path_nodes(rule, f)
    for first in range(start, stop, block):
        count = min(block, stop - first)
        w[: VERTEX * block] = f(0.25)
        for row in range(5):
            for i in range(count):
                w[row * block + i] = form[first + i, row]
        integrate(w, f(order), rule, nodes)
        for row in range(6):
            factor = f(1 if row == 0 else -0.5)
            for i in range(count):
                out[first + i, row] = factor * w[(VALUE + row) * block + i]
