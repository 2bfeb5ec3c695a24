"""β-Gaussians with heavy tails, α < 1, against Gaussians: the mean over the law of the scale, a Gamma law.

The rule is that of `_half_line` in `contmax.expectations._scale_law`: nodes s with ln s = high − sinh w.
"""

import triton
import triton.language as tl

from contmax.kernels.means._gpu_lengths import distance

# Nodes, and −ln of what is left out of the law at either end.
_NODES, _LEFT_OUT = tl.constexpr(32), tl.constexpr(18.0)
# Distances in standard deviations beyond which every density and function has nothing in common, and the least a.
_FARTHEST, _LEAST = tl.constexpr(1e12), tl.constexpr(1e-24)


@triton.jit
def _form(mu, deviation, centre, width):
    """1/√(V + σ_j²), z, and a, b, n of the form of each pair."""
    larger = tl.maximum(deviation, width)
    ratio = tl.minimum(deviation, width) / larger
    inverse = 1.0 / (larger * tl.sqrt(1.0 + ratio * ratio))
    z = tl.minimum(tl.maximum(distance(mu, centre) * inverse, -_FARTHEST), _FARTHEST)
    own, other = width * inverse, deviation * inverse
    return inverse, z, tl.maximum(own * own, _LEAST), other * other


@triton.jit
def _half_line(b, n, x):
    """The largest ln s, and the step between nodes, of each pair."""
    t = _LEFT_OUT / (x + 1.0)
    root = tl.sqrt(2.0 * t)
    above = tl.log(1.0 + t + root)
    length = tl.minimum(root, 1.0) + t + tl.log(1.0 + n * b / (2.0 * (x + 1.0))) + above
    return tl.log(1.0 + 1.0 / x) + above, tl.log(length + tl.sqrt(length * length + 1.0)) / (_NODES - 1)


@triton.jit
def _tail_at(a, b, n, high, w, x):
    """At the node w: s, 1/e, n s/e, s − 1 − ln s, and the term without the step."""
    growth, shrink = tl.exp(w), tl.exp(-w)
    log_s = high - 0.5 * (growth - shrink)
    s = tl.exp(log_s)
    # s − 1 − ln s loses all digits near s = 1, where its series has them.
    series = 1.0 / 5040.0 + log_s * (1.0 / 40320.0 + log_s * (1.0 / 362880.0))
    series = 1.0 / 24.0 + log_s * (1.0 / 120.0 + log_s * (1.0 / 720.0 + log_s * series))
    series = log_s * log_s * (0.5 + log_s * (1.0 / 6.0 + log_s * series))
    rate = tl.where(tl.abs(log_s) < 0.6, series, s - 1.0 - log_s)
    e = a * s + b
    inverse = 1.0 / e
    q = n * s * inverse
    term = tl.exp(1.5 * log_s - x * rate - 0.5 * tl.log(e) - 0.5 * q) * (0.5 * (growth + shrink))
    return s, inverse, q, rate, term


@triton.jit
def tail_value(mu, deviation, centre, width, x):
    """r without the normaliser of the law and 1/√2π; V is `deviation`², and −ν is x."""
    inverse, z, a, b = _form(mu, deviation, centre, width)
    n = z * z
    high, step = _half_line(b, n, x)
    total = tl.zeros_like(n)
    for i in range(_NODES):
        _s, _e, _q, _rate, term = _tail_at(a, b, n, high, step * i, x)
        total += term
    return total * step * inverse


@triton.jit
def tail_slopes(mu, deviation, centre, width, x, log_slope):
    """Slopes in μ, √V, σ_j and, at fixed V, |ν|, without the same; `log_slope` is that of ln of the normaliser."""
    inverse, z, a, b = _form(mu, deviation, centre, width)
    n = z * z
    high, step = _half_line(b, n, x)
    total, by_a, by_b = tl.zeros_like(n), tl.zeros_like(n), tl.zeros_like(n)
    by_n, by_law = tl.zeros_like(n), tl.zeros_like(n)
    for i in range(_NODES):
        s, e, q, rate, term = _tail_at(a, b, n, high, step * i, x)
        share = term * e
        turned = share - share * q
        total += term
        by_a += turned * s
        by_b += turned
        by_n += share * s
        by_law += term * rate
    size = step * inverse
    common = n * by_n - total
    by_deviation = (common + a * (by_a - by_b)) * (deviation * inverse) * (size * inverse)
    by_width = (common + b * (by_b - by_a)) * (width * inverse) * (size * inverse)
    return z * by_n * (size * inverse * -1.0), by_deviation, by_width, (total * log_slope - by_law) * size
