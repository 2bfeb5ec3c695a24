"""Forward and backward of α-entmax over the rows of a matrix; each thread takes a range of rows."""

import numpy as np
from numba import njit

from contmax.kernels.cpu import _elementary as fast
from contmax.kernels.cpu._solve import BLOCK, block_maxima, integer_order, solve_row, total


@njit(cache=True, nogil=True, error_model="numpy")
def forward_rows(x, alpha, p, conjugate, start, stop):  # type: ignore[no-untyped-def]
    """p̂ and Ω*_α of rows start…stop; `alpha` has one entry per row, or one for all."""
    count = (x.shape[1] + BLOCK - 1) // BLOCK
    maxima = np.empty(count, x.dtype)
    blocks = np.empty(count, np.int64)
    v = np.empty(count * BLOCK, x.dtype)
    weight = np.empty(count * BLOCK, x.dtype)
    for r in range(start, stop):
        a = np.float64(alpha[r if alpha.shape[0] > 1 else 0])
        n, live, top, partition = solve_row(x[r], a - 1.0, maxima, blocks, v, weight)
        if n == 0:
            p[r, :] = np.nan if top != top else 0.0
            conjugate[r] = top
            continue
        mass = total(weight[:n])
        _scatter(p[r], weight[:n], blocks, live, 1.0 / mass)
        _multiply(v[:n], weight)
        # Ω* = ⟨x, p⟩ − Ω_α(p), and log_{2−α} p = x − A on the support.
        conjugate[r] = top + ((a - 1.0) * total(v[:n]) / mass + partition) / a


@njit(cache=True, nogil=True)
def _multiply(v, weight):  # type: ignore[no-untyped-def]
    """v ← v·weight, with 0 where the weight is 0 (v may be −inf there)."""
    zero = v.dtype.type(0)
    for i in range(v.shape[0]):
        product = v[i] * weight[i]
        v[i] = product if weight[i] > zero else zero


@njit(cache=True, nogil=True)
def _scatter(row, values, blocks, live, scale):  # type: ignore[no-untyped-def]
    """Write scaled values to the live blocks of a row, zero to the others; live = −1 means the whole row."""
    factor = row.dtype.type(scale)
    if live < 0:
        for i in range(values.shape[0]):
            row[i] = values[i] * factor
        return
    row[:] = 0
    for i in range(live):
        target, source = row[blocks[i] * BLOCK : (blocks[i] + 1) * BLOCK], values[i * BLOCK : (i + 1) * BLOCK]
        for j in range(target.shape[0]):
            target[j] = source[j] * factor


@njit(cache=True, nogil=True, error_model="numpy")
def _gather_support(p, g, maxima, blocks, weight, cotangent):  # type: ignore[no-untyped-def]
    """Bring p and g of the blocks with some p > 0 to the front; returns (n, live) as `solve_row` does."""
    columns = p.shape[0]
    count = (columns + BLOCK - 1) // BLOCK
    zero = p.dtype.type(0)
    block_maxima(p, maxima)
    reaching = 0
    for b in range(count):
        reaching += maxima[b] > zero
    if 3 * reaching > count:
        for i in range(columns):
            weight[i] = p[i]
            cotangent[i] = g[i]
        return columns, -1
    live = 0
    for b in range(count):
        if maxima[b] > zero:
            stop = min(BLOCK, columns - b * BLOCK)
            for j in range(BLOCK):
                weight[live * BLOCK + j] = p[b * BLOCK + j] if j < stop else zero
                cotangent[live * BLOCK + j] = g[b * BLOCK + j] if j < stop else zero
            blocks[live] = b
            live += 1
    return live * BLOCK, live


@njit(cache=True, nogil=True, error_model="numpy")
def _escort(p, exponent, order, escort):  # type: ignore[no-untyped-def]
    """p^{2−α} on the support, 0 elsewhere."""
    zero, one = p.dtype.type(0), p.dtype.type(1)
    power = p.dtype.type(exponent)
    n = p.shape[0]
    if order == 1:
        for i in range(n):
            escort[i] = one if p[i] > zero else zero
    elif order == 2:
        for i in range(n):
            escort[i] = np.sqrt(p[i])
    elif exponent == 1.0:
        for i in range(n):
            escort[i] = p[i]
    else:
        for i in range(n):
            s = fast.exp(power * fast.log(p[i] if p[i] > zero else one))
            escort[i] = s if p[i] > zero else zero


@njit(cache=True, nogil=True)
def _centre(cotangent, escort, mean, grad):  # type: ignore[no-untyped-def]
    """s (g − mean), and exactly 0 where s = 0 whatever g is there."""
    zero, centre = escort.dtype.type(0), escort.dtype.type(mean)
    for i in range(escort.shape[0]):
        moved = escort[i] * (cotangent[i] - centre)
        grad[i] = moved if escort[i] > zero else zero


@njit(cache=True, nogil=True, error_model="numpy")
def _alpha_terms(p, escort, grad, epsilon, terms):  # type: ignore[no-untyped-def]
    """−D·grad with D = ln²p ∫₀¹ u p^{εu} du; the grad vanishes off the support."""
    zero, one, near_zero = p.dtype.type(0), p.dtype.type(1), p.dtype.type(0.25)
    e = p.dtype.type(epsilon)
    c0, c1, c2, c3 = p.dtype.type(1 / 2), p.dtype.type(1 / 3), p.dtype.type(1 / 8), p.dtype.type(1 / 30)
    c4, c5, c6, c7 = p.dtype.type(1 / 144), p.dtype.type(1 / 840), p.dtype.type(1 / 5760), p.dtype.type(1 / 45360)
    c8, c9 = p.dtype.type(1 / 403200), p.dtype.type(1 / 3991680)
    for i in range(p.shape[0]):
        inside = p[i] > zero
        log_p = fast.log(p[i] if inside else one)
        y = e * log_p
        power = (p[i] if inside else one) / (escort[i] if inside else one)  # p^ε
        near = abs(y) < near_zero
        direct = (y * power - power + one) / (one if near else y * y)
        tail = c5 + y * (c6 + y * (c7 + y * (c8 + y * c9)))
        series = c0 + y * (c1 + y * (c2 + y * (c3 + y * (c4 + y * tail))))
        terms[i] = -log_p * log_p * (series if near else direct) * grad[i]


@njit(cache=True, nogil=True, error_model="numpy")
def backward_rows(p, g, alpha, grad, grad_alpha, start, stop):  # type: ignore[no-untyped-def]
    """s (g − ⟨s, g⟩/⟨s, 1⟩), s = p^{2−α}, for rows start…stop; with its α-derivative where `grad_alpha` has rows."""
    count = (p.shape[1] + BLOCK - 1) // BLOCK
    maxima = np.empty(count, p.dtype)
    blocks = np.empty(count, np.int64)
    weight = np.empty(count * BLOCK, p.dtype)
    cotangent = np.empty(count * BLOCK, p.dtype)
    escort = np.empty(count * BLOCK, p.dtype)
    work = np.empty(count * BLOCK, p.dtype)
    eps = np.finfo(p.dtype).eps
    for r in range(start, stop):
        if p[r, 0] != p[r, 0]:
            grad[r, :] = np.nan
            if grad_alpha.shape[0] > 0:
                grad_alpha[r] = np.nan
            continue
        a = np.float64(alpha[r if alpha.shape[0] > 1 else 0])
        n, live = _gather_support(p[r], g[r], maxima, blocks, weight, cotangent)
        _escort(weight[:n], 2.0 - a, integer_order(a - 1.0, eps), escort)
        work[:n] = cotangent[:n]
        _multiply(work[:n], escort)
        mass = total(escort[:n])
        _centre(cotangent, escort[:n], total(work[:n]) / mass if mass > 0.0 else 0.0, work)
        _scatter(grad[r], work[:n], blocks, live, 1.0)
        if grad_alpha.shape[0] > 0:
            _alpha_terms(weight[:n], escort, work, a - 1.0, cotangent)
            grad_alpha[r] = total(cotangent[:n])
