"""Forward and backward of α-entmax over the rows of a matrix; each thread takes a range of rows."""

import math

import numpy as np
from numba import njit

from contmax.kernels.cpu import _elementary as fast
from contmax.kernels.cpu._lanes import compress_with, expand_above, wide_vectors
from contmax.kernels.cpu._solve import (
    CHUNK,
    REDUCTION,
    ROOM,
    ROW,
    ZERO,
    begin,
    climb,
    integer_order,
    narrow,
    pad,
    weights,
)

# Rows solved side by side: as many as keep their buffers in the first level of the cache, and at most these.
_MOST_TOGETHER = 8
_SCORES_TOGETHER = 2048


@njit(cache=True, nogil=True, error_model="numpy")
def forward_rows(x, alpha, p, conjugate, start, stop):  # type: ignore[no-untyped-def]
    """p̂ and Ω*_α of rows start…stop; `alpha` has one entry per row, or one for all."""
    wide_vectors()
    columns = np.uint64(x.shape[1])
    together = np.uint64(max(1, min(_MOST_TOGETHER, _SCORES_TOGETHER // x.shape[1])))
    shape = (together, columns + ROOM)
    scores, candidates, w = np.empty(shape, x.dtype), np.empty(shape, x.dtype), np.empty(shape, x.dtype)
    rows, excess = np.empty(together, ROW), np.empty(together)
    log_n = math.log(x.shape[1])
    for first in range(np.uint64(start), np.uint64(stop), together):
        count = min(together, np.uint64(stop) - first)
        for j in range(count):
            begin(x, first + j, _of_row(alpha, first + j) - 1.0, log_n, scores, j, rows[j])
        climb(scores, rows, count, excess)
        for j in range(count):
            narrow(scores, j, _of_row(alpha, first + j) - 1.0, log_n, candidates, rows[j])
        climb(candidates, rows, count, excess)
        for j in range(count):
            conjugate[first + j] = _finish(scores, candidates, j, rows[j], w, p, first + j)


@njit(cache=True, nogil=True)
def _of_row(alpha, r):  # type: ignore[no-untyped-def]
    return alpha[r if alpha.shape[0] > 1 else ZERO]


@njit(cache=True, nogil=True, error_model="numpy")
def _finish(scores, candidates, j, row, w, p, r):  # type: ignore[no-untyped-def]
    """Write the probabilities of row r; returns Ω*."""
    columns = np.uint64(p.shape[1])
    if not row.top > -np.inf:
        _fill(p, r, p.dtype.type(np.nan if row.top != row.top else 0.0))
        return row.top
    if row.order > 0:
        mass, product = weights(scores, j, row, w)
        _write(w, j, columns, p.dtype.type(1.0 / mass), p, r)
    else:
        mass, product = weights(candidates, j, row, w)
        _write(w, j, row.n, p.dtype.type(1.0 / mass), w, j)
        cut = p.dtype.type(row.cut)
        expand_above(scores, j * np.uint64(scores.shape[1]), columns, cut, w, j, p, r * columns)
    # Ω* = ⟨x, p⟩ − Ω_α(p), and log_{2−α} p = x − A on the support.
    return row.top + (row.epsilon * product / mass + row.partition) / (row.epsilon + 1.0)


@njit(cache=True, nogil=True)
def _fill(p, r, value):  # type: ignore[no-untyped-def]
    for i in range(np.uint64(p.shape[1])):
        p[r, i] = value


@njit(cache=True, nogil=True)
def _write(w, j, n, factor, p, r):  # type: ignore[no-untyped-def]
    """p[r] ← factor·w[j]."""
    wide_vectors()
    for i in range(n):
        p[r, i] = w[j, i] * factor


@njit(cache=True, nogil=True, error_model="numpy")
def backward_rows(p, g, alpha, grad, grad_alpha, start, stop):  # type: ignore[no-untyped-def]
    """s (g − ⟨s, g⟩/⟨s, 1⟩), s = p^{2−α}, for rows start…stop; with its α-derivative where `grad_alpha` has rows."""
    wide_vectors()
    columns = np.uint64(p.shape[1])
    shape = (np.uint64(1), columns + ROOM)
    weight, cotangent, escort = np.empty(shape, p.dtype), np.empty(shape, p.dtype), np.empty(shape, p.dtype)
    zero = p.dtype.type(0)
    eps = np.finfo(p.dtype).eps
    for r in range(np.uint64(start), np.uint64(stop)):
        if p[r, ZERO] != p[r, ZERO]:
            _fill(grad, r, p.dtype.type(np.nan))
            if grad_alpha.shape[0] > 0:
                grad_alpha[r] = np.nan
            continue
        epsilon = _of_row(alpha, r) - 1.0
        kept = compress_with(p, g, r * columns, columns, zero, weight, cotangent, ZERO)
        n = pad(weight, ZERO, kept, zero)
        pad(cotangent, ZERO, kept, zero)
        total, product = _escort(weight, cotangent, n, epsilon, integer_order(epsilon, eps), escort)
        _centre(cotangent, n, escort, p.dtype.type(product / total if total > 0.0 else 0.0))
        expand_above(p, r * columns, columns, zero, cotangent, ZERO, grad, r * columns)
        if grad_alpha.shape[0] > 0:
            grad_alpha[r] = _along_alpha(weight, escort, cotangent, n, epsilon)


@njit(cache=True, nogil=True, error_model="numpy", fastmath=fast.CONTRACT)
def _power(p, exponent):  # type: ignore[no-untyped-def]
    """p^exponent on the support, 0 elsewhere."""
    inside = p > type(p)(0)
    w = fast.exp(exponent * fast.log(p if inside else type(p)(1)))
    return w if inside else type(p)(0)


@njit(cache=True, nogil=True, error_model="numpy", fastmath=REDUCTION)
def _escort(p, g, n, epsilon, order, s):  # type: ignore[no-untyped-def]
    """s ← p^{2−α} on the support, 0 elsewhere; returns (Σ s, Σ s g). Buffers of one row each."""
    wide_vectors()
    zero, one = p.dtype.type(0), p.dtype.type(1)
    exponent = p.dtype.type(1.0 - epsilon)
    total, product = 0.0, 0.0
    for start in range(ZERO, n, CHUNK):
        stop = min(n, start + CHUNK)
        total_part, product_part = zero, zero
        if order == 1:
            for i in range(start, stop):
                s[ZERO, i] = one if p[ZERO, i] > zero else zero
        elif order == 2:
            for i in range(start, stop):
                s[ZERO, i] = np.sqrt(p[ZERO, i])
        elif epsilon == 0.0:
            for i in range(start, stop):
                s[ZERO, i] = p[ZERO, i]
        else:
            for i in range(start, stop):
                s[ZERO, i] = _power(p[ZERO, i], exponent)
        for i in range(start, stop):
            total_part += s[ZERO, i]
            product_part += s[ZERO, i] * g[ZERO, i]
        total += total_part
        product += product_part
    return total, product


@njit(cache=True, nogil=True)
def _centre(g, n, s, mean):  # type: ignore[no-untyped-def]
    """g ← s (g − mean)."""
    wide_vectors()
    for i in range(n):
        g[ZERO, i] = s[ZERO, i] * (g[ZERO, i] - mean)


@njit(cache=True, nogil=True, error_model="numpy", fastmath=fast.CONTRACT)
def _log_curvature(p, s, epsilon, inverse_square, near):  # type: ignore[no-untyped-def]
    """D = ln²p ∫₀¹ u p^{εu} du = (y e^y − e^y + 1)/ε² with y = ε ln p, by its series where y is small; 0 where p = 0."""
    one = type(p)(1)
    inside = p > type(p)(0)
    c0, c1, c2, c3 = type(p)(1 / 2), type(p)(1 / 3), type(p)(1 / 8), type(p)(1 / 30)
    c4, c5, c6, c7 = type(p)(1 / 144), type(p)(1 / 840), type(p)(1 / 5760), type(p)(1 / 45360)
    c8, c9 = type(p)(1 / 403200), type(p)(1 / 3991680)
    log_p = fast.log(p if inside else one)
    y = epsilon * log_p
    power = (p if inside else one) / (s if inside else one)
    direct = (y * power - power + one) * inverse_square
    tail = c5 + y * (c6 + y * (c7 + y * (c8 + y * c9)))
    series = c0 + y * (c1 + y * (c2 + y * (c3 + y * (c4 + y * tail))))
    return log_p * log_p * series if abs(y) < near else direct


@njit(cache=True, nogil=True, error_model="numpy", fastmath=REDUCTION)
def _along_alpha(p, s, grad, n, epsilon):  # type: ignore[no-untyped-def]
    """−⟨D, grad⟩: the derivative in α of a row."""
    wide_vectors()
    e, inverse_square = p.dtype.type(epsilon), p.dtype.type(1.0 / epsilon**2)
    near = p.dtype.type(1.0 if p.itemsize == 4 else 0.25)
    total = 0.0
    for start in range(ZERO, n, CHUNK):
        part = p.dtype.type(0)
        for i in range(start, min(n, start + CHUNK)):
            part += _log_curvature(p[ZERO, i], s[ZERO, i], e, inverse_square, near) * grad[ZERO, i]
        total += part
    return -total
