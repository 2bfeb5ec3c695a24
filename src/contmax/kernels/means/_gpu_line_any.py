"""E_p[ψ] on the line for every α, one for each density, and its gradients: one density at a time in each program.

Which rule fits depends on α alone, so all pairs of a program take the same one: heavy tails, bells, or densities whose
ends show. No one looks at α outside. The torch reference is `contmax.expectations._line_scales`.
"""

import functools

import torch
import triton
import triton.language as tl
from torch import Tensor

from contmax._caches import DeviceCache
from contmax.kernels.gpu._counting import blocks_of, power_of_two
from contmax.kernels.gpu._kept import LAUNCHES, Launch
from contmax.kernels.gpu._launch import laid_out, resolved
from contmax.kernels.means._gpu_any_bell import bell_reach, bell_slopes, bell_value
from contmax.kernels.means._gpu_any_edges import edge_slopes, edge_value
from contmax.kernels.means._gpu_any_law import gap_in_range, row_law, tail_law
from contmax.kernels.means._gpu_any_tails import tail_slopes, tail_value
from contmax.kernels.means._gpu_lengths import bounded, length_in_range, nan_from
from contmax.numerics import unit_gauss_legendre

_INVERSE_SQRT_2PI = tl.constexpr(0.3989422804014327)
# Below the first ε tails are heavy, above the second ends show.
_TAILS, _EDGES = tl.constexpr(-0.02), tl.constexpr(0.25)
_BELL_NODES, _EDGE_NODES = 24, 30
_NODES = {"BELL_NODES": _BELL_NODES, "EDGE_NODES": _EDGE_NODES}
# Functions of a program at most, forward and backward, and how many of them a thread has: measured on an H200.
_COLUMNS, _BACKWARD_COLUMNS, _TOGETHER = 512, 128, 8
# Densities from which on several share a program, where it adds to the gradients of the functions.
_FEW = 1024


@triton.jit
def _density(loc_ptr, scale_ptr, alpha_ptr, row, gap, PER_ROW: tl.constexpr):
    """μ, and σ and ε in float64."""
    mu, sigma = tl.load(loc_ptr + row), tl.load(scale_ptr + row).to(tl.float64)
    wide = tl.load(alpha_ptr + row).to(tl.float64) - 1.0 if PER_ROW else sigma * 0.0 + gap
    return mu, sigma, gap_in_range(wide)


@triton.jit
def any_fwd_kernel(
    r_ptr,
    loc_ptr,
    scale_ptr,
    alpha_ptr,
    centre_ptr,
    width_ptr,
    bell_rule,
    edge_rule,
    columns,
    gap,
    PER_ROW: tl.constexpr,
    BELL_NODES: tl.constexpr,
    EDGE_NODES: tl.constexpr,
    COLUMNS: tl.constexpr,
):
    """r of one density against a block of functions."""
    row = tl.program_id(0).to(tl.int64)
    column = tl.program_id(1) * COLUMNS + tl.arange(0, COLUMNS)
    known = column < columns
    mu, sigma, wide_gap = _density(loc_ptr, scale_ptr, alpha_ptr, row, gap, PER_ROW)
    centre, width = tl.load(centre_ptr + column, known, other=0.0), tl.load(width_ptr + column, known, other=1.0)
    log_b, _weight, _by_gap, log_constant, _slope = row_law(sigma, wide_gap)
    lost = nan_from(mu, log_b) + nan_from(centre, width)
    epsilon, width = wide_gap.to(tl.float32), length_in_range(width)
    constant = tl.exp(log_constant).to(tl.float32) * _INVERSE_SQRT_2PI
    b = length_in_range(tl.exp(log_b).to(tl.float32))
    r = tl.zeros([COLUMNS], tl.float32)
    if epsilon < _TAILS:
        x, log_norm, _norm_slope = tail_law(wide_gap)
        deviation = length_in_range((tl.exp(log_b) / tl.sqrt(2.0 + 3.0 * wide_gap)).to(tl.float32))
        r = tail_value(mu, deviation, centre, width, x.to(tl.float32)) * tl.exp(log_norm).to(tl.float32)
        r *= _INVERSE_SQRT_2PI
    else:
        if epsilon < _EDGES:
            reach, curvature = bell_reach(epsilon)
            r = bell_value(mu, b, centre, width, epsilon, reach, curvature, bell_rule, BELL_NODES) * constant
        else:
            k = 1.0 / epsilon
            root = tl.sqrt(k)
            a = length_in_range(b * root)
            r = edge_value(mu, a, centre, width, k, edge_rule, EDGE_NODES) * (constant * root)
    tl.store(r_ptr + row * columns + column, r + lost, known)


@triton.jit
def any_bwd_kernel(
    by_loc_ptr,
    by_scale_ptr,
    by_alpha_ptr,
    by_basis_ptr,
    cotangent_ptr,
    loc_ptr,
    scale_ptr,
    alpha_ptr,
    centre_ptr,
    width_ptr,
    bell_rule,
    edge_rule,
    rows,
    columns,
    row_stride,
    column_stride,
    gap,
    GROUP: tl.constexpr,
    PER_ROW: tl.constexpr,
    BASIS: tl.constexpr,
    BELL_NODES: tl.constexpr,
    EDGE_NODES: tl.constexpr,
    COLUMNS: tl.constexpr,
):
    """The gradients of GROUP densities as far as a block of functions gives them, each (blocks, B).

    With BASIS also the share of these densities in the gradients of the functions, (groups, 2, K).
    """
    column = tl.program_id(1) * COLUMNS + tl.arange(0, COLUMNS)
    known = column < columns
    centre, width = tl.load(centre_ptr + column, known, other=0.0), tl.load(width_ptr + column, known, other=1.0)
    lost, width = nan_from(centre, width), length_in_range(width)
    by_centre, by_width = tl.zeros([COLUMNS], tl.float32), tl.zeros([COLUMNS], tl.float32)
    first = tl.program_id(0).to(tl.int64) * GROUP
    for row in range(first, tl.minimum(first + GROUP, rows)):
        mu, sigma, wide_gap = _density(loc_ptr, scale_ptr, alpha_ptr, row, gap, PER_ROW)
        log_b, weight, by_gap, log_constant, log_slope = row_law(sigma, wide_gap)
        epsilon = wide_gap.to(tl.float32)
        size = tl.exp(log_constant).to(tl.float32)
        b = length_in_range(tl.exp(log_b).to(tl.float32))
        # How the length that a rule knows moves with α, in units of itself.
        moves = by_gap.to(tl.float32)
        slope, slope_length = tl.zeros([COLUMNS], tl.float32), tl.zeros([COLUMNS], tl.float32)
        slope_width, slope_shape = tl.zeros([COLUMNS], tl.float32), tl.zeros([COLUMNS], tl.float32)
        length = b
        if epsilon < _TAILS:
            x, log_norm, norm_slope = tail_law(wide_gap)
            share = 2.0 + 3.0 * wide_gap
            length = length_in_range((tl.exp(log_b) / tl.sqrt(share)).to(tl.float32))
            moves = (by_gap - 1.5 / share).to(tl.float32)
            size = tl.exp(log_norm).to(tl.float32)
            slope, slope_length, slope_width, slope_shape = tail_slopes(
                mu, length, centre, width, x.to(tl.float32), norm_slope.to(tl.float32)
            )
            slope_shape = slope_shape / (epsilon * epsilon)
        else:
            if epsilon < _EDGES:
                reach, curvature = bell_reach(epsilon)
                slope, slope_length, slope_width, slope_shape = bell_slopes(
                    mu, b, centre, width, epsilon, reach, curvature, log_slope.to(tl.float32), bell_rule, BELL_NODES
                )
            else:
                k = 1.0 / epsilon
                length = length_in_range(b * tl.sqrt(k))
                moves = (by_gap - 0.5 / wide_gap).to(tl.float32)
                size *= tl.sqrt(k)
                slope, slope_length, slope_width, slope_shape = edge_slopes(
                    mu, length, centre, width, k, log_slope.to(tl.float32) - 0.5 * k, edge_rule, EDGE_NODES
                )
        size *= _INVERSE_SQRT_2PI
        offsets = row * row_stride + column.to(tl.int64) * column_stride
        # NaN from NaN, in all slopes.
        cotangent = tl.load(cotangent_ptr + offsets, known, other=0.0)
        cotangent += tl.where(known, lost + nan_from(mu, log_b), 0.0)
        slope, slope_length = bounded(slope * size), bounded(slope_length * size)
        by_alpha = tl.sum(cotangent * bounded(slope_shape * size + slope_length * (length * moves)), 0)
        # The length is σ to a power, with or without its factor.
        by_scale = tl.sum(cotangent * slope_length, 0) * (length * weight / sigma).to(tl.float32)
        place = tl.program_id(1).to(tl.int64) * rows + row
        tl.store(by_loc_ptr + place, tl.sum(cotangent * slope, 0))
        tl.store(by_scale_ptr + place, by_scale)
        tl.store(by_alpha_ptr + place, by_alpha)
        if BASIS:
            by_centre -= cotangent * slope
            by_width += cotangent * bounded(slope_width * size)
    if BASIS:
        share_ptr = by_basis_ptr + tl.program_id(0).to(tl.int64) * 2 * columns + column
        tl.store(share_ptr, by_centre, known)
        tl.store(share_ptr + columns, by_width, known)


def any_line_values(
    loc: Tensor, scale: Tensor, index: Tensor | None, number: float | None, centre: Tensor, width: Tensor
) -> Tensor:
    """r, (*batch, K), of β-Gaussians (*batch) against K functions.

    Args:
        loc: μ, float32.
        scale: σ, float32.
        index: α, a tensor (*batch) of any dtype, or None.
        number: α, where `index` is None.
        centre: μ_j, (K,), float32.
        width: σ_j, (K,), float32.
    """
    r = loc.new_empty(*loc.shape, centre.shape[0])
    if r.numel() == 0:
        return r
    alpha, gap = (loc, (number or 0.0) - 1.0) if index is None else (index, 0.0)
    parameters = (laid_out(x) for x in (loc, scale, alpha, centre, width))
    _values(loc.numel(), centre.shape[0], gap, index is not None)(r, *parameters, *_rules(loc.device))
    return r


def any_line_gradients(
    cotangent: Tensor,
    loc: Tensor,
    scale: Tensor,
    index: Tensor | None,
    number: float | None,
    centre: Tensor,
    width: Tensor,
    needs_basis: bool,
) -> tuple[Tensor, Tensor, Tensor, Tensor | None, Tensor | None]:
    """Gradients of loc, scale and alpha, (*batch), and of centre and width, (K,), None where not needed.

    Args:
        cotangent: that of r, (*batch, K).
        loc: as of :func:`any_line_values`, and so the others.
        scale: likewise.
        index: likewise.
        number: likewise.
        centre: likewise.
        width: likewise.
        needs_basis: whether the gradients of centre and width are needed.
    """
    rows, columns = loc.numel(), centre.shape[0]
    alpha, gap = (loc, (number or 0.0) - 1.0) if index is None else (index, 0.0)
    block, warps = _block(columns, _BACKWARD_COLUMNS)
    blocks = blocks_of(columns, block)
    group = min(16, power_of_two(max(1, rows // _FEW))) if needs_basis else 1
    groups = blocks_of(rows, group)
    by_row = [loc.new_empty(blocks, rows) for _ in range(3)]
    shares = loc.new_empty(groups if needs_basis else 0, 2, columns)
    matrix = resolved(cotangent).reshape(-1, columns)
    if rows and columns:
        parameters = (laid_out(x) for x in (loc, scale, alpha, centre, width))
        kinds = {"GROUP": group, "PER_ROW": index is not None, "BASIS": needs_basis, **_NODES, "COLUMNS": block}
        numbers = (rows, columns, *matrix.stride(), gap)
        gradients = Launch(any_bwd_kernel, (groups, blocks), numbers, kinds, warps, contracts=True)
        gradients(*by_row, shares, matrix, *parameters, *_rules(loc.device))
    by_loc, by_scale, by_alpha = ((x if blocks == 1 else x.sum(0)).reshape(loc.shape) for x in by_row)
    if not needs_basis:
        return by_loc, by_scale, by_alpha, None, None
    return by_loc, by_scale, by_alpha, shares[:, 0].sum(0), shares[:, 1].sum(0)


@DeviceCache
def _rules(device: torch.device) -> tuple[Tensor, Tensor]:
    """Nodes on [0, 1], their distances to 1, and log₂ of their weights, of both rules, in float32."""
    x, weights = unit_gauss_legendre(_BELL_NODES, device)
    bell = torch.cat([x, x.flip(0), weights.log2()]).float()
    x, weights = unit_gauss_legendre(_EDGE_NODES, device)
    # Gauss–Legendre in τ with x = 3τ² − 2τ³: from a singular end on, mass grows with a power of τ twice as high.
    rest = x.flip(0)
    nodes = x * x * (x + 3 * rest)
    edges = torch.cat([nodes, nodes.flip(0), (6 * x * rest * weights).log2()]).float()
    return bell, edges


@functools.lru_cache(maxsize=LAUNCHES)
def _values(rows: int, columns: int, gap: float, per_row: bool) -> Launch:
    block, warps = _block(columns, _COLUMNS)
    kinds = {"PER_ROW": per_row, **_NODES, "COLUMNS": block}
    grid = (rows, blocks_of(columns, block))
    return Launch(any_fwd_kernel, grid, (columns, gap), kinds, warps, contracts=True)


def _block(columns: int, most: int) -> tuple[int, int]:
    """Functions and warps of one program."""
    block = min(power_of_two(columns), most)
    return block, max(1, block // (32 * _TOGETHER))
