"""α-entmax over rows that do not fit on the chip: a program works through row after row, chunk by chunk."""

import triton
import triton.language as tl

from contmax.kernels.triton._rows import curvature, epsilon_of_rows, escort_of, row_offsets, saturated
from contmax.kernels.triton._scan import load_chunk, load_list, scan_row, solve_row
from contmax.kernels.triton._solve import NOTHING, relative_weights


@triton.jit
def forward_long_rows(
    X, M, A, P, OMEGA, SCORES, PLACES, rows, n, fixed_epsilon,
    size_b, size_c, xa, xb, xc, ma, mb, mc,
    K: tl.constexpr, PER_ROW: tl.constexpr, HAS_MASK: tl.constexpr, NEEDS_OMEGA: tl.constexpr,
    CHUNK: tl.constexpr, CAPACITY: tl.constexpr,
):  # fmt: skip
    """p of rows, and Ω* where asked for."""
    list_at = tl.program_id(0).to(tl.int64) * CAPACITY
    for r in range(tl.program_id(0), rows, tl.num_programs(0)):
        row = r + tl.arange(0, 1)
        at = tl.max(row_offsets(row, size_b, size_c, xa, xb, xc), 0)
        mask_at = tl.max(row_offsets(row, size_b, size_c, ma, mb, mc), 0)
        out_at = tl.max(row.to(tl.int64), 0) * n
        epsilon = epsilon_of_rows(A, fixed_epsilon, row, row < rows, PER_ROW, 1)
        count, top, broken = scan_row(
            X, M, P, at, mask_at, out_at, n, epsilon, SCORES, PLACES, list_at, K, HAS_MASK, True, CHUNK, CAPACITY
        )
        partition, t, total, product = solve_row(
            X, M, at, mask_at, n, count, top, broken, epsilon, SCORES, list_at, K, HAS_MASK, CHUNK, CAPACITY
        )
        inverse = 1.0 / tl.where(total > 0.0, total, 1.0)
        if (count <= CAPACITY) & (broken == broken):
            y = load_list(SCORES, list_at, count, top, CAPACITY)
            weight, _ = relative_weights(y, t, epsilon, K)
            listed = tl.arange(0, CAPACITY)
            place = tl.load(PLACES + list_at + listed, mask=listed < count, other=0)
            p = (weight * inverse[:, None]).to(P.dtype.element_ty)
            tl.store(P + out_at + place[None, :], p, mask=(listed < count)[None, :])
        else:
            for start in range(0, n, CHUNK):
                y = load_chunk(X, M, at, mask_at, start, n, HAS_MASK, CHUNK) - top
                y = tl.where(y < NOTHING, NOTHING, y)[None, :]
                weight, _ = relative_weights(y, t, epsilon, K)
                columns = (start + tl.arange(0, CHUNK))[None, :]
                p = (weight * inverse[:, None] + broken).to(P.dtype.element_ty)
                tl.store(P + out_at + columns, p, mask=columns < n)
        if NEEDS_OMEGA:
            gain = (epsilon * product * inverse + partition) / (1.0 + epsilon) + broken
            highest = top + tl.zeros([1], tl.float64)
            empty = highest == -float("inf")
            tl.store(OMEGA + row, tl.where(empty, highest, highest + gain.to(tl.float64)))
        tl.debug_barrier()  # the next row writes the list anew


@triton.jit
def backward_long_rows(
    P, G, A, DX, DA, rows, n, fixed_epsilon, size_b, size_c, ga, gb, gc, gn,
    K: tl.constexpr, PER_ROW: tl.constexpr, NEEDS_ALPHA: tl.constexpr, CHUNK: tl.constexpr,
):  # fmt: skip
    """s (g − ⟨g⟩) as in `backward_rows`: chunks without support are cleared in the first pass, and left out later."""
    r = tl.program_id(0)
    row = r + tl.arange(0, 1)
    here = r.to(tl.int64) * n
    at = tl.max(row_offsets(row, size_b, size_c, ga, gb, gc), 0)
    epsilon = epsilon_of_rows(A, fixed_epsilon, row, row < rows, PER_ROW, 1)
    top = 0.0
    anchor = 0.0
    mass = 0.0
    moment = 0.0  # Σ s (g − anchor)
    broken = 0.0
    live = tl.zeros([], tl.int64)
    for start in range(0, n, CHUNK):
        columns = start + tl.arange(0, CHUNK)
        p = tl.load(P + here + columns, mask=columns < n, other=0.0).to(tl.float32)
        broken += tl.sum(tl.where(p == p, 0.0, p), 0)
        chunk_top = tl.max(p, 0)
        if chunk_top > 0.0:
            live = live | (tl.full([], 1, tl.int64) << (start // CHUNK))
            g = tl.load(G + at + columns * gn, mask=(columns < n) & (p > 0.0), other=0.0).to(tl.float32)
            s = tl.max(escort_of(p[None, :], epsilon, K), 0)
            if chunk_top > top:
                # The sums so far move to the new anchor, the point of largest weight.
                next_anchor = tl.max(tl.where(p == chunk_top, g, -float("inf")), 0)
                moment += mass * (anchor - next_anchor)
                anchor = next_anchor
                top = chunk_top
            mass += tl.sum(s, 0)
            moment += tl.sum(tl.where(p > 0.0, s * (g - anchor), 0.0), 0)
        else:
            tl.store(DX + here + columns, tl.zeros([CHUNK], DX.dtype.element_ty) + broken, mask=columns < n)
    mean = moment / tl.where(mass > 0.0, mass, 1.0)
    slope = tl.zeros([1], tl.float32) + broken
    for start in range(0, n, CHUNK):
        if ((live >> (start // CHUNK)) & 1) != 0:
            columns = start + tl.arange(0, CHUNK)
            p = tl.load(P + here + columns, mask=columns < n, other=0.0).to(tl.float32)
            g = tl.load(G + at + columns * gn, mask=(columns < n) & (p > 0.0), other=0.0).to(tl.float32)
            s = escort_of(p[None, :], epsilon, K)
            deviation = tl.where(p > 0.0, g - anchor - mean, 0.0)[None, :]
            tl.store(DX + here + columns[None, :], saturated(s * deviation, DX) + broken, mask=(columns < n)[None, :])
            if NEEDS_ALPHA:
                rate = curvature(tl.where(p > 0.0, p, 1.0)[None, :], epsilon)
                slope -= tl.sum(s * rate * deviation, 1)
    if NEEDS_ALPHA:
        tl.store(DA + row, slope)
