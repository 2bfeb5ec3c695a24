"""E_p[ψ] on the line and its gradients: a block of densities against a block of basis functions in each program.

The rules are those of `contmax.expectations._line_normal` (α = 1, here k = ∞) and `contmax.expectations._line_window`
(k = 1/(α−1) = 0, …, 4), which see. What is done for each node is in float32, and so is most of the rest. Nothing of the
size of pairs times nodes is stored.
"""

import math

import triton
import triton.language as tl
from torch import Tensor

from contmax.kernels.triton._launch import device_of
from contmax.numerics import unit_gauss_legendre

_NODES = 20
_REACH = tl.constexpr(5.6)
# From here on a Gaussian underflows.
_FARTHEST = tl.constexpr(13.2)
# Lengths are taken to be in this range, and slopes not to exceed the other: their products are then numbers.
_SHORTEST, _LONGEST, _STEEPEST = tl.constexpr(1e-30), tl.constexpr(1e30), tl.constexpr(1e33)
_INVERSE_SQRT_2PI = tl.constexpr(0.3989422804014327)
# exp(−z²/2) = 2^{−(z·ROOT)²}.
_ROOT, _INVERSE_ROOT = tl.constexpr(0.8493218002880191), tl.constexpr(1.1774100225154747)
_NAN = tl.constexpr(float("nan"))


@triton.jit
def _length(x):
    """The length within range; NaN stays NaN."""
    x = tl.where(x < _SHORTEST, _SHORTEST, x)
    return tl.where(x > _LONGEST, _LONGEST, x)


@triton.jit
def _bounded(slope):
    return tl.where(slope > _STEEPEST, _STEEPEST, tl.where(slope < -_STEEPEST, -_STEEPEST, slope))


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
    larger, smaller = tl.where(sigma > width, sigma, width), tl.where(sigma > width, width, sigma)
    ratio = smaller / larger
    inverse = 1.0 / (larger * tl.sqrt(1.0 + ratio * ratio))
    z = (mu - centre) * inverse
    # Farther away z² may overflow, and infinity times zero is NaN.
    z = tl.where(z > 1e6, 1e6, tl.where(z < -1e6, -1e6, z))
    u = z * _ROOT
    return tl.exp2(-u * u) * (inverse * _INVERSE_SQRT_2PI), z, inverse


@triton.jit
def _window(mu, a, centre, width, K: tl.constexpr):
    """Where the integrand of each pair is: z = z₀ + dz·x, 1 + y = left + span·x, 1 − y = right + span·(1 − x).

    z is in units of √(2/ln 2), for exp2. Also whether the density is the narrower, and whether anything is left of r.
    """
    inverse_a, inverse_width = 1.0 / a, 1.0 / width
    offset, ratio = centre - mu, width * inverse_a
    narrow = a <= width * (2.0 if K == 0 else 2.0 * ((2 * K + 3) / 5) ** 0.5)
    # In units of the support its ends are ±1; in units of the basis function they are (±a − δ)/σ_j.
    end = tl.where(narrow, 1.0, (a - offset) * inverse_width)
    start = tl.where(narrow, -1.0, (-a - offset) * inverse_width)
    middle = tl.where(narrow, offset * inverse_a, 0.0)
    spread = tl.where(narrow, ratio, 1.0)
    nearest = tl.minimum(tl.maximum(middle, start), end)
    distance, reach = tl.abs(middle - nearest), spread * _REACH
    far = distance / reach
    extent = reach / (tl.sqrt(far * far + 1.0) + far)
    low, high = tl.maximum(nearest - extent, start), tl.minimum(nearest + extent, end)
    length = high - low
    z = tl.where(narrow, (low * a - offset) * inverse_width, low)
    dz = tl.where(narrow, length * (a * inverse_width), length)
    # Wherever the window is, its distances from the ends must be exact: all nodes share their errors, and a power
    # multiplies them.
    wide, exact = a.to(tl.float64), centre.to(tl.float64) - mu.to(tl.float64)
    deviation, shrink = width.to(tl.float64), 1.0 / a.to(tl.float64)
    left = tl.where(narrow, 1.0 + low, ((wide + exact + deviation * low) * shrink).to(tl.float32))
    right = tl.where(narrow, 1.0 - high, ((wide - exact - deviation * high) * shrink).to(tl.float32))
    span = tl.where(narrow, length, length * ratio)
    span = tl.where(span > 1.0, 2.0 - (left + right), span)
    alive = distance <= spread * _FARTHEST
    return z * _ROOT, dz * _ROOT, left, right, span, narrow, alive


@triton.jit
def _at(z, dz, left, right, span, x, rest, weight, K: tl.constexpr):
    """At the node x = 1 − rest: z, y, 1 − y², and w (1 − y²)^{k−1} exp(−z²/2), of k = 1 where k = 0."""
    u, low, high = z + dz * x, left + span * x, right + span * rest
    room = low * high
    escort = weight * tl.exp2(-u * u)
    for _ in tl.static_range(K - 1):
        escort *= room
    return u, 0.5 * (low - high), room, escort


@triton.jit
def _sum_of_values(z, dz, left, right, span, nodes, weights, K: tl.constexpr, PAIRS: tl.constexpr):
    total = tl.zeros_like(z)
    for n in tl.static_range(PAIRS):
        x, rest = tl.load(nodes + n).to(tl.float32), tl.load(nodes + 2 * PAIRS - 1 - n).to(tl.float32)
        weight = tl.load(weights + n).to(tl.float32)
        for mirrored in tl.static_range(2):
            if mirrored:
                x, rest = rest, x
            _u, _y, room, escort = _at(z, dz, left, right, span, x, rest, weight, K)
            total += escort if K == 0 else escort * room
    return total


@triton.jit
def _sums_of_slopes(z, dz, left, right, span, nodes, weights, K: tl.constexpr, PAIRS: tl.constexpr):
    """Of mass·z, mass·z·y and mass·(z² − 1), then of escort·y and escort·((2k+1)y² − 1)."""
    by_loc, by_half, by_width = tl.zeros_like(z), tl.zeros_like(z), tl.zeros_like(z)
    wide_loc, wide_half = tl.zeros_like(z), tl.zeros_like(z)
    for n in tl.static_range(PAIRS):
        x, rest = tl.load(nodes + n).to(tl.float32), tl.load(nodes + 2 * PAIRS - 1 - n).to(tl.float32)
        weight = tl.load(weights + n).to(tl.float32)
        for mirrored in tl.static_range(2):
            if mirrored:
                x, rest = rest, x
            u, y, room, escort = _at(z, dz, left, right, span, x, rest, weight, K)
            mass = escort if K == 0 else escort * room
            moved = mass * u
            by_loc += moved
            by_half += moved * y
            # z² = 2u²/ln 2 … both with the factor that z has.
            by_width += moved * (u * _INVERSE_ROOT) - mass * _ROOT
            if K > 0:
                wide_loc += escort * y
                wide_half += escort * ((2 * K + 1) * y * y - 1.0)
    return by_loc * _INVERSE_ROOT, by_half * _INVERSE_ROOT, by_width * _INVERSE_ROOT, wide_loc, wide_half


@triton.jit
def line_fwd_kernel(
    r_ptr,
    loc_ptr,
    scale_ptr,
    centre_ptr,
    width_ptr,
    nodes,
    weights,
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
    mu = tl.load(loc_ptr + row, row < rows, other=0.0)[:, None]
    scale = tl.load(scale_ptr + row, row < rows, other=1.0)[:, None]
    centre = tl.load(centre_ptr + column, column < columns, other=0.0)[None, :]
    width = _length(tl.load(width_ptr + column, column < columns, other=1.0))[None, :]
    if K < 0:
        r, _z, _inverse = _gaussian(mu, _length(scale), centre, width)
    else:
        a = _length(_half_width(scale, stretch, K) if RAISED else scale)
        z, dz, left, right, span, _narrow, alive = _window(mu, a, centre, width, K)
        total = _sum_of_values(z, dz, left, right, span, nodes, weights, K, PAIRS)
        r = tl.where(alive, constant * span * total / width, 0.0)
    known = (mu == mu) & (scale == scale) & (centre == centre) & (width == width)
    inside = (row < rows)[:, None] & (column < columns)[None, :]
    tl.store(r_ptr + row[:, None].to(tl.int64) * columns + column[None, :], tl.where(known, r, _NAN), inside)


@triton.jit
def _slopes(mu, scale, a, centre, width, nodes, weights, constant, K: tl.constexpr, PAIRS: tl.constexpr):
    """∂r/∂(μ, a, σ_j); E[ψ′] forms for a narrow density or k = 0, escort forms else; a is σ where k = ∞."""
    if K < 0:
        r, z, inverse = _gaussian(mu, a, centre, width)
        share = r * inverse
        bend = share * (z * z - 1.0) * inverse
        by_loc, by_half, by_width = -share * z, bend * a, bend * width
    else:
        z, dz, left, right, span, narrow, alive = _window(mu, a, centre, width, K)
        by_loc, by_half, by_width, wide_loc, wide_half = _sums_of_slopes(
            z, dz, left, right, span, nodes, weights, K, PAIRS
        )
        size = constant * span / width
        by_loc, by_half, by_width = -size * by_loc / width, -size * by_half / width, size * by_width / width
        if K > 0:
            by_loc = tl.where(narrow, by_loc, 2 * K * size * wide_loc / a)
            by_half = tl.where(narrow, by_half, size * wide_half / a)
        by_loc = tl.where(alive, by_loc, 0.0)
        by_half, by_width = tl.where(alive, by_half, 0.0), tl.where(alive, by_width, 0.0)
    known = (mu == mu) & (scale == scale) & (centre == centre) & (width == width)
    by_loc, by_half, by_width = _bounded(by_loc), _bounded(by_half), _bounded(by_width)
    return tl.where(known, by_loc, _NAN), tl.where(known, by_half, _NAN), tl.where(known, by_width, _NAN)


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
    nodes,
    weights,
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
    mu = tl.load(loc_ptr + row, row < rows, other=0.0)[:, None]
    scale = tl.load(scale_ptr + row, row < rows, other=1.0)
    half = _half_width(scale, stretch, K) if RAISED else scale
    a = _length(half)[:, None]
    by_loc, by_half = tl.zeros([ROWS], tl.float32), tl.zeros([ROWS], tl.float32)
    for first in range(0, columns, COLUMNS):
        column = first + tl.arange(0, COLUMNS)
        centre = tl.load(centre_ptr + column, column < columns, other=0.0)[None, :]
        width = _length(tl.load(width_ptr + column, column < columns, other=1.0))[None, :]
        inside = (row < rows)[:, None] & (column < columns)[None, :]
        offsets = row[:, None].to(tl.int64) * row_stride + column[None, :].to(tl.int64) * column_stride
        cotangent = tl.load(cotangent_ptr + offsets, inside, other=0.0)
        slope, slope_half, slope_width = _slopes(
            mu, scale[:, None], a, centre, width, nodes, weights, constant, K, PAIRS
        )
        slope = tl.where(inside, cotangent * slope, 0.0)
        by_loc += tl.sum(slope, 1)
        by_half += tl.sum(tl.where(inside, cotangent * slope_half, 0.0), 1)
        if BASIS:
            share = by_basis_ptr + block.to(tl.int64) * 2 * columns + column
            tl.store(share, -tl.sum(slope, 0), column < columns)
            by_width = tl.sum(tl.where(inside, cotangent * slope_width, 0.0), 0)
            tl.store(share + columns, by_width, column < columns)
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
    block_rows, block_columns = _block(rows, columns)
    nodes, weights = unit_gauss_legendre(_NODES, loc.device)
    grid = (triton.cdiv(rows, block_rows), triton.cdiv(columns, block_columns))
    with device_of(loc):
        line_fwd_kernel[grid](
            r,
            *(x.contiguous() for x in (loc, scale, centre, width)),
            nodes,
            weights,
            rows,
            columns,
            **_numbers(k, raised),
            ROWS=block_rows,
            COLUMNS=block_columns,
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
    block_rows, block_columns = _block(rows, columns)
    blocks = triton.cdiv(rows, block_rows)
    shares = loc.new_empty(blocks if needs_basis else 0, 2, columns)
    nodes, weights = unit_gauss_legendre(_NODES, loc.device)
    matrix = cotangent.reshape(-1, columns)
    if rows:
        with device_of(loc):
            line_bwd_kernel[(blocks,)](
                by_loc,
                by_scale,
                shares,
                matrix,
                *(x.contiguous() for x in (loc, scale, centre, width)),
                nodes,
                weights,
                rows,
                columns,
                *matrix.stride(),
                **_numbers(k, raised),
                BASIS=needs_basis,
                ROWS=block_rows,
                COLUMNS=block_columns,
            )
    if not needs_basis:
        return by_loc, by_scale, loc.new_empty(0), loc.new_empty(0)
    return by_loc, by_scale, shares[:, 0].sum(0), shares[:, 1].sum(0)


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


def _block(rows: int, columns: int) -> tuple[int, int]:
    """Densities and functions of one program: few where there are few in all, so that all of the GPU has work."""
    size = 512 if rows * columns >= 2**17 else 128
    block_columns = min(triton.next_power_of_2(columns), 512)
    return max(1, min(size // block_columns, triton.next_power_of_2(rows))), block_columns
