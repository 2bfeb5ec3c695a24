"""One row of α-entmax, 0 < α ≤ 2: which blocks can carry mass, and the partition A that makes it one.

Reference: `contmax.maps._threshold.newton_partition`. Two bounds make it fast. Blocks of sixteen scores whose maximum
cannot reach the support are never looked at again, and Newton's method starts from the best of three lower bounds of
A: that of the maximum alone, that of the block maxima alone, and Jensen's (all scores at their mean).

Loops here run from 0 over whole arrays or slices: a start that is not provably ≥ 0 would keep LLVM from vectorising.
"""

import math

import numpy as np
from numba import njit

from contmax.kernels.cpu import _elementary as fast

BLOCK = 16
# Reassociation lets a reduction use vector lanes. It is only applied to sums, and to scores from which the maximum
# has been subtracted: x − max − A in another order would cost digits.
REDUCTION = {"reassoc", "nsz", "contract"}
_CHUNK = 512
_MOST_STEPS = 64
_BOUND_STEPS = 3


@njit(cache=True, nogil=True, fastmath=REDUCTION | {"nnan"})
def block_maxima(x, maxima):  # type: ignore[no-untyped-def]
    """Maximum of each block of sixteen, the last one possibly short; returns the maximum of all."""
    whole = x.shape[0] // BLOCK
    blocks = x[: whole * BLOCK].reshape((whole, BLOCK))
    for b in range(whole):
        m = blocks[b, 0]
        for j in range(1, BLOCK):
            m = fast.maximum(m, blocks[b, j])
        maxima[b] = m
    rest = x[whole * BLOCK :]
    if rest.shape[0] > 0:
        m = rest[0]
        for j in range(1, rest.shape[0]):
            m = fast.maximum(m, rest[j])
        maxima[whole] = m
    top = maxima[0]
    for b in range((x.shape[0] + BLOCK - 1) // BLOCK):
        top = fast.maximum(top, maxima[b])
    return top


@njit(cache=True, nogil=True, fastmath=REDUCTION)
def total(values):  # type: ignore[no-untyped-def]
    """Sum: vector lanes within a chunk, float64 across chunks."""
    s = 0.0
    for start in range(0, values.shape[0], _CHUNK):
        chunk = values[start : start + _CHUNK]
        part = values.dtype.type(0)
        for i in range(chunk.shape[0]):
            part += chunk[i]
        s += part
    return s


@njit(cache=True, nogil=True, error_model="numpy")
def _escort_and_base(v, shift, e, power):  # type: ignore[no-untyped-def]
    """(u^{k−1}, u) with u = 1 + ε(v − a), or zeros off the support; p is their product. `power` is k − 1."""
    zero, one = type(v)(0), type(v)(1)
    y = e * (v - shift)
    u = one + y
    inside = (u > zero) & (v > -np.inf)
    inner = u if inside else one
    # What rounding 1 + y lost, times 1/u ≈ 2 − u: together they are log1p(y), which matters as α → 1.
    lost = (y - (inner - one)) * (one + one - inner)
    w = fast.exp(power * (fast.log(inner) + lost))
    return (w if inside else zero), (u if inside else zero)


@njit(cache=True, nogil=True, fastmath=REDUCTION)
def _totals(v, a, epsilon, order):  # type: ignore[no-untyped-def]
    """S = Σ p and T = Σ p^{2−α} at the partition a; `order` is k where that is 1, 2 or 3, else 0."""
    zero, one = v.dtype.type(0), v.dtype.type(1)
    e, shift = v.dtype.type(epsilon), v.dtype.type(a)
    power = v.dtype.type(1.0 / epsilon - 1.0 if epsilon != 0.0 else 0.0)
    mass, slope = 0.0, 0.0
    for start in range(0, v.shape[0], _CHUNK):
        chunk = v[start : start + _CHUNK]
        mass_part, slope_part = zero, zero
        if order == 1:
            for i in range(chunk.shape[0]):
                u = fast.maximum(one + e * (chunk[i] - shift), zero)
                mass_part += u
                slope_part += one if u > zero else zero
        elif order == 2:
            for i in range(chunk.shape[0]):
                u = fast.maximum(one + e * (chunk[i] - shift), zero)
                mass_part += u * u
                slope_part += u
        elif order == 3:
            for i in range(chunk.shape[0]):
                u = fast.maximum(one + e * (chunk[i] - shift), zero)
                mass_part += u * u * u
                slope_part += u * u
        elif epsilon == 0.0:
            for i in range(chunk.shape[0]):
                mass_part += fast.exp(chunk[i] - shift)
            slope_part = mass_part
        else:
            for i in range(chunk.shape[0]):
                s, u = _escort_and_base(chunk[i], shift, e, power)
                mass_part += s * u
                slope_part += s
        mass += mass_part
        slope += slope_part
    return mass, slope


@njit(cache=True, nogil=True, error_model="numpy")
def _probabilities(v, a, epsilon, order, p):  # type: ignore[no-untyped-def]
    """p = exp_{1−ε}(v − a), not yet normalised."""
    zero, one = v.dtype.type(0), v.dtype.type(1)
    e, shift = v.dtype.type(epsilon), v.dtype.type(a)
    power = v.dtype.type(1.0 / epsilon - 1.0 if epsilon != 0.0 else 0.0)
    n = v.shape[0]
    if order == 1:
        for i in range(n):
            p[i] = fast.maximum(one + e * (v[i] - shift), zero)
    elif order == 2:
        for i in range(n):
            u = fast.maximum(one + e * (v[i] - shift), zero)
            p[i] = u * u
    elif order == 3:
        for i in range(n):
            u = fast.maximum(one + e * (v[i] - shift), zero)
            p[i] = u * u * u
    elif epsilon == 0.0:
        for i in range(n):
            p[i] = fast.exp(v[i] - shift)
    else:
        for i in range(n):
            s, u = _escort_and_base(v[i], shift, e, power)
            p[i] = s * u


@njit(cache=True, nogil=True)
def integer_order(epsilon, eps):  # type: ignore[no-untyped-def]
    """k = 1/ε if it is 1, 2 or 3 to the precision of the dtype (α = 2, 3/2, 4/3: no transcendentals), else 0."""
    if epsilon < 0.3:
        return 0
    k = 1.0 / epsilon
    nearest = round(k)
    return int(nearest) if abs(k - nearest) < 8 * eps else 0


@njit(cache=True, nogil=True, error_model="numpy")
def _climb(v, a, epsilon, order, most, eps):  # type: ignore[no-untyped-def]
    """Newton's method from a lower bound a: after any number of steps the result is one too, up to rounding."""
    # Σ p^{2−α} is Hölder of order k − 1, so a step d leaves an error of order d^min(k, 2), which need not be looked at.
    smoothness = min(2.0, 1.0 / epsilon) if epsilon > 0.0 else 2.0
    small = eps ** (1.0 / smoothness)
    for _ in range(most):
        mass, slope = _totals(v, a, epsilon, order)
        if order == 1:
            step = (mass - 1.0) / slope
        elif order == 2:
            step = 2.0 * (mass - math.sqrt(mass)) / slope
        else:
            log_mass = math.log(mass)
            step = mass / slope * (log_mass if epsilon == 0.0 else -math.expm1(-epsilon * log_mass) / epsilon)
        if not step > 0.0:
            break
        a += step
        if step <= small:
            break
    return a


@njit(cache=True, nogil=True, error_model="numpy")
def _jensen_bound(mean, n, epsilon):  # type: ignore[no-untyped-def]
    """A of n scores that all equal their mean: exp_{1−ε} is convex, so the true A is no smaller."""
    log_n = math.log(n)
    return mean + (log_n if epsilon == 0.0 else -math.expm1(-epsilon * log_n) / epsilon)


@njit(cache=True, nogil=True, error_model="numpy")
def _gather(x, shift, lowest, maxima, blocks, v):  # type: ignore[no-untyped-def]
    """Copy the blocks that reach above `lowest`, less the maximum, to the front of v; −inf fills a short last one."""
    n = x.shape[0]
    live = 0
    for b in range((n + BLOCK - 1) // BLOCK):
        if maxima[b] - shift > lowest:
            source, target = x[b * BLOCK : (b + 1) * BLOCK], v[live * BLOCK : (live + 1) * BLOCK]
            for j in range(source.shape[0]):
                target[j] = source[j] - shift
            for j in range(source.shape[0], BLOCK):
                target[j] = -np.inf
            blocks[live] = b
            live += 1
    return live


@njit(cache=True, nogil=True, error_model="numpy")
def lower_bound(x, shift, mean, epsilon, order, eps, maxima, v):  # type: ignore[no-untyped-def]
    """A lower bound of the partition, from the block maxima and from the mean."""
    n = x.shape[0]
    count = (n + BLOCK - 1) // BLOCK
    a = 0.0
    if count > 2:
        for b in range(count):
            v[b] = maxima[b] - shift
        a = _climb(v[:count], a, epsilon, order, _BOUND_STEPS, eps)
    a = max(a, _jensen_bound(mean - shift, n, epsilon))
    # Rounding may have carried a bound past the root by a few units in the last place: step back by more than that.
    return max(0.0, a - 64.0 * eps * (1.0 + a))


@njit(cache=True, nogil=True, error_model="numpy")
def solve_row(x, epsilon, maxima, blocks, v, p):  # type: ignore[no-untyped-def]
    """Returns (n, live, max, A): scores less the maximum in v[:n] and probabilities, not normalised, in p[:n].

    They stand for the `live` blocks listed in `blocks`, or for the whole row where live is −1. An n of 0 is a row
    with nothing to attend; a NaN maximum is a row with a NaN or +inf among its scores.
    """
    columns = x.shape[0]
    count = (columns + BLOCK - 1) // BLOCK
    eps = np.finfo(x.dtype).eps
    shift = block_maxima(x, maxima)
    mean = total(x) / columns
    if shift == np.inf or mean != mean:
        return 0, 0, np.nan, 0.0
    if shift == -np.inf:
        return 0, 0, -np.inf, 0.0
    order = integer_order(epsilon, eps)
    a = lower_bound(x, shift, mean, epsilon, order, eps, maxima, v)
    lowest = a - 1.0 / epsilon if epsilon > 0.0 else -np.inf
    reaching = 0
    for b in range(count):
        reaching += maxima[b] - shift > lowest
    if 3 * reaching > count:
        live, n = -1, columns
        for i in range(columns):
            v[i] = x[i] - shift
    else:
        live = _gather(x, shift, lowest, maxima, blocks, v)
        n = live * BLOCK
    a = _climb(v[:n], a, epsilon, order, _MOST_STEPS, eps)
    _probabilities(v[:n], a, epsilon, order, p)
    return n, live, np.float64(shift), a
