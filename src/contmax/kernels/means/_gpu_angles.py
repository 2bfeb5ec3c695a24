"""arg, sin and cos in float32; polynomials from Cephes, as in the kernels for the CPU."""

import triton
import triton.language as tl

_TAN_EIGHTH, _QUARTER_TURN = tl.constexpr(0.41421356), tl.constexpr(0.78539816339)
# π/2 in three parts.
_TURN_HIGH, _TURN_MIDDLE = tl.constexpr(1.5703125), tl.constexpr(4.837512969970703125e-4)
_TURN_LOW, _QUARTERS_PER_RADIAN = tl.constexpr(7.549789948768648e-8), tl.constexpr(0.63661977236)


@triton.jit
def angle(x, y, size):
    """The argument of x + iy of modulus ``size``, up to 135° from the positive axis: twice an arctangent."""
    height, base = tl.abs(y), size + x
    steep = height > base * _TAN_EIGHTH
    t = tl.where(steep, height - base, height) / tl.where(steep, height + base, base)
    q = t * t
    series = -3.33329491539e-1 + q * (1.99777106478e-1 + q * (-1.38776856032e-1 + q * 8.05374449538e-2))
    half = t + t * q * series + tl.where(steep, _QUARTER_TURN, 0.0)
    return 2.0 * tl.where(y >= 0.0, half, -half)


@triton.jit
def sin_cos(x):
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
