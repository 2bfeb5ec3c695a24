"""α-entmax over rows that fit on the chip: forward and backward, each with one reading of its arguments.

Kernels address rows by three leading axes (a, b, c) with their own strides, so slices, transposed heads and broadcast
masks need no copy. The gradient is s (g − ⟨g⟩): s = p^{2−α}, and ⟨g⟩ is the mean of the cotangent g under s.
"""

import triton
import triton.language as tl

from contmax.kernels.gpu._instructions import quick_log2
from contmax.kernels.rows._gpu_solve import below, conjugate, log, solved_weights, sums

# For rows of up to this many columns the backward pass reads all cotangents at once. For wider rows it reads p first,
# and then cotangents only where p > 0.
_NARROW = tl.constexpr(128)


@triton.jit
def row_offsets(r, size_b, size_c, stride_a, stride_b, stride_c):
    """The int64 offsets of rows r, from the sizes and strides of the axes a, b, c."""
    c, rest = r % size_c, r // size_c
    b, a = rest % size_b, rest // size_b
    return a.to(tl.int64) * stride_a + b.to(tl.int64) * stride_b + c.to(tl.int64) * stride_c


@triton.jit
def load_rows(X, M, at, mask_at, inside, columns, HAS_MASK: tl.constexpr):
    """Scores (R, B) in float32, −inf where masked or past the end of a row."""
    if HAS_MASK:
        inside = inside & (tl.load(M + mask_at[:, None] + columns[None, :], mask=inside, other=0) != 0)
    return tl.load(X + at[:, None] + columns[None, :], mask=inside, other=-float("inf")).to(tl.float32)


@triton.jit
def epsilon_of_rows(A, epsilon, r, inside, PER_ROW: tl.constexpr, R: tl.constexpr):
    """ε = α − 1 of rows r, (R,), with α from A if PER_ROW; ε = 1 if α > 2: `_gpu_beyond_two` overwrites these rows."""
    if PER_ROW:
        alpha = tl.load(A + r, mask=inside, other=1.5).to(tl.float32)
        return tl.where(alpha > 2.0, 1.0, alpha - 1.0)
    else:
        return tl.zeros([R], tl.float32) + epsilon


@triton.jit
def forward_rows(
    X, P, M, A, OMEGA, rows, n, fixed_epsilon,
    size_b, size_c, xa, xb, xc, ma, mb, mc,
    K: tl.constexpr, PER_ROW: tl.constexpr, HAS_MASK: tl.constexpr, NEEDS_OMEGA: tl.constexpr,
    R: tl.constexpr, B: tl.constexpr,
):  # fmt: skip
    """Store p of R rows, and Ω* − max x if NEEDS_OMEGA."""
    r = tl.program_id(0) * R + tl.arange(0, R)
    columns = tl.arange(0, B)
    exists = r < rows
    inside = exists[:, None] & (columns < n)[None, :]
    at = row_offsets(r, size_b, size_c, xa, xb, xc)
    mask_at = row_offsets(r, size_b, size_c, ma, mb, mc)
    x = load_rows(X, M, at, mask_at, inside, columns, HAS_MASK)
    top = tl.max(x, 1)
    y = below(x, top)
    epsilon = epsilon_of_rows(A, fixed_epsilon, r, exists, PER_ROW, R)
    ROUGH: tl.constexpr = (P.dtype.element_ty.primitive_bitwidth == 16) and not NEEDS_OMEGA
    # K = 0 costs less than K = −1, which only rows with |α − 1| < 0.1 need.
    if PER_ROW and tl.min(tl.abs(epsilon), 0) >= 0.1:
        normaliser, t, weight, total, slope = solved_weights(y, epsilon, 0, ROUGH, B)
    else:
        normaliser, t, weight, total, slope = solved_weights(y, epsilon, K, ROUGH, B)
    # A fully masked row gets zeros. In a row with a NaN only t is NaN, not the weights: adding t·0 makes p NaN.
    p = tl.fma(weight, (1.0 / tl.where(total > 0.0, total, 1.0))[:, None], (t * 0.0)[:, None])
    tl.store(P + r.to(tl.int64)[:, None] * n + columns[None, :], p.to(P.dtype.element_ty), mask=inside)
    if NEEDS_OMEGA:
        product = tl.sum(tl.where(weight > 0.0, weight * y, 0.0), 1)
        gain = conjugate(product, total, slope, normaliser, t, epsilon, K)
        # top − top is NaN if the maximum is NaN or +inf.
        gain = tl.where(top == -float("inf"), top, gain + (top - top))
        tl.store(OMEGA + r, gain.to(tl.float64), mask=exists)


@triton.jit
def inverse_cube_root(p, ROUGH: tl.constexpr):
    """p^{−1/3} for p > 0 by Newton's method, to four digits where ROUGH."""
    root = (0x54A21D2A - p.to(tl.int32, bitcast=True) // 3).to(tl.float32, bitcast=True)  # off by 3.5 % at most
    third = p * 0.33333333
    root = root * tl.fma(-third * root, root * root, 1.3333333)
    root = root * tl.fma(-third * root, root * root, 1.3333333)
    if ROUGH:
        return root
    else:
        return tl.fma(root, tl.fma(-third * root, root * root, 0.33333333), root)


@triton.jit
def escort_of(p, epsilon, K: tl.constexpr, ROUGH: tl.constexpr):
    """p^{2−α} where p > 0, else 0, to four digits where ROUGH; ε is (R,)."""
    if K == 1:
        return tl.where(p > 0.0, 1.0, 0.0)
    elif K == 2:
        return tl.sqrt(tl.where(p > 0.0, p, 0.0))
    elif K == 3:
        return tl.where(p > 0.0, p * inverse_cube_root(p, ROUGH), 0.0)
    elif K == 4:
        root = tl.sqrt(tl.where(p > 0.0, p, 0.0))
        return root * tl.sqrt(root)
    else:
        positive = tl.where(p > 0.0, p, 1.0)
        if ROUGH:
            log2_s = (1.0 - epsilon)[:, None] * quick_log2(tl.maximum(positive, 1e-37))
        else:
            log2_s = (1.4426950 - 1.4426950 * epsilon)[:, None] * log(positive)
        return tl.where(p > 0.0, tl.exp2(log2_s), 0.0)


@triton.jit
def curvature(p, epsilon, ROUGH: tl.constexpr = False):
    r"""D = ∂/∂α log_{2−α} p = ln²p ∫₀¹ u p^{εu} du, for p > 0, to four digits where ROUGH; ε is (R,)."""
    log_p = quick_log2(tl.maximum(p, 1e-37)) * 0.69314718 if ROUGH else log(p)
    x = log_p * epsilon[:, None]
    series = tl.fma(x, tl.fma(x, 0.0011904762, 0.0069444444), 0.033333333)
    series = tl.fma(x, tl.fma(x, tl.fma(x, series, 0.125), 0.33333333), 0.5)
    # Away from x = ε ln p = 0, D = (1 − (1 − x) eˣ)/ε².
    inverse = 1.0 / tl.where(epsilon == 0.0, 1.0, epsilon)
    wide = tl.fma(x - 1.0, tl.exp(x), 1.0) * (inverse * inverse)[:, None]
    return tl.where(tl.abs(x) > 0.3, wide, log_p * log_p * series)


@triton.jit
def unbiased(along, rest, rates, mass):
    """Correct `along` = Σ s D (g − ⟨g⟩) for the rounding error of ⟨g⟩, by which `rest` = Σ s (g − ⟨g⟩) is not 0.

    `rates` is Σ s D and `mass` is Σ s, (R,) each, with s = p^{2−α} and D from `curvature`.
    """
    return along - rest * (rates / tl.where(mass > 0.0, mass, 1.0))


@triton.jit
def pulled_back(p, g, epsilon, K: tl.constexpr, ROUGH: tl.constexpr, NEEDS_ALPHA: tl.constexpr):
    """Gradients of scores, s (g − ⟨g⟩), (R, B), and if NEEDS_ALPHA of α, −Σ s D (g − ⟨g⟩), (R,), D from `curvature`."""
    s = escort_of(p, epsilon, K, ROUGH)
    # Subtract from g its value at the largest p: where one point has nearly all the mass, g − ⟨g⟩ would lose digits.
    anchor = tl.max(tl.where(p == tl.max(p, 1)[:, None], g, -float("inf")), 1)
    centred = tl.where(p > 0.0, g - anchor[:, None], 0.0)
    mass, moment = sums(s, s * centred)
    moved = s * (centred - (moment / tl.where(mass > 0.0, mass, 1.0))[:, None])
    slope = mass
    if NEEDS_ALPHA:
        rate = curvature(tl.where(p > 0.0, p, 1.0), epsilon, ROUGH)
        along, rest = sums(moved * rate, moved)
        slope = -unbiased(along, rest, tl.sum(s * rate, 1), mass)
    return moved, slope


@triton.jit
def backward_rows(
    P, G, DX, A, DA, rows, n, fixed_epsilon, size_b, size_c, ga, gb, gc, gn,
    K: tl.constexpr, PER_ROW: tl.constexpr, NEEDS_ALPHA: tl.constexpr, R: tl.constexpr, B: tl.constexpr,
):  # fmt: skip
    """Store the gradients of R rows (`pulled_back`). Cotangents of wide rows are read only where p > 0."""
    r = tl.program_id(0) * R + tl.arange(0, R)
    columns = tl.arange(0, B)
    exists = r < rows
    inside = exists[:, None] & (columns < n)[None, :]
    here = r.to(tl.int64)[:, None] * n + columns[None, :]
    p = tl.load(P + here, mask=inside, other=0.0).to(tl.float32)
    at = row_offsets(r, size_b, size_c, ga, gb, gc)[:, None] + columns[None, :] * gn
    wanted = inside if B <= _NARROW else inside & (p > 0.0)
    g = tl.load(G + at, mask=wanted, other=0.0).to(tl.float32)
    epsilon = epsilon_of_rows(A, fixed_epsilon, r, exists, PER_ROW, R)
    moved, slope = pulled_back(p, g, epsilon, K, P.dtype.element_ty.primitive_bitwidth == 16, NEEDS_ALPHA)
    broken = tl.where(tl.max((p != p).to(tl.int32), 1) > 0, float("nan"), 0.0)
    tl.store(DX + here, saturated(moved, DX) + broken[:, None], mask=inside)
    if NEEDS_ALPHA:
        tl.store(DA + r, slope + broken, mask=exists)


@triton.jit
def saturated(x, OUT):
    """x clamped to ±65504 if OUT is float16, else x; NaN stays NaN."""
    if OUT.dtype.element_ty == tl.float16:
        return tl.where(x == x, tl.minimum(tl.maximum(x, -65504.0), 65504.0), x)
    else:
        return x
