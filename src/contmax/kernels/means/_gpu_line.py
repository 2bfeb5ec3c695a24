"""r = E_p[ψ] on the line and its gradients: a block of densities against a block of basis functions in each program.

The rules are those of `contmax.expectations._line_gaussian` for k = 1/(α−1) = 0, …, 4 and ∞. All arithmetic is in
float32.
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
from contmax.kernels.means._gpu_windows import (
    ROOT,
    bounded,
    distance,
    half_width,
    length_in_range,
    load_functions,
    nan_from,
    values_and_slopes,
    window,
    window_sums,
)
from contmax.numerics import unit_gauss_legendre

# The numbers of nodes for an error below 2e-7 of the largest r. For k ≤ 2 fewer suffice, as (1 − y²)ᵏ has a low degree.
_MOST_NODES, _NODES_UP_TO_SQUARES = 20, 18
_INVERSE_SQRT_2PI = tl.constexpr(0.3989422804014327)


@triton.jit
def _gaussian(mu, sigma, centre, width):
    """r = N(μ; μ_j, s²), z = (μ − μ_j)/s and 1/s for s = √(σ² + σ_j²), whose square may overflow or underflow."""
    larger = tl.maximum(sigma, width)
    ratio = tl.minimum(sigma, width) / larger
    inverse = 1.0 / (larger * tl.sqrt(1.0 + ratio * ratio))
    z = distance(mu, centre) * inverse
    u = z * ROOT
    return tl.exp2(u * (u * -1.0)) * (inverse * _INVERSE_SQRT_2PI), z, inverse


@triton.jit
def _load_densities(loc_ptr, scale_ptr, row, rows, stretch, K: tl.constexpr, RAISED: tl.constexpr):
    """Load a block of densities.

    Returns μ; the scale, σ if RAISED, else a; the half-width a, or σ for k = ∞; a clamped; and a tensor that is NaN
    where μ or the scale is NaN, else 0.
    """
    mu, scale = tl.load(loc_ptr + row, row < rows, other=0.0), tl.load(scale_ptr + row, row < rows, other=1.0)
    half = half_width(scale, stretch, K) if RAISED else scale
    return mu, scale, half, length_in_range(half), nan_from(mu, scale)


@triton.jit
def line_fwd_kernel(
    r_ptr, loc_ptr, scale_ptr, centre_ptr, width_ptr, rule_ptr,
    rows, columns, stretch, constant,
    K: tl.constexpr, RAISED: tl.constexpr, SLOPES: tl.constexpr, PAIRS: tl.constexpr, ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
):  # fmt: skip
    """r of a block of densities against a block of functions; with SLOPES r and ∂r/∂(μ, σ), (rows, 3, columns).

    K < 0 stands for k = ∞.
    """
    row = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    column = tl.program_id(1) * COLUMNS + tl.arange(0, COLUMNS)
    mu, scale, half, a, nan_row = _load_densities(loc_ptr, scale_ptr, row, rows, stretch, K, RAISED)
    centre, width, nan_column = load_functions(centre_ptr, width_ptr, column, column < columns)
    nan = nan_row[:, None] + nan_column[None, :]
    inside = (row < rows)[:, None] & (column < columns)[None, :]
    place = r_ptr + row[:, None] * ((3 if SLOPES else 1) * columns) + column[None, :]
    # Without SLOPES nothing reads the slopes, and the compiler removes their arithmetic.
    r, by_loc, by_half, _by_width = _values_and_slopes(
        mu[:, None], a[:, None], (1.0 / a)[:, None], centre[None, :], width[None, :], rule_ptr, constant, K, PAIRS
    )
    if SLOPES:
        if RAISED:
            by_half *= _half_by_scale(half, scale, K)[:, None]
        tl.store(place + columns, by_loc + nan, inside)
        tl.store(place + 2 * columns, by_half + nan, inside)
    tl.store(place, r + nan, inside)


@triton.jit
def _half_by_scale(half, scale, K: tl.constexpr):
    """da/dσ for the half-width a."""
    return half / scale * (2 * K / (2 * K + 1))


@triton.jit
def _values_and_slopes(mu, a, inverse_a, centre, width, rule, constant, K: tl.constexpr, PAIRS: tl.constexpr):
    """r and ∂r/∂(μ, a, σ_j): in closed form for k = ∞ (K < 0), where a is σ; else by quadrature on windows.

    For k = 0 slopes are computed as for a narrow p, by ∫p ψ′, whatever its width.
    """
    if K < 0:
        r, z, inverse = _gaussian(mu, a, centre, width)
        share = r * inverse
        # z multiplies r twice, because z² may overflow where r underflows.
        moved = share * z
        bend = (moved * z - share) * inverse
        by_loc, by_half, by_width = moved * -1.0, bend * a, bend * width
    else:
        inverse_width = 1.0 / width
        wide_from = 2.0 if K == 0 else 2.0 * ((2 * K + 3) / 5) ** 0.5
        z, dz, left, right, span, narrow = window(mu, a, inverse_a, centre, width, inverse_width, wide_from)
        sums = window_sums(z, dz, left, right, span, rule, K, PAIRS)
        size = span * (inverse_width * constant)
        narrow = (narrow | True) if K == 0 else narrow
        r, by_loc, by_half, by_width = values_and_slopes(sums, size, inverse_width, inverse_a, narrow, 0.5, 2.0 * K)
    return r, bounded(by_loc), bounded(by_half), bounded(by_width)


@triton.jit
def line_bwd_kernel(
    by_loc_ptr, by_scale_ptr, by_basis_ptr, cotangent_ptr, loc_ptr, scale_ptr, centre_ptr, width_ptr, rule_ptr,
    rows, columns, row_stride, column_stride, stretch, constant,
    K: tl.constexpr, RAISED: tl.constexpr, BASIS: tl.constexpr, PAIRS: tl.constexpr, ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
):  # fmt: skip
    """The gradients of a block of densities.

    With BASIS also sums over the block for the gradients of all functions, (blocks, 2, columns).
    """
    block = tl.program_id(0)
    row = block.to(tl.int64) * ROWS + tl.arange(0, ROWS)
    mu, scale, half, a, nan_row = _load_densities(loc_ptr, scale_ptr, row, rows, stretch, K, RAISED)
    inverse_a = (1.0 / a)[:, None]
    by_loc, by_half = tl.zeros([ROWS], tl.float32), tl.zeros([ROWS], tl.float32)
    for first in range(0, columns, COLUMNS):
        column = first + tl.arange(0, COLUMNS)
        centre, width, nan_column = load_functions(centre_ptr, width_ptr, column, column < columns)
        inside = (row < rows)[:, None] & (column < columns)[None, :]
        offsets = row[:, None] * row_stride + column[None, :].to(tl.int64) * column_stride
        # If a parameter is NaN, all gradients to which it contributes become NaN.
        cotangent = tl.load(cotangent_ptr + offsets, inside, other=0.0)
        cotangent += tl.where(inside, nan_row[:, None] + nan_column[None, :], 0.0)
        _r, slope, slope_half, slope_width = _values_and_slopes(
            mu[:, None], a[:, None], inverse_a, centre[None, :], width[None, :], rule_ptr, constant, K, PAIRS
        )
        by_loc += tl.sum(cotangent * slope, 1)
        by_half += tl.sum(cotangent * slope_half, 1)
        if BASIS:
            share = by_basis_ptr + block.to(tl.int64) * 2 * columns + column
            tl.store(share, -tl.sum(cotangent * slope, 0), column < columns)
            tl.store(share + columns, tl.sum(cotangent * slope_width, 0), column < columns)
    if RAISED:
        by_half *= _half_by_scale(half, scale, K)
    tl.store(by_loc_ptr + row, by_loc, row < rows)
    tl.store(by_scale_ptr + row, by_half, row < rows)


@DeviceCache
def rule_of(k: float, device: torch.device) -> tuple[Tensor, ...]:
    """Nodes on [0, 1], then log₂ of their weights, in float32."""
    nodes, weights = unit_gauss_legendre(_nodes(k), device)
    return (torch.cat([nodes, weights.log2()]).float(),)


def _law(raised: bool, k: float) -> tuple[tuple[float, float], dict[str, int]]:
    """The stretch F, C_k/√(2π) and compile-time constants; if `raised`, kernels compute a from a power of σ.

    The half-width is a = F σ^{2k/(2k+1)}, F = (C_k (2k)ᵏ)^{1/(2k+1)}, and C_k normalises (1 − y²)ᵏ on [−1, 1].
    """
    if math.isinf(k):
        return (1.0, 1.0), {"K": -1, "RAISED": False, "PAIRS": _nodes(k) // 2}
    norm = math.gamma(k + 1.5) / (math.sqrt(math.pi) * math.gamma(k + 1))
    stretch = (norm * (2 * k) ** k) ** (1 / (2 * k + 1))
    return (stretch, norm / math.sqrt(2 * math.pi)), {"K": int(k), "RAISED": raised, "PAIRS": _nodes(k) // 2}


def _nodes(k: float) -> int:
    return _NODES_UP_TO_SQUARES if k <= 2 else _MOST_NODES


def _block(rows: int, columns: int) -> tuple[int, int, int]:
    """Densities, basis functions and warps of one program; few pairs get small programs, so that there are many."""
    many = rows * columns >= 2**17
    block_columns = min(power_of_two(columns), 512)
    block_rows = max(1, min((512 if many else 128) // block_columns, power_of_two(rows)))
    # If there are many pairs, a thread takes eight of them and loads each node once for all eight.
    return block_rows, block_columns, 2 if many else 4


def _basis_gradients(shares: Tensor) -> tuple[Tensor, Tensor]:
    return shares[:, 0].sum(0), shares[:, 1].sum(0)


LINE, INTERVAL = (
    Pairs(line_fwd_kernel, line_bwd_kernel, 1, 2, _block, partial(_law, raised), rule_of, _basis_gradients)
    for raised in (True, False)
)
"""β-Gaussians with k one of 0, …, 4 and ∞, given σ; and uniform densities, k = 0, given half of their length."""
