"""E_p[ψ] of β-Gaussians of any α ≥ 1 against Gaussian bases on the line, by the mean over the law of the scale.

A β-Gaussian is a mixture of Gaussians N(μ, V/s), and the law of the scale is the law of s, given by the number
ν = 1/(α−1) + 3/2. All arithmetic is in float64, because near α = 1 phases of the integrand are a small number times the
large ν. The law needs the variance of a β-Gaussian, η = 1/ν and a normaliser, with their derivatives, all of
them computed once per density. The formulas are in `contmax.densities._profile`, `contmax.numerics._radial` and
`contmax.expectations._scale_mean`. Functions that underflow on the whole support of a density are skipped. The others
fill the blocks of `_cpu_scale_path`, which treats the line as a plane: the numbers c and g of a pair are 0.
"""

import math

import numpy as np
from numba import njit

from contmax.kernels.cpu._compiled import kernel
from contmax.kernels.means import _cpu_scale_path as path

# Variances are clamped to this range, where inverses, and products with widths, are finite.
_SMALLEST_VARIANCE, _LARGEST_VARIANCE = 1e-290, 1e290
# Distances are clamped to _FARTHEST standard deviations, where r is 0.
_FARTHEST = 1e12
# σ_j²/(V + σ_j²) is clamped to at least this: a function narrower than 1e-12 of the density's width would lose all
# digits at the edge of the density.
_LEAST = 1e-24
_TWO_PI, _HALF_LOG_2PI = 2 * math.pi, 0.5 * math.log(2 * math.pi)
# The rule near α = 1, used where |η| < NEAR_ONE: the highest moment of the law, the number of nodes, and the radius of
# the circle about s = 1 on which the nodes lie. `contmax.expectations._scale_mean` has the same numbers.
NEAR_ONE, _MOMENTS, _CIRCLE, _RADIUS = 4e-3, 16, 16, 0.3
_SHIFT = 8
# Coefficients of asymptotic series: of ln Γ(w+¾)/Γ(w+¼), and of ln Γ, which is used from _STIRLING_FROM on.
_EULER = (1, 5, 61, 1385, 50521, 2702765, 199360981)
_HALF_STEP = tuple((-1) ** j * euler / ((j + 1) * 4 ** (2 * j + 3)) for j, euler in enumerate(_EULER))
_STIRLING = (1 / 12, -1 / 360, 1 / 1260, -1 / 1680, 1 / 1188, -691 / 360360)
_STIRLING_FROM = 10.0


@njit(error_model="numpy")
def _gamma_ratio(gap):  # type: ignore[no-untyped-def]
    """G₁(ε) = ln Γ(k + 3/2) − ln Γ(k + 1) − ½ ln k for k = 1/ε > 0 (ε < 0: `numerics._radial`), and its derivative."""
    sign = -1.0 if gap < 0 else 1.0
    size = sign * gap
    offset = _SHIFT + 0.75 * sign
    scale = 1.0 / (1.0 + offset * size)
    inverse = size * scale
    square = inverse * inverse
    value, series = 0.0, 0.0
    for j in range(len(_HALF_STEP) - 1, -1, -1):
        value = (value + _HALF_STEP[j]) * square
        series = series * square + 2.0 * (j + 1) * _HALF_STEP[j]
    value += 0.5 * math.log1p(offset * size)
    slope = series * inverse * scale * scale + 0.5 * offset * scale
    for j in range(1, _SHIFT + 1):
        below = j - (1.0 - sign) / 2
        value -= sign * math.log1p(0.5 * sign * size / (1.0 + below * size))
        slope -= 0.5 / ((1.0 + below * size) * (1.0 + (below + 0.5 * sign) * size))
    return value, sign * slope


@njit(error_model="numpy")
def _scale_of_row(sigma, gap):  # type: ignore[no-untyped-def]
    """V, ∂V/∂σ and ∂V/∂α of the β-Gaussian with scale σ and α = 1 + ε; η and dη/dα."""
    ratio, ratio_slope = _gamma_ratio(gap)
    weight = 1.0 / (1.0 + 0.5 * gap)
    peak = weight * (ratio - _HALF_LOG_2PI - math.log(sigma))
    share = 1.0 / (1.0 + 1.5 * gap)
    # Multiply by σ twice: σ² may be out of range although V is not.
    variance = sigma * math.exp(gap * peak) * share * sigma
    variance = min(max(variance, _SMALLEST_VARIANCE), _LARGEST_VARIANCE)
    by_sigma = variance / sigma * (2.0 - gap * weight)
    by_gap = variance * (peak + gap * weight * (ratio_slope - 0.5 * peak) - 1.5 * share)
    return variance, by_sigma, by_gap, gap * share, share * share


@njit(error_model="numpy")
def _stirling(order):  # type: ignore[no-untyped-def]
    """ln g(ν) and its derivative for ν > 0, with g(ν) = Γ(ν) e^ν ν^{1/2−ν}/√(2π), which is 1 + 1/(12ν) + …."""
    x, product, harmonic = order, 0.0, 0.0
    while x < _STIRLING_FROM:
        product += math.log(x)
        harmonic += 1.0 / x
        x += 1.0
    inverse = 1.0 / x
    square = inverse * inverse
    series, slope = 0.0, 0.0
    for j in range(len(_STIRLING) - 1, -1, -1):
        series = series * square + _STIRLING[j]
        slope = slope * square - (2 * j + 1) * _STIRLING[j]
    series, slope = series * inverse, slope * square
    if x == order:
        return series, slope
    log_x, log_order = math.log(x), math.log(order)
    value = series + (x - 0.5) * log_x - x - product + order - (order - 0.5) * log_order
    return value, slope + log_x - 0.5 * inverse - harmonic - log_order + 0.5 / order


@njit(error_model="numpy")
def _circle_nodes(eta):  # type: ignore[no-untyped-def]
    """Nodes of `path.integrate` on a circle about s = 1, with weights from moments E[(s − 1)ᵐ], and ∂weights/∂η."""
    moments, slopes, nodes = np.zeros(_MOMENTS + 1), np.zeros(_MOMENTS + 1), np.zeros((_CIRCLE, 6))
    moments[0], moments[1], slopes[1] = 1.0, -eta, -1.0
    for m in range(1, _MOMENTS):
        inner = m * moments[m - 1] + (m + 1) * moments[m]
        moments[m + 1] = -eta * inner
        slopes[m + 1] = -inner - eta * (m * slopes[m - 1] + (m + 1) * slopes[m])
    for q in range(_CIRCLE):
        theta = (q + 0.5) * math.pi / _CIRCLE
        nodes[q, 0], nodes[q, 1] = _RADIUS * math.sin(theta), 1.0 - _RADIUS * math.cos(theta)
        for m in range(_MOMENTS + 1):
            scale = _RADIUS**-m / _CIRCLE
            cosine, sine = scale * math.cos(m * theta), -scale * math.sin(m * theta)
            nodes[q, 2] += moments[m] * cosine
            nodes[q, 3] += moments[m] * sine
            nodes[q, 4] += slopes[m] * cosine
            nodes[q, 5] += slopes[m] * sine
    return nodes


@njit(error_model="numpy")
def _alive(mu, reach, centre, width, live):  # type: ignore[no-untyped-def]
    """Write to `live` the functions that do not underflow everywhere on the support, μ ± reach; return their count."""
    farthest = 13.2 if centre.itemsize == 4 else 37.4
    count = 0
    for j in range(centre.shape[0]):
        live[count] = j
        count += abs(np.float64(centre[j]) - mu) <= reach + farthest * np.float64(width[j])
    return count


@njit
def _bounded(slope, largest):  # type: ignore[no-untyped-def]
    """The slope, clamped to ±largest."""
    return min(max(slope, -largest), largest)


@kernel(error_model="numpy")
def line_scale_rows(r, by, loc, scale, alpha, centre, width, rule, start, stop):  # type: ignore[no-untyped-def]
    """Write r and by = ∂r/∂(μ, σ, σ_j, α) of densities start…stop.

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
    block = path.of(np.float64, 128, 32)
    pairs, live = np.empty((path.ROWS, block)), np.empty(centre.shape[0] + 1, np.int64)
    on_path = path.path_nodes(rule, np.float64)
    # Slopes are clamped to ±largest: the sum over functions of infinite slopes of both signs would be NaN.
    largest = 1e33 if centre.itemsize == 4 else 1e303
    for row in range(start, stop):
        mu, sigma = np.float64(loc[row]), np.float64(scale[row])
        gap = alpha[row if alpha.shape[0] > 1 else 0] - 1.0
        known = np.isfinite(mu) and sigma > 0 and np.isfinite(gap)
        r[row] = by[0, row] = by[1, row] = by[2, row] = by[3, row] = 0.0 if known else np.nan
        if not known:
            continue
        variance, by_sigma, by_gap, eta, eta_slope = _scale_of_row(sigma, gap)
        # BY_LAW is a slope in η on the circle about s = 1, and a slope in ν on a path, where ∂/∂η = −ν² ∂/∂ν.
        order, factor, law_slope, factor_slope, nodes = 0.0, 1.0, 1.0, 0.0, on_path
        if abs(eta) < NEAR_ONE:
            nodes = _circle_nodes(eta)
        else:
            order = 1.0 / eta
            log_factor, log_slope = _stirling(order)
            factor = math.sqrt(order / _TWO_PI) * math.exp(log_factor)
            law_slope, factor_slope = -order * order, -order * order * (0.5 / order + log_slope)
        reach = math.sqrt(variance * (2.0 / gap + 3.0)) if gap > 0 else np.inf
        count = _alive(mu, reach, centre, width, live)
        for first in range(0, count, block):
            functions = live[first : min(first + block, count)]
            pairs[: path.VERTEX] = 0.25
            for i, j in enumerate(functions):
                own = min(np.float64(width[j]) ** 2, _LARGEST_VARIANCE)
                total = own + variance
                pairs[path.A, i], pairs[path.B, i] = max(own / total, _LEAST), variance / total
                pairs[path.C, i] = pairs[path.G, i] = 0.0
                pairs[path.N, i] = min(abs(mu - np.float64(centre[j])) / math.sqrt(total), _FARTHEST) ** 2
            path.integrate(pairs.ravel(), order, rule, nodes)
            for i, j in enumerate(functions):
                deviation = np.float64(width[j])
                total = min(deviation**2, _LARGEST_VARIANCE) + variance
                root = math.sqrt(total)
                size = factor / (math.sqrt(_TWO_PI) * root)
                a, b, n, value = pairs[path.A, i], pairs[path.B, i], pairs[path.N, i], pairs[path.VALUE, i]
                by_a, by_b, by_n = -0.5 * pairs[path.BY_A, i], -0.5 * pairs[path.BY_B, i], -0.5 * pairs[path.BY_N, i]
                by_variance = (-0.5 * value + a * (by_b - by_a) - n * by_n) * size / total
                by_own = (-0.5 * value + b * (by_a - by_b) - n * by_n) * size / total
                by_eta = (law_slope * pairs[path.BY_LAW, i] + factor_slope * value) * size
                r[row, j] = value * size
                z = math.copysign(math.sqrt(n), mu - np.float64(centre[j]))
                by[0, row, j] = _bounded(2.0 * z * by_n * size / root, largest)
                by[1, row, j] = _bounded(by_variance * by_sigma, largest)
                by[2, row, j] = _bounded(by_own * 2.0 * deviation, largest)
                by[3, row, j] = _bounded(by_variance * by_gap + by_eta * eta_slope, largest)
