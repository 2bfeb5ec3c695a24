"""For the means on the line, in float64: the law of the scale of one density; and arg, sin and cos.

The law of the scale needs the variance of a β-Gaussian, η = 1/ν and a normaliser, with their derivatives. The formulas
are those of `contmax.densities._profile`, `contmax.numerics._gamma_ratio` and `contmax.expectations._scale_law`. The
elementary functions have a form that LLVM turns into vector code; their polynomials are from Cephes.
"""

import math

import numpy as np
from numba import njit

from contmax.kernels.cpu import _elementary as fast

# Beyond these a variance has no inverse, or no product with a width, that is a number.
SMALLEST_VARIANCE, LARGEST_VARIANCE = 1e-290, 1e290
_HALF_LOG_2PI = 0.5 * math.log(2 * math.pi)
_SHIFT = 8
# The series of ln Γ(w+¾)/Γ(w+¼) and of ln Γ.
_EULER = (1, 5, 61, 1385, 50521, 2702765, 199360981)
_HALF_STEP = tuple((-1) ** j * euler / ((j + 1) * 4 ** (2 * j + 3)) for j, euler in enumerate(_EULER))
_STIRLING = (1 / 12, -1 / 360, 1 / 1260, -1 / 1680, 1 / 1188, -691 / 360360)
_STIRLING_FROM = 10.0
_TAN_EIGHTH, _QUARTER_TURN = 0.41421356237309503, 0.78539816339744831
# arctan x = x + x³ P(x²)/Q(x²) for |x| ≤ tan π/8.
_P0, _P1, _P2 = -6.485021904942025371773e1, -1.228866684490136173410e2, -7.500855792314704667340e1
_P3, _P4 = -1.615753718733365076637e1, -8.750608600031904122785e-1
_Q0, _Q1, _Q2 = 1.945506571482613964425e2, 4.853903996359136964868e2, 4.328810604912902668951e2
_Q3, _Q4 = 1.650270098316988542046e2, 2.485846490142306297962e1
# sin and cos for |x| ≤ π/4, and π/2 in three parts.
_S0, _S1, _S2 = -1.66666666666666307295e-1, 8.33333333332211858878e-3, -1.98412698295895385996e-4
_S3, _S4, _S5 = 2.75573136213857245213e-6, -2.50507477628578072866e-8, 1.58962301576546568060e-10
_C0, _C1, _C2 = 4.16666666666665929218e-2, -1.38888888888730564116e-3, 2.48015872888517045348e-5
_C3, _C4, _C5 = -2.75573141792967388112e-7, 2.08757008419747316778e-9, -1.13585365213876817300e-11
_TURN_HIGH, _TURN_MIDDLE, _TURN_LOW = 1.57079625129699707031, 7.54978941586159635335e-8, 5.39030285815811905290e-15
_QUARTERS_PER_RADIAN, _ROUND = 0.63661977236758134308, 6755399441055744.0


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


@njit(fastmath=fast.CONTRACT, error_model="numpy")
def angle(x, y, size):  # type: ignore[no-untyped-def]
    """The argument of x + iy of modulus ``size``, up to 135° from the positive axis: twice an arctangent."""
    height, base = abs(y), size + x
    steep = height > _TAN_EIGHTH * base
    t = (height - base if steep else height) / (height + base if steep else base)
    q = t * t
    above = _P0 + q * (_P1 + q * (_P2 + q * (_P3 + q * _P4)))
    below = _Q0 + q * (_Q1 + q * (_Q2 + q * (_Q3 + q * (_Q4 + q))))
    half = t + t * q * above / below + (_QUARTER_TURN if steep else 0.0)
    return 2.0 * (half if y >= 0.0 else -half)


@njit(fastmath=fast.CONTRACT, error_model="numpy")
def sin_cos(x):  # type: ignore[no-untyped-def]
    """Sine and cosine of x, to rounding up to |x| = 1e6."""
    shifted = x * _QUARTERS_PER_RADIAN + _ROUND
    n = shifted - _ROUND
    quarter = np.float64(shifted).view(np.int64)
    r = ((x - n * _TURN_HIGH) - n * _TURN_MIDDLE) - n * _TURN_LOW
    q = r * r
    sine = r + r * q * (_S0 + q * (_S1 + q * (_S2 + q * (_S3 + q * (_S4 + q * _S5)))))
    cosine = 1.0 - 0.5 * q + q * q * (_C0 + q * (_C1 + q * (_C2 + q * (_C3 + q * (_C4 + q * _C5)))))
    odd = (quarter & np.int64(1)) != 0
    first, second = (cosine if odd else sine), (sine if odd else cosine)
    first = -first if (quarter & np.int64(2)) != 0 else first
    second = -second if ((quarter + np.int64(1)) & np.int64(2)) != 0 else second
    return first, second
