"""α-entmax of rows by numba's kernels, for 0 < α ≤ 2: functions of eager tensors, whose rows lie along the last axis.

The kernels `forward_rows` and `backward_rows` run on several threads, each of which takes a range of rows.
"""

from typing import Any, NamedTuple

import numpy as np
import torch
from numba import njit
from torch import Tensor

from contmax._backend import NUMBA_DTYPES, Backend
from contmax._eager import holds_numbers
from contmax.kernels.cpu import _elementary as fast
from contmax.kernels.cpu._compiled import inlined, kernel
from contmax.kernels.cpu._lanes import compress_above, expand_above, wide_vectors
from contmax.kernels.cpu._threads import matrix_of, over_rows
from contmax.kernels.rows._cpu_evaluate import CHUNK, REDUCTION, ZERO, weights
from contmax.kernels.rows._cpu_peaked import is_delicate, sharpen
from contmax.kernels.rows._cpu_solve import (
    ROOM,
    ROW,
    begin,
    bound,
    climb,
    flat_normalisers,
    integer_order,
    narrow,
    normaliser,
    pad,
)

# The most rows that are solved side by side, and the most scores that several such rows may have together, so that
# their buffers fit into the fastest cache.
_MOST_TOGETHER = 8
_SCORES_TOGETHER = 2048


def entmax_rows(x: Tensor, alpha: float | Tensor) -> tuple[Tensor, Tensor]:
    """p, (*batch, n), and Ω*_α(x) − max x, (*batch, 1) in float64, of scores x, (*batch, n).

    Ω*_α is the convex conjugate of Tsallis' negentropy. α is a number, or a tensor that broadcasts to (*batch, 1).
    """
    p = torch.empty_like(x, memory_format=torch.contiguous_format)
    matrix = matrix_of(x)
    gain = np.empty(matrix.shape[0])
    over_rows(forward_rows, matrix, _numbers(alpha, x), matrix_of(p), gain)
    return p, torch.from_numpy(gain.reshape(*x.shape[:-1], 1))


def entmax_rows_backward(p: Tensor, g: Tensor, alpha: float | Tensor, needs_alpha: bool) -> tuple[Tensor, Tensor]:
    """Gradients of the scores, from p and its cotangent g, and of α per row, (*batch, 1); (0,) unless `needs_alpha`."""
    grad = torch.empty_like(p, memory_format=torch.contiguous_format)
    grad_alpha = p.new_empty((*p.shape[:-1], 1) if needs_alpha else (0,))
    arrays = (matrix_of(p), matrix_of(g), _numbers(alpha, p), matrix_of(grad), grad_alpha.numpy().reshape(-1))
    over_rows(backward_rows, *arrays)
    return grad, grad_alpha


class ReadyRows(NamedTuple):
    """α-entmax of the rows of eager tensors with one α, checked in advance by `ready`."""

    alpha: float
    backend: Backend = Backend.NUMBA

    def forward(self, x: Tensor) -> Tensor:
        """p of scores x, (*batch, n)."""
        return entmax_rows(x, self.alpha)[0]

    def backward(self, p: Tensor, g: Tensor) -> Tensor | None:
        """The gradient of the scores, from p and its cotangent; None for tensors that the kernels do not take."""
        # Saved-tensor hooks may return p with another dtype.
        if p.dtype not in NUMBA_DTYPES or not holds_numbers(g):
            return None
        return entmax_rows_backward(p, g, self.alpha, needs_alpha=False)[0]


def ready(x: Tensor, alpha: float, dtype: torch.dtype) -> ReadyRows | None:
    """`ReadyRows` for scores like x; None if α is 1 or not in (0, 2], or x is empty, a scalar or not eager."""
    if not 0 < alpha <= 2 or alpha == 1 or x.dim() == 0 or x.numel() == 0 or not holds_numbers(x):
        return None
    return ReadyRows(alpha)


def _numbers(alpha: float | Tensor, x: Tensor) -> Any:
    """α in float64: an array of one number per row, or of one number for all rows."""
    if not isinstance(alpha, Tensor):
        return np.array([alpha])
    return matrix_of((alpha if alpha.numel() == 1 else alpha.expand(*x.shape[:-1], 1)).double()).reshape(-1)


@kernel(error_model="numpy")
def forward_rows(x, alpha, p, gain, start, stop):  # type: ignore[no-untyped-def]
    """Write p and gain = Ω*_α − max x of rows start … stop − 1; `alpha` has one entry per row, or one for all."""
    wide_vectors()
    columns = np.uint64(x.shape[1])
    together = np.uint64(max(1, min(_MOST_TOGETHER, _SCORES_TOGETHER // x.shape[1])))
    shape = (together, columns + ROOM)
    scores, candidates, w = np.empty(shape, x.dtype), np.empty(shape, x.dtype), np.empty(shape, x.dtype)
    rows, flat, eps = np.empty(together, ROW), flat_normalisers(x.shape[1]), np.finfo(x.dtype).eps
    listed, places = np.empty(shape[1], x.dtype), np.empty(shape[1], np.uint32)
    distances, shares = np.empty((np.uint64(1), shape[1])), np.empty((np.uint64(1), shape[1]))
    for first in range(np.uint64(start), np.uint64(stop), together):
        count = min(together, np.uint64(stop) - first)
        for j in range(count):
            begin(x, first + j, _of_row(alpha, first + j) - 1.0, flat, scores, j, rows[j])
        climb(scores, rows, count)
        for j in range(count):
            bound(flat, eps, rows[j])
        for j in range(count):
            narrow(scores, j, candidates, rows[j])
        climb(candidates, rows, count)
        for j in range(count):
            solved = scores if rows[j].order > 0 else candidates
            if is_delicate(solved, j, rows[j]):
                gain[first + j] = sharpen(x, first + j, rows[j], listed, places, distances, shares, p)
            else:
                weights(solved, j, rows[j], w)
                gain[first + j] = _finish(scores, j, rows[j], w, p, first + j)


@njit
def _of_row(alpha, r):  # type: ignore[no-untyped-def]
    """α of row r."""
    return alpha[r if alpha.shape[0] > 1 else ZERO]


@njit(error_model="numpy")
def _finish(scores, j, row, w, p, r):  # type: ignore[no-untyped-def]
    """Write p of row r from its weights w[j]; return Ω* − max x, as Ω* itself would lose digits if scores are large."""
    wide_vectors()
    columns, factor = np.uint64(p.shape[1]), p.dtype.type(1.0 / row.mass)
    if not row.top > -np.inf:
        p[r] = np.nan if row.top != row.top else 0.0
        return row.top
    if row.order > 0:
        for i in range(columns):
            p[r, i] = w[j, i] * factor
    else:
        lowest = p.dtype.type(row.lowest)
        expand_above(scores, j * np.uint64(scores.shape[1]), columns, lowest, w, j, factor, p, r * columns)
    # With x the scores less their maximum, log_{2−α} p = x − A on the support. So Ω_α(p) = ⟨p, log_{2−α} p⟩/α is
    # (⟨x, p⟩ − A)/α, and the result is ⟨x, p⟩ − Ω_α(p) = (ε⟨x, p⟩ + A)/α.
    return (row.epsilon * row.product / row.mass + normaliser(row)) / (row.epsilon + 1.0)


@kernel(error_model="numpy")
def backward_rows(p, g, alpha, grad, grad_alpha, start, stop):  # type: ignore[no-untyped-def]
    """grad ← s (g − ⟨s, g⟩/⟨s, 1⟩) for rows start … stop − 1, s = p^{2−α}; grad_alpha ← −⟨grad, D⟩ if not empty."""
    wide_vectors()
    columns, needs_alpha = np.uint64(p.shape[1]), grad_alpha.shape[0] > 0
    zero, one = p.dtype.type(0), p.dtype.type(1)
    # Buffers for the support of one row: p, the cotangent g, the escort s, and D = ∂/∂α log_{2−α} p.
    shape = (np.uint64(1), columns + ROOM)
    weight, cotangent = np.empty(shape, p.dtype), np.empty(shape, p.dtype)
    escort, curvature = np.empty(shape, p.dtype), np.empty(shape, p.dtype)
    for r in range(np.uint64(start), np.uint64(stop)):
        if p[r, ZERO] != p[r, ZERO]:
            grad[r] = np.nan
            if needs_alpha:
                grad_alpha[r] = np.nan
            continue
        epsilon = _of_row(alpha, r) - 1.0
        count = compress_above(p, r * columns, columns, zero, weight, ZERO, g, cotangent)
        pad(cotangent, ZERO, count, zero)
        n = pad(weight, ZERO, count, zero)
        if needs_alpha:
            _escort_and_curvature(weight, n, epsilon, escort, curvature)
        else:
            _escort(weight, n, epsilon, escort)
        anchor = _anchor(weight, cotangent, n)
        product, total = _product(cotangent, escort, n, anchor)
        # In a row without support the mean is NaN, but no entry uses it.
        _centre(cotangent, n, escort, anchor, product / total)
        expand_above(p, r * columns, columns, zero, cotangent, ZERO, one, grad, r * columns)
        if needs_alpha:
            # `cotangent` now holds the gradient of the scores. It sums to 0, so a constant may be subtracted from D.
            # Without D at the largest p, the terms of ⟨D, gradient⟩ and their rounding errors are smaller.
            grad_alpha[r] = -_product(curvature, cotangent, n, _anchor(weight, curvature, n))[0]


@njit(error_model="numpy")
def _escort(p, n, epsilon, s):  # type: ignore[no-untyped-def]
    """s ← p^{2−α} on the support, 0 elsewhere."""
    wide_vectors()
    zero, one = p.dtype.type(0), p.dtype.type(1)
    quarters, power = _quarters_and_rest(1.0 - epsilon, p)
    order = integer_order(epsilon, np.finfo(np.float64).eps)
    if order == 1:
        for i in range(n):
            s[ZERO, i] = one if p[ZERO, i] > zero else zero
    elif order == 2:
        for i in range(n):
            s[ZERO, i] = np.sqrt(p[ZERO, i])
    else:
        for i in range(n):
            inside = p[ZERO, i] > zero
            w = fast.exp(power * fast.log(p[ZERO, i] if inside else one)) * _quarter_power(p[ZERO, i], quarters)
            s[ZERO, i] = w if inside else zero


@njit
def _quarters_and_rest(power, p):  # type: ignore[no-untyped-def]
    """Split a power in [0, 2) into quarters/4 + rest: rest·ln p has a smaller error than power·ln p."""
    quarters = int(4.0 * power + 0.5)
    return quarters, p.dtype.type(power - quarters / 4.0)


@inlined()
def _quarter_power(p, quarters):  # type: ignore[no-untyped-def]
    """p^{quarters/4} by products and roots, for up to 8 quarters."""
    power = type(p)(1)
    if quarters & 1:
        power = np.sqrt(np.sqrt(p))
    if quarters & 2:
        power *= np.sqrt(p)
    if quarters >= 4:
        power *= p
    return power * p if quarters == 8 else power


@njit(error_model="numpy", fastmath=fast.CONTRACT)
def _escort_and_curvature(p, n, epsilon, s, d):  # type: ignore[no-untyped-def]
    """s ← p^{2−α} and d ← ln²p ∫₀¹ u p^{εu} du = (y e^y − e^y + 1)/ε², y = ε ln p, on the support; s is 0 elsewhere."""
    wide_vectors()
    kind = p.dtype.type
    quarters, rest = _quarters_and_rest(1.0 - epsilon, p)
    zero, one, e, inverse_square = kind(0), kind(1), kind(epsilon), kind(1.0 / epsilon**2)
    # Below this |y|, `direct` loses digits by cancellation, and the series is exact to the precision of the dtype.
    near = kind(1.0 if p.itemsize == 4 else 0.25)
    c0, c1, c2, c3, c4 = kind(1 / 2), kind(1 / 3), kind(1 / 8), kind(1 / 30), kind(1 / 144)
    c5, c6, c7, c8, c9 = kind(1 / 840), kind(1 / 5760), kind(1 / 45360), kind(1 / 403200), kind(1 / 3991680)
    for i in range(n):
        inside = p[ZERO, i] > zero
        log_p = fast.log(p[ZERO, i] if inside else one)
        y = e * log_p
        w, power = fast.exp(rest * log_p) * _quarter_power(p[ZERO, i], quarters), fast.exp(y)
        tail = c5 + y * (c6 + y * (c7 + y * (c8 + y * c9)))
        series = log_p * log_p * (c0 + y * (c1 + y * (c2 + y * (c3 + y * (c4 + y * tail)))))
        direct = (y * power - power + one) * inverse_square
        s[ZERO, i] = w if inside else zero
        # Where s is 0, D is not needed and might overflow: store 0.
        d[ZERO, i] = (series if abs(y) < near else direct) if w > zero else zero


@njit(fastmath=REDUCTION | {"nnan"})
def _anchor(p, g, n):  # type: ignore[no-untyped-def]
    """g at the largest p. Callers subtract it: g less its mean would lose digits if one point has most of the mass."""
    wide_vectors()
    lowest = g.dtype.type(-np.inf)
    top, anchor = p.dtype.type(0), lowest
    for i in range(n):
        top = fast.maximum(top, p[ZERO, i])
    for i in range(n):
        anchor = fast.maximum(anchor, g[ZERO, i] if p[ZERO, i] == top else lowest)
    return anchor


@njit
def _centre(g, n, s, anchor, mean):  # type: ignore[no-untyped-def]
    """g ← s (g − anchor − mean), where `mean` is the mean of g − anchor."""
    wide_vectors()
    high = g.dtype.type(mean)
    low = g.dtype.type(mean - high)  # the rounding error of `high`, which would add up over the row
    for i in range(n):
        g[ZERO, i] = s[ZERO, i] * (((g[ZERO, i] - anchor) - high) - low)


@njit(fastmath=REDUCTION)
def _product(a, b, n, anchor):  # type: ignore[no-untyped-def]
    """⟨a − anchor, b⟩ and ⟨1, b⟩."""
    wide_vectors()
    product, total = 0.0, 0.0
    for start in range(ZERO, n, CHUNK):
        product_part, total_part = a.dtype.type(0), a.dtype.type(0)
        for i in range(start, min(n, start + CHUNK)):
            product_part += (a[ZERO, i] - anchor) * b[ZERO, i]
            total_part += b[ZERO, i]
        product += product_part
        total += total_part
    return product, total
