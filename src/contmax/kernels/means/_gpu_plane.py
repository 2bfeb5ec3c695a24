"""E_p[ψ] on the plane and its gradients: a block of densities against a block of basis functions in each program.

The rule is that of `contmax.expectations._space_gaussian` for numbers α with k = 1/(α−1) ≥ 1, and α = 1, here k = ∞.
The variance of the density is found here too: V = vLLᵀ with v = F²(l₁₁l₂₂)^{−2p}, p = 1/(2k+2). All is in float32 but
for √v.
"""

import math
from functools import partial

import torch
import triton
import triton.language as tl
from torch import Tensor

from contmax._caches import DeviceCache
from contmax.kernels._counting import power_of_two
from contmax.kernels.means._gpu_pairs import Pairs
from contmax.kernels.means._gpu_scale_path import mean_and_slopes
from contmax.kernels.means._gpu_windows import STEEPEST
from contmax.numerics import SINGLE, hyperbola_nodes

_BLOCK = 128
_INVERSE_2PI = tl.constexpr(0.15915494309189535)


@triton.jit
def _cholesky(a_11, a_21, a_22):
    """L of LLᵀ = A, from the lower triangle of A; inside in float64, which costs nothing here."""
    l_11 = tl.sqrt(a_11.to(tl.float64))
    l_21 = a_21.to(tl.float64) / l_11
    l_22 = tl.sqrt(a_22.to(tl.float64) - l_21 * l_21)
    return l_11.to(tl.float32), l_21.to(tl.float32), l_22.to(tl.float32)


@triton.jit
def _load_densities(loc_ptr, scale_ptr, row, known, factor, power, MATRIX: tl.constexpr, GAUSSIAN: tl.constexpr):
    """μ, L and √v of a block of densities, each (rows, 1); L is computed from Σ with MATRIX."""
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
def _load_functions(centre_ptr, tril_ptr, column, known):
    """μ_j and L_j of a block of functions, each (1, columns)."""
    c_1 = tl.load(centre_ptr + 2 * column, known, other=0.0)[None, :]
    c_2 = tl.load(centre_ptr + 2 * column + 1, known, other=0.0)[None, :]
    first = tl.load(tril_ptr + 4 * column, known, other=1.0)[None, :]
    lower = tl.load(tril_ptr + 4 * column + 2, known, other=0.0)[None, :]
    second = tl.load(tril_ptr + 4 * column + 3, known, other=1.0)[None, :]
    return c_1, c_2, first, lower, second


@triton.jit
def _plane_form(d_1, d_2, t_11, t_21, t_22, first, lower, second):
    """K = L_j⁻¹T and y = L_j⁻¹d; then √a, and with y ← √a y also Ky turned by a right angle, (p, q)."""
    k_11, k_22, y_1 = t_11 / first, t_22 / second, d_1 / first
    k_21, y_2 = (t_21 - lower * k_11) / second, (d_2 - lower * y_1) / second
    root = tl.sqrt(1.0 / (1.0 + k_11 * k_11 + k_21 * k_21 + k_22 * k_22 + (k_11 * k_22) * (k_11 * k_22)))
    # Scaled before they are squared, distances of 1e18 widths do not overflow.
    y_1, y_2 = y_1 * root, y_2 * root
    return k_11, k_21, k_22, y_1, y_2, root, k_21 * y_1 - k_11 * y_2, k_22 * y_1


@triton.jit
def _form_numbers(form):
    """a, b, c, n, g, from the tuple of `_plane_form`."""
    k_11, k_21, k_22, y_1, y_2, root, p, q = form
    a = root * root
    crossed = k_11 * k_22 * root
    return a, (k_11 * k_11 + k_21 * k_21 + k_22 * k_22) * a, crossed * crossed, y_1 * y_1 + y_2 * y_2, p * p + q * q


@triton.jit
def _pair_slopes(form, first, lower, second, norm, path, GAUSSIAN: tl.constexpr, NODES: tl.constexpr):
    """The mean of each pair, without its factors, and ∂r/∂(μ₁, μ₂, t₁₁, t₂₁, t₂₂), T the factor of the variance."""
    k_11, k_21, k_22, y_1, y_2, size, p, q = form
    a, b, c, n, g = _form_numbers(form)
    if GAUSSIAN:
        value = tl.exp(-0.5 * (n + g))
        by_n, by_g = -0.5 * value, -0.5 * value
        whole = value * (0.5 - 0.5 * (n + g))
        by_trace, by_det = -whole, -whole
    else:
        value, by_a, by_b, by_c, by_n, by_g = mean_and_slopes(a, b, c, n, g, path, NODES)
        # How the value changes with the logarithm of a, which scales all five numbers and the factor of the form.
        whole = 0.5 * value + a * by_a + b * by_b + c * by_c + n * by_n + g * by_g
        by_trace, by_det = by_b - whole, by_c - whole
    # In K and y, each with the factor 2 size² of a square.
    by_k11 = a * k_11 * (by_trace + k_22 * k_22 * by_det) - by_g * p * y_2
    by_k22 = a * k_22 * (by_trace + k_11 * k_11 * by_det) + by_g * q * y_1
    by_k21 = a * k_21 * by_trace + by_g * p * y_1
    by_y1 = size * (by_n * y_1 + by_g * (p * k_21 + q * k_22))
    by_y2 = size * (by_n * y_2 - by_g * p * k_11)
    # Through y = L_j⁻¹d and K = L_j⁻¹T.
    scale = 2.0 * norm * size * _INVERSE_2PI / (first * second)
    by_y1, by_k11 = by_y1 - lower / second * by_y2, by_k11 - lower / second * by_k21
    by_1, by_2 = _bounded(scale * by_y1 / first), _bounded(scale * by_y2 / second)
    by_11, by_21 = _bounded(scale * by_k11 / first), _bounded(scale * by_k21 / second)
    return value, by_1, by_2, by_11, by_21, _bounded(scale * by_k22 / second)


@triton.jit
def _through_cholesky(by_11, by_21, by_22, l_11, l_21, l_22):
    """The gradient of A, symmetric, from that of L: its three numbers."""
    by_22 = 0.5 * by_22 / l_22
    by_21 = (by_21 - 2.0 * l_21 * by_22) / l_11
    return 0.5 * (by_11 / l_11 - by_21 * l_21 / l_11), 0.5 * by_21, by_22


@triton.jit
def _through_root(by_11, by_21, by_22, l_11, l_21, l_22, root, power, MATRIX: tl.constexpr):
    """The gradient of L, or with MATRIX of Σ = LLᵀ, as four numbers, from that of T = √v L; √v is a power of l₁₁l₂₂."""
    turned = power * (by_11 * l_11 + by_21 * l_21 + by_22 * l_22)
    by_11, by_21, by_22 = root * (by_11 - turned / l_11), root * by_21, root * (by_22 - turned / l_22)
    above = tl.zeros_like(by_21)
    if MATRIX:
        by_11, by_21, by_22 = _through_cholesky(by_11, by_21, by_22, l_11, l_21, l_22)
        above = by_21
    return by_11, above, by_21, by_22


@triton.jit
def _bounded(slope):
    # Minima and maxima would lose NaN.
    return tl.where(slope > STEEPEST, STEEPEST, tl.where(slope < -STEEPEST, -STEEPEST, slope))


@triton.jit
def plane_fwd_kernel(
    r_ptr,
    loc_ptr,
    scale_ptr,
    centre_ptr,
    basis_ptr,
    rises,
    runs,
    rows,
    columns,
    factor,
    power,
    norm,
    order,
    stretch,
    most,
    share,
    step,
    MATRIX: tl.constexpr,
    GAUSSIAN: tl.constexpr,
    NODES: tl.constexpr,
    SLOPES: tl.constexpr,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
):
    """r of a block of densities against a block of functions.

    With SLOPES (rows, 7, columns): r, then its slopes in the two numbers of μ and in the four of Σ or L.
    """
    row = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    column = tl.program_id(1) * COLUMNS + tl.arange(0, COLUMNS)
    mu_1, mu_2, l_11, l_21, l_22, root = _load_densities(
        loc_ptr, scale_ptr, row, row < rows, factor, power, MATRIX, GAUSSIAN
    )
    c_1, c_2, first, lower, second = _load_functions(centre_ptr, basis_ptr, column, column < columns)
    t_11, t_21, t_22 = l_11 * root, l_21 * root, l_22 * root
    form = _plane_form(mu_1 - c_1, mu_2 - c_2, t_11, t_21, t_22, first, lower, second)
    size = form[5]
    path = (order, stretch, most, share, step, rises, runs)
    inside = (row < rows)[:, None] & (column < columns)[None, :]
    place = r_ptr + row[:, None] * ((7 if SLOPES else 1) * columns) + column[None, :]
    if SLOPES:
        value, by_1, by_2, by_11, by_21, by_22 = _pair_slopes(form, first, lower, second, norm, path, GAUSSIAN, NODES)
        by_11, above, by_21, by_22 = _through_root(by_11, by_21, by_22, l_11, l_21, l_22, root, power, MATRIX)
        slopes = (by_1, by_2, by_11, above, by_21, by_22)
        for n in tl.static_range(6):
            tl.store(place + (n + 1) * columns, slopes[n], inside)
    else:
        a, b, c, n, g = _form_numbers(form)
        if GAUSSIAN:
            value = tl.exp(-0.5 * (n + g))
        else:
            value, _a, _b, _c, _n, _g = mean_and_slopes(a, b, c, n, g, path, NODES)
    tl.store(place, value * norm * size * _INVERSE_2PI / (first * second), inside)


@triton.jit
def plane_bwd_kernel(
    by_loc_ptr,
    by_scale_ptr,
    by_basis_ptr,
    cotangent_ptr,
    loc_ptr,
    scale_ptr,
    centre_ptr,
    basis_ptr,
    rises,
    runs,
    rows,
    columns,
    row_stride,
    column_stride,
    factor,
    power,
    norm,
    order,
    stretch,
    most,
    share,
    step,
    MATRIX: tl.constexpr,
    GAUSSIAN: tl.constexpr,
    NODES: tl.constexpr,
    BASIS: tl.constexpr,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
):
    """The gradients of a block of densities; with BASIS also its share in those of all functions, (blocks, 5, K)."""
    block = tl.program_id(0)
    row = block.to(tl.int64) * ROWS + tl.arange(0, ROWS)
    mu_1, mu_2, l_11, l_21, l_22, root = _load_densities(
        loc_ptr, scale_ptr, row, row < rows, factor, power, MATRIX, GAUSSIAN
    )
    t_11, t_21, t_22 = l_11 * root, l_21 * root, l_22 * root
    path = (order, stretch, most, share, step, rises, runs)
    by_1, by_2 = tl.zeros([ROWS], tl.float32), tl.zeros([ROWS], tl.float32)
    by_11, by_21, by_22 = tl.zeros([ROWS], tl.float32), tl.zeros([ROWS], tl.float32), tl.zeros([ROWS], tl.float32)
    for start in range(0, columns, COLUMNS):
        column = start + tl.arange(0, COLUMNS)
        c_1, c_2, first, lower, second = _load_functions(centre_ptr, basis_ptr, column, column < columns)
        form = _plane_form(mu_1 - c_1, mu_2 - c_2, t_11, t_21, t_22, first, lower, second)
        value, d_1, d_2, s_11, s_21, s_22 = _pair_slopes(form, first, lower, second, norm, path, GAUSSIAN, NODES)
        inside = (row < rows)[:, None] & (column < columns)[None, :]
        offsets = row[:, None] * row_stride + column[None, :].to(tl.int64) * column_stride
        cotangent = tl.load(cotangent_ptr + offsets, inside, other=0.0)
        d_1, d_2 = cotangent * d_1, cotangent * d_2
        s_11, s_21, s_22 = cotangent * s_11, cotangent * s_21, cotangent * s_22
        by_1 += tl.sum(tl.where(inside, d_1, 0.0), 1)
        by_2 += tl.sum(tl.where(inside, d_2, 0.0), 1)
        by_11 += tl.sum(tl.where(inside, s_11, 0.0), 1)
        by_21 += tl.sum(tl.where(inside, s_21, 0.0), 1)
        by_22 += tl.sum(tl.where(inside, s_22, 0.0), 1)
        if BASIS:
            k_11, k_21, k_22, y_1, y_2, size, _p, _q = form
            y_1, y_2 = y_1 / size, y_2 / size
            mass = norm * size * _INVERSE_2PI / (first * second) * value * cotangent
            by_first = -(y_1 * d_1 + k_11 * s_11) - mass / first
            by_lower = -(y_1 * d_2 + k_11 * s_21)
            by_second = -(y_2 * d_2 + k_21 * s_21 + k_22 * s_22) - mass / second
            to = by_basis_ptr + block.to(tl.int64) * 5 * columns + column
            slopes = (d_1, d_2, by_first, by_lower, by_second)
            for n in tl.static_range(5):
                total = tl.sum(tl.where(inside, slopes[n], 0.0), 0)
                tl.store(to + n * columns, -total if n < 2 else total, column < columns)
    known = row < rows
    tl.store(by_loc_ptr + 2 * row, by_1, known)
    tl.store(by_loc_ptr + 2 * row + 1, by_2, known)
    root, l_11 = tl.reshape(root, [ROWS]), tl.reshape(l_11, [ROWS])
    l_21, l_22 = tl.reshape(l_21, [ROWS]), tl.reshape(l_22, [ROWS])
    by_11, above, by_21, by_22 = _through_root(by_11, by_21, by_22, l_11, l_21, l_22, root, power, MATRIX)
    by_scale = (by_11, above, by_21, by_22)
    for n in tl.static_range(4):
        tl.store(by_scale_ptr + 4 * row + n, by_scale[n], known)


def _rule(_: float, device: torch.device) -> tuple[Tensor, Tensor]:
    return nodes_on(device)


@DeviceCache
def nodes_on(device: torch.device) -> tuple[Tensor, Tensor]:
    """sinh and cosh along the path."""
    return hyperbola_nodes(SINGLE, device)


def _law(is_matrix: bool, k: float) -> tuple[tuple[float, ...], dict[str, int]]:
    """√v, the law of the scale and its path, in the order of the kernels' arguments; the constants of compilation."""
    path = (SINGLE.stretch, SINGLE.lean, SINGLE.curvature, SINGLE.end / SINGLE.nodes)
    if math.isinf(k):
        return (1.0, 0.0, 1.0, 2.0, *path), {"MATRIX": is_matrix, "GAUSSIAN": True, "NODES": SINGLE.nodes}
    order = k + 2
    # v = R²/(2k + 4), and the density of height (R²/2k)ᵏ is one in all.
    factor = math.sqrt(((k + 1) * (2 * k) ** k / math.pi) ** (1 / (k + 1)) / (2 * k + 4))
    norm = math.exp(math.lgamma(order) + order + (1 - order) * math.log(order)) / (2 * math.pi)
    power = 0.5 / (k + 1)
    return (factor, power, norm, order, *path), {"MATRIX": is_matrix, "GAUSSIAN": False, "NODES": SINGLE.nodes}


def _block(rows: int, columns: int) -> tuple[int, int, int]:
    """Densities, functions and warps of one program: one pair for each thread."""
    block_columns = min(power_of_two(columns), _BLOCK)
    return max(1, min(_BLOCK // block_columns, power_of_two(rows))), block_columns, 4


def _basis_gradients(shares: Tensor) -> tuple[Tensor, Tensor]:
    total = shares.sum(0)
    by_tril = total.new_zeros(total.shape[1], 2, 2)
    by_tril[:, 0, 0], by_tril[:, 1, 0], by_tril[:, 1, 1] = total[2:]
    return total[:2].mT.contiguous(), by_tril


def _family(is_matrix: bool) -> Pairs:
    law = partial(_law, is_matrix)
    return Pairs(plane_fwd_kernel, plane_bwd_kernel, 2, 5, _block, law, _rule, _basis_gradients)


PLANE, PLANE_OF_MATRIX = _family(is_matrix=False), _family(is_matrix=True)
"""β-Gaussians with 1 ≤ k ≤ 30 or ∞, given the Cholesky factor of Σ; and given Σ."""
