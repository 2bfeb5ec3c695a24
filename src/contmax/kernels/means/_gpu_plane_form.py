"""Densities and functions on the plane as blocks, and the form of their pairs.

What the numbers a, b, c, n, g mean says `contmax.expectations._plane_form`.
"""

import triton
import triton.language as tl


@triton.jit
def _cholesky(a_11, a_21, a_22):
    """L of LLᵀ = A, from the lower triangle of A; inside in float64, which costs nothing here."""
    l_11 = tl.sqrt(a_11.to(tl.float64))
    l_21 = a_21.to(tl.float64) / l_11
    l_22 = tl.sqrt(a_22.to(tl.float64) - l_21 * l_21)
    return l_11.to(tl.float32), l_21.to(tl.float32), l_22.to(tl.float32)


@triton.jit
def densities(loc_ptr, scale_ptr, row, known, factor, power, MATRIX: tl.constexpr, GAUSSIAN: tl.constexpr):
    """μ, L and √v of a block of densities, each (rows, 1); L is found here where MATRIX says that Σ is given."""
    mu_1 = tl.load(loc_ptr + 2 * row, known, other=0.0)
    mu_2 = tl.load(loc_ptr + 2 * row + 1, known, other=0.0)
    l_11 = tl.load(scale_ptr + 4 * row, known, other=1.0)
    l_21 = tl.load(scale_ptr + 4 * row + 2, known, other=0.0)
    l_22 = tl.load(scale_ptr + 4 * row + 3, known, other=1.0)
    if MATRIX:
        l_11, l_21, l_22 = _cholesky(l_11, l_21, l_22)
    root = tl.full(l_11.shape, 1.0, tl.float32)
    if not GAUSSIAN:
        volume = l_11.to(tl.float64) * l_22.to(tl.float64)
        root = (tl.exp(-tl.log(volume) * power) * factor).to(tl.float32)
    return mu_1[:, None], mu_2[:, None], l_11[:, None], l_21[:, None], l_22[:, None], root[:, None]


@triton.jit
def functions(centre_ptr, tril_ptr, column, known):
    """μ_j and L_j of a block of functions, each (1, columns)."""
    c_1 = tl.load(centre_ptr + 2 * column, known, other=0.0)[None, :]
    c_2 = tl.load(centre_ptr + 2 * column + 1, known, other=0.0)[None, :]
    first = tl.load(tril_ptr + 4 * column, known, other=1.0)[None, :]
    lower = tl.load(tril_ptr + 4 * column + 2, known, other=0.0)[None, :]
    second = tl.load(tril_ptr + 4 * column + 3, known, other=1.0)[None, :]
    return c_1, c_2, first, lower, second


@triton.jit
def plane_form(d_1, d_2, t_11, t_21, t_22, first, lower, second):
    """K = L_j⁻¹T and y = L_j⁻¹d; then √a, and with y ← √a y also Ky turned by a right angle, (p, q)."""
    k_11, k_22, y_1 = t_11 / first, t_22 / second, d_1 / first
    k_21, y_2 = (t_21 - lower * k_11) / second, (d_2 - lower * y_1) / second
    root = tl.sqrt(1.0 / (1.0 + k_11 * k_11 + k_21 * k_21 + k_22 * k_22 + (k_11 * k_22) * (k_11 * k_22)))
    # Scaled before they are squared, distances of 1e18 widths do not overflow.
    y_1, y_2 = y_1 * root, y_2 * root
    return k_11, k_21, k_22, y_1, y_2, root, k_21 * y_1 - k_11 * y_2, k_22 * y_1


@triton.jit
def form_numbers(form):
    """a, b, c, n, g of what `plane_form` returns."""
    k_11, k_21, k_22, y_1, y_2, root, p, q = form
    a = root * root
    crossed = k_11 * k_22 * root
    return a, (k_11 * k_11 + k_21 * k_21 + k_22 * k_22) * a, crossed * crossed, y_1 * y_1 + y_2 * y_2, p * p + q * q
