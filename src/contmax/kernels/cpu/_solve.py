"""Rows of α-entmax, 0 < α ≤ 2: the scores that can carry mass, and the partition A that makes it one.

Reference: `contmax.maps._threshold.newton_partition`. At α = 2, 3/2, 4/3 and 5/4 Newton's method takes a few
multiplications per score. At any other α it takes logarithms; there one look at the next larger of these four gives a
lower bound of A. Only scores above A − 1/(α−1) can carry mass: with the bound all others are dropped beforehand.

A step of Newton's method waits for the one before, so a processor works best on several rows at a time, side by side.
Indices are unsigned: a loop that starts at a signed number would not be vectorised.
"""

import math

import numpy as np
from numba import njit

from contmax.kernels.cpu import _elementary as fast
from contmax.kernels.cpu._lanes import LANES, compress_above, wide_vectors

# Reassociation lets a reduction use vector lanes. It is only applied to sums: x − max − A in another order would cost
# digits, so what is summed comes from functions that allow contraction only.
REDUCTION = {"reassoc", "nsz", "contract"}
ZERO = np.uint64(0)
# A sum in the precision of the scores stays accurate within a chunk; across chunks it is in float64.
CHUNK = np.uint64(512)
# What LLVM makes of one turn of a loop over logarithms; rows are padded to a multiple.
_TURN = np.uint64(2) * LANES
# What buffers have beyond the length of a row: the padding, or one vector.
ROOM = _TURN
_MOST_STEPS = 64
_FAR, _SMALL = 0.2, 0.02

# One row on its way to the partition A. `top` and `mean` are the maximum and the mean of its n scores, `epsilon` is
# α − 1, `k` its inverse, `order` is k again if that is 1, 2, 3 or 4 (else 0), `partition` a lower bound of A. Steps
# towards A end when `excess`, the distance of Σ p from 1, is within `tolerance`. No score up to `cut` carries mass.
_FIELDS = ("top", "mean", "epsilon", "k", "partition", "excess", "tolerance", "cut")
ROW = np.dtype([(name, "f8") for name in _FIELDS] + [("n", "u8"), ("order", "i8")])


@njit(cache=True, nogil=True, fastmath=REDUCTION | {"nnan"})
def _maximum(x, r):  # type: ignore[no-untyped-def]
    wide_vectors()
    top = x[r, ZERO]
    for i in range(np.uint64(x.shape[1])):
        top = fast.maximum(top, x[r, i])
    return top


@njit(cache=True, nogil=True, fastmath=REDUCTION)
def _shifted(x, r, shift, v, j):  # type: ignore[no-untyped-def]
    """v ← x − shift for a row; returns Σ v, which is NaN if some score was NaN or +inf."""
    wide_vectors()
    n = np.uint64(x.shape[1])
    total = 0.0
    for start in range(ZERO, n, CHUNK):
        part = x.dtype.type(0)
        for i in range(start, min(n, start + CHUNK)):
            d = x[r, i] - shift
            v[j, i] = d
            part += d
        total += part
    return total


@njit(cache=True, nogil=True)
def pad(values, j, n, filler):  # type: ignore[no-untyped-def]
    """Fill row j up to whole turns, so that no loop has a remainder; returns the new length."""
    wide_vectors()
    for i in range(_TURN):
        values[j, n + i] = filler
    return (n + _TURN - np.uint64(1)) // _TURN * _TURN


@njit(cache=True, nogil=True, error_model="numpy")
def _shift_row(x, r, scores, j, row):  # type: ignore[no-untyped-def]
    """scores[j] ← x[r] less its maximum, padded by −inf.

    The maximum is −inf in a row with nothing to attend, NaN in one with a NaN or +inf.
    """
    columns = np.uint64(x.shape[1])
    top = _maximum(x, r)
    total = _shifted(x, r, x.dtype.type(0) if top == -np.inf else top, scores, j)
    row.top = top if total == total else np.nan
    row.mean = total / columns
    row.n = pad(scores, j, columns, -np.inf)


@njit(cache=True, nogil=True)
def _origin(a, epsilon, k):  # type: ignore[no-untyped-def]
    """(t, c) with u = 1 + ε(v − A) = c + ε(v − t): from the threshold A − k, from A itself where that is far away.

    Near the threshold v − t is exact, and small probabilities keep all their digits.
    """
    return (a - k, 0.0) if epsilon > _FAR else (a, 1.0)


@njit(cache=True, nogil=True, fastmath=fast.CONTRACT)
def _base(v, threshold, e):  # type: ignore[no-untyped-def]
    """u = [ε(v − t)]₊."""
    return fast.maximum(e * (v - threshold), type(v)(0))


@njit(cache=True, nogil=True, fastmath=fast.CONTRACT)
def _integer_power(u, order):  # type: ignore[no-untyped-def]
    """u^order for order 0, 1, 2, 3, 4; without a branch, since rows of different orders may follow each other."""
    square = u * u
    odd = u if order & 1 else type(u)(1)
    return (square * square if order == 4 else square if order >= 2 else type(u)(1)) * odd


@njit(cache=True, nogil=True, error_model="numpy", fastmath=fast.CONTRACT)
def _escort_and_base(v, t, c, e, power):  # type: ignore[no-untyped-def]
    """(u^{k−1}, u) on the support, zeros off it; p is their product. `power` is k − 1, k = 1/ε."""
    zero, one = type(v)(0), type(v)(1)
    y = e * (v - t)
    u = c + y
    inside = (u > zero) & (v > -np.inf)
    inner = u if inside else one
    # What rounding c + y lost, over u: together they are log1p(y), which matters as α → 1, where u ≈ 1 and 1/u ≈ 2 − u.
    lost = (y - (inner - c)) * fast.maximum(one + one - inner, zero)
    w = fast.exp(power * (fast.log(inner) + (lost if inside else zero)))
    return (w if inside else zero), inner


@njit(cache=True, nogil=True, fastmath=REDUCTION)
def _sums(v, j, n, a, epsilon, k, order):  # type: ignore[no-untyped-def]
    """S = Σ p and T = Σ p^{2−α} of row j at the partition a; `order` is k where that is 1, 2, 3 or 4, else 0."""
    wide_vectors()
    zero, one = v.dtype.type(0), v.dtype.type(1)
    threshold, constant = _origin(a, epsilon, k)
    t, c, e, power = v.dtype.type(threshold), v.dtype.type(constant), v.dtype.type(epsilon), v.dtype.type(k - 1.0)
    mass, slope = 0.0, 0.0
    for start in range(ZERO, n, CHUNK):
        stop = min(n, start + CHUNK)
        mass_part, slope_part = zero, zero
        if order > 0:
            for i in range(start, stop):
                u = _base(v[j, i], t, e)
                s = _integer_power(u, order - 1) if u > zero else zero
                mass_part += s * u
                slope_part += s
        elif epsilon == 0.0:
            for i in range(start, stop):
                mass_part += fast.exp(v[j, i] - t)
            slope_part = mass_part
        else:
            for i in range(start, stop):
                s, u = _escort_and_base(v[j, i], t, c, e, power)
                mass_part += s * u
                slope_part += s
        mass += mass_part
        slope += slope_part
    return mass, slope


@njit(cache=True, nogil=True)
def _moment(v, p):  # type: ignore[no-untyped-def]
    """v·p, and 0 where p is 0 (v may be −inf there)."""
    product = v * p
    return product if p > type(p)(0) else type(p)(0)


@njit(cache=True, nogil=True, error_model="numpy", fastmath=REDUCTION)
def weights(v, j, row, p):  # type: ignore[no-untyped-def]
    """p[j] ← exp_{1−ε}(v[j] − A), not yet normalised; returns (Σ p, Σ v p)."""
    wide_vectors()
    threshold, constant = _origin(row.partition, row.epsilon, row.k)
    t, c, e = v.dtype.type(threshold), v.dtype.type(constant), v.dtype.type(row.epsilon)
    power = v.dtype.type(row.k - 1.0)
    n, order, epsilon = row.n, row.order, row.epsilon
    mass, product = 0.0, 0.0
    for start in range(ZERO, n, CHUNK):
        stop = min(n, start + CHUNK)
        mass_part, product_part = v.dtype.type(0), v.dtype.type(0)
        if order > 0:
            for i in range(start, stop):
                w = _integer_power(_base(v[j, i], t, e), order)
                p[j, i] = w
                mass_part += w
                product_part += _moment(v[j, i], w)
        elif epsilon == 0.0:
            for i in range(start, stop):
                w = fast.exp(v[j, i] - t)
                p[j, i] = w
                mass_part += w
                product_part += _moment(v[j, i], w)
        else:
            for i in range(start, stop):
                s, u = _escort_and_base(v[j, i], t, c, e, power)
                p[j, i] = s * u
                mass_part += s * u
                product_part += _moment(v[j, i], s * u)
        mass += mass_part
        product += product_part
    return mass, product


@njit(cache=True, nogil=True, error_model="numpy")
def _excess(mass, epsilon):  # type: ignore[no-untyped-def]
    """(1 − S^{−ε})/ε, or ln S at ε = 0; below 4 by a Padé approximant, exact at ε = 1 and never too large."""
    if mass < 4.0 and epsilon != 0.0:
        x = mass - 1.0
        return 2.0 * x / (2.0 + (1.0 + epsilon) * x)
    if epsilon == 0.5:
        return 2.0 - 2.0 / math.sqrt(mass)
    log_mass = math.log(mass)
    return log_mass if epsilon == 0.0 else -math.expm1(-epsilon * log_mass) / epsilon


@njit(cache=True, nogil=True, error_model="numpy")
def climb(v, rows, count):  # type: ignore[no-untyped-def]
    """Newton's method for `count` rows side by side: it takes lower bounds of A to better ones, up to rounding."""
    for j in range(count):
        rows[j].excess = np.inf
    for _ in range(_MOST_STEPS):
        active = False
        for j in range(count):
            row = rows[j]
            if row.excess > row.tolerance:
                mass, slope = _sums(v, j, row.n, row.partition, row.epsilon, row.k, row.order)
                row.excess = _excess(mass, row.epsilon)
                row.partition += mass / slope * row.excess
                active = True
        if not active:
            break


@njit(cache=True, nogil=True)
def integer_order(epsilon, eps):  # type: ignore[no-untyped-def]
    """k = 1/ε if it is 1, 2, 3 or 4 to the precision of the dtype (no logarithms are needed then), else 0."""
    if epsilon <= _FAR:
        return 0
    k = 1.0 / epsilon
    nearest = int(k + 0.5)
    return nearest if abs(k - nearest) < 8 * eps else 0


@njit(cache=True, nogil=True, error_model="numpy")
def _jensen_bound(mean, log_n, epsilon, k):  # type: ignore[no-untyped-def]
    """A of n scores that all equal their mean, if it is > 0: exp_{1−ε} is convex, so the true A is no smaller."""
    if epsilon > 0.0 and mean + k <= 0.0:
        return 0.0
    return max(0.0, mean + (log_n if epsilon == 0.0 else -math.expm1(-epsilon * log_n) * k))


@njit(cache=True, nogil=True, error_model="numpy")
def _tolerance(epsilon, order, eps):  # type: ignore[no-untyped-def]
    """A step leaves an error of order excess^min(k, 2), as Σ p^{2−α} is Hölder of order k − 1; below eps it can stay."""
    if epsilon == 0.0:
        return np.finfo(np.float64).max  # one step is exact
    if epsilon <= 0.5:
        return math.sqrt(eps)
    return 4 * eps if order == 1 else max(4 * eps, np.float64(fast.exp(np.float32(epsilon * math.log(eps)))))


@njit(cache=True, nogil=True, error_model="numpy")
def begin(x, r, epsilon, log_n, scores, j, row):  # type: ignore[no-untyped-def]
    """Set up row r for a climb over all of scores[j] at integer orders; at others for `narrow`."""
    eps = np.finfo(x.dtype).eps
    _shift_row(x, r, scores, j, row)
    row.epsilon, row.k, row.tolerance = epsilon, 1.0 / epsilon, np.inf
    row.order = integer_order(epsilon, eps)
    if row.order > 0 and row.top > -np.inf:
        row.tolerance = _tolerance(epsilon, row.order, eps)
        row.partition = _jensen_bound(row.mean, log_n, epsilon, row.k)


@njit(cache=True, nogil=True, error_model="numpy")
def narrow(scores, j, log_n, candidates, row):  # type: ignore[no-untyped-def]
    """Set up row j for a climb over its candidates, the scores that can carry mass; not at integer orders."""
    row.tolerance = np.inf
    if row.order > 0 or not row.top > -np.inf:
        return
    eps = np.finfo(scores.dtype).eps
    row.cut = -np.inf
    if row.epsilon > 0.0:
        bound = _bound_from_integer_order(scores, j, log_n, row)
        # Rounding may carry it past the root by a few units in the last place: step back by more than that.
        row.partition = bound - 64.0 * eps * (1.0 + bound)
        row.cut = row.partition - row.k
    else:
        row.partition = _jensen_bound(row.mean, log_n, row.epsilon, row.k)
    row.tolerance = _tolerance(row.epsilon, 0, eps)
    kept = compress_above(scores, j * np.uint64(scores.shape[1]), row.n, scores.dtype.type(row.cut), candidates, j)
    row.n = pad(candidates, j, kept, -np.inf)


@njit(cache=True, nogil=True, error_model="numpy")
def _bound_from_integer_order(v, j, log_n, row):  # type: ignore[no-untyped-def]
    r"""A lower bound of A from S and T of the next larger α = 1 + 1/m, m ≤ 4, at some a.

    It is a step of Newton's method if ε = 1/m. In general, with u = [1 + (v − a)/m]₊, s = u^{m−1} and k = 1/ε ≥ m,

        (Σ p)^ε = ‖[1 + ε(v − A)]₊‖_k ≥ Σ s (1 + ε(v − A)) / ‖s‖_{k/(k−1)},    ‖s‖_{k/(k−1)} ≤ S^{(m−1)ε} T^{1−mε}

    by Hölder and Lyapunov. So Σ p ≥ 1 where the right side is 1: at A = ⟨s, v⟩/T + (1 − N^{−ε})/ε, N = Tᵐ/S^{m−1},
    as if there were N scores that all equal ⟨s, v⟩/T.
    """
    order = int(min(4.0, row.k))
    m = float(order)
    a = _jensen_bound(row.mean, log_n, 1.0 / m, m)
    mass, slope = _sums(v, j, row.n, a, 1.0 / m, m, order)
    equals, ratio = slope, slope / mass
    for _ in range(1, order):
        equals *= ratio
    if row.epsilon < _SMALL:
        return a + m / ratio - m - math.expm1(-row.epsilon * math.log(equals)) * row.k
    return a + m / ratio - m + (1.0 - fast.exp(v.dtype.type(-row.epsilon) * fast.log(v.dtype.type(equals)))) * row.k
