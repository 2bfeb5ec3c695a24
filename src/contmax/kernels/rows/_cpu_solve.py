"""The normaliser A of rows of α-entmax, 0 < α ≤ 2, and the scores that may have mass.

Reference: `contmax.maps._threshold.newton_normaliser`. At α = 2, 3/2, 4/3 and 5/4 Newton's method takes a few
multiplications per score. At any other α it takes logarithms. If such an α exceeds 1, one evaluation at the next larger
of these four gives lower bounds of A and of the threshold τ = A − 1/(α−1). Only scores above τ have mass, so scores up
to the bound of τ are dropped.

A step of Newton's method waits for the previous step, so a processor works best on several rows side by side.
Indices are unsigned: a loop that starts at a signed number would not be vectorised.
"""

import math

import numpy as np
from numba import njit

from contmax.kernels.cpu import _elementary as fast
from contmax.kernels.cpu._lanes import LANES, compress_above, wide_vectors
from contmax.kernels.rows._cpu_evaluate import ZERO, integer_power, shifted, sums

# LLVM unrolls loops over logarithms to this number of scores per turn; rows are padded to a multiple of it.
_TURN = np.uint64(2) * LANES
# Spare entries at the end of each row of a buffer, for padding or for the last vector that `compress_above` writes.
ROOM = _TURN
_MOST_STEPS = 64
_FAR, _SMALL = 0.2, 0.02  # for ε ≤ _FAR, `origin` is A, not the threshold; for ε ≤ _SMALL, expm1 is used

# The state of a row whose normaliser A is sought. `top` is the maximum of its scores, `mean` the mean of v (the scores
# less `top`), n the number of v with padding, `epsilon` α − 1, `k` its inverse, `order` k if k is 1, 2, 3 or 4, else 0.
# `origin` is a lower bound of A if `constant` is 1 (ε ≤ _FAR), of the threshold A − k if `constant` is 0: v − origin is
# then exact near the threshold, where p is small. Roots are u = 1 + ε(v − A) = constant + ε(v − origin).
# `mass` and `slope` are Σ p and Σ p^{2−α} at the last evaluation. Newton's steps end when `excess` (`_excess`, 0 for
# mass 1) is at most `tolerance`. No v up to `lowest` has mass. `product` is Σ v p of the solved row.
_STEP = ("origin", "constant", "mass", "slope", "excess", "tolerance")
_FIELDS = ("top", "mean", "epsilon", "k", *_STEP, "lowest", "product")
ROW = np.dtype([(name, "f8") for name in _FIELDS] + [("n", "u8"), ("order", "i8")])


@njit
def pad(values, j, n, filler):  # type: ignore[no-untyped-def]
    """Pad row j, of length n, to a multiple of _TURN, so that no loop has a remainder; returns the new length."""
    wide_vectors()
    for i in range(_TURN):
        values[j, n + i] = filler
    return (n + _TURN - np.uint64(1)) // _TURN * _TURN


@njit
def integer_order(epsilon, eps):  # type: ignore[no-untyped-def]
    """k = 1/ε if it is 1, 2, 3 or 4 to the precision of the dtype (no logarithms are needed then), else 0."""
    if epsilon <= _FAR:
        return 0
    k = 1.0 / epsilon
    nearest = int(k + 0.5)
    # Next to α = 1.2, ε may exceed _FAR although k is 5 up to rounding: there is no code for order 5.
    return nearest if nearest <= 4 and abs(k - nearest) < 8 * eps else 0


@njit(error_model="numpy")
def begin(x, r, epsilon, flat, scores, j, row):  # type: ignore[no-untyped-def]
    """scores[j] ← x[r] less its maximum; prepares the state `row` for `climb` if row.order > 0, else for `bound`.

    For order 0 and ε > 0 it computes sums that `bound` needs. row.top is −inf if the row is fully masked, NaN if it has
    a NaN or +inf.
    """
    columns, eps = np.uint64(x.shape[1]), np.finfo(x.dtype).eps
    top, total = shifted(x, r, scores, j)
    row.top, row.mean = top if total == total else np.nan, total / columns
    padded = pad(scores, j, columns, -np.inf)
    row.n = padded if row.top > -np.inf else ZERO  # a row without finite maximum has no scores to solve
    row.epsilon, row.k, row.order = epsilon, 1.0 / epsilon, integer_order(epsilon, eps)
    row.tolerance = np.inf
    if row.order > 0 and row.top > -np.inf:
        row.tolerance = _tolerance(epsilon, row.order, eps)
        _start_at(row, max(0.0, row.mean + flat[row.order]))
    elif epsilon > 0.0 and row.top > -np.inf:
        m = int(min(4.0, row.k))
        row.origin = x.dtype.type(max(0.0, row.mean + flat[m]) - m)
        row.mass, row.slope = sums(scores, j, row.n, x.dtype.type(row.origin), 0.0, 1.0 / m, float(m), m)


@njit(error_model="numpy")
def bound(flat, eps, row):  # type: ignore[no-untyped-def]
    r"""Start a row with k ≠ 1, 2, 3, 4 from a lower bound of A, and set row.lowest, a lower bound of the threshold.

    For α > 1 the bound of A comes from the sums of a nearby integer power, which cost no logarithms: `begin` chose the
    largest integer m ≤ 4 with m ≤ k = 1/ε, and at some number a evaluated S = Σ uᵐ and T = Σ s, where
    u = [1 + (v − a)/m]₊ and s = u^{m−1}. The inequalities of Hölder and Lyapunov give

        (Σ p)^ε = ‖[1 + ε(v − A)]₊‖_k ≥ Σ s (1 + ε(v − A)) / ‖s‖_{k/(k−1)},    ‖s‖_{k/(k−1)} ≤ S^{(m−1)ε} T^{1−mε}.

    So Σ p ≥ 1 at A = ⟨s, v⟩/T + (1 − N^{−ε})/ε with N = Tᵐ/S^{m−1}, and this A is the bound. The bound is exact for N
    scores that all equal ⟨s, v⟩/T, and is a Newton step if k = m. For α ≤ 1 Jensen gives it; all scores have mass.
    """
    row.tolerance, row.lowest = np.inf, -np.inf
    if row.order > 0 or not row.top > -np.inf:
        return
    row.tolerance = _tolerance(row.epsilon, 0, eps)
    if row.epsilon > 0.0:
        m = int(min(4.0, row.k))
        ratio = row.slope / row.mass
        a = row.origin + m / ratio + _shrunk(row.slope * integer_power(ratio, m - 1), row.epsilon, row.k)
        # Rounding may put `a` above A by a few units in the last place: step back farther than that.
        _start_at(row, a - 64.0 * eps * (1.0 + a))
        row.lowest = normaliser(row) - row.k
    else:
        _start_at(row, max(0.0, row.mean + _shrunk(flat[0], row.epsilon, row.k)))


@njit
def narrow(scores, j, candidates, row):  # type: ignore[no-untyped-def]
    """candidates[j] ← the scores of row j that may have mass; does nothing if row.order is not 0."""
    if row.order == 0 and row.top > -np.inf:
        start, lowest = j * np.uint64(scores.shape[1]), scores.dtype.type(row.lowest)
        count = compress_above(scores, start, row.n, lowest, candidates, j)
        row.n = pad(candidates, j, count, -np.inf)


@njit(error_model="numpy")
def climb(v, rows, count):  # type: ignore[no-untyped-def]
    """Newton's method for `count` rows side by side: raises their lower bounds of A until only rounding is left."""
    for j in range(count):
        rows[j].excess = np.inf
    for _ in range(_MOST_STEPS):
        active = False
        for j in range(count):
            row = rows[j]
            if row.excess > row.tolerance:
                at = v.dtype.type(row.origin)
                row.mass, row.slope = sums(v, j, row.n, at, row.constant, row.epsilon, row.k, row.order)
                row.excess = _excess(row.mass, row.epsilon, row.k)
                row.origin = at + row.mass / row.slope * row.excess
                active = True
        if not active:
            break


@njit
def normaliser(row):  # type: ignore[no-untyped-def]
    """The current lower bound of the normaliser A of a row, which is A once `climb` has finished."""
    return row.origin if row.constant == 1.0 else row.origin + row.k


@njit
def _start_at(row, a):  # type: ignore[no-untyped-def]
    """Set origin and constant so that Newton's method starts at A = a."""
    row.origin, row.constant = (a - row.k, 0.0) if row.epsilon > _FAR else (a, 1.0)


@njit(error_model="numpy")
def _shrunk(count, epsilon, k):  # type: ignore[no-untyped-def]
    """(1 − N^{−ε})/ε for N = `count`; ln N at ε = 0."""
    if epsilon > _SMALL:
        return (1.0 - fast.exp(-epsilon * fast.log(count))) * k
    return math.log(count) if epsilon == 0.0 else -math.expm1(-epsilon * math.log(count)) * k


@njit(error_model="numpy")
def _excess(mass, epsilon, k):  # type: ignore[no-untyped-def]
    """(1 − S^{−ε})/ε of the mass S, or ln S at ε = 0.

    For S < 4, ε ≠ 0 a Padé approximant replaces the formula. It is exact at ε = 1 and never larger than the formula, so
    that no step overshoots.
    """
    if mass < 4.0 and epsilon != 0.0:
        x = mass - 1.0
        return 2.0 * x / (2.0 + (1.0 + epsilon) * x)
    return _shrunk(mass, epsilon, k)


@njit(error_model="numpy")
def _tolerance(epsilon, order, eps):  # type: ignore[no-untyped-def]
    """The largest excess E at which a step is the last: such a step leaves an error of about eps.

    This error is about E² for ε ≤ ½. For ε > ½, that is k < 2, it is about Eᵏ, because the slope Σ p^{2−α} is only
    Hölder continuous in A, of order k − 1. An excess of at most 4 eps counts as rounding.
    """
    if epsilon == 0.0:
        return np.finfo(np.float64).max  # one step is exact
    if epsilon <= 0.5:
        return math.sqrt(eps)
    return 4 * eps if order == 1 else max(4 * eps, np.float64(fast.exp(np.float32(epsilon * math.log(eps)))))


@njit
def flat_normalisers(n):  # type: ignore[no-untyped-def]
    """An array of five numbers: n, then for m = 1 … 4 the A of n scores that are all 0, at α = 1 + 1/m.

    The mean of n scores plus this A is a lower bound of their A, by Jensen's inequality: exp_{2−α} is convex.
    """
    normalisers = np.empty(5)
    normalisers[0] = n
    for m in range(1, 5):
        normalisers[m] = m - m * n ** (-1.0 / m)
    return normalisers
