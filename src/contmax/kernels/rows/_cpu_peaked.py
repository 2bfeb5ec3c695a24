r"""Delicate rows, whose gradient depends on the last digits of small probabilities: they are solved again in float64.

There are two kinds. If one score has most of the mass, the gradient is as small as the other probabilities, and has
their relative error. If α > 3/2 and a score is next to the threshold, its small p matters, because the gradient depends
on p^{2−α}, which is steep where p is small, and at α = 2 jumps at p = 0.

With v = x − max x, ε = α − 1, d = v + 1/ε and the normaliser A, p = [1 + ε(v − A)]₊^{1/ε} = [ε(d − A)]₊^{1/ε}. Near the
threshold v and 1/ε cancel, so d is computed by sums whose rounding errors are added back. We solve for A, since the
threshold A − 1/ε loses digits of a small A. Each of m equal maxima has the probability 1 − q with
q = −expm1(log1p(−εA)/ε). If S(A) is the mass of all other scores, A solves

    S(A) + (m − 1) − m q(A) = 0.

The left side is convex and decreasing, so Newton's method finds all digits of A from below, however small A is.
"""

import math

import numpy as np
from numba import njit

from contmax.kernels.cpu import _elementary as fast
from contmax.kernels.cpu._lanes import wide_vectors
from contmax.kernels.rows._cpu_evaluate import REDUCTION, ZERO, integer_power, largest, sums, weights
from contmax.kernels.rows._cpu_solve import integer_order, normaliser, pad

# If A is larger than this, p_max ≤ 1/3 for every α > 0, and the gradient is not small.
_LARGEST = 2.0
# p^{2−α} is steep where the root u = p^{α−1} is below this.
_STEEP = 0.01
# For ε up to this, v is used instead of d: the threshold is so far below the maximum that probabilities next to it
# underflow, and their digits do not matter.
_NEAR = 1 / 16
_MOST_STEPS = 64
_EPS = np.finfo(np.float64).eps
_BLOCK = np.uint64(64)


@njit(error_model="numpy")
def is_delicate(v, j, row):  # type: ignore[no-untyped-def]
    """Whether row j needs `sharpen`: p^{2−α} is steep or jumps at a score, or (α < 2) a score has half of Σ p^{2−α}."""
    if not row.top > -np.inf:
        return False
    a = normaliser(row)
    if row.epsilon > 0.5:
        near = _STEEP if row.order == 0 else 32.0 * np.finfo(v.dtype).eps
        if _nearest(v, j, row.n, v.dtype.type(a - row.k)) < near * row.k:
            return True
        if row.order == 1:
            return False
    return a < _LARGEST and _escort_of_largest(a, row) >= 0.5 * row.slope


@njit(fastmath=REDUCTION | {"nnan"})
def _nearest(v, j, n, threshold):  # type: ignore[no-untyped-def]
    """The smallest distance between `threshold` and one of the first n scores of v[j]."""
    wide_vectors()
    closeness = v.dtype.type(-np.inf)
    for i in range(n):
        closeness = fast.maximum(closeness, -abs(v[j, i] - threshold))
    return -closeness


@njit(error_model="numpy")
def sharpen(x, r, row, listed, places, distances, shares, p):  # type: ignore[no-untyped-def]
    """Solve a row that `is_delicate` in float64: write p[r], return Ω* − max x. `listed` … `shares` are buffers."""
    near, a, rough_eps = row.epsilon > _NEAR, normaliser(row), np.finfo(x.dtype).eps
    # The threshold less its largest rounding error: no score up to this number has mass.
    threshold = row.top + (a - row.k) - 64.0 * rough_eps * (1.0 + row.k + abs(row.top))
    count = _list(x, r, x.dtype.type(threshold if row.epsilon > 0.0 else -np.inf), listed, places)
    row.constant = 0.0 if near else 1.0
    row.order = integer_order(row.epsilon, _EPS)
    maxima = _measure(listed, count, row, near, distances)
    row.n = pad(distances, ZERO, count, -np.inf)
    # A small A may be rounding error alone: start from 0 instead.
    rough = math.sqrt(rough_eps)
    # A step squares the error, except for ε > ½, where Σ p^{2−α} may be steep.
    accuracy = 2.0 * _EPS if row.epsilon > 0.5 else 0.25 * rough
    row.origin = _climb(distances, maxima, a if a > rough else 0.0, accuracy, row)
    weights(distances, ZERO, row, shares)
    most = 1.0 - _missing(row.origin, row)
    factor, tiny = 1.0 / (row.mass + maxima * most), np.finfo(x.dtype).tiny
    p[r] = 0
    for i in range(count):
        share = factor * (most if listed[i] == row.top else shares[ZERO, i])
        p[r, places[i]] = share if share >= tiny else 0.0
    product = row.product - (row.k * row.mass if near else 0.0)
    return (row.epsilon * product + row.origin) / (row.epsilon + 1.0)


@njit
def _list(x, r, lowest, listed, places):  # type: ignore[no-untyped-def]
    """List scores of row r above `lowest`, and their places; return their number. Skip blocks without such scores."""
    n, count = np.uint64(x.shape[1]), ZERO
    for start in range(ZERO, n, _BLOCK):
        stop = min(n, start + _BLOCK)
        if largest(x, r, start, stop) > lowest:
            for i in range(start, stop):
                listed[count], places[count] = x[r, i], i
                count += np.uint64(x[r, i] > lowest)
    return count


@njit(error_model="numpy")
def _measure(listed, count, row, near, distances):  # type: ignore[no-untyped-def]
    """Write v = x − max x of each listed x, plus 1/ε if `near`, to `distances`, −inf at maxima; count the maxima."""
    top, maxima, rest_of_k = np.float64(row.top), 0, _rest_of_inverse(row.epsilon, row.k)
    for i in range(count):
        x = np.float64(listed[i])
        v = x - top
        distances[ZERO, i] = v
        if x == top:
            maxima += 1
            distances[ZERO, i] = -np.inf
        elif near:
            d = v + row.k
            distances[ZERO, i] = d + (_rest_of_sum(v, row.k, d) + (_rest_of_sum(x, -top, v) + rest_of_k))
    return maxima


@njit
def _rest_of_sum(a, b, total):  # type: ignore[no-untyped-def]
    """The rounding error of a + b (Knuth)."""
    other = total - a
    return (a - (total - other)) + (b - other)


@njit(error_model="numpy")
def _rest_of_inverse(epsilon, k):  # type: ignore[no-untyped-def]
    """1/ε − k, the rounding error of k, from the product εk in twice the precision (Dekker)."""
    product = epsilon * k
    high, high_k = _high_half(epsilon), _high_half(k)
    low, low_k = epsilon - high, k - high_k
    rest = ((high * high_k - product) + high * low_k + low * high_k) + low * low_k
    return ((1.0 - product) - rest) / epsilon


@njit
def _high_half(a):  # type: ignore[no-untyped-def]
    """The upper 26 binary digits of a number (Veltkamp)."""
    scaled = 134217729.0 * a
    return scaled - (scaled - a)


@njit(error_model="numpy")
def _log_largest(a, row):  # type: ignore[no-untyped-def]
    """ln p_max = log1p(−εA)/ε; −A at ε = 0."""
    return -a if row.epsilon == 0.0 else math.log1p(-row.epsilon * a) / row.epsilon


@njit(error_model="numpy")
def _missing(a, row):  # type: ignore[no-untyped-def]
    """1 − p_max = 1 − (1 − εA)ᵏ."""
    return -math.expm1(_log_largest(a, row))


@njit(error_model="numpy")
def _escort_of_largest(a, row):  # type: ignore[no-untyped-def]
    """p_max^{2−α}."""
    if row.order > 0:
        return integer_power(1.0 - row.epsilon * a, row.order - 1)
    return math.exp((1.0 - row.epsilon) * _log_largest(a, row))


@njit(error_model="numpy")
def _climb(distances, maxima, a, accuracy, row):  # type: ignore[no-untyped-def]
    """A by Newton's method from `a`; after the first step every iterate is a lower bound of A."""
    for _ in range(_MOST_STEPS):
        mass, slope = sums(distances, ZERO, row.n, a, row.constant, row.epsilon, row.k, row.order)
        step = (mass + (maxima - 1) - maxima * _missing(a, row)) / (slope + maxima * _escort_of_largest(a, row))
        a = max(0.0, a + step)
        if abs(step) <= accuracy * a:
            break
    return a
