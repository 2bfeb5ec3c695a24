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

from contmax._caches import DeviceCache
from contmax.kernels.gpu._counting import blocks_of, power_of_two
from contmax.kernels.gpu._kept import LAUNCHES, Launch
from contmax.kernels.gpu._launch import laid_out, resolved
from contmax.kernels.means._gpu_plane_form import densities, form_numbers, functions, plane_form
from contmax.kernels.means._gpu_plane_slopes import INVERSE_2PI, pair_slopes, through_root
from contmax.kernels.means._gpu_scale_path import mean
from contmax.numerics import SINGLE, hyperbola_nodes

_BLOCK = 128


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
    mu_1, mu_2, l_11, l_21, l_22, root = densities(loc_ptr, scale_ptr, row, row < rows, factor, power, MATRIX, GAUSSIAN)
    c_1, c_2, first, lower, second = functions(centre_ptr, basis_ptr, column, column < columns)
    t_11, t_21, t_22 = l_11 * root, l_21 * root, l_22 * root
    form = plane_form(mu_1 - c_1, mu_2 - c_2, t_11, t_21, t_22, first, lower, second)
    size = form[5]
    inside = (row < rows)[:, None] & (column < columns)[None, :]
    place = r_ptr + row[:, None] * ((7 if SLOPES else 1) * columns) + column[None, :]
    if SLOPES:
        value, by_1, by_2, by_11, by_21, by_22 = pair_slopes(
            form, first, lower, second, norm, order, stretch, most, share, step, rises, runs, GAUSSIAN, NODES
        )
        by_11, above, by_21, by_22 = through_root(by_11, by_21, by_22, l_11, l_21, l_22, root, power, MATRIX)
        tl.store(place + columns, by_1, inside)
        tl.store(place + 2 * columns, by_2, inside)
        tl.store(place + 3 * columns, by_11, inside)
        tl.store(place + 4 * columns, above, inside)
        tl.store(place + 5 * columns, by_21, inside)
        tl.store(place + 6 * columns, by_22, inside)
    else:
        a, b, c, n, g = form_numbers(form)
        if GAUSSIAN:
            value = tl.exp(-0.5 * (n + g))
        else:
            value = mean(a, b, c, n, g, order, stretch, most, share, step, rises, runs, NODES)
    tl.store(place, value * norm * size * INVERSE_2PI / (first * second), inside)


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
    mu_1, mu_2, l_11, l_21, l_22, root = densities(loc_ptr, scale_ptr, row, row < rows, factor, power, MATRIX, GAUSSIAN)
    t_11, t_21, t_22 = l_11 * root, l_21 * root, l_22 * root
    by_1, by_2 = tl.zeros([ROWS], tl.float32), tl.zeros([ROWS], tl.float32)
    by_11, by_21, by_22 = tl.zeros([ROWS], tl.float32), tl.zeros([ROWS], tl.float32), tl.zeros([ROWS], tl.float32)
    for start in range(0, columns, COLUMNS):
        column = start + tl.arange(0, COLUMNS)
        c_1, c_2, first, lower, second = functions(centre_ptr, basis_ptr, column, column < columns)
        form = plane_form(mu_1 - c_1, mu_2 - c_2, t_11, t_21, t_22, first, lower, second)
        value, d_1, d_2, s_11, s_21, s_22 = pair_slopes(
            form, first, lower, second, norm, order, stretch, most, share, step, rises, runs, GAUSSIAN, NODES
        )
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
            mass = norm * size * INVERSE_2PI / (first * second) * value * cotangent
            by_first = -(y_1 * d_1 + k_11 * s_11) - mass / first
            by_lower = -(y_1 * d_2 + k_11 * s_21)
            by_second = -(y_2 * d_2 + k_21 * s_21 + k_22 * s_22) - mass / second
            to = by_basis_ptr + block.to(tl.int64) * 5 * columns + column
            tl.store(to, -tl.sum(tl.where(inside, d_1, 0.0), 0), column < columns)
            tl.store(to + columns, -tl.sum(tl.where(inside, d_2, 0.0), 0), column < columns)
            tl.store(to + 2 * columns, tl.sum(tl.where(inside, by_first, 0.0), 0), column < columns)
            tl.store(to + 3 * columns, tl.sum(tl.where(inside, by_lower, 0.0), 0), column < columns)
            tl.store(to + 4 * columns, tl.sum(tl.where(inside, by_second, 0.0), 0), column < columns)
    known = row < rows
    tl.store(by_loc_ptr + 2 * row, by_1, known)
    tl.store(by_loc_ptr + 2 * row + 1, by_2, known)
    root, l_11, l_21, l_22 = _flat(root, ROWS), _flat(l_11, ROWS), _flat(l_21, ROWS), _flat(l_22, ROWS)
    by_11, above, by_21, by_22 = through_root(by_11, by_21, by_22, l_11, l_21, l_22, root, power, MATRIX)
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
    values = launch_of_values(loc.numel() // 2, columns, k, is_matrix)
    values(r, *parameters, *nodes_on(loc.device))
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
        gradients(by_loc, by_scale, shares, matrix, *parameters, *nodes_on(loc.device))
    if shares is None:
        return by_loc, by_scale, None, None
    total = shares.sum(0)
    by_basis_tril = loc.new_zeros(columns, 2, 2)
    by_basis_tril[:, 0, 0], by_basis_tril[:, 1, 0], by_basis_tril[:, 1, 1] = total[2:]
    return by_loc, by_scale, total[:2].mT.contiguous(), by_basis_tril


@DeviceCache
def nodes_on(device: torch.device) -> tuple[Tensor, Tensor]:
    """sinh and cosh along the path."""
    return hyperbola_nodes(SINGLE, device)


@functools.lru_cache(maxsize=LAUNCHES)
def launch_of_values(rows: int, columns: int, k: float, is_matrix: bool, slopes: bool = False) -> Launch:
    """What makes r of so many densities and functions, and its slopes; for the others see :func:`plane_values`."""
    block_rows, block_columns = _block(rows, columns)
    grid = (blocks_of(rows, block_rows), blocks_of(columns, block_columns))
    law, kinds = _law(k, is_matrix)
    kinds |= {"SLOPES": slopes, "ROWS": block_rows, "COLUMNS": block_columns}
    return Launch(plane_fwd_kernel, grid, (rows, columns, *law), kinds, contracts=True)


@functools.lru_cache(maxsize=LAUNCHES)
def _gradients(
    rows: int, columns: int, strides: tuple[int, ...], k: float, needs_basis: bool, is_matrix: bool
) -> Launch:
    """Cotangents have these strides."""
    block_rows, block_columns = _block(rows, columns)
    law, kinds = _law(k, is_matrix)
    kinds |= {"BASIS": needs_basis, "ROWS": block_rows, "COLUMNS": block_columns}
    grid = (blocks_of(rows, block_rows),)
    return Launch(plane_bwd_kernel, grid, (rows, columns, *strides, *law), kinds, contracts=True)


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
