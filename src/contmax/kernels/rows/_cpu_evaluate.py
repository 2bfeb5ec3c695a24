"""The sums of Newton's method over the scores of a row, and the probabilities once the normaliser is known.

v are the scores of a row less their maximum, ε = α − 1, k = 1/ε. t and c are `origin`, `constant` of `_cpu_solve.ROW`:
t is the threshold if c = 0, A if c = 1. The root is u = [c + ε(v − t)]₊, p = uᵏ is not yet normalised, and the escort
s = p^{2−α} = u^{k−1} is −∂p/∂t.
"""

import numpy as np
from numba import njit

from contmax.kernels.cpu import _elementary as fast
from contmax.kernels.cpu._compiled import inlined
from contmax.kernels.cpu._lanes import PROCESSOR_LANES, wide_vectors

# Options for functions that sum: reassociation lets a sum use vector lanes. Functions that compute the summands allow
# only contraction (FMA), because x − max − A in another order would lose digits.
REDUCTION = {"reassoc", "nsz", "contract"}
ZERO = np.uint64(0)
# Scores per chunk of a sum: within a chunk sums have the precision of the scores, across chunks float64.
CHUNK = np.uint64(512)
# Scores per chunk of the final sum (`weights`). All probabilities are divided by it, so it must be more accurate than
# the sums of Newton's steps. Chunks are short, so that in a lane few rounding errors of equal terms (flat rows) add up.
LAST_CHUNK = np.uint64(32) * PROCESSOR_LANES


@njit(fastmath=REDUCTION | {"nnan"})
def largest(x, r, start, stop):  # type: ignore[no-untyped-def]
    """The largest of the scores start … stop − 1 of row r."""
    wide_vectors()
    top = x[r, start]
    for i in range(start, stop):
        top = fast.maximum(top, x[r, i])
    return top


@njit(fastmath=REDUCTION)
def shifted(x, r, v, j):  # type: ignore[no-untyped-def]
    """v[j] ← x[r] less its maximum; returns the maximum, and Σ v, which is NaN if some score is NaN or +inf."""
    wide_vectors()
    n = np.uint64(x.shape[1])
    top = largest(x, r, ZERO, n)
    shift = x.dtype.type(0) if top == -np.inf else top
    total = 0.0
    for start in range(ZERO, n, CHUNK):
        part = x.dtype.type(0)
        for i in range(start, min(n, start + CHUNK)):
            d = x[r, i] - shift
            v[j, i] = d
            part += d
        total += part
    return top, total


@inlined(fastmath=fast.CONTRACT)
def _base(distance, e):  # type: ignore[no-untyped-def]
    """The root u = [ε(v − t)]₊ of a score v, where t is the threshold (c = 0); `distance` is v − t, `e` is ε."""
    return fast.maximum(e * distance, type(distance)(0))


@inlined()
def _distance(v, t, rest):  # type: ignore[no-untyped-def]
    """v less the origin t + rest, two numbers because the origin has more digits than the dtype of v can hold."""
    return (v - t) - rest


@inlined(fastmath=fast.CONTRACT)
def integer_power(u, order):  # type: ignore[no-untyped-def]
    """u^order for order 0, 1, 2, 3, 4."""
    square, one = u * u, type(u)(1)
    return (square * square if order == 4 else square if order >= 2 else one) * (u if order & 1 else one)


@inlined(error_model="numpy", fastmath=fast.CONTRACT)
def _escort_and_base(distance, e, power):  # type: ignore[no-untyped-def]
    """Escort s and root u for c = 0, p = s·u; off the support s = 0. `distance` is v − t, `e` ε and `power` k − 1."""
    zero, one = type(distance)(0), type(distance)(1)
    u = e * distance
    inside = u > zero
    inner = u if inside else one
    w = fast.exp(power * fast.log(inner))
    return (w if inside else zero), inner


@inlined(error_model="numpy", fastmath=fast.CONTRACT)
def _escort_and_base_from_one(distance, e, power):  # type: ignore[no-untyped-def]
    """Escort and root as by `_escort_and_base`, but for c = 1, where t is A: this form stays accurate as α → 1."""
    kind = type(distance)
    zero, one = kind(0), kind(1)
    # For ε < 0 a score of −inf would give y = +inf: take the lowest finite number instead, where p = 0 too.
    y = e * fast.maximum(distance, np.finfo(kind).min)
    inside = y > -one
    y = y if inside else zero
    u = one + y
    # log1p(y) = ln u + (rounding error of u)/u. The error matters only where u ≈ 1, where 1/u ≈ 2 − u.
    lost = (y - (u - one)) * fast.maximum(one + one - u, zero)
    w = fast.exp(power * (fast.log(u) + lost))
    return (w if inside else zero), u


@njit(fastmath=REDUCTION)
def sums(v, j, n, t, constant, epsilon, k, order):  # type: ignore[no-untyped-def]
    """Σ p and Σ s over v[j, :n]; `constant` is c, and `order` is k if k is 1, 2, 3 or 4 (then c = 0), else 0."""
    wide_vectors()
    zero = v.dtype.type(0)
    e, power = v.dtype.type(epsilon), v.dtype.type(k - 1.0)
    mass, slope = 0.0, 0.0
    for start in range(ZERO, n, CHUNK):
        stop = min(n, start + CHUNK)
        mass_part, slope_part = zero, zero
        if order > 0:
            for i in range(start, stop):
                u = _base(v[j, i] - t, e)
                s = integer_power(u, order - 1) if u > zero else zero
                mass_part += s * u
                slope_part += s
        elif epsilon == 0.0:
            for i in range(start, stop):
                mass_part += fast.exp(v[j, i] - t)
            slope_part = mass_part
        elif constant == 0.0:
            for i in range(start, stop):
                s, u = _escort_and_base(v[j, i] - t, e, power)
                mass_part += s * u
                slope_part += s
        else:
            for i in range(start, stop):
                s, u = _escort_and_base_from_one(v[j, i] - t, e, power)
                mass_part += s * u
                slope_part += s
        mass += mass_part
        slope += slope_part
    return mass, slope


@inlined()
def _moment(v, p):  # type: ignore[no-untyped-def]
    """v·p; where p is 0, v may be −inf, and the result is 0."""
    product = v * p
    return product if p > type(p)(0) else type(p)(0)


@njit(error_model="numpy", fastmath=REDUCTION)
def weights(v, j, row, p):  # type: ignore[no-untyped-def]
    """p[j] ← the probabilities of a solved row, not yet normalised; row.mass ← Σ p, row.product ← Σ v p."""
    wide_vectors()
    t = v.dtype.type(row.origin)
    rest, e, power = v.dtype.type(row.origin - t), v.dtype.type(row.epsilon), v.dtype.type(row.k - 1.0)
    n, order, epsilon = row.n, row.order, row.epsilon
    mass, product = 0.0, 0.0
    for start in range(ZERO, n, LAST_CHUNK):
        stop = min(n, start + LAST_CHUNK)
        mass_part, product_part = v.dtype.type(0), v.dtype.type(0)
        if order > 0:
            for i in range(start, stop):
                w = integer_power(_base(_distance(v[j, i], t, rest), e), order)
                p[j, i] = w
                mass_part += w
                product_part += _moment(v[j, i], w)
        elif epsilon == 0.0:
            for i in range(start, stop):
                w = fast.exp(_distance(v[j, i], t, rest))
                p[j, i] = w
                mass_part += w
                product_part += _moment(v[j, i], w)
        elif row.constant == 0.0:
            for i in range(start, stop):
                s, u = _escort_and_base(_distance(v[j, i], t, rest), e, power)
                p[j, i] = s * u
                mass_part += s * u
                product_part += _moment(v[j, i], s * u)
        else:
            for i in range(start, stop):
                s, u = _escort_and_base_from_one(_distance(v[j, i], t, rest), e, power)
                p[j, i] = s * u
                mass_part += s * u
                product_part += _moment(v[j, i], s * u)
        mass += mass_part
        product += product_part
    row.mass, row.product = mass, product
