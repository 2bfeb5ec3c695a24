"""What a β-Gaussian on the line is to the law of its scale: variance, η = 1/ν, and the normaliser of the law.

The formulas of `contmax.densities._profile`, `contmax.numerics._gamma_ratio` and `contmax.expectations._scale_law`, for
one density, with their derivatives.
"""

import math

from numba import njit

# Beyond these a variance has no inverse, or no product with a width, that is a number.
SMALLEST_VARIANCE, LARGEST_VARIANCE = 1e-290, 1e290
_HALF_LOG_2PI = 0.5 * math.log(2 * math.pi)
_SHIFT = 8
# The series of ln Γ(w+¾)/Γ(w+¼) and of ln Γ.
_EULER = (1, 5, 61, 1385, 50521, 2702765, 199360981)
_HALF_STEP = tuple((-1) ** j * euler / ((j + 1) * 4 ** (2 * j + 3)) for j, euler in enumerate(_EULER))
_STIRLING = (1 / 12, -1 / 360, 1 / 1260, -1 / 1680, 1 / 1188, -691 / 360360)
_STIRLING_FROM = 10.0


@njit(error_model="numpy")
def _gamma_ratio(gap):  # type: ignore[no-untyped-def]
    """G₁(ε) and its derivative."""
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
def scale_of_row(sigma, gap):  # type: ignore[no-untyped-def]
    """V, ∂V/∂σ and ∂V/∂α of the β-Gaussian with scale σ and α = 1 + ε; η and dη/dα."""
    ratio, ratio_slope = _gamma_ratio(gap)
    weight = 1.0 / (1.0 + 0.5 * gap)
    peak = weight * (ratio - _HALF_LOG_2PI - math.log(sigma))
    share = 1.0 / (1.0 + 1.5 * gap)
    # Two factors of σ: their square may be out of range although the variance is not.
    variance = sigma * math.exp(gap * peak) * share * sigma
    variance = min(max(variance, SMALLEST_VARIANCE), LARGEST_VARIANCE)
    by_sigma = variance / sigma * (2.0 - gap * weight)
    by_gap = variance * (peak + gap * weight * (ratio_slope - 0.5 * peak) - 1.5 * share)
    return variance, by_sigma, by_gap, gap * share, share * share


@njit(error_model="numpy")
def stirling(order):  # type: ignore[no-untyped-def]
    """ln g(ν) of `stirling_factor` and its derivative, for ν > 0."""
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
