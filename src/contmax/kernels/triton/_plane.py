"""E_p[ψ] on the plane and its gradients: a block of densities against a block of basis functions in each program.

The rule is that of `contmax.expectations._space_gaussian` for numbers α with k = 1/(α−1) ≥ 1, and α = 1, here k = ∞.
The variance of the density is found here too: V = vLLᵀ with v = F²(l₁₁l₂₂)^{−2p}, p = 1/(2k+2). All is in float32 but
for √v.
"""

import functools
import math

import torch
import triton
import triton.language as tl
from torch import Tensor

from contmax.kernels.triton._cholesky import cholesky_pulled_back
from contmax.kernels.triton._counting import blocks_of, power_of_two
from contmax.kernels.triton._kept import LAUNCHES, Launch
from contmax.kernels.triton._launch import laid_out, resolved
from contmax.kernels.triton._lengths import STEEPEST
from contmax.kernels.triton._plane_form import densities, form_numbers, functions, plane_form
from contmax.kernels.triton._scale_path import mean, mean_and_slopes
from contmax.numerics import SINGLE, hyperbola_nodes

_BLOCK = 128
_INVERSE_2PI = tl.constexpr(0.15915494309189535)


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
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
):
    """r of a block of densities against a block of functions."""
    row = (tl.program_id(0) * ROWS + tl.arange(0, ROWS)).to(tl.int64)
    column = tl.program_id(1) * COLUMNS + tl.arange(0, COLUMNS)
    mu_1, mu_2, l_11, l_21, l_22, root = densities(loc_ptr, scale_ptr, row, row < rows, factor, power, MATRIX, GAUSSIAN)
    c_1, c_2, first, lower, second = functions(centre_ptr, basis_ptr, column, column < columns)
    k_11, k_21, k_22, y_1, y_2, size, p, q = plane_form(
        mu_1 - c_1, mu_2 - c_2, l_11 * root, l_21 * root, l_22 * root, first, lower, second
    )
    a, b, c, n, g = form_numbers(k_11, k_21, k_22, y_1, y_2, size, p, q)
    if GAUSSIAN:
        value = tl.exp(-0.5 * (n + g))
    else:
        value = mean(a, b, c, n, g, order, stretch, most, share, step, rises, runs, NODES)
    r = value * norm * size * _INVERSE_2PI / (first * second)
    inside = (row < rows)[:, None] & (column < columns)[None, :]
    tl.store(r_ptr + row[:, None] * columns + column[None, :], r, inside)


@triton.jit
def _bounded(slope):
    return tl.where(slope > STEEPEST, STEEPEST, tl.where(slope < -STEEPEST, -STEEPEST, slope))


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
    row = (block * ROWS + tl.arange(0, ROWS)).to(tl.int64)
    mu_1, mu_2, l_11, l_21, l_22, root = densities(loc_ptr, scale_ptr, row, row < rows, factor, power, MATRIX, GAUSSIAN)
    t_11, t_21, t_22 = l_11 * root, l_21 * root, l_22 * root
    by_1, by_2 = tl.zeros([ROWS], tl.float32), tl.zeros([ROWS], tl.float32)
    by_11, by_21, by_22 = tl.zeros([ROWS], tl.float32), tl.zeros([ROWS], tl.float32), tl.zeros([ROWS], tl.float32)
    for start in range(0, columns, COLUMNS):
        column = start + tl.arange(0, COLUMNS)
        c_1, c_2, first, lower, second = functions(centre_ptr, basis_ptr, column, column < columns)
        k_11, k_21, k_22, y_1, y_2, size, p, q = plane_form(
            mu_1 - c_1, mu_2 - c_2, t_11, t_21, t_22, first, lower, second
        )
        a, b, c, n, g = form_numbers(k_11, k_21, k_22, y_1, y_2, size, p, q)
        if GAUSSIAN:
            value = tl.exp(-0.5 * (n + g))
            by_n, by_g = -0.5 * value, -0.5 * value
            whole = value * (0.5 - 0.5 * (n + g))
            by_trace, by_det = -whole, -whole
        else:
            value, by_a, by_b, by_c, by_n, by_g = mean_and_slopes(
                a, b, c, n, g, order, stretch, most, share, step, rises, runs, NODES
            )
            # How the value changes with the logarithm of a, which scales all five numbers and the factor of the form.
            whole = 0.5 * value + a * by_a + b * by_b + c * by_c + n * by_n + g * by_g
            by_trace, by_det = by_b - whole, by_c - whole
        inside = (row < rows)[:, None] & (column < columns)[None, :]
        offsets = row[:, None] * row_stride + column[None, :].to(tl.int64) * column_stride
        cotangent = tl.load(cotangent_ptr + offsets, inside, other=0.0)
        # In K and y, each with the factor 2 size² of a square.
        by_k11 = a * k_11 * (by_trace + k_22 * k_22 * by_det) - by_g * p * y_2
        by_k22 = a * k_22 * (by_trace + k_11 * k_11 * by_det) + by_g * q * y_1
        by_k21 = a * k_21 * by_trace + by_g * p * y_1
        by_y1 = size * (by_n * y_1 + by_g * (p * k_21 + q * k_22))
        by_y2 = size * (by_n * y_2 - by_g * p * k_11)
        # Through y = L_j⁻¹d and K = L_j⁻¹T.
        scale = 2.0 * norm * size * _INVERSE_2PI / (first * second)
        by_y1, by_k11 = by_y1 - lower / second * by_y2, by_k11 - lower / second * by_k21
        d_1, d_2 = cotangent * _bounded(scale * by_y1 / first), cotangent * _bounded(scale * by_y2 / second)
        s_11, s_21 = cotangent * _bounded(scale * by_k11 / first), cotangent * _bounded(scale * by_k21 / second)
        s_22 = cotangent * _bounded(scale * by_k22 / second)
        by_1 += tl.sum(tl.where(inside, d_1, 0.0), 1)
        by_2 += tl.sum(tl.where(inside, d_2, 0.0), 1)
        by_11 += tl.sum(tl.where(inside, s_11, 0.0), 1)
        by_21 += tl.sum(tl.where(inside, s_21, 0.0), 1)
        by_22 += tl.sum(tl.where(inside, s_22, 0.0), 1)
        if BASIS:
            y_1, y_2, mass = y_1 / size, y_2 / size, 0.5 * scale * value * cotangent
            by_first = -(y_1 * d_1 + k_11 * s_11) - mass / first
            by_lower = -(y_1 * d_2 + k_11 * s_21)
            by_second = -(y_2 * d_2 + k_21 * s_21 + k_22 * s_22) - mass / second
            to = by_basis_ptr + block.to(tl.int64) * 5 * columns + column
            tl.store(to, -tl.sum(tl.where(inside, d_1, 0.0), 0), column < columns)
            tl.store(to + columns, -tl.sum(tl.where(inside, d_2, 0.0), 0), column < columns)
            tl.store(to + 2 * columns, tl.sum(tl.where(inside, by_first, 0.0), 0), column < columns)
            tl.store(to + 3 * columns, tl.sum(tl.where(inside, by_lower, 0.0), 0), column < columns)
            tl.store(to + 4 * columns, tl.sum(tl.where(inside, by_second, 0.0), 0), column < columns)
    # T = √v L, and √v is a power of l₁₁l₂₂.
    root, t_11, t_21, t_22 = _flat(root, ROWS), _flat(t_11, ROWS), _flat(t_21, ROWS), _flat(t_22, ROWS)
    turned = power * (by_11 * t_11 + by_21 * t_21 + by_22 * t_22)
    known = row < rows
    tl.store(by_loc_ptr + 2 * row, by_1, known)
    tl.store(by_loc_ptr + 2 * row + 1, by_2, known)
    by_11, by_21, by_22 = root * (by_11 - turned / t_11), root * by_21, root * (by_22 - turned / t_22)
    above = tl.zeros([ROWS], tl.float32)
    if MATRIX:
        l_11, l_21, l_22 = _flat(l_11, ROWS), _flat(l_21, ROWS), _flat(l_22, ROWS)
        by_11, by_21, by_22 = cholesky_pulled_back(by_11, by_21, by_22, l_11, l_21, l_22)
        above = by_21
    tl.store(by_scale_ptr + 4 * row, by_11, known)
    tl.store(by_scale_ptr + 4 * row + 1, above, known)
    tl.store(by_scale_ptr + 4 * row + 2, by_21, known)
    tl.store(by_scale_ptr + 4 * row + 3, by_22, known)


@triton.jit
def _flat(x, ROWS: tl.constexpr):
    return tl.reshape(x, [ROWS])


def plane_values(
    loc: Tensor, scale: Tensor, centre: Tensor, basis_tril: Tensor, k: float, is_matrix: bool = False
) -> Tensor:
    """r, (*batch, K), of β-Gaussians (*batch) against K functions.

    Args:
        loc: μ, (*batch, 2), float32 as all others.
        scale: L, Σ = LLᵀ, (*batch, 2, 2); or Σ.
        centre: μ_j, (K, 2).
        basis_tril: L_j, (K, 2, 2).
        k: 1/(α−1), 1 ≤ k ≤ 30 or ∞.
        is_matrix: whether `scale` is Σ.
    """
    columns = centre.shape[0]
    r = loc.new_empty(*loc.shape[:-1], columns)
    if r.numel() == 0:
        return r
    parameters = (laid_out(loc), laid_out(scale), laid_out(centre), laid_out(basis_tril))
    _values(loc.numel() // 2, columns, k, is_matrix)(r, *parameters, *_nodes(loc.device))
    return r


def plane_gradients(
    cotangent: Tensor,
    loc: Tensor,
    scale: Tensor,
    centre: Tensor,
    basis_tril: Tensor,
    k: float,
    needs_basis: bool,
    is_matrix: bool = False,
) -> tuple[Tensor, Tensor, Tensor | None, Tensor | None]:
    """Gradients of loc, scale, centre and basis_tril; the last two are None where not needed.

    Args:
        cotangent: that of r, (*batch, K).
        loc: as of :func:`plane_values`, and so the others.
        scale: likewise.
        centre: likewise.
        basis_tril: likewise.
        k: likewise.
        needs_basis: whether the gradients of centre and basis_tril are needed.
        is_matrix: as of :func:`plane_values`.
    """
    rows, columns = loc.numel() // 2, centre.shape[0]
    parameters = (laid_out(loc), laid_out(scale), laid_out(centre), laid_out(basis_tril))
    by_loc, by_scale = torch.empty_like(parameters[0]), torch.empty_like(parameters[1])
    shares = None
    if needs_basis:
        shares = loc.new_empty(blocks_of(rows, _block(rows, columns)[0]), 5, columns)
    cotangent = resolved(cotangent)
    matrix = cotangent if cotangent.dim() == 2 else cotangent.reshape(-1, columns)
    if rows:
        gradients = _gradients(rows, columns, matrix.stride(), k, needs_basis, is_matrix)
        gradients(by_loc, by_scale, shares, matrix, *parameters, *_nodes(loc.device))
    if shares is None:
        return by_loc, by_scale, None, None
    total = shares.sum(0)
    by_basis_tril = loc.new_zeros(columns, 2, 2)
    by_basis_tril[:, 0, 0], by_basis_tril[:, 1, 0], by_basis_tril[:, 1, 1] = total[2:]
    return by_loc, by_scale, total[:2].mT.contiguous(), by_basis_tril


@functools.cache
def _nodes(device: torch.device) -> tuple[Tensor, Tensor]:
    """sinh and cosh along the path."""
    return hyperbola_nodes(SINGLE, device)


@functools.lru_cache(maxsize=LAUNCHES)
def _values(rows: int, columns: int, k: float, is_matrix: bool) -> Launch:
    block_rows, block_columns = _block(rows, columns)
    grid = (blocks_of(rows, block_rows), blocks_of(columns, block_columns))
    law, kinds = _law(k, is_matrix)
    kinds |= {"ROWS": block_rows, "COLUMNS": block_columns}
    return Launch(plane_fwd_kernel, grid, (rows, columns, *law), kinds)


@functools.lru_cache(maxsize=LAUNCHES)
def _gradients(
    rows: int, columns: int, strides: tuple[int, ...], k: float, needs_basis: bool, is_matrix: bool
) -> Launch:
    """Cotangents have these strides."""
    block_rows, block_columns = _block(rows, columns)
    law, kinds = _law(k, is_matrix)
    kinds |= {"BASIS": needs_basis, "ROWS": block_rows, "COLUMNS": block_columns}
    return Launch(plane_bwd_kernel, (blocks_of(rows, block_rows),), (rows, columns, *strides, *law), kinds)


def _law(k: float, is_matrix: bool) -> tuple[tuple[float, ...], dict[str, int]]:
    """What the kernels know besides tensors and blocks: √v, the law of the scale and its path.

    Numbers in the order of the kernels' arguments, from factor on; and for what they are compiled.
    """
    path = (SINGLE.stretch, SINGLE.lean, SINGLE.curvature, SINGLE.end / SINGLE.nodes)
    if math.isinf(k):
        return (1.0, 0.0, 1.0, 2.0, *path), {"MATRIX": is_matrix, "GAUSSIAN": True, "NODES": SINGLE.nodes}
    order = k + 2
    # v = R²/(2k + 4), and the density of height (R²/2k)ᵏ is one in all.
    factor = math.sqrt(((k + 1) * (2 * k) ** k / math.pi) ** (1 / (k + 1)) / (2 * k + 4))
    norm = math.exp(math.lgamma(order) + order + (1 - order) * math.log(order)) / (2 * math.pi)
    power = 0.5 / (k + 1)
    return (factor, power, norm, order, *path), {"MATRIX": is_matrix, "GAUSSIAN": False, "NODES": SINGLE.nodes}


def _block(rows: int, columns: int) -> tuple[int, int]:
    """Densities and functions of one program, one pair for each thread."""
    block_columns = min(power_of_two(columns), _BLOCK)
    return max(1, min(_BLOCK // block_columns, power_of_two(rows))), block_columns
