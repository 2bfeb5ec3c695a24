"""E_p[ψ] on the line and its gradients: a block of densities against a block of basis functions in each program.

The rules are those of `contmax.expectations._line_normal` (α = 1, here k = ∞) and `contmax.expectations._line_window`
(k = 1/(α−1) = 0, …, 4), which see. All is in float32; nothing of the size of pairs times nodes is stored.
"""

import functools
import math

import torch
import triton
import triton.language as tl
from torch import Tensor

from contmax.kernels.triton._launch import device_of
from contmax.numerics import unit_gauss_legendre

_NODES = 20
# How far a window reaches, in standard deviations.
_REACH, _INVERSE_REACH = tl.constexpr(5.6), tl.constexpr(1 / 5.6)
# Lengths are taken to be in this range, distances not to exceed the longest, and slopes not to exceed the last number:
# then products of two are numbers, and what is far away underflows by itself.
_SHORTEST, _LONGEST, _STEEPEST = tl.constexpr(1e-18), tl.constexpr(1e18), tl.constexpr(1e33)
_INVERSE_SQRT_2PI = tl.constexpr(0.3989422804014327)
# exp(−z²/2) = 2^{−(z·ROOT)²}.
_ROOT, _INVERSE_ROOT = tl.constexpr(0.8493218002880191), tl.constexpr(1.1774100225154747)


@triton.jit
def _length(x):
    """The length within range."""
    return tl.minimum(tl.maximum(x, _SHORTEST), _LONGEST)


@triton.jit
def _nan_from(x, y):
    """NaN where one of both is NaN, else 0: what minima and maxima have lost is added at the end."""
    return tl.where((x == x) & (y == y), 0.0, float("nan"))


@triton.jit
def _distance(x, y):
    return tl.minimum(tl.maximum(x - y, -_LONGEST), _LONGEST)


@triton.jit
def _bounded(slope):
    return tl.minimum(tl.maximum(slope, -_STEEPEST), _STEEPEST)


@triton.jit
def _half_width(scale, stretch, K: tl.constexpr):
    """a = F σ^{2k/(2k+1)}: σ times a root of 1/σ, which a step of Newton's method makes exact to rounding."""
    if K == 0:
        half = scale * 0.0 + stretch
    else:
        inverse = tl.exp2(-tl.log2(scale) / (2 * K + 1))
        one = scale
        for _ in tl.static_range(2 * K + 1):
            one *= inverse
        inverse += inverse * (1.0 - one) / (2 * K + 1)
        half = stretch * (scale * inverse)
    return half


@triton.jit
def _gaussian(mu, sigma, centre, width):
    """r, z and 1/s of N(μ; μ_j, s²), s² = σ² + σ_j², whose squares may be out of range."""
    larger = tl.maximum(sigma, width)
    ratio = tl.minimum(sigma, width) / larger
    inverse = 1.0 / (larger * tl.sqrt(1.0 + ratio * ratio))
    z = _distance(mu, centre) * inverse
    u = z * _ROOT
    return tl.exp2(u * (u * -1.0)) * (inverse * _INVERSE_SQRT_2PI), z, inverse


@triton.jit
def _window(mu, a, inverse_a, centre, width, inverse_width, K: tl.constexpr):
    """Where the integrand of each pair is: z = z₀ + dz·x, 1 + y = left + span·x, 1 − y = right + span·(1 − x).

    z is in units of √(2/ln 2), for exp2. Also whether the density is the narrower.
    """
    offset, ratio, inverse_ratio = _distance(centre, mu), width * inverse_a, a * inverse_width
    narrow = inverse_ratio <= (2.0 if K == 0 else 2.0 * ((2 * K + 3) / 5) ** 0.5)
    # In units of the support its ends are ±1; in units of the basis function they are (±a − δ)/σ_j.
    end = tl.where(narrow, 1.0, (a - offset) * inverse_width)
    start = tl.where(narrow, -1.0, (a + offset) * (inverse_width * -1.0))
    middle = tl.where(narrow, offset * inverse_a, 0.0)
    reach = tl.where(narrow, ratio, 1.0) * _REACH
    nearest = tl.minimum(tl.maximum(middle, start), end)
    far = tl.abs(middle - nearest) * (tl.where(narrow, inverse_ratio, 1.0) * _INVERSE_REACH)
    extent = reach / (tl.sqrt(far * far + 1.0) + far)
    low, high = tl.maximum(nearest - extent, start), tl.minimum(nearest + extent, end)
    length = high - low
    z = tl.where(narrow, (low * a - offset) * inverse_width, low)
    dz = length * tl.where(narrow, inverse_ratio, 1.0)
    # The ends must agree on y: an error of y hardly moves (1 − y²)ᵏ, one of either factor is raised to the power k.
    left = 1.0 + tl.where(narrow, low, (offset + width * low) * inverse_a)
    right = 1.0 - tl.where(narrow, high, (offset + width * high) * inverse_a)
    span = length * tl.where(narrow, 1.0, ratio)
    span = tl.where(span > 1.0, 2.0 - (left + right), span)
    return z * _ROOT, dz * _ROOT, left, right, span, narrow


@triton.jit
def _at(z, dz, left, right, span, x, rest, log_weight, K: tl.constexpr):
    """At the node x = 1 − rest: z, 2y, 1 − y², and w (1 − y²)^{k−1} exp(−z²/2), of k = 1 where k = 0."""
    u, low, high = z + dz * x, left + span * x, right + span * rest
    room = low * high
    escort = tl.exp2(log_weight - u * u)
    for _ in tl.static_range(K - 1):
        escort *= room
    return u, low - high, room, escort


@triton.jit
def _node(rule, n, mirrored: tl.constexpr, PAIRS: tl.constexpr):
    """x, 1 − x and log₂ w of node n, or of its mirror image in the middle of the window."""
    x, rest = tl.load(rule + n), tl.load(rule + 2 * PAIRS - 1 - n)
    log_weight = tl.load(rule + 2 * PAIRS + n)
    if mirrored:
        x, rest = rest, x
    return x, rest, log_weight


@triton.jit
def _sum_of_values(z, dz, left, right, span, rule, K: tl.constexpr, PAIRS: tl.constexpr):
    total = tl.zeros_like(z)
    for n in tl.static_range(PAIRS):
        for mirrored in tl.static_range(2):
            x, rest, log_weight = _node(rule, n, mirrored, PAIRS)
            _u, _y, room, escort = _at(z, dz, left, right, span, x, rest, log_weight, K)
            total += escort if K == 0 else escort * room
    return total


@triton.jit
def _sums_of_slopes(z, dz, left, right, span, rule, K: tl.constexpr, PAIRS: tl.constexpr):
    """Of mass·z, mass·z·y and mass·(z² − 1), then of escort·y and escort·((2k+1)y² − 1)."""
    by_loc, by_half, by_width = tl.zeros_like(z), tl.zeros_like(z), tl.zeros_like(z)
    wide_loc, masses, escorts = tl.zeros_like(z), tl.zeros_like(z), tl.zeros_like(z)
    for n in tl.static_range(PAIRS):
        for mirrored in tl.static_range(2):
            x, rest, log_weight = _node(rule, n, mirrored, PAIRS)
            u, twice, room, escort = _at(z, dz, left, right, span, x, rest, log_weight, K)
            mass = escort if K == 0 else escort * room
            moved = mass * u
            by_loc += moved
            by_half += moved * twice
            by_width += moved * u
            masses += mass
            if K > 0:
                wide_loc += escort * twice
                escorts += escort
    by_loc, by_half = by_loc * _INVERSE_ROOT, by_half * (0.5 * _INVERSE_ROOT)
    by_width = by_width * (_INVERSE_ROOT * _INVERSE_ROOT) - masses
    # y² = 1 − (1 − y²).
    return by_loc, by_half, by_width, 0.5 * wide_loc, 2 * K * escorts - (2 * K + 1) * masses


@triton.jit
def line_fwd_kernel(
    r_ptr,
    loc_ptr,
    scale_ptr,
    centre_ptr,
    width_ptr,
    rule_ptr,
    rows,
    columns,
    stretch,
    constant,
    K: tl.constexpr,
    RAISED: tl.constexpr,
    PAIRS: tl.constexpr,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
):
    """r of a block of densities against a block of functions; K < 0 stands for k = ∞."""
    row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    column = tl.program_id(1) * COLUMNS + tl.arange(0, COLUMNS)
    mu, scale = tl.load(loc_ptr + row, row < rows, other=0.0), tl.load(scale_ptr + row, row < rows, other=1.0)
    centre = tl.load(centre_ptr + column, column < columns, other=0.0)
    width = tl.load(width_ptr + column, column < columns, other=1.0)
    lost = _nan_from(mu, scale)[:, None] + _nan_from(centre, width)[None, :]
    a = _length(_half_width(scale, stretch, K) if RAISED else scale)
    width = _length(width)
    if K < 0:
        r, _z, _inverse = _gaussian(mu[:, None], a[:, None], centre[None, :], width[None, :])
    else:
        inverse_a, inverse_width = (1.0 / a)[:, None], (1.0 / width)[None, :]
        z, dz, left, right, span, _narrow = _window(
            mu[:, None], a[:, None], inverse_a, centre[None, :], width[None, :], inverse_width, K
        )
        total = _sum_of_values(z, dz, left, right, span, rule_ptr, K, PAIRS)
        r = span * total * (inverse_width * constant)
    inside = (row < rows)[:, None] & (column < columns)[None, :]
    tl.store(r_ptr + row[:, None].to(tl.int64) * columns + column[None, :], r + lost, inside)


@triton.jit
def _slopes(mu, a, inverse_a, centre, width, rule, constant, K: tl.constexpr, PAIRS: tl.constexpr):
    """∂r/∂(μ, a, σ_j); E[ψ′] forms for a narrow density or k = 0, escort forms else; a is σ where k = ∞."""
    if K < 0:
        r, z, inverse = _gaussian(mu, a, centre, width)
        share = r * inverse
        # Where r has underflown z² may be out of range.
        moved = share * z
        bend = (moved * z - share) * inverse
        by_loc, by_half, by_width = moved * -1.0, bend * a, bend * width
    else:
        inverse_width = 1.0 / width
        z, dz, left, right, span, narrow = _window(mu, a, inverse_a, centre, width, inverse_width, K)
        by_loc, by_half, by_width, wide_loc, wide_half = _sums_of_slopes(z, dz, left, right, span, rule, K, PAIRS)
        size = span * (inverse_width * constant)
        by_width = by_width * size * inverse_width
        share = inverse_width * -1.0
        if K > 0:
            by_loc = tl.where(narrow, by_loc, 2 * K * wide_loc)
            by_half = tl.where(narrow, by_half, wide_half)
            share = tl.where(narrow, share, inverse_a)
        by_loc, by_half = by_loc * size * share, by_half * size * share
    return _bounded(by_loc), _bounded(by_half), _bounded(by_width)


@triton.jit
def line_bwd_kernel(
    by_loc_ptr,
    by_scale_ptr,
    by_basis_ptr,
    cotangent_ptr,
    loc_ptr,
    scale_ptr,
    centre_ptr,
    width_ptr,
    rule_ptr,
    rows,
    columns,
    row_stride,
    column_stride,
    stretch,
    constant,
    K: tl.constexpr,
    RAISED: tl.constexpr,
    BASIS: tl.constexpr,
    PAIRS: tl.constexpr,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
):
    """The gradients of a block of densities; with BASIS also its share in those of all functions, (blocks, 2, K)."""
    block = tl.program_id(0)
    row = block * ROWS + tl.arange(0, ROWS)
    mu, scale = tl.load(loc_ptr + row, row < rows, other=0.0), tl.load(scale_ptr + row, row < rows, other=1.0)
    half = _half_width(scale, stretch, K) if RAISED else scale
    a = _length(half)
    inverse_a, lost_row = (1.0 / a)[:, None], _nan_from(mu, scale)[:, None]
    by_loc, by_half = tl.zeros([ROWS], tl.float32), tl.zeros([ROWS], tl.float32)
    for first in range(0, columns, COLUMNS):
        column = first + tl.arange(0, COLUMNS)
        centre = tl.load(centre_ptr + column, column < columns, other=0.0)
        width = tl.load(width_ptr + column, column < columns, other=1.0)
        inside = (row < rows)[:, None] & (column < columns)[None, :]
        offsets = row[:, None].to(tl.int64) * row_stride + column[None, :].to(tl.int64) * column_stride
        # NaN from NaN, in all slopes.
        cotangent = tl.load(cotangent_ptr + offsets, inside, other=0.0)
        cotangent += tl.where(inside, lost_row + _nan_from(centre, width)[None, :], 0.0)
        slope, slope_half, slope_width = _slopes(
            mu[:, None], a[:, None], inverse_a, centre[None, :], _length(width)[None, :], rule_ptr, constant, K, PAIRS
        )
        by_loc += tl.sum(cotangent * slope, 1)
        by_half += tl.sum(cotangent * slope_half, 1)
        if BASIS:
            share = by_basis_ptr + block.to(tl.int64) * 2 * columns + column
            tl.store(share, -tl.sum(cotangent * slope, 0), column < columns)
            tl.store(share + columns, tl.sum(cotangent * slope_width, 0), column < columns)
    if RAISED:
        by_half *= half / scale * (2 * K / (2 * K + 1))
    tl.store(by_loc_ptr + row, by_loc, row < rows)
    tl.store(by_scale_ptr + row, by_half, row < rows)


def line_values(loc: Tensor, scale: Tensor, centre: Tensor, width: Tensor, k: float, raised: bool) -> Tensor:
    """r, (*batch, K), of densities (*batch) against K functions.

    Args:
        loc: μ, float32 as all others.
        scale: σ if `raised` or k = ∞, else the half-width a of the support.
        centre: μ_j, (K,).
        width: σ_j, (K,).
        k: 1/(α−1), one of 0, …, 4 and ∞.
        raised: whether the half-width is to be found from σ.
    """
    r = loc.new_empty(*loc.shape, centre.shape[0])
    if r.numel() == 0:
        return r
    rows, columns = loc.numel(), centre.shape[0]
    block_rows, block_columns, warps = _block(rows, columns)
    grid = (triton.cdiv(rows, block_rows), triton.cdiv(columns, block_columns))
    with device_of(loc):
        line_fwd_kernel[grid](
            r,
            *(x.contiguous() for x in (loc, scale, centre, width)),
            _rule(loc.device),
            rows,
            columns,
            **_numbers(k, raised),
            ROWS=block_rows,
            COLUMNS=block_columns,
            num_warps=warps,
        )
    return r


def line_gradients(
    cotangent: Tensor,
    loc: Tensor,
    scale: Tensor,
    centre: Tensor,
    width: Tensor,
    k: float,
    raised: bool,
    needs_basis: bool,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Gradients of loc and scale, (*batch), and of centre and width, (K,), empty (0,) where not needed.

    Args:
        cotangent: that of r, (*batch, K).
        loc: as of :func:`line_values`, and so the others.
        scale: likewise.
        centre: likewise.
        width: likewise.
        k: likewise.
        raised: likewise.
        needs_basis: whether the gradients of centre and width are needed.
    """
    rows, columns = loc.numel(), centre.shape[0]
    by_loc, by_scale = loc.new_empty(loc.shape), loc.new_empty(loc.shape)
    block_rows, block_columns, warps = _block(rows, columns)
    blocks = triton.cdiv(rows, block_rows)
    shares = loc.new_empty(blocks if needs_basis else 0, 2, columns)
    matrix = cotangent.reshape(-1, columns)
    if rows:
        with device_of(loc):
            line_bwd_kernel[(blocks,)](
                by_loc,
                by_scale,
                shares,
                matrix,
                *(x.contiguous() for x in (loc, scale, centre, width)),
                _rule(loc.device),
                rows,
                columns,
                *matrix.stride(),
                **_numbers(k, raised),
                BASIS=needs_basis,
                ROWS=block_rows,
                COLUMNS=block_columns,
                num_warps=warps,
            )
    if not needs_basis:
        return by_loc, by_scale, loc.new_empty(0), loc.new_empty(0)
    return by_loc, by_scale, shares[:, 0].sum(0), shares[:, 1].sum(0)


@functools.cache
def _rule(device: torch.device) -> Tensor:
    """Nodes on [0, 1], then log₂ of their weights, in float32."""
    with torch.inference_mode(False):
        nodes, weights = unit_gauss_legendre(_NODES, device)
        return torch.cat([nodes, weights.log2()]).float()


def _numbers(k: float, raised: bool) -> dict[str, float | int | bool]:
    """What the kernels know besides tensors and blocks.

    With C_k the constant of (1 − y²)ᵏ on [−1, 1] the half-width is a = F σ^{2k/(2k+1)}, F = (C_k (2k)ᵏ)^{1/(2k+1)}.
    """
    if math.isinf(k):
        return {"stretch": 1.0, "constant": 1.0, "K": -1, "RAISED": False, "PAIRS": _NODES // 2}
    norm = math.gamma(k + 1.5) / (math.sqrt(math.pi) * math.gamma(k + 1))
    stretch = (norm * (2 * k) ** k) ** (1 / (2 * k + 1))
    constant = norm / math.sqrt(2 * math.pi)
    return {"stretch": stretch, "constant": constant, "K": int(k), "RAISED": raised, "PAIRS": _NODES // 2}


def _block(rows: int, columns: int) -> tuple[int, int, int]:
    """Densities, functions and warps of one program: few pairs where there are few in all, so that all work."""
    many = rows * columns >= 2**17
    block_columns = min(triton.next_power_of_2(columns), 512)
    block_rows = max(1, min((512 if many else 128) // block_columns, triton.next_power_of_2(rows)))
    # Eight pairs for each thread share what it loads of the rule.
    return block_rows, block_columns, 2 if many else 4
