"""The mean of a Gaussian on the plane over the law of its scale, pair by pair, in float32.

The arithmetic is that of the torch reference in `contmax.expectations` (`_scale_law`, `_plane_form`), which explains
the numbers and the path. Pairs run in blocks that stay in the first cache. The rows of a block lie in one array at a
known distance from each other, so that LLVM sees that they do not overlap.
"""

import numpy as np
from numba import njit

from contmax.kernels.cpu import _elementary as fast
from contmax.kernels.cpu._compiled import kernel
from contmax.kernels.cpu._lanes import wide_vectors

_BLOCK = 128
# The rows of a block: a, b, c, n, g of the form; the path; the value and its slopes in the form.
_A, _B, _C, _N, _G, _VERTEX, _SIZE, _BEND, _VALUE = (row * _BLOCK for row in range(9))
_BY_A, _BY_B, _BY_C, _BY_N, _BY_G = (row * _BLOCK for row in range(9, 14))
_ROWS = 14
_NEWTON_STEPS = 3
_f = np.float32
_SMALL, _FAR = _f(1e-30), _f(1e18)
_ZERO, _QUARTER, _HALF, _ONE, _TWO, _THREE, _FOUR, _SIX, _EIGHT = (_f(x) for x in (0, 0.25, 0.5, 1, 2, 3, 4, 6, 8))
# arctan x for |x| ≤ tan π/8 (Cephes): x + x³ A(x²).
_TAN_EIGHTH, _QUARTER_TURN = _f(0.41421356), _f(0.78539816339)
_A0, _A1, _A2, _A3 = _f(-3.33329491539e-1), _f(1.99777106478e-1), _f(-1.38776856032e-1), _f(8.05374449538e-2)
# sin and cos for |x| ≤ π/4 (Cephes), and π/2 in three parts.
_S0, _S1, _S2 = _f(-1.6666654611e-1), _f(8.3321608736e-3), _f(-1.9515295891e-4)
_C0, _C1, _C2 = _f(4.166664568298827e-2), _f(-1.388731625493765e-3), _f(2.443315711809948e-5)
_TURN_HIGH, _TURN_MIDDLE, _TURN_LOW = _f(1.5703125), _f(4.837512969970703125e-4), _f(7.549789948768648e-8)
_QUARTERS_PER_RADIAN, _ROUND = _f(0.63661977236), _f(12582912.0)
_LOWEST = _f(-87)


@njit(fastmath=fast.CONTRACT, error_model="numpy")
def _angle(x, y, size):  # type: ignore[no-untyped-def]
    """The argument of x + iy of modulus ``size``, up to 135° from the positive axis: twice an arctangent."""
    height, base = abs(y), size + x
    steep = height > _TAN_EIGHTH * base
    t = (height - base if steep else height) / (height + base if steep else base)
    q = t * t
    half = t + t * q * (_A0 + q * (_A1 + q * (_A2 + q * _A3))) + (_QUARTER_TURN if steep else _ZERO)
    return _TWO * (half if y >= _ZERO else -half)


@njit(fastmath=fast.CONTRACT, error_model="numpy")
def _sin_cos(x):  # type: ignore[no-untyped-def]
    shifted = x * _QUARTERS_PER_RADIAN + _ROUND
    n = shifted - _ROUND
    quarter = np.float32(shifted).view(np.int32)
    r = ((x - n * _TURN_HIGH) - n * _TURN_MIDDLE) - n * _TURN_LOW
    q = r * r
    sine = r + r * q * (_S0 + q * (_S1 + q * _S2))
    cosine = _ONE - _HALF * q + q * q * (_C0 + q * (_C1 + q * _C2))
    odd = (quarter & np.int32(1)) != 0
    first, second = (cosine if odd else sine), (sine if odd else cosine)
    first = -first if (quarter & np.int32(2)) != 0 else first
    second = -second if ((quarter + np.int32(1)) & np.int32(2)) != 0 else second
    return first, second


@njit(fastmath=fast.CONTRACT, error_model="numpy")
def _shares(a, b, c, n, g, s):  # type: ignore[no-untyped-def]
    x, z = a * s, c / s
    inverse = _ONE / (x + b + z)
    return x * inverse, b * inverse, z * inverse, n * s * inverse, g * inverse


@njit(fastmath=fast.CONTRACT, error_model="numpy")
def _slopes(x, y, z, n, g):  # type: ignore[no-untyped-def]
    """First and second derivative of the exponent in ln s, from the shares."""
    volume = y + _TWO * x
    first = volume + n * (y + _TWO * z) + g * (z - x)
    left, right = x * y - z * z + _THREE * x * z, y * z - x * x + _THREE * x * z
    return _HALF * first, n * left - x + g * right + _HALF * volume * volume


@njit(fastmath=fast.CONTRACT, error_model="numpy")
def _third_slope(x, y, z, n, g):  # type: ignore[no-untyped-def]
    volume = y + _TWO * x
    left, right = n * y - g * x, g * y - n * z
    distance = x * x * (left + z * (_FOUR * n + _SIX * g)) + z * (right * (_FOUR * x + y) - x * z * g)
    return volume * (volume * volume - _THREE * x) + _THREE * distance


@njit(fastmath=fast.CONTRACT, error_model="numpy")
def _start(a, b, c, n, g, order):  # type: ignore[no-untyped-def]
    """Where Newton's method begins: the lower of two estimates of the saddle point."""
    near = n / a
    middle = fast.maximum((near * b - g) / a, _ZERO)
    spread = (near * c + _SMALL * b) / (g + _SMALL * a)
    spread = spread if spread < _FAR else _FAR
    share = (order - _ONE + a + _HALF * b) / order
    p = near / (_TWO * order) - spread + _TWO * share
    root = np.sqrt(p * p + _EIGHT * share * spread)
    upward = p > _ZERO
    narrow = (p + root if upward else _TWO * share * spread) / (_FOUR if upward else root - p)
    wide = _HALF * share + np.sqrt(_QUARTER * share * share + middle / (_TWO * order))
    return narrow if narrow < wide else wide


@njit(fastmath=fast.CONTRACT, error_model="numpy")
def _place(w, order, stretch, most, share):  # type: ignore[no-untyped-def]
    """Vertex, size and bend of the path of every pair of the block."""
    wide_vectors()
    rest, bow = order - _ONE, share * stretch / _THREE
    lowest = rest / order
    for i in range(_BLOCK):
        a, b, c, n, g = w[_A + i], w[_B + i], w[_C + i], w[_N + i], w[_G + i]
        s = _start(a, b, c, n, g, order)
        for _ in range(_NEWTON_STEPS):
            x, y, z, u, v = _shares(a, b, c, n, g, s)
            first, second = _slopes(x, y, z, u, v)
            total = rest + first
            step = fast.log(total / (order * s)) * total / (rest + second)
            step = fast.maximum(step, -_TWO)
            step = step if step < _TWO else _TWO
            s = fast.maximum(s * fast.exp(step), lowest)
        x, y, z, u, v = _shares(a, b, c, n, g, s)
        curvature = rest + _slopes(x, y, z, u, v)[1]
        third = _TWO * rest + _third_slope(x, y, z, u, v)
        root = np.sqrt(curvature)
        lean = fast.maximum(third / (curvature * root) * bow, _ZERO)
        lean = lean if lean < most else most
        size = s / root * stretch
        w[_VERTEX + i], w[_SIZE + i], w[_BEND + i] = s, size, size * lean


@njit(fastmath=fast.CONTRACT, error_model="numpy")
def _add_node(w, order, rise, run, step):  # type: ignore[no-untyped-def]
    """The terms of one node of every pair of the block, added to its value and slopes."""
    wide_vectors()
    power = _HALF - order
    for i in range(_BLOCK):
        a, b, c, n, g = w[_A + i], w[_B + i], w[_C + i], w[_N + i], w[_G + i]
        size, bend = w[_SIZE + i], w[_BEND + i]
        s_re, s_im = w[_VERTEX + i] + bend * (_ONE - run), size * rise
        squared = s_re * s_re + s_im * s_im
        inverse = _ONE / squared
        v_re, v_im = s_re * inverse, -s_im * inverse
        e_re, e_im = a * s_re + c * v_re + b, a * s_im + c * v_im
        e_squared = e_re * e_re + e_im * e_im
        inverse = _ONE / e_squared
        f_re, f_im = e_re * inverse, -e_im * inverse
        q_re = (n * s_re + g) * f_re - n * s_im * f_im
        q_im = (n * s_re + g) * f_im + n * s_im * f_re
        logs = _HALF * power * fast.log(squared) - _QUARTER * fast.log(e_squared)
        height = order * (s_re - _ONE) + logs - _HALF * q_re
        angles = power * _angle(s_re, s_im, np.sqrt(squared)) - _HALF * _angle(e_re, e_im, np.sqrt(e_squared))
        phase = order * s_im + angles - _HALF * q_im
        sine, cosine = _sin_cos(phase if height > _LOWEST else _ZERO)
        modulus = fast.exp(height) * (_TWO * step)
        m_re = modulus * (cosine * size * run - sine * bend * rise)
        m_im = modulus * (cosine * bend * rise + sine * size * run)
        r_re, r_im = m_re * f_re - m_im * f_im, m_re * f_im + m_im * f_re
        t_re, t_im = r_re - r_re * q_re + r_im * q_im, r_im - r_re * q_im - r_im * q_re
        w[_VALUE + i] += m_re
        w[_BY_A + i] += t_re * s_re - t_im * s_im
        w[_BY_B + i] += t_re
        w[_BY_C + i] += t_re * v_re - t_im * v_im
        w[_BY_N + i] += r_re * s_re - r_im * s_im
        w[_BY_G + i] += r_re


@kernel(error_model="numpy")
def plane_rows(form, order, rule, out, start, stop):  # type: ignore[no-untyped-def]
    """out[j] ← the mean and its slopes in a, b, c, n, g of the pairs j of [start, stop), from form[j].

    Args:
        form: a, b, c, n, g, (P, 5), float32.
        order: ν > 1.
        rule: a `contmax.numerics.Hyperbola`, as an array.
        out: (P, 6), float32.
        start: the first pair.
        stop: one past the last pair.
    """
    w = np.empty(_ROWS * _BLOCK, dtype=np.float32)
    nu = np.float32(order)
    nodes, end = int(rule[0]), rule[1]
    stretch, lean, curvature = np.float32(rule[2]), np.float32(rule[3]), np.float32(rule[4])
    step = end / nodes
    for first in range(start, stop, _BLOCK):
        count = min(_BLOCK, stop - first)
        w[:_VERTEX] = _QUARTER
        w[_VALUE:] = _ZERO
        for row in range(5):
            for i in range(count):
                w[row * _BLOCK + i] = form[first + i, row]
        _place(w, nu, stretch, lean, curvature)
        for q in range(nodes):
            u = (q + 0.5) * step
            _add_node(w, nu, np.float32(np.sinh(u)), np.float32(np.cosh(u)), np.float32(step))
        for row in range(6):
            factor = _ONE if row == 0 else -_HALF
            for i in range(count):
                out[first + i, row] = factor * w[_VALUE + row * _BLOCK + i]
