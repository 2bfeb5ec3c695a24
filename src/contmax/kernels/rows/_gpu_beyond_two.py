r"""α > 2, for rows of any length: in float64 and logarithms, as in `contmax.maps._sorted_support`, but without sorting.

A program leaves at once where its row's α is at most 2, so that one launch serves a tensor of many α and costs nothing
where there is none beyond. The last point of the support, x_m, is found by bisection; every probability then follows
from that of the last, p_i = (ε(x_i − x_m) + v^ε)^{1/ε}.
"""

import triton
import triton.language as tl

from contmax.kernels.rows._gpu_rows import row_offsets

_MOST_HALVINGS = tl.constexpr(80)
_NEWTON_STEPS = tl.constexpr(14)


@triton.jit
def scores_of(X, M, at, mask_at, start, n, HAS_MASK: tl.constexpr, CHUNK: tl.constexpr):
    """A chunk of one row in float64, −inf where masked or outside."""
    columns = start + tl.arange(0, CHUNK)
    inside = columns < n
    if HAS_MASK:
        inside = inside & (tl.load(M + mask_at + columns, mask=inside, other=0) != 0)
    return tl.load(X + at + columns, mask=inside, other=-float("inf")).to(tl.float64)


@triton.jit
def log_base_of(x, lowest, epsilon):
    """ln p_i(0) = ln(ε (x_i − x_m))/ε; −1e5 where x_i ≤ x_m."""
    above = x > lowest
    return tl.where(above, tl.log(tl.where(above, x - lowest, 1.0) * epsilon) / epsilon, -1e5)


@triton.jit
def mass_above(X, M, at, mask_at, n, lowest, epsilon, HAS_MASK: tl.constexpr, CHUNK: tl.constexpr):
    """Σ p_i(0): the mass of the scores above `lowest` if that were the threshold."""
    mass = tl.zeros([CHUNK], tl.float64)
    for start in range(0, n, CHUNK):
        x = scores_of(X, M, at, mask_at, start, n, HAS_MASK, CHUNK)
        mass += tl.exp(log_base_of(x, lowest, epsilon))
    return tl.sum(mass, 0)


@triton.jit
def last_in_support(X, M, at, mask_at, n, top, epsilon, HAS_MASK: tl.constexpr, CHUNK: tl.constexpr):
    """The smallest score of the support: the smallest whose `mass_above` is below one."""
    low = top - 1.0 / epsilon  # the largest score alone has mass one there
    high = top
    halvings = 0
    searching = True
    while searching:
        middle = 0.5 * (low + high)
        below = tl.full([CHUNK], -float("inf"), tl.float64)
        above = tl.full([CHUNK], float("inf"), tl.float64)
        for start in range(0, n, CHUNK):
            x = scores_of(X, M, at, mask_at, start, n, HAS_MASK, CHUNK)
            below = tl.maximum(below, tl.where((x > low) & (x <= middle), x, -float("inf")))
            above = tl.minimum(above, tl.where((x > middle) & (x < high), x, float("inf")))
        nearest_below, nearest_above = tl.max(below, 0), tl.min(above, 0)
        found_below = nearest_below > -float("inf")
        candidate = tl.where(found_below, nearest_below, nearest_above)
        searching = (candidate < float("inf")) & (halvings < _MOST_HALVINGS)
        if searching:
            fits = mass_above(X, M, at, mask_at, n, candidate, epsilon, HAS_MASK, CHUNK) < 1.0
            high = tl.where(fits, candidate, high)
            # Where nothing lies between the middle and what fits not, the middle fits not either.
            low = tl.where(fits, low, candidate)
        halvings += 1
    return high


@triton.jit
def grown(log_base, log_v, epsilon):
    """ln p_i(v), and ln(p_i(v)/max(p_i(0), v))."""
    ratio = tl.minimum(tl.abs(log_v - log_base), 1e4)
    small = tl.exp(-epsilon * ratio)
    tail = tl.where(small > 1e-8, tl.log(1.0 + small), small * (1.0 - 0.5 * small)) / epsilon
    return tl.maximum(log_base, log_v) + tail, tail


@triton.jit
def expm1(x):
    """eˣ − 1 for x ≥ 0, in float64."""
    series = x * (1.0 + x * (0.5 + x * (1 / 6 + x * (1 / 24 + x * (1 / 120 + x * (1 / 720))))))
    return tl.where(x < 3e-3, series, tl.exp(x) - 1.0)


@triton.jit
def last_log_probability(X, M, at, mask_at, n, lowest, epsilon, HAS_MASK: tl.constexpr, CHUNK: tl.constexpr):
    """ln v with Σ (p(v) − p(0)) = 1 − Σ p(0) over the support, by Newton steps in ln v within a bracket."""
    count = tl.zeros([CHUNK], tl.float64)
    ties = tl.zeros([CHUNK], tl.float64)
    for start in range(0, n, CHUNK):
        x = scores_of(X, M, at, mask_at, start, n, HAS_MASK, CHUNK)
        count += tl.where(x >= lowest, 1.0, 0.0)
        ties += tl.where(x == lowest, 1.0, 0.0)
    base = mass_above(X, M, at, mask_at, n, lowest, epsilon, HAS_MASK, CHUNK)
    room = tl.maximum(1.0 - base, 1e-300)
    total = tl.sum(count, 0)
    low = tl.log(room / total)
    high = tl.log(tl.minimum(room / tl.sum(ties, 0), 1.0 / total))
    log_v = high
    for _ in range(_NEWTON_STEPS):
        filled = tl.zeros([CHUNK], tl.float64)
        slope = tl.zeros([CHUNK], tl.float64)
        for start in range(0, n, CHUNK):
            x = scores_of(X, M, at, mask_at, start, n, HAS_MASK, CHUNK)
            log_base = log_base_of(x, lowest, epsilon)
            log_p, tail = grown(log_base, log_v, epsilon)
            growth = tl.exp(log_base) * expm1(tl.minimum(tl.maximum(log_v - log_base, 0.0) + tail, 700.0))
            growth = tl.where(x > lowest, growth, tl.exp(log_v))
            rate = tl.exp(log_p + epsilon * (log_v - log_p))
            filled += tl.where(x >= lowest, growth, 0.0)
            slope += tl.where(x >= lowest, rate, 0.0)
        sum_filled = tl.sum(filled, 0)
        error = tl.log(sum_filled / room)
        low = tl.where(error < 0.0, log_v, low)
        high = tl.where(error < 0.0, high, log_v)
        step = log_v - error * sum_filled / tl.sum(slope, 0)
        log_v = tl.where((step >= low) & (step <= high), step, 0.5 * (low + high))
    return log_v


@triton.jit
def has_work(A, rows, ROWS: tl.constexpr):
    """Whether any of this program's rows has α > 2; most programs have none, and end here."""
    r = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    return tl.max(tl.load(A + r, mask=r < rows, other=1.0).to(tl.float32), 0) > 2.0


@triton.jit
def forward_beyond_two(
    X, M, A, P, OMEGA, rows, n, size_b, size_c, xa, xb, xc, ma, mb, mc,
    HAS_MASK: tl.constexpr, NEEDS_OMEGA: tl.constexpr, ROWS: tl.constexpr, CHUNK: tl.constexpr,
):  # fmt: skip
    """p of the rows with α > 2, and Ω* where asked for."""
    if has_work(A, rows, ROWS):
        for i in range(ROWS):
            r = tl.program_id(0) * ROWS + i
            forward_row_beyond_two(
                X, M, A, P, OMEGA, r, rows, n, size_b, size_c, xa, xb, xc, ma, mb, mc, HAS_MASK, NEEDS_OMEGA, CHUNK
            )


@triton.jit
def forward_row_beyond_two(
    X, M, A, P, OMEGA, r, rows, n, size_b, size_c, xa, xb, xc, ma, mb, mc,
    HAS_MASK: tl.constexpr, NEEDS_OMEGA: tl.constexpr, CHUNK: tl.constexpr,
):  # fmt: skip
    """p of row r, and Ω* where asked for, if it exists and its α is more than 2."""
    alpha = tl.load(A + r, mask=r < rows, other=1.0).to(tl.float64)
    if alpha > 2.0:
        at = row_offsets(r, size_b, size_c, xa, xb, xc)
        mask_at = row_offsets(r, size_b, size_c, ma, mb, mc)
        epsilon = alpha - 1.0
        tops = tl.full([CHUNK], -float("inf"), tl.float64)
        broken = tl.zeros([CHUNK], tl.float64)
        for start in range(0, n, CHUNK):
            x = scores_of(X, M, at, mask_at, start, n, HAS_MASK, CHUNK)
            tops = tl.maximum(tops, x)
            broken += tl.where(x == x, 0.0, x)
        top = tl.max(tops, 0)
        whole = (tl.sum(broken, 0) == 0.0) & (tl.abs(top) < float("inf"))
        if whole:  # the others have their zeros or NaN already
            lowest = last_in_support(X, M, at, mask_at, n, top, epsilon, HAS_MASK, CHUNK)
            log_v = last_log_probability(X, M, at, mask_at, n, lowest, epsilon, HAS_MASK, CHUNK)
            omega = tl.zeros([CHUNK], tl.float64)
            for start in range(0, n, CHUNK):
                x = scores_of(X, M, at, mask_at, start, n, HAS_MASK, CHUNK)
                log_p, _ = grown(log_base_of(x, lowest, epsilon), log_v, epsilon)
                inside = x >= lowest
                p = tl.where(inside, tl.exp(log_p), 0.0)
                columns = start + tl.arange(0, CHUNK)
                tl.store(P + r.to(tl.int64) * n + columns, p.to(tl.float32).to(P.dtype.element_ty), mask=columns < n)
                # Ω* = ⟨x, p⟩ − Ω_α(p), and Ω_α(p) = Σ p log_{2−α}(p)/α.
                surprise = (tl.exp(tl.where(inside, log_p, 0.0) * epsilon) - 1.0) / epsilon
                omega += tl.where(inside, p * (x - top - surprise / alpha), 0.0)
            if NEEDS_OMEGA:
                tl.store(OMEGA + r, tl.sum(omega, 0))


@triton.jit
def curvature_of(log_p, y):
    r"""D = ln²p ∫₀¹ u e^{yu} du with y = ε ln p, in float64."""
    series = 0.5 + y * (1 / 3 + y * (1 / 8 + y * (1 / 30 + y * (1 / 144 + y * (1 / 840 + y / 5760)))))
    wide = tl.abs(y) > 0.05
    mean = tl.where(wide, (1.0 - (1.0 - y) * tl.exp(y)) / tl.where(wide, y * y, 1.0), series)
    return log_p * log_p * mean


@triton.jit
def moved_by_alpha(p, log_p, log_s, last_log_p, epsilon):
    """s (D − D_j), how p moves with α before it is centred; j is the last point. Forms as in `contmax.maps._escort`."""
    y, last = epsilon * log_p, epsilon * last_log_p
    near = tl.maximum(tl.abs(y), tl.abs(last)) <= 1.0
    difference = curvature_of(log_p, y) - curvature_of(last_log_p, last)
    small = tl.exp(tl.where(near, log_s, 0.0)) * difference
    d = tl.where(near, 0.0, last - y)
    return tl.where(near, small, p * ((tl.exp(d) - 1.0) * (1.0 - last) - d) / (epsilon * epsilon))


@triton.jit
def load_support(P, G, here, at, gn, start, n, CHUNK: tl.constexpr):
    """p, its cotangent where p > 0, and ln p (0 elsewhere) of a chunk, in float64."""
    columns = start + tl.arange(0, CHUNK)
    p = tl.load(P + here + columns, mask=columns < n, other=0.0).to(tl.float64)
    g = tl.load(G + at + columns * gn, mask=(columns < n) & (p > 0.0), other=0.0).to(tl.float64)
    return p, g, tl.log(tl.where(p > 0.0, p, 1.0))


@triton.jit
def backward_beyond_two(
    P, G, A, DX, DA, rows, n, size_b, size_c, ga, gb, gc, gn, largest,
    NEEDS_ALPHA: tl.constexpr, ROWS: tl.constexpr, CHUNK: tl.constexpr,
):  # fmt: skip
    """Gradients of the rows with α > 2: s = p^{2−α} relative to its largest value, as in `contmax.maps._escort`."""
    if has_work(A, rows, ROWS):
        for i in range(ROWS):
            r = tl.program_id(0) * ROWS + i
            backward_row_beyond_two(
                P, G, A, DX, DA, r, rows, n, size_b, size_c, ga, gb, gc, gn, largest, NEEDS_ALPHA, CHUNK
            )


@triton.jit
def backward_row_beyond_two(
    P, G, A, DX, DA, r, rows, n, size_b, size_c, ga, gb, gc, gn, largest,
    NEEDS_ALPHA: tl.constexpr, CHUNK: tl.constexpr,
):  # fmt: skip
    """Gradients of row r, if it exists and its α is more than 2."""
    alpha = tl.load(A + r, mask=r < rows, other=1.0).to(tl.float64)
    if alpha > 2.0:
        here = r.to(tl.int64) * n
        at = row_offsets(r, size_b, size_c, ga, gb, gc)
        epsilon = alpha - 1.0
        least = tl.full([CHUNK], float("inf"), tl.float64)
        for start in range(0, n, CHUNK):
            columns = start + tl.arange(0, CHUNK)
            p = tl.load(P + here + columns, mask=columns < n, other=0.0).to(tl.float64)
            least = tl.minimum(least, tl.where(p > 0.0, p, float("inf")))
        smallest = tl.min(least, 0)
        if smallest < float("inf"):  # zeros and NaN stay as they are
            last_log_p = tl.log(smallest)
            pivot = (2.0 - alpha) * last_log_p
            anchors = tl.full([CHUNK], -float("inf"), tl.float64)
            totals = tl.zeros([CHUNK], tl.float64)
            for start in range(0, n, CHUNK):
                p, g, log_p = load_support(P, G, here, at, gn, start, n, CHUNK)
                log_s = (2.0 - alpha) * log_p
                anchors = tl.maximum(anchors, tl.where(p == smallest, g, -float("inf")))
                totals += tl.where(p > 0.0, tl.exp(log_s - pivot), 0.0)
            anchor, total = tl.max(anchors, 0), tl.sum(totals, 0)
            sizes = tl.full([CHUNK], -1e5, tl.float64)
            for start in range(0, n, CHUNK):
                p, g, log_p = load_support(P, G, here, at, gn, start, n, CHUNK)
                log_s = (2.0 - alpha) * log_p
                c = tl.abs(tl.where(p > 0.0, g - anchor, 0.0))
                sizes = tl.maximum(sizes, tl.where(c > 0.0, log_s + tl.log(tl.where(c > 0.0, c, 1.0)), -1e5))
            scale = tl.max(sizes, 0)
            scale = tl.where(scale > -1e5, scale, 0.0)
            moments = tl.zeros([CHUNK], tl.float64)
            for start in range(0, n, CHUNK):
                p, g, log_p = load_support(P, G, here, at, gn, start, n, CHUNK)
                log_s = (2.0 - alpha) * log_p
                moments += tl.where(p > 0.0, (g - anchor) * tl.exp(tl.minimum(log_s - scale, 700.0)), 0.0)
            mean = tl.sum(moments, 0) / total
            back = tl.exp(tl.minimum(scale, 700.0))
            mean_cotangent = mean * tl.exp(tl.minimum(scale - pivot, 700.0))
            slopes = tl.zeros([CHUNK], tl.float64)
            for start in range(0, n, CHUNK):
                p, g, log_p = load_support(P, G, here, at, gn, start, n, CHUNK)
                log_s = (2.0 - alpha) * log_p
                y = (g - anchor) * tl.exp(tl.minimum(log_s - scale, 700.0))
                d = tl.where(p > 0.0, (y - tl.exp(log_s - pivot) * mean) * back, 0.0)
                d = tl.minimum(tl.maximum(d, -largest), largest)
                columns = start + tl.arange(0, CHUNK)
                tl.store(DX + here + columns, d.to(tl.float32).to(DX.dtype.element_ty), mask=columns < n)
                if NEEDS_ALPHA:
                    rate = moved_by_alpha(p, log_p, log_s, last_log_p, epsilon)
                    slopes += tl.where(p > 0.0, rate * (g - anchor - mean_cotangent), 0.0)
            if NEEDS_ALPHA:
                tl.store(DA + r, (-tl.sum(slopes, 0)).to(tl.float32))
