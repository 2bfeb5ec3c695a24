"""r = E_p[ψ] of β-Gaussians against Gaussian bases on the line: windows, nodes and sums, density after density.

`contmax.expectations._line_gaussian` has the rule and its symbols. Each pair of a density and a function has a window,
placed once; vector instructions then add a node to the sums of all pairs of a density at once. Pairs whose integrand
underflows everywhere are skipped.
"""

import numpy as np
from numba import njit

from contmax.kernels.cpu import _elementary as fast
from contmax.kernels.cpu._compiled import kernel
from contmax.kernels.cpu._lanes import wide_vectors

# Rows of the table of windows, for y = (t − μ)/a and z = (t − μ_j)/σ_j: with x from 0 to 1 in the window,
# z = Z₀ + DZ·x, 1 + y = LEFT + SPAN·x, 1 − y = RIGHT + SPAN·(1 − x).
_Z0, _DZ, _LEFT, _RIGHT, _SPAN, _NARROW, _ROWS = (np.uint64(i) for i in range(7))
# Rows of the table of sums over the nodes.
_VALUE, _BY_LOC, _BY_HALF, _BY_WIDTH, _ESCORT_LOC, _ESCORT_HALF, _SUMS = (np.uint64(i) for i in range(7))


@kernel(error_model="numpy")
def window_rows(r, by, loc, half, order, constant, centre, width, nodes, weights, start, stop):  # type: ignore[no-untyped-def]
    """Write r and by = ∂r/∂(μ, a, σ_j) of densities start … stop − 1.

    `order` is k, `constant` is C_k/√(2π). Slopes are integrals of p ψ′ for a narrow density or k = 0, else of p′ψ.
    """
    k, functions = centre.dtype.type(order), np.uint64(centre.shape[0])
    windows, live = np.empty((_ROWS, functions), centre.dtype), np.empty(functions, np.uint64)
    sums = np.empty((_SUMS, functions), centre.dtype)
    for b in range(np.uint64(start), np.uint64(stop)):
        count = _place(loc[b], half[b], order, centre, width, windows, live)
        sums[:] = 0
        for n in range(np.uint64(nodes.shape[0])):
            _add_node(windows, count, nodes[n], weights[n], k, sums)
        # Pairs without a window have r and slopes of 0, or NaN if μ or a is NaN.
        r[b] = by[:, b] = np.nan if loc[b] != loc[b] or half[b] != half[b] else 0.0
        for i in range(count):
            j = live[i]
            factor = constant * windows[_SPAN, i] / width[j]
            r[b, j] = factor * sums[_VALUE, i]
            if windows[_NARROW, i] > 0 or k < 1:
                by[0, b, j] = -factor * sums[_BY_LOC, i] / width[j]
                by[1, b, j] = -factor * sums[_BY_HALF, i] / width[j]
            else:
                by[0, b, j] = factor * (k + k) * sums[_ESCORT_LOC, i] / half[b]
                by[1, b, j] = factor * sums[_ESCORT_HALF, i] / half[b]
            by[2, b, j] = factor * sums[_BY_WIDTH, i] / width[j]


@njit(error_model="numpy")
def _place(loc, half, order, centre, width, windows, live):  # type: ignore[no-untyped-def]
    """Write the windows of one density and return their number; live[i] is the function of window i.

    The computation is in float64: an error of a window moves all its nodes, and the power k amplifies it.
    """
    # `narrowness` is the largest a/σ_j of a density that counts as narrow. In standard deviations, `reach` is the
    # half-width of a window, and `farthest` the distance at which a Gaussian underflows.
    narrowness = 2.0 * max(1.0, np.sqrt((2.0 * order + 3.0) / 5.0))
    reach, farthest = (5.6, 13.2) if centre.itemsize == 4 else (8.5, 37.4)
    mu, a, count = np.float64(loc), np.float64(half), np.uint64(0)
    for j in range(np.uint64(centre.shape[0])):
        deviation = np.float64(width[j])
        offset, ratio = np.float64(centre[j]) - mu, deviation / a
        narrow = a <= narrowness * deviation
        unit, spread = (1.0, ratio) if narrow else (ratio, 1.0)
        middle = offset / a if narrow else 0.0
        end = 1.0 if narrow else (a - offset) / deviation
        start = -1.0 if narrow else (-a - offset) / deviation
        nearest = min(max(middle, start), end)
        distance, wide = abs(middle - nearest), reach * spread
        extent = wide * wide / (np.sqrt(distance * distance + wide * wide) + distance)
        low, high = max(nearest - extent, start), min(nearest + extent, end)
        windows[_Z0, count] = (low - middle) / spread
        windows[_DZ, count] = (high - low) / spread
        windows[_LEFT, count] = (low - start) * unit
        windows[_RIGHT, count] = (end - high) * unit
        windows[_SPAN, count] = (high - low) * unit
        windows[_NARROW, count] = 1.0 if narrow else 0.0
        live[count] = j
        count += np.uint64(distance <= farthest * spread and loc == loc)
    return count


@njit
def _factor(k, from_k):  # type: ignore[no-untyped-def]
    """(a, b) such that a·u + b is u if k ≥ `from_k`, else 1. Four such factors give uᵏ, k ≤ 4, without a branch."""
    one, zero = np.ones_like(k), np.zeros_like(k)
    return (one, zero) if k > from_k - 0.5 else (zero, one)


@njit(error_model="numpy", fastmath=fast.CONTRACT)
def _add_node(windows, count, x, weight, k, sums):  # type: ignore[no-untyped-def]
    """Add the terms of the node x to the sums of every window."""
    wide_vectors()
    one, half = windows.dtype.type(1), windows.dtype.type(-0.5)
    odd = k + k + one
    (a, b), (c, d), (e, f), (g, h) = _factor(k, 1), _factor(k, 2), _factor(k, 3), _factor(k, 4)
    for i in range(count):
        z = windows[_Z0, i] + windows[_DZ, i] * x
        left, right = windows[_LEFT, i] + windows[_SPAN, i] * x, windows[_RIGHT, i] + windows[_SPAN, i] * (one - x)
        room, y = left * right, (right - left) * half
        escort = weight * (c * room + d) * (e * room + f) * (g * room + h) * fast.exp(half * z * z)
        mass = escort * (a * room + b)
        sums[_VALUE, i] += mass
        sums[_BY_LOC, i] += mass * z
        sums[_BY_HALF, i] += mass * z * y
        sums[_BY_WIDTH, i] += mass * (z * z - one)
        sums[_ESCORT_LOC, i] += escort * y
        sums[_ESCORT_HALF, i] += escort * (odd * y * y - one)
