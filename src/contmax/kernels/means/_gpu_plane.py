"""r = E_p[ψ] on the plane and its gradients: a block of densities against a block of basis functions in each program.

The rule is that of `contmax.expectations._space_gaussian` for fixed α with k = 1/(α−1) ≥ 1, and for α = 1 (k = ∞). The
kernels also compute the covariance of the density from the Cholesky factor L of Σ: V = vLLᵀ with v = F²(l₁₁l₂₂)^{−2p},
p = 1/(2k+2) and F of `_law`. All arithmetic is in float32, except for √v, and for L where it is computed from Σ.
"""

import math
from functools import partial

import torch
import triton
import triton.language as tl
from torch import Tensor

from contmax._caches import DeviceCache
from contmax.kernels import power_of_two
from contmax.kernels.means._gpu_pairs import Pairs
from contmax.kernels.means._gpu_scale_path import mean_and_slopes
from contmax.kernels.means._gpu_windows import STEEPEST
from contmax.numerics import SINGLE, hyperbola_nodes

_BLOCK = 128
_INVERSE_2PI = tl.constexpr(0.15915494309189535)


@triton.jit
def _cholesky(a_11, a_21, a_22):
    """L of LLᵀ = A, from the lower triangle of A; computed in float64, at negligible cost."""
    l_11 = tl.sqrt(a_11.to(tl.float64))
    l_21 = a_21.to(tl.float64) / l_11
    l_22 = tl.sqrt(a_22.to(tl.float64) - l_21 * l_21)
    return l_11.to(tl.float32), l_21.to(tl.float32), l_22.to(tl.float32)


@triton.jit
def _load_densities(loc_ptr, scale_ptr, row, known, factor, power, MATRIX: tl.constexpr, GAUSSIAN: tl.constexpr):
    """μ, L and √v of a block of densities, each entry (rows, 1); with MATRIX, L is computed from Σ."""
    mu = (tl.load(loc_ptr + 2 * row, known, other=0.0), tl.load(loc_ptr + 2 * row + 1, known, other=0.0))
    l_11 = tl.load(scale_ptr + 4 * row, known, other=1.0)
    l_21 = tl.load(scale_ptr + 4 * row + 2, known, other=0.0)
    l_22 = tl.load(scale_ptr + 4 * row + 3, known, other=1.0)
    if MATRIX:
        l_11, l_21, l_22 = _cholesky(l_11, l_21, l_22)
    root = tl.full(l_11.shape, 1.0, tl.float32)
    if not GAUSSIAN:
        volume = l_11.to(tl.float64) * l_22.to(tl.float64)
        root = (tl.exp(-tl.log(volume) * power) * factor).to(tl.float32)
    return mu, (l_11, l_21, l_22), root


@triton.jit
def _pairs(mu, tril, root, centre_ptr, basis_ptr, column, columns, norm, order, rises, runs, GAUSSIAN: tl.constexpr):
    """r of a block of densities and functions; ∂r/∂(μ, T) with T = √v L; and the tuple `form` for `_through_functions`.

    r depends on a pair by the five numbers a, b, c, n, g of `contmax.expectations._gaussian_forms`. They are computed
    from K = L_j⁻¹T and y = L_j⁻¹(μ − μ_j): with a = 1/|I + KKᵀ|, √a = `size`, u = √a y and (p, q) = Kᵀ(−u₂, u₁),
    n = u·u and g = p² + q².
    """
    known = (column < columns)[None, :]
    c_1 = tl.load(centre_ptr + 2 * column[None, :], known, other=0.0)
    c_2 = tl.load(centre_ptr + 2 * column[None, :] + 1, known, other=0.0)
    first = tl.load(basis_ptr + 4 * column[None, :], known, other=1.0)
    lower = tl.load(basis_ptr + 4 * column[None, :] + 2, known, other=0.0)
    second = tl.load(basis_ptr + 4 * column[None, :] + 3, known, other=1.0)
    k_11, k_22, y_1 = tril[0] * root / first, tril[2] * root / second, (mu[0] - c_1) / first
    k_21, y_2 = (tril[1] * root - lower * k_11) / second, (mu[1] - c_2 - lower * y_1) / second
    size = tl.sqrt(1.0 / (1.0 + k_11 * k_11 + k_21 * k_21 + k_22 * k_22 + (k_11 * k_22) * (k_11 * k_22)))
    # Scale distances before squaring: squares of distances of 2e19 widths would overflow.
    u_1, u_2 = y_1 * size, y_2 * size
    p, q = k_21 * u_1 - k_11 * u_2, k_22 * u_1
    a, crossed = size * size, k_11 * k_22 * size
    n, g = u_1 * u_1 + u_2 * u_2, p * p + q * q
    if GAUSSIAN:
        value = tl.exp(-0.5 * (n + g))
        by_n, by_g = -0.5 * value, -0.5 * value
        whole = value * (0.5 - 0.5 * (n + g))
        by_trace, by_det = -whole, -whole
    else:
        b, c = (k_11 * k_11 + k_21 * k_21 + k_22 * k_22) * a, crossed * crossed
        value, by_a, by_b, by_c, by_n, by_g = mean_and_slopes(a, b, c, n, g, order, rises, runs)
        # The slope in ln a of √a·value, divided by √a: a, b, c, n and g are proportional to a, and r has the further
        # factor √a (`size`).
        whole = 0.5 * value + a * by_a + b * by_b + c * by_c + n * by_n + g * by_g
        by_trace, by_det = by_b - whole, by_c - whole
    # Slopes in the entries of K and y; the factor 2 (from squares) and the constants in `scale` follow below.
    by_k11 = a * k_11 * (by_trace + k_22 * k_22 * by_det) - by_g * p * u_2
    by_k22 = a * k_22 * (by_trace + k_11 * k_11 * by_det) + by_g * q * u_1
    by_k21 = a * k_21 * by_trace + by_g * p * u_1
    by_y1 = size * (by_n * u_1 + by_g * (p * k_21 + q * k_22))
    by_y2 = size * (by_n * u_2 - by_g * p * k_11)
    # Slopes in μ and T, by y = L_j⁻¹(μ − μ_j) and K = L_j⁻¹T.
    scale = norm * size * _INVERSE_2PI / (first * second)
    by_y1, by_k11 = by_y1 - lower / second * by_y2, by_k11 - lower / second * by_k21
    by_1, by_2 = _bounded(2.0 * scale * by_y1 / first), _bounded(2.0 * scale * by_y2 / second)
    by_11, by_21 = _bounded(2.0 * scale * by_k11 / first), _bounded(2.0 * scale * by_k21 / second)
    by_22, r = _bounded(2.0 * scale * by_k22 / second), value * norm * size * _INVERSE_2PI / (first * second)
    return r, (by_1, by_2, by_11, by_21, by_22), (y_1, y_2, k_11, k_21, k_22, first, second)


@triton.jit
def _through_functions(mass, slopes, form):
    """Slopes of r = E_p[ψ_j] in μ_j and L_j, from r (`mass`) and the slopes of r in μ and T = √v L.

    The result is linear in r and its slopes, so callers may multiply all of them by a cotangent first.
    """
    by_1, by_2, by_11, by_21, by_22 = slopes
    y_1, y_2, k_11, k_21, k_22, first, second = form
    by_first = -(y_1 * by_1 + k_11 * by_11) - mass / first
    by_second = -(y_2 * by_2 + k_21 * by_21 + k_22 * by_22) - mass / second
    return -by_1, -by_2, by_first, -(y_1 * by_2 + k_11 * by_21), by_second


@triton.jit
def _through_root(slopes, tril, root, power, MATRIX: tl.constexpr):
    """Six slopes in μ and L (with MATRIX in μ and Σ = LLᵀ), from slopes in μ and T = √v L; √v = F(l₁₁l₂₂)^−p."""
    by_1, by_2, by_11, by_21, by_22 = slopes
    l_11, l_21, l_22 = tril
    turned = power * (by_11 * l_11 + by_21 * l_21 + by_22 * l_22)
    by_11, by_21, by_22 = root * (by_11 - turned / l_11), root * by_21, root * (by_22 - turned / l_22)
    above = tl.zeros_like(by_21)
    if MATRIX:
        by_22 = 0.5 * by_22 / l_22
        by_21 = (by_21 - 2.0 * l_21 * by_22) / l_11
        by_11, by_21 = 0.5 * (by_11 / l_11 - by_21 * l_21 / l_11), 0.5 * by_21
        above = by_21
    return by_1, by_2, by_11, above, by_21, by_22


@triton.jit
def _bounded(slope):
    """The slope, clamped to ±STEEPEST; NaN remains, unlike in `bounded` of `_gpu_windows`."""
    return tl.where(slope > STEEPEST, STEEPEST, tl.where(slope < -STEEPEST, -STEEPEST, slope))


@triton.jit
def plane_fwd_kernel(
    r_ptr, loc_ptr, scale_ptr, centre_ptr, basis_ptr, rises, runs,
    rows, columns, factor, power, norm, order,
    MATRIX: tl.constexpr, GAUSSIAN: tl.constexpr, SLOPES: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr,
):  # fmt: skip
    """r of a block of densities against a block of functions.

    With SLOPES the result is (rows, 7, columns): r, its slopes in the two entries of μ and in the four of Σ or L.
    """
    row = (tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS))[:, None]
    column = tl.program_id(1) * COLUMNS + tl.arange(0, COLUMNS)
    mu, tril, root = _load_densities(loc_ptr, scale_ptr, row, row < rows, factor, power, MATRIX, GAUSSIAN)
    inside = (row < rows) & (column < columns)[None, :]
    place = r_ptr + row * ((7 if SLOPES else 1) * columns) + column[None, :]
    # Without SLOPES nothing reads the slopes, and the compiler removes their arithmetic.
    r, slopes, _form = _pairs(
        mu, tril, root, centre_ptr, basis_ptr, column, columns, norm, order, rises, runs, GAUSSIAN
    )
    if SLOPES:
        slopes = _through_root(slopes, tril, root, power, MATRIX)
        for n in tl.static_range(6):
            tl.store(place + (n + 1) * columns, slopes[n], inside)
    tl.store(place, r, inside)


@triton.jit
def plane_bwd_kernel(
    by_loc_ptr, by_scale_ptr, by_basis_ptr, cotangent_ptr, loc_ptr, scale_ptr, centre_ptr, basis_ptr, rises, runs,
    rows, columns, row_stride, column_stride, factor, power, norm, order,
    MATRIX: tl.constexpr, GAUSSIAN: tl.constexpr, BASIS: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr,
):  # fmt: skip
    """Gradients of a block of densities; with BASIS also its sums for gradients of functions, (blocks, 5, columns)."""
    block = tl.program_id(0).to(tl.int64)
    row = (block * ROWS + tl.arange(0, ROWS))[:, None]
    mu, tril, root = _load_densities(loc_ptr, scale_ptr, row, row < rows, factor, power, MATRIX, GAUSSIAN)
    zero = tl.zeros([ROWS, 1], tl.float32)
    totals = (zero, zero, zero, zero, zero)
    for start in range(0, columns, COLUMNS):
        column = start + tl.arange(0, COLUMNS)
        r, slopes, form = _pairs(
            mu, tril, root, centre_ptr, basis_ptr, column, columns, norm, order, rises, runs, GAUSSIAN
        )
        inside = (row < rows) & (column < columns)[None, :]
        offsets = row * row_stride + column[None, :].to(tl.int64) * column_stride
        cotangent = tl.load(cotangent_ptr + offsets, inside, other=0.0)
        moved, more = (), ()
        for n in tl.static_range(5):
            moved += (cotangent * slopes[n],)  # type: ignore[assignment]
            more += (totals[n] + tl.sum(tl.where(inside, moved[n], 0.0), 1, True),)  # type: ignore[assignment,misc]
        if BASIS:
            by_functions = _through_functions(cotangent * r, moved, form)
            for n in tl.static_range(5):
                total = tl.sum(tl.where(inside, by_functions[n], 0.0), 0)
                tl.store(by_basis_ptr + (block * 5 + n) * columns + column, total, column < columns)
        totals = more  # type: ignore[assignment]
    by_density = _through_root(totals, tril, root, power, MATRIX)
    for n in tl.static_range(2):
        tl.store(by_loc_ptr + 2 * row + n, by_density[n], row < rows)
    for n in tl.static_range(4):
        tl.store(by_scale_ptr + 4 * row + n, by_density[n + 2], row < rows)


@DeviceCache
def rule_of(_: float, device: torch.device) -> tuple[Tensor, ...]:
    """sinh u and cosh u at the nodes u of the path, which do not depend on k."""
    return hyperbola_nodes(SINGLE, device)


def _law(is_matrix: bool, k: float) -> tuple[tuple[float, ...], dict[str, int]]:
    """The kernels' factor F, power p, normaliser and order ν of the law of the scale; and compile-time constants."""
    kinds: dict[str, int] = {"MATRIX": is_matrix, "GAUSSIAN": math.isinf(k)}
    if math.isinf(k):
        return (1.0, 0.0, 1.0, 2.0), kinds
    order = k + 2
    # F² = R²/(2k + 4) is the variance for L = I, if [(R² − ‖t‖²)/2k]ᵏ on a disc of radius R integrates to one.
    factor = math.sqrt(((k + 1) * (2 * k) ** k / math.pi) ** (1 / (k + 1)) / (2 * k + 4))
    norm = math.exp(math.lgamma(order) + order + (1 - order) * math.log(order)) / (2 * math.pi)
    return (factor, 0.5 / (k + 1), norm, order), kinds


def _block(rows: int, columns: int) -> tuple[int, int, int]:
    """Densities, basis functions and warps of one program: each thread has one pair of a density and a function."""
    block_columns = min(power_of_two(columns), _BLOCK)
    return max(1, min(_BLOCK // block_columns, power_of_two(rows))), block_columns, 4


def _basis_gradients(shares: Tensor) -> tuple[Tensor, Tensor]:
    total = shares.sum(0)
    by_tril = total.new_zeros(total.shape[1], 2, 2)
    by_tril[:, 0, 0], by_tril[:, 1, 0], by_tril[:, 1, 1] = total[2:]
    return total[:2].mT.contiguous(), by_tril


PLANE, PLANE_OF_MATRIX = (
    Pairs(plane_fwd_kernel, plane_bwd_kernel, 2, 5, _block, partial(_law, is_matrix), rule_of, _basis_gradients)
    for is_matrix in (False, True)
)
"""β-Gaussians with 1 ≤ k ≤ 30 or ∞, given the Cholesky factor of Σ; and given Σ."""
