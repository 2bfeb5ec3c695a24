"""r = E_p[ψ] on the line for any α, one for each density, and its gradients; programs take one density at a time.

α alone decides which rule fits, so all pairs of a density take one branch: `tails` for small α, `bell` near
α = 1, `edges` for large α. The host never reads α. The torch reference is `contmax.expectations._line_scales`.

With t = μ + bξ the density in ξ is C(ε) (1 − εξ²)^{1/ε}, ε = α − 1, which is exp(−ξ²)/√π at ε = 0. The formulas for b
and C are those of `contmax.densities._profile`, `contmax.numerics._radial` and `stirling_factor` in
`contmax.expectations._scale_mean`. They are computed in float64: once per density, this costs little.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

from contmax._caches import DeviceCache, cached
from contmax.kernels import blocks_of, power_of_two
from contmax.kernels.gpu._cached_launch import Launch
from contmax.kernels.gpu._launch import laid_out, resolved
from contmax.kernels.means._gpu_any_rules import BELL_NODES, EDGE_NODES, bell, bell_reach, edges, tails
from contmax.kernels.means._gpu_pairs import Gradients, Parameters
from contmax.kernels.means._gpu_windows import bounded, length_in_range, load_functions, nan_from
from contmax.numerics import unit_gauss_legendre

_HALF_LOG_2PI, _HALF_LOG_2 = tl.constexpr(0.9189385332046727), tl.constexpr(0.34657359027997264)
# |ε| is raised to at least _LEAST, where p is Gaussian up to rounding, and ε is lowered to at most _MOST, where p is
# uniform up to rounding.
_LEAST, _MOST = tl.constexpr(1e-7), tl.constexpr(1e6)
_INVERSE_SQRT_2PI = tl.constexpr(0.3989422804014327)
# Rules by ε: heavy tails below _TAILS, visible ends from _EDGES on, bells between.
_TAILS, _EDGES = tl.constexpr(-0.02), tl.constexpr(0.25)
# The most basis functions of a program (forward, backward), and basis functions of a thread, measured on an H200.
_COLUMNS, _BACKWARD_COLUMNS, _TOGETHER = 512, 128, 8
# Where gradients of basis functions are needed, a program takes several densities one after the other: the
# number of all densities // _FEW, rounded up to a power of two, from 1 to 16.
_FEW = 1024


@triton.jit
def _gap_in_range(gap):
    """ε = α − 1, lowered to at most _MOST; _LEAST in place of any ε nearer to 0; NaN stays NaN."""
    gap = tl.where(gap > _MOST, _MOST, gap)
    return tl.where(tl.abs(gap) < _LEAST, _LEAST, gap)


@triton.jit
def _gamma_ratio(gap):
    """G₁(ε) = ln Γ(k + 3/2) − ln Γ(k + 1) − ½ ln k for k = 1/ε > 0 (ε < 0: `numerics._radial`), and its derivative."""
    sign = tl.where(gap < 0.0, -1.0, 1.0).to(tl.float64)
    size = sign * gap
    offset = 8.0 + 0.75 * sign
    scale = 1.0 / (1.0 + offset * size)
    inverse = size * scale
    q = inverse * inverse
    # The series of ln Γ(w+¾)/Γ(w+¼) has Euler numbers as coefficients. Six terms are used; float32 needs three.
    c_1, c_2, c_3 = 1.0 / 64.0, -5.0 / 2048.0, 61.0 / 49152.0
    c_4, c_5, c_6 = -1385.0 / 1048576.0, 50521.0 / 20971520.0, -2702765.0 / 402653184.0
    value = q * (c_1 + q * (c_2 + q * (c_3 + q * (c_4 + q * (c_5 + q * c_6)))))
    series = 2.0 * c_1 + q * (4.0 * c_2 + q * (6.0 * c_3 + q * (8.0 * c_4 + q * (10.0 * c_5 + q * (12.0 * c_6)))))
    slope = series * inverse * scale * scale + 0.5 * offset * scale
    # Compute a product of eight quotients and a sum of eight reciprocals as one quotient each: division is slow.
    above_all, below_all, sums = 1.0 + 0.0 * size, 1.0 + 0.0 * size, 0.0 * size
    for j in tl.static_range(1, 9):
        below = 1.0 + (j - 0.5 + 0.5 * sign) * size
        above = below + 0.5 * sign * size
        sums = sums * (below * above) + above_all * below_all
        above_all *= above
        below_all *= below
    slope -= 0.5 * sums / (above_all * below_all)
    return value - 0.5 * tl.log(scale) - sign * tl.log(above_all / below_all), sign * slope


@triton.jit
def _row_law(sigma, gap):
    """ln b, ∂ ln b/∂ ln σ, ∂ ln b/∂α, ln C and d ln C/dε of a density, in float64."""
    ratio, slope = _gamma_ratio(gap)
    weight = 1.0 / (1.0 + 0.5 * gap)
    log_sigma = tl.log(sigma)
    height = ratio - _HALF_LOG_2PI
    peak = weight * (height - log_sigma)
    log_b = _HALF_LOG_2 + weight * (log_sigma + 0.5 * gap * height)
    by_gap = 0.5 * (peak + gap * weight * (slope - 0.5 * peak))
    # ½ ln π = ½ ln 2π − ½ ln 2.
    return log_b, weight, by_gap, ratio - (_HALF_LOG_2PI - _HALF_LOG_2), slope


@triton.jit
def _tail_law(gap):
    """For the law of the scale with ν < 0 (α < 1): −ν, ln n and d ln n/d|ν| for its normaliser n = √(|ν|/2π)/g(|ν|).

    g is that of `stirling_factor` in `contmax.expectations._scale_mean`.
    """
    x = -(1.0 + 1.5 * gap) / gap
    # Γ(x) = Γ(x + 10)/(x(x+1)…(x+9)): Stirling's series is exact to rounding at x + 10.
    shifted = x + 10.0
    product, harmonic = x * 0.0 + 1.0, x * 0.0
    for j in tl.static_range(10):
        product *= x + j
        harmonic += 1.0 / (x + j)
    inverse = 1.0 / shifted
    q = inverse * inverse
    series = inverse * (1.0 / 12.0 + q * (-1.0 / 360.0 + q * (1.0 / 1260.0 - q * (1.0 / 1680.0))))
    series_slope = q * (-1.0 / 12.0 + q * (3.0 / 360.0 + q * (-5.0 / 1260.0 + q * (7.0 / 1680.0))))
    log_x, log_shifted = tl.log(x), tl.log(shifted)
    log_g = series + (shifted - 0.5) * log_shifted - shifted - tl.log(product) + x - (x - 0.5) * log_x
    slope = series_slope + log_shifted - 0.5 * inverse - harmonic - log_x + 0.5 / x
    return x, 0.5 * log_x - _HALF_LOG_2PI - log_g, 0.5 / x - slope


@triton.jit
def _values_and_slopes(mu, scale_ptr, alpha_ptr, row, gap, centre, width, bell_rule, edge_rule, PER_ROW: tl.constexpr):
    """r; ∂r/∂(μ, ℓ, σ_j, α), with ℓ = b, a or √V, the rule's length; ∂ℓ/∂σ; and NaN if μ, σ or α is NaN, else 0."""
    sigma = tl.load(scale_ptr + row).to(tl.float64)
    gap = _gap_in_range(tl.load(alpha_ptr + row).to(tl.float64) - 1.0 if PER_ROW else sigma * 0.0 + gap)
    log_b, weight, by_gap, log_constant, log_slope = _row_law(sigma, gap)
    epsilon, constant = gap.to(tl.float32), tl.exp(log_constant).to(tl.float32)
    b = length_in_range(tl.exp(log_b).to(tl.float32))
    # `moves` is ∂ ln length/∂α.
    length, moves = b, by_gap.to(tl.float32)
    if epsilon < _TAILS:
        x, log_norm, norm_slope = _tail_law(gap)
        share = 2.0 + 3.0 * gap
        length = length_in_range((tl.exp(log_b) / tl.sqrt(share)).to(tl.float32))
        moves = (by_gap - 1.5 / share).to(tl.float32)
        constant = tl.exp(log_norm).to(tl.float32)
        r, by_loc, by_length, by_width, by_shape = tails(
            mu, length, centre, width, x.to(tl.float32), norm_slope.to(tl.float32)
        )
        by_shape = by_shape / (epsilon * epsilon)
    else:
        if epsilon < _EDGES:
            reach, curvature = bell_reach(epsilon)
            r, by_loc, by_length, by_width, by_shape = bell(
                mu, b, centre, width, epsilon, reach, curvature, log_slope.to(tl.float32), bell_rule
            )
        else:
            k = 1.0 / epsilon
            length = length_in_range(b * tl.sqrt(k))
            moves = (by_gap - 0.5 / gap).to(tl.float32)
            constant *= tl.sqrt(k)
            r, by_loc, by_length, by_width, by_shape = edges(
                mu, length, centre, width, k, log_slope.to(tl.float32) - 0.5 * k, edge_rule
            )
    constant *= _INVERSE_SQRT_2PI
    by_length = bounded(by_length * constant)
    by_alpha = bounded(by_shape * constant + by_length * (length * moves))
    # The length is proportional to σ^weight.
    by_sigma = (length * weight / sigma).to(tl.float32)
    slopes = (bounded(by_loc * constant), by_length, bounded(by_width * constant), by_alpha)
    return r * constant, slopes, by_sigma, nan_from(mu, log_b)


@triton.jit
def any_fwd_kernel(
    r_ptr, loc_ptr, scale_ptr, alpha_ptr, centre_ptr, width_ptr, bell_rule, edge_rule,
    columns, gap,
    PER_ROW: tl.constexpr, COLUMNS: tl.constexpr,
):  # fmt: skip
    """r of one density against a block of basis functions.

    This kernel reads no slopes, so the compiler removes their arithmetic.
    """
    row = tl.program_id(0).to(tl.int64)
    column = tl.program_id(1) * COLUMNS + tl.arange(0, COLUMNS)
    known = column < columns
    centre, width, nan = load_functions(centre_ptr, width_ptr, column, known)
    mu = tl.load(loc_ptr + row)
    r, _slopes, _by_sigma, nan_of_row = _values_and_slopes(
        mu, scale_ptr, alpha_ptr, row, gap, centre, width, bell_rule, edge_rule, PER_ROW
    )
    nan += nan_of_row
    tl.store(r_ptr + row * columns + column, r + nan, known)


@triton.jit
def any_bwd_kernel(
    by_loc_ptr, by_scale_ptr, by_alpha_ptr, by_basis_ptr, cotangent_ptr, loc_ptr, scale_ptr, alpha_ptr, centre_ptr,
    width_ptr, bell_rule, edge_rule,
    rows, columns, row_stride, column_stride, gap,
    GROUP: tl.constexpr, PER_ROW: tl.constexpr, BASIS: tl.constexpr, COLUMNS: tl.constexpr,
):  # fmt: skip
    """Sums over a block of functions for the gradients of μ, σ and α of GROUP densities, each (blocks, rows).

    With BASIS also sums over these densities for the gradients of the functions, (groups, 2, columns).
    """
    column = tl.program_id(1) * COLUMNS + tl.arange(0, COLUMNS)
    known = column < columns
    centre, width, nan = load_functions(centre_ptr, width_ptr, column, known)
    by_centre, by_width = tl.zeros([COLUMNS], tl.float32), tl.zeros([COLUMNS], tl.float32)
    first = tl.program_id(0).to(tl.int64) * GROUP
    for row in range(first, tl.minimum(first + GROUP, rows)):
        mu = tl.load(loc_ptr + row)
        _r, slopes, by_sigma, nan_of_row = _values_and_slopes(
            mu, scale_ptr, alpha_ptr, row, gap, centre, width, bell_rule, edge_rule, PER_ROW
        )
        offsets = row * row_stride + column.to(tl.int64) * column_stride
        # If a parameter is NaN, all gradients to which it contributes become NaN.
        cotangent = tl.load(cotangent_ptr + offsets, known, other=0.0)
        cotangent += tl.where(known, nan + nan_of_row, 0.0)
        place = tl.program_id(1).to(tl.int64) * rows + row
        tl.store(by_loc_ptr + place, tl.sum(cotangent * slopes[0]))
        tl.store(by_scale_ptr + place, tl.sum(cotangent * slopes[1]) * by_sigma)
        tl.store(by_alpha_ptr + place, tl.sum(cotangent * slopes[3]))
        if BASIS:
            by_centre -= cotangent * slopes[0]
            by_width += cotangent * slopes[2]
    if BASIS:
        share_ptr = by_basis_ptr + tl.program_id(0).to(tl.int64) * 2 * columns + column
        tl.store(share_ptr, by_centre, known)
        tl.store(share_ptr + columns, by_width, known)


def values(given: Parameters, number: float) -> Tensor:
    """r, (*batch, K), of β-Gaussians; α is the third of `given`, (*batch), of any dtype, or `number` if it is None."""
    loc, scale, index, centre, width = given
    r = loc.new_empty(*loc.shape, centre.shape[0])
    if r.numel():
        alpha, gap = _alpha_and_gap(loc, index, number)
        parameters = (laid_out(x) for x in (loc, scale, alpha, centre, width))
        launch = _launch_of_values(loc.numel(), centre.shape[0], gap, index is not None)
        launch(r, *parameters, *rules_on(loc.device))
    return r


def gradients(cotangent: Tensor, given: Parameters, number: float, needs_basis: bool) -> Gradients:
    """Gradients of loc, scale, α, centre and width; the last two have shape (0,) unless `needs_basis`."""
    loc, scale, index, centre, width = given
    rows, columns = loc.numel(), centre.shape[0]
    alpha, gap = _alpha_and_gap(loc, index, number)
    block, warps = _block(columns, _BACKWARD_COLUMNS)
    blocks = blocks_of(columns, block)
    group = min(16, power_of_two(max(1, rows // _FEW))) if needs_basis else 1
    groups = blocks_of(rows, group)
    by_row = [loc.new_empty(blocks, rows) for _ in range(3)]
    shares = loc.new_empty(groups if needs_basis else 0, 2, columns)
    matrix = resolved(cotangent).reshape(-1, columns)
    if rows and columns:
        kinds = {"GROUP": group, "PER_ROW": index is not None, "BASIS": needs_basis, "COLUMNS": block}
        parameters = (laid_out(x) for x in (loc, scale, alpha, centre, width))
        numbers = (rows, columns, *matrix.stride(), gap)
        launch = Launch(any_bwd_kernel, (groups, blocks), numbers, kinds, warps, contracts=True)
        launch(*by_row, shares, matrix, *parameters, *rules_on(loc.device))
    by_loc, by_scale, by_alpha = ((x if blocks == 1 else x.sum(0)).reshape(loc.shape) for x in by_row)
    if not needs_basis:
        return by_loc, by_scale, by_alpha, loc.new_empty(0), loc.new_empty(0)
    return by_loc, by_scale, by_alpha, shares[:, 0].sum(0), shares[:, 1].sum(0)


def _alpha_and_gap(loc: Tensor, index: Tensor | None, number: float) -> tuple[Tensor, float]:
    """The kernels' two arguments for α: a tensor, unused if α is a number; and α − 1, unused if α is a tensor."""
    return (loc, number - 1.0) if index is None else (index, 0.0)


@DeviceCache
def rules_on(device: torch.device) -> tuple[Tensor, Tensor]:
    """For bells, and for visible ends: nodes on [0, 1], their distances to 1, and log₂ of their weights, in float32."""
    x, weights = unit_gauss_legendre(BELL_NODES.value, device)
    bell = torch.cat([x, x.flip(0), weights.log2()]).float()
    x, weights = unit_gauss_legendre(EDGE_NODES.value, device)
    # Gauss–Legendre in τ (here `x`) with nodes at 3τ² − 2τ³: next to an end the fractional power c of the distance is
    # about (3τ²)ᶜ, which is smoother than τᶜ.
    rest = x.flip(0)
    nodes = x * x * (x + 3 * rest)
    edges = torch.cat([nodes, nodes.flip(0), (6 * x * rest * weights).log2()]).float()
    return bell, edges


@cached
def _launch_of_values(rows: int, columns: int, gap: float, per_row: bool) -> Launch:
    block, warps = _block(columns, _COLUMNS)
    kinds = {"PER_ROW": per_row, "COLUMNS": block}
    grid = (rows, blocks_of(columns, block))
    return Launch(any_fwd_kernel, grid, (columns, gap), kinds, warps, contracts=True)


def _block(columns: int, most: int) -> tuple[int, int]:
    """Basis functions and warps of one program."""
    block = min(power_of_two(columns), most)
    return block, max(1, block // (32 * _TOGETHER))
