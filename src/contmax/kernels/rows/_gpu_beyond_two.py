r"""α-entmax for α > 2, in float64 with logarithms, as in `contmax.maps._threshold`, but without sorting rows.

A tensor α may have values on both sides of 2, and the host would have to wait for the device to read them. So these
kernels run after the ordinary kernels for every tensor α (a number α > 2 is passed as a tensor), and programs whose
rows have α ≤ 2 end at once.

With ε = α − 1 all probabilities follow from x_m, the smallest score in the support, and its probability v:

    p_i(v) = (ε(x_i − x_m) + v^ε)^{1/ε}.

The sum of p_i(0) over the scores above a candidate for x_m grows as the candidate falls; x_m is the smallest score
whose sum is below 1. Bisection over all float32 numbers finds x_m in 32 readings of the row. Then Newton's method finds
ln v.
"""

import triton
import triton.language as tl

from contmax.kernels.rows._gpu_lists import load_chunk
from contmax.kernels.rows._gpu_rows import row_offsets

_NEWTON_STEPS = tl.constexpr(14)  # twice the worst case found
# This number stands for ln 0: its exponential is 0.
_LOG_ZERO = tl.constexpr(-1e5)


@triton.jit
def log_probability(x, lowest, log_v, epsilon):
    """ln p_i(v) of scores x_i ≥ `lowest`, the least of the support, which has the probability v; _LOG_ZERO for ln 0."""
    above = x > lowest
    log_base = tl.where(above, tl.log(tl.where(above, x - lowest, 1.0) * epsilon) / epsilon, _LOG_ZERO)
    distance = tl.minimum(tl.abs(log_v - log_base), 1e4)
    log_p = tl.maximum(log_base, log_v) + tl.log(1.0 + tl.exp(-epsilon * distance)) / epsilon
    return tl.where(x >= lowest, log_p, _LOG_ZERO)


@triton.jit
def mass_and_slope(X, M, at, mask_at, n, lowest, log_v, epsilon, HAS_MASK: tl.constexpr, CHUNK: tl.constexpr):
    """Σ p_i(v), and its derivative in ln v, Σ p_i(v)^{1−ε} v^ε."""
    mass, slope = tl.zeros([CHUNK], tl.float64), tl.zeros([CHUNK], tl.float64)
    for start in range(0, n, CHUNK):
        x = load_chunk(X, M, at, mask_at, start, n, HAS_MASK, CHUNK).to(tl.float64)
        log_p = log_probability(x, lowest, log_v, epsilon)
        mass += tl.exp(log_p)
        slope += tl.where(x >= lowest, tl.exp(log_p + epsilon * (log_v - log_p)), 0.0)
    return tl.sum(mass, 0), tl.sum(slope, 0)


@triton.jit
def key_of(bits):
    """Map the bits of a float32 to an int32 that sorts as the floats do; the map is its own inverse."""
    return bits ^ ((bits >> 31) & 0x7FFFFFFF)


@triton.jit
def last_in_support(X, M, at, mask_at, n, top, epsilon, HAS_MASK: tl.constexpr, CHUNK: tl.constexpr):
    """x_m, the smallest score with Σ p_i(0) < 1 over the scores above it."""
    high = key_of(top.to(tl.float32).to(tl.int32, bitcast=True)).to(tl.int64)  # the sum above the maximum is 0
    low = tl.zeros_like(high) - 2139095041  # the key of −inf, where the sum is not below 1
    for _ in range(32):
        middle = (low + high) >> 1
        edge = key_of(middle.to(tl.int32)).to(tl.float32, bitcast=True).to(tl.float64)
        mass = mass_and_slope(X, M, at, mask_at, n, edge, epsilon * 0.0 + _LOG_ZERO, epsilon, HAS_MASK, CHUNK)[0]
        fits = mass < 1.0
        high = tl.where(fits, middle, high)
        low = tl.where(fits, low, middle)
    edge = key_of(high.to(tl.int32)).to(tl.float32, bitcast=True).to(tl.float64)
    nearest = tl.full([CHUNK], float("inf"), tl.float64)
    for start in range(0, n, CHUNK):
        x = load_chunk(X, M, at, mask_at, start, n, HAS_MASK, CHUNK).to(tl.float64)
        nearest = tl.minimum(nearest, tl.where(x >= edge, x, float("inf")))
    return tl.min(nearest, 0)


@triton.jit
def last_log_probability(X, M, at, mask_at, n, lowest, epsilon, HAS_MASK: tl.constexpr, CHUNK: tl.constexpr):
    """ln v with Σ p_i(v) = 1, by Newton's method on the logarithm of Σ (p_i(v) − p_i(0)) within a bracket."""
    base = mass_and_slope(X, M, at, mask_at, n, lowest, epsilon * 0.0 + _LOG_ZERO, epsilon, HAS_MASK, CHUNK)[0]
    room = tl.maximum(1.0 - base, 1e-300)
    # As v grows from 0, each p_i grows by at most v, p_m by v, their sum by `room`: so room/n ≤ v ≤ room, and n < e²².
    high = tl.log(room)
    low = high - 22.0
    log_v = high
    for _ in range(_NEWTON_STEPS):
        mass, slope = mass_and_slope(X, M, at, mask_at, n, lowest, log_v, epsilon, HAS_MASK, CHUNK)
        filled = tl.maximum(mass - base, 1e-300)
        error = tl.log(filled / room)
        low = tl.where(error < 0.0, log_v, low)
        high = tl.where(error < 0.0, high, log_v)
        step = log_v - error * filled / slope
        log_v = tl.where((step >= low) & (step <= high), step, 0.5 * (low + high))
    return log_v


@triton.jit
def forward_beyond_two(
    X, M, A, P, OMEGA, rows, n, size_b, size_c, xa, xb, xc, ma, mb, mc,
    HAS_MASK: tl.constexpr, NEEDS_OMEGA: tl.constexpr, ROWS: tl.constexpr, CHUNK: tl.constexpr,
):  # fmt: skip
    """Store p of rows with α > 2, and Ω* − max x if NEEDS_OMEGA; other rows stay unchanged."""
    for i in range(ROWS):
        r = tl.program_id(0) * ROWS + i
        alpha = tl.load(A + r, mask=r < rows, other=1.0).to(tl.float64)
        if alpha > 2.0:
            at = row_offsets(r, size_b, size_c, xa, xb, xc)
            mask_at = row_offsets(r, size_b, size_c, ma, mb, mc)
            epsilon = alpha - 1.0
            maxima, broken = tl.full([CHUNK], -float("inf"), tl.float64), tl.zeros([CHUNK], tl.int32)
            for start in range(0, n, CHUNK):
                x = load_chunk(X, M, at, mask_at, start, n, HAS_MASK, CHUNK).to(tl.float64)
                maxima = tl.maximum(maxima, tl.where(x == x, x, -float("inf")))
                broken = tl.maximum(broken, (x != x).to(tl.int32))
            top = tl.max(maxima, 0)
            # The ordinary kernel has written zeros to fully masked rows, and NaN to rows with NaN or +inf.
            if (tl.max(broken, 0) == 0) & (tl.abs(top) < float("inf")):
                lowest = last_in_support(X, M, at, mask_at, n, top, epsilon, HAS_MASK, CHUNK)
                log_v = last_log_probability(X, M, at, mask_at, n, lowest, epsilon, HAS_MASK, CHUNK)
                omega = tl.zeros([CHUNK], tl.float64)
                for start in range(0, n, CHUNK):
                    x = load_chunk(X, M, at, mask_at, start, n, HAS_MASK, CHUNK).to(tl.float64)
                    log_p = log_probability(x, lowest, log_v, epsilon)
                    p = tl.exp(log_p)
                    columns = start + tl.arange(0, CHUNK)
                    out = P + r.to(tl.int64) * n + columns
                    tl.store(out, p.to(tl.float32).to(P.dtype.element_ty), mask=columns < n)
                    # Ω* = ⟨x, p⟩ − Ω_α(p), and Ω_α(p) = Σ p log_{2−α}(p)/α.
                    surprise = (tl.exp(log_p * epsilon) - 1.0) / epsilon
                    omega += tl.where(p > 0.0, p * (x - top - surprise / alpha), 0.0)
                if NEEDS_OMEGA:
                    tl.store(OMEGA + r, tl.sum(omega, 0))


@triton.jit
def curvature_of(log_p, y):
    r"""D = ∂/∂α log_{2−α} p = ln²p ∫₀¹ u e^{yu} du with y = ε ln p, in float64."""
    series = 0.5 + y * (1 / 3 + y * (1 / 8 + y * (1 / 30 + y * (1 / 144 + y * (1 / 840 + y / 5760)))))
    wide = tl.abs(y) > 0.05
    mean = tl.where(wide, (1.0 - (1.0 - y) * tl.exp(y)) / tl.where(wide, y * y, 1.0), series)
    return log_p * log_p * mean


@triton.jit
def moved_by_alpha(p, log_p, log_s, last_log_p, epsilon):
    """s (D − D_j) with s = p^{2−α}, D from `curvature_of`, and D_j the D of the smallest p > 0.

    The gradient of α is −Σ s D (g − ⟨g⟩), with the cotangent g (`contmax.maps._jacobian`). As Σ s (g − ⟨g⟩) = 0,
    D − D_j may replace D. It is 0 at the smallest p, whose s is the largest and may overflow.
    """
    y, last = epsilon * log_p, epsilon * last_log_p
    near = tl.maximum(tl.abs(y), tl.abs(last)) <= 1.0
    difference = curvature_of(log_p, y) - curvature_of(last_log_p, last)
    small = tl.exp(tl.where(near, log_s, 0.0)) * difference
    d = tl.where(near, 0.0, last - y)
    return tl.where(near, small, p * ((tl.exp(d) - 1.0) * (1.0 - last) - d) / (epsilon * epsilon))


@triton.jit
def load_support(P, G, here, at, gn, start, n, anchor, alpha, CHUNK: tl.constexpr):
    """p, ln p, ln s, g − anchor and ln(s |g − anchor|) of a chunk, float64; g: cotangent; s: p^{2−α}, 0 where p = 0."""
    columns = start + tl.arange(0, CHUNK)
    p = tl.load(P + here + columns, mask=columns < n, other=0.0).to(tl.float64)
    inside = p > 0.0
    g = tl.load(G + at + columns * gn, mask=(columns < n) & inside, other=0.0).to(tl.float64)
    log_p = tl.log(tl.where(inside, p, 1.0))
    log_s = tl.where(inside, (2.0 - alpha) * log_p, _LOG_ZERO)
    centred = tl.where(inside, g - anchor, 0.0)
    size = tl.where(centred != 0.0, log_s + tl.log(tl.where(centred != 0.0, tl.abs(centred), 1.0)), _LOG_ZERO)
    return p, log_p, log_s, centred, size


@triton.jit
def backward_beyond_two(
    P, G, A, DX, DA, rows, n, size_b, size_c, ga, gb, gc, gn, largest,
    NEEDS_ALPHA: tl.constexpr, ROWS: tl.constexpr, CHUNK: tl.constexpr,
):  # fmt: skip
    """Store gradients of scores, and of α if NEEDS_ALPHA, of rows with α > 2; see `contmax.maps._jacobian`.

    The weights s = p^{2−α} are divided by max s, so that no sum overflows. The anchor, which is subtracted from the
    cotangent g, is g at a point of smallest p > 0. In y = s (g − anchor) e^{−Λ} the number Λ makes max |y| = 1.
    """
    for i in range(ROWS):
        r = tl.program_id(0) * ROWS + i
        alpha = tl.load(A + r, mask=r < rows, other=1.0).to(tl.float64)
        if alpha > 2.0:
            here = r.to(tl.int64) * n
            at = row_offsets(r, size_b, size_c, ga, gb, gc)
            least, anchors = tl.full([CHUNK], float("inf"), tl.float64), tl.zeros([CHUNK], tl.float64)
            for start in range(0, n, CHUNK):
                p, _, _, g, _ = load_support(P, G, here, at, gn, start, n, 0.0, alpha, CHUNK)
                nearer = (p > 0.0) & (p < least)
                anchors = tl.where(nearer, g, anchors)
                least = tl.where(nearer, p, least)
            smallest = tl.min(least, 0)
            if smallest < float("inf"):  # rows of zeros or NaN stay as they are
                anchor = tl.max(tl.where(least == smallest, anchors, -float("inf")), 0)
                last_log_p = tl.log(smallest)
                pivot = (2.0 - alpha) * last_log_p
                masses, sizes = tl.zeros([CHUNK], tl.float64), tl.full([CHUNK], -1e5, tl.float64)
                for start in range(0, n, CHUNK):
                    _, _, log_s, _, size = load_support(P, G, here, at, gn, start, n, anchor, alpha, CHUNK)
                    masses += tl.exp(log_s - pivot)
                    sizes = tl.maximum(sizes, size)
                scale = tl.max(sizes, 0)  # Λ
                moments = tl.zeros([CHUNK], tl.float64)
                for start in range(0, n, CHUNK):
                    _, _, _, c, size = load_support(P, G, here, at, gn, start, n, anchor, alpha, CHUNK)
                    moments += tl.where(c < 0.0, -1.0, 1.0) * tl.where(c == 0.0, 0.0, tl.exp(size - scale))
                mean = tl.sum(moments, 0) / tl.sum(masses, 0)
                mean_cotangent = mean * tl.exp(tl.minimum(scale - pivot, 700.0))
                slopes = tl.zeros([CHUNK], tl.float64)
                for start in range(0, n, CHUNK):
                    p, log_p, log_s, c, size = load_support(P, G, here, at, gn, start, n, anchor, alpha, CHUNK)
                    y = tl.where(c < 0.0, -1.0, 1.0) * tl.where(c == 0.0, 0.0, tl.exp(size - scale))
                    d = (y - tl.exp(log_s - pivot) * mean) * tl.exp(tl.minimum(scale, 700.0))
                    d = tl.minimum(tl.maximum(d, -largest), largest)
                    columns = start + tl.arange(0, CHUNK)
                    tl.store(DX + here + columns, d.to(tl.float32).to(DX.dtype.element_ty), mask=columns < n)
                    if NEEDS_ALPHA:
                        rate = moved_by_alpha(p, log_p, log_s, last_log_p, epsilon=alpha - 1.0)
                        slopes += tl.where(p > 0.0, rate * (c - mean_cotangent), 0.0)
                if NEEDS_ALPHA:
                    tl.store(DA + r, (-tl.sum(slopes, 0)).to(tl.float32))
