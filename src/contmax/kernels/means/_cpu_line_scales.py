"""E_p[ψ] of β-Gaussians of any α ≥ 1 against Gaussian bases on the line, by the mean over the law of the scale.

The arithmetic is that of the torch reference in `contmax.expectations` (`_scale_law`, `_scale_mean`, and `_plane_form`
with c = g = 0), which explains the numbers and the path. All of it is in float64: near α = 1 the phase is ν times a
small number. Numbers of the density alone are computed once for its row. Functions that underflow on its support are
skipped; the others run side by side in blocks. The rows of a block lie in one array at a known distance from each
other, so that LLVM sees that they do not overlap.
"""

import math

import numpy as np
from numba import njit

from contmax.kernels.cpu import _elementary as fast
from contmax.kernels.cpu._compiled import kernel
from contmax.kernels.cpu._lanes import wide_vectors
from contmax.kernels.means._cpu_scale_law import LARGEST_VARIANCE, angle, scale_of_row, sin_cos, stirling

_BLOCK = 32
# The rows of a block: a, b, n of the form; the path; the sums over the nodes.
_A, _B, _N, _VERTEX, _SIZE, _BEND = (row * _BLOCK for row in range(6))
_VALUE, _BY_A, _BY_B, _BY_N, _BY_LAW = (row * _BLOCK for row in range(6, 11))
_ROWS = 11
_NEWTON_STEPS = 3
# Distances are clamped to this number of standard deviations, where every r is zero.
_FARTHEST = 1e12
# A function counts as at least 1e-12 times as wide as the density: at its edge narrower ones would lose all digits.
_LEAST = 1e-24
_LOWEST = -700.0
_TWO_PI = 2 * math.pi
# As in `contmax.expectations._scale_mean`.
NEAR_ONE, _MOMENTS, _CIRCLE, _RADIUS = 4e-3, 16, 16, 0.3


@njit(fastmath=fast.CONTRACT, error_model="numpy")
def _derivatives(a, b, n, s):  # type: ignore[no-untyped-def]
    """The first three derivatives of the exponent in ln s, as the torch reference has them."""
    inverse = 1.0 / (a * s + b)
    x, y, u = a * s * inverse, b * inverse, n * s * inverse
    volume = y + 2.0 * x
    second = u * x * y - x + 0.5 * volume * volume
    third = volume * (volume * volume - 3.0 * x) + 3.0 * x * x * u * y
    return 0.5 * (volume + u * y), second, third


@njit(fastmath=fast.CONTRACT, error_model="numpy")
def _place(w, order, stretch, most, share):  # type: ignore[no-untyped-def]
    """Vertex, size and bend of the path of every function of the block."""
    wide_vectors()
    rest, bow = order - 1.0, share * stretch / 3.0
    lowest = rest / order
    for i in range(_BLOCK):
        a, b, n = w[_A + i], w[_B + i], w[_N + i]
        near, spread = n / a, b / a
        part = (rest + a + 0.5 * b) / order
        p = near / (2.0 * order) - spread + 2.0 * part
        root = np.sqrt(p * p + 8.0 * part * spread)
        upward = p > 0.0
        narrow = (p + root if upward else 2.0 * part * spread) / (4.0 if upward else root - p)
        wide = 0.5 * part + np.sqrt(0.25 * part * part + near * b / a / (2.0 * order))
        s = narrow if narrow < wide else wide
        for _ in range(_NEWTON_STEPS):
            first, second, _third = _derivatives(a, b, n, s)
            total = rest + first
            step = fast.log(total / (order * s)) * total / (rest + second)
            step = fast.maximum(step, -2.0)
            step = step if step < 2.0 else 2.0
            s = fast.maximum(s * fast.exp(step), lowest)
        _first, second, third = _derivatives(a, b, n, s)
        curvature = rest + second
        root = np.sqrt(curvature)
        lean = fast.maximum((2.0 * rest + third) / (curvature * root) * bow, 0.0)
        lean = lean if lean < most else most
        size = s / root * stretch
        w[_VERTEX + i], w[_SIZE + i], w[_BEND + i] = s, size, size * lean


@njit(fastmath=fast.CONTRACT, error_model="numpy", inline="always")
def _gaussian(a, b, n, s_re, s_im, order):  # type: ignore[no-untyped-def]
    """exp(ν(s − 1 − ln s)) N(s) without its factor: modulus, cosine and sine; then 1/e, q and ln s."""
    squared = s_re * s_re + s_im * s_im
    e_re, e_im = a * s_re + b, a * s_im
    e_squared = e_re * e_re + e_im * e_im
    inverse = 1.0 / e_squared
    f_re, f_im = e_re * inverse, -e_im * inverse
    q_re, q_im = n * (s_re * f_re - s_im * f_im), n * (s_re * f_im + s_im * f_re)
    log_re, log_im = 0.5 * fast.log(squared), angle(s_re, s_im, np.sqrt(squared))
    power = 0.5 - order
    height = order * (s_re - 1.0) + power * log_re - 0.25 * fast.log(e_squared) - 0.5 * q_re
    phase = order * s_im + power * log_im - 0.5 * angle(e_re, e_im, np.sqrt(e_squared)) - 0.5 * q_im
    sine, cosine = sin_cos(phase if height > _LOWEST else 0.0)
    return fast.exp(height), cosine, sine, f_re, f_im, q_re, q_im, log_re, log_im


@njit(fastmath=fast.CONTRACT, error_model="numpy")
def _add_node(w, order, rise, run, step):  # type: ignore[no-untyped-def]
    """The terms of one node of the paths of the block, added to its sums."""
    wide_vectors()
    for i in range(_BLOCK):
        a, b, n = w[_A + i], w[_B + i], w[_N + i]
        size, bend = w[_SIZE + i], w[_BEND + i]
        s_re, s_im = w[_VERTEX + i] + bend * (1.0 - run), size * rise
        modulus, cosine, sine, f_re, f_im, q_re, q_im, log_re, log_im = _gaussian(a, b, n, s_re, s_im, order)
        modulus *= 2.0 * step
        m_re = modulus * (cosine * size * run - sine * bend * rise)
        m_im = modulus * (cosine * bend * rise + sine * size * run)
        r_re, r_im = m_re * f_re - m_im * f_im, m_re * f_im + m_im * f_re
        t_re, t_im = r_re - r_re * q_re + r_im * q_im, r_im - r_re * q_im - r_im * q_re
        w[_VALUE + i] += m_re
        w[_BY_A + i] += t_re * s_re - t_im * s_im
        w[_BY_B + i] += t_re
        w[_BY_N + i] += r_re * s_re - r_im * s_im
        w[_BY_LAW + i] += m_re * (s_re - 1.0 - log_re) - m_im * (s_im - log_im)


@njit(fastmath=fast.CONTRACT, error_model="numpy")
def _add_near(w, s_re, s_im, weight):  # type: ignore[no-untyped-def]
    """The terms of one node on the circle about s = 1, with its weight (re, im) and the derivative of that in η."""
    wide_vectors()
    for i in range(_BLOCK):
        a, b, n = w[_A + i], w[_B + i], w[_N + i]
        modulus, cosine, sine, f_re, f_im, q_re, q_im, _re, _im = _gaussian(a, b, n, s_re, s_im, 0.0)
        cosine, sine = modulus * cosine, modulus * sine
        m_re, m_im = cosine * weight[0] - sine * weight[1], cosine * weight[1] + sine * weight[0]
        r_re, r_im = m_re * f_re - m_im * f_im, m_re * f_im + m_im * f_re
        t_re, t_im = r_re - r_re * q_re + r_im * q_im, r_im - r_re * q_im - r_im * q_re
        w[_VALUE + i] += m_re
        w[_BY_A + i] += t_re * s_re - t_im * s_im
        w[_BY_B + i] += t_re
        w[_BY_N + i] += r_re * s_re - r_im * s_im
        w[_BY_LAW + i] += cosine * weight[2] - sine * weight[3]


@njit(error_model="numpy")
def _circle_weights(eta, weights):  # type: ignore[no-untyped-def]
    """weights[q] ← the weight of node q and its derivative in η, from the moments E[(s − 1)ᵐ]."""
    moments, slopes = np.zeros(_MOMENTS + 1), np.zeros(_MOMENTS + 1)
    moments[0], moments[1], slopes[1] = 1.0, -eta, -1.0
    for m in range(1, _MOMENTS):
        inner = m * moments[m - 1] + (m + 1) * moments[m]
        moments[m + 1] = -eta * inner
        slopes[m + 1] = -inner - eta * (m * slopes[m - 1] + (m + 1) * slopes[m])
    for q in range(_CIRCLE):
        theta = (q + 0.5) * math.pi / _CIRCLE
        weights[q] = 0.0
        for m in range(_MOMENTS + 1):
            scale = _RADIUS**-m / _CIRCLE
            cosine, sine = scale * math.cos(m * theta), scale * math.sin(m * theta)
            weights[q, 0] += moments[m] * cosine
            weights[q, 1] -= moments[m] * sine
            weights[q, 2] += slopes[m] * cosine
            weights[q, 3] -= slopes[m] * sine


@njit(error_model="numpy")
def _integrate(w, order, rule, circle):  # type: ignore[no-untyped-def]
    """The sums of a block; ν = 0 stands for an α near one, whose nodes are on the circle."""
    w[_VALUE:] = 0.0
    if order == 0.0:
        for q in range(_CIRCLE):
            theta = (q + 0.5) * math.pi / _CIRCLE
            _add_near(w, 1.0 + _RADIUS * math.cos(theta), _RADIUS * math.sin(theta), circle[q])
        return
    _place(w, order, rule[2], rule[3], rule[4])
    nodes = int(rule[0])
    step = rule[1] / nodes
    for q in range(nodes):
        u = (q + 0.5) * step
        _add_node(w, order, math.sinh(u), math.cosh(u), step)


@njit(error_model="numpy")
def _alive(mu, reach, centre, width, live):  # type: ignore[no-untyped-def]
    """The functions that do not underflow on the whole support, [μ ± reach]; returns their number."""
    farthest = 13.2 if centre.itemsize == 4 else 37.4
    count = 0
    for j in range(centre.shape[0]):
        live[count] = j
        count += abs(np.float64(centre[j]) - mu) <= reach + farthest * np.float64(width[j])
    return count


@njit
def _bounded(slope, largest):  # type: ignore[no-untyped-def]
    return min(max(slope, -largest), largest)


@kernel(error_model="numpy")
def line_scale_rows(r, by, loc, scale, alpha, centre, width, rule, start, stop):  # type: ignore[no-untyped-def]
    """r and by = ∂r/∂(μ, σ, σ_j, α) of densities start…stop.

    Args:
        r: (B, K).
        by: (4, B, K).
        loc: μ, (B,).
        scale: σ, (B,).
        alpha: α ≥ 1, (B,) or (1,), in float64.
        centre: μ_j, (K,).
        width: σ_j, (K,).
        rule: a `contmax.numerics.Hyperbola`, as an array.
        start: the first density.
        stop: one past the last.
    """
    w, circle, live = np.empty(_ROWS * _BLOCK), np.empty((_CIRCLE, 4)), np.empty(centre.shape[0] + 1, np.int64)
    # Bounds slopes, so that sums over many functions stay finite: infinities of both signs would make them NaN.
    largest = 1e33 if centre.itemsize == 4 else 1e303
    for row in range(start, stop):
        mu, sigma = np.float64(loc[row]), np.float64(scale[row])
        gap = alpha[row if alpha.shape[0] > 1 else 0] - 1.0
        known = np.isfinite(mu) and sigma > 0 and np.isfinite(gap)
        r[row] = by[0, row] = by[1, row] = by[2, row] = by[3, row] = 0.0 if known else np.nan
        if not known:
            continue
        variance, by_sigma, by_gap, eta, eta_slope = scale_of_row(sigma, gap)
        near = abs(eta) < NEAR_ONE
        order = 0.0 if near else 1.0 / eta
        log_factor, log_slope = (0.0, 0.0) if near else stirling(order)
        factor = 1.0 if near else math.sqrt(order / _TWO_PI) * math.exp(log_factor)
        # ∂/∂η = −ν² ∂/∂ν of the law and of its normaliser; on the circle the derivative in η is in the weights.
        law_slope, factor_slope = (1.0, 0.0) if near else (-order * order, -order * order * (0.5 / order + log_slope))
        if near:
            _circle_weights(eta, circle)
        reach = math.sqrt(variance * (2.0 / gap + 3.0)) if gap > 0 else np.inf
        count = _alive(mu, reach, centre, width, live)
        for first in range(0, count, _BLOCK):
            last = min(first + _BLOCK, count)
            w[:_VERTEX] = 0.5
            for i in range(last - first):
                j = live[first + i]
                own = min(np.float64(width[j]) ** 2, LARGEST_VARIANCE)
                total = own + variance
                distance = min(abs(mu - np.float64(centre[j])) / math.sqrt(total), _FARTHEST)
                w[_A + i], w[_B + i], w[_N + i] = max(own / total, _LEAST), variance / total, distance * distance
            _integrate(w, order, rule, circle)
            for i in range(last - first):
                j = live[first + i]
                deviation = np.float64(width[j])
                total = min(deviation**2, LARGEST_VARIANCE) + variance
                root = math.sqrt(total)
                size = factor / (math.sqrt(_TWO_PI) * root)
                a, b, n, value = w[_A + i], w[_B + i], w[_N + i], w[_VALUE + i]
                by_a, by_b, by_n = -0.5 * w[_BY_A + i], -0.5 * w[_BY_B + i], -0.5 * w[_BY_N + i]
                by_variance = (-0.5 * value + a * (by_b - by_a) - n * by_n) * size / total
                by_own = (-0.5 * value + b * (by_a - by_b) - n * by_n) * size / total
                by_eta = (law_slope * w[_BY_LAW + i] + factor_slope * value) * size
                r[row, j] = value * size
                z = math.copysign(math.sqrt(n), mu - np.float64(centre[j]))
                by[0, row, j] = _bounded(2.0 * z * by_n * size / root, largest)
                by[1, row, j] = _bounded(by_variance * by_sigma, largest)
                by[2, row, j] = _bounded(by_own * 2.0 * deviation, largest)
                by[3, row, j] = _bounded(by_variance * by_gap + by_eta * eta_slope, largest)
