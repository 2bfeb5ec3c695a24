"""What a β-Gaussian of any α on the line is, for one density: its width, its normaliser, and their derivatives.

With t = μ + bξ its density in ξ is C(ε) (1 − εξ²)^{1/ε}, ε = α − 1, which is exp(−ξ²)/√π at ε = 0. The formulas are
those of `contmax.densities._profile`, `contmax.numerics._gamma_ratio` and `stirling_factor` in
`contmax.expectations._scale_law`, in float64: once for a row they cost little.
"""

import triton
import triton.language as tl

_HALF_LOG_2PI, _HALF_LOG_2 = tl.constexpr(0.9189385332046727), tl.constexpr(0.34657359027997264)
# Closer to one α is so near that a Gaussian has the same values, and beyond the last the density is uniform.
_LEAST, _MOST = tl.constexpr(1e-7), tl.constexpr(1e6)


@triton.jit
def gap_in_range(gap):
    """ε = α − 1, not zero; NaN stays NaN."""
    gap = tl.where(gap > _MOST, _MOST, gap)
    return tl.where(tl.abs(gap) < _LEAST, _LEAST, gap)


@triton.jit
def _gamma_ratio(gap):
    """G₁(ε) and its derivative."""
    sign = tl.where(gap < 0.0, -1.0, 1.0).to(tl.float64)
    size = sign * gap
    offset = 8.0 + 0.75 * sign
    scale = 1.0 / (1.0 + offset * size)
    inverse = size * scale
    q = inverse * inverse
    # The series of ln Γ(w+¾)/Γ(w+¼), made of Euler numbers; three terms are enough for float32, six are taken.
    c_1, c_2, c_3 = 1.0 / 64.0, -5.0 / 2048.0, 61.0 / 49152.0
    c_4, c_5, c_6 = -1385.0 / 1048576.0, 50521.0 / 20971520.0, -2702765.0 / 402653184.0
    value = q * (c_1 + q * (c_2 + q * (c_3 + q * (c_4 + q * (c_5 + q * c_6)))))
    series = 2.0 * c_1 + q * (4.0 * c_2 + q * (6.0 * c_3 + q * (8.0 * c_4 + q * (10.0 * c_5 + q * (12.0 * c_6)))))
    slope = series * inverse * scale * scale + 0.5 * offset * scale
    # Products of eight quotients and sums of eight reciprocals, each as one quotient: divisions in float64 are slow.
    tops, bottoms, sums = 1.0 + 0.0 * size, 1.0 + 0.0 * size, 0.0 * size
    for j in tl.static_range(1, 9):
        below = 1.0 + (j - 0.5 + 0.5 * sign) * size
        above = below + 0.5 * sign * size
        sums = sums * (below * above) + tops * bottoms
        tops *= above
        bottoms *= below
    slope -= 0.5 * sums / (tops * bottoms)
    return value - 0.5 * tl.log(scale) - sign * tl.log(tops / bottoms), sign * slope


@triton.jit
def row_law(sigma, gap):
    """ln b, ∂ln b/∂ln σ, ∂ln b/∂α, ln C and dln C/dε, in float64."""
    ratio, slope = _gamma_ratio(gap)
    weight = 1.0 / (1.0 + 0.5 * gap)
    log_sigma = tl.log(sigma)
    height = ratio - _HALF_LOG_2PI
    peak = weight * (height - log_sigma)
    log_b = _HALF_LOG_2 + weight * (log_sigma + 0.5 * gap * height)
    by_gap = 0.5 * (peak + gap * weight * (slope - 0.5 * peak))
    # ½ ln π = ½ ln 2π − ½ ln 2.
    return log_b, weight, by_gap, ratio - (_HALF_LOG_2PI - _HALF_LOG_2), slope


@triton.jit
def tail_law(gap):
    """−ν, ln of the normaliser √(|ν|/2π)/g(|ν|) of the law of the scale, and its derivative in |ν|, for α < 1."""
    x = -(1.0 + 1.5 * gap) / gap
    # Γ is shifted up by ten, to where Stirling's series is exact.
    shifted = x + 10.0
    product, harmonic = x * 0.0 + 1.0, x * 0.0
    for j in tl.static_range(10):
        product *= x + j
        harmonic += 1.0 / (x + j)
    inverse = 1.0 / shifted
    q = inverse * inverse
    series = inverse * (1.0 / 12.0 + q * (-1.0 / 360.0 + q * (1.0 / 1260.0 - q * (1.0 / 1680.0))))
    series_slope = q * (-1.0 / 12.0 + q * (3.0 / 360.0 + q * (-5.0 / 1260.0 + q * (7.0 / 1680.0))))
    log_x, log_shifted = tl.log(x), tl.log(shifted)
    log_g = series + (shifted - 0.5) * log_shifted - shifted - tl.log(product) + x - (x - 0.5) * log_x
    slope = series_slope + log_shifted - 0.5 * inverse - harmonic - log_x + 0.5 / x
    return x, 0.5 * log_x - _HALF_LOG_2PI - log_g, 0.5 / x - slope
