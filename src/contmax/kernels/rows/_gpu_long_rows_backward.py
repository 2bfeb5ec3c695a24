"""Gradients of rows that do not fit on the chip, from lists of their support, or by reading them again."""

import triton
import triton.language as tl

from contmax.kernels.rows._gpu_lists import listed_slots
from contmax.kernels.rows._gpu_rows import curvature, epsilon_of_rows, escort_of, row_offsets, saturated, unbiased


@triton.jit
def fill_listed(
    G, DX, MASSES, PLACES, COUNTS, r, at, here, slices, gn, epsilon,
    K: tl.constexpr, NEEDS_ALPHA: tl.constexpr, ROUGH: tl.constexpr,
    SLICE: tl.constexpr, CAPACITY: tl.constexpr, SLICES: tl.constexpr, SLOTS: tl.constexpr,
):  # fmt: skip
    """The gradient of row r from its lists, stored; minus that of its α, 0 where not needed."""
    listed, slot, slice_ = listed_slots(COUNTS, r, slices, CAPACITY, SLICES, SLOTS)
    p = tl.load(MASSES + slot, mask=listed, other=0.0).to(tl.float32)
    place = tl.load(PLACES + slot, mask=listed, other=0).to(tl.int32) + slice_ * SLICE
    g = tl.load(G + at + place * gn, mask=listed, other=0.0).to(tl.float32)
    s = tl.max(escort_of(p[None, :], epsilon, K, ROUGH), 0)
    anchor = tl.max(tl.where(p == tl.max(p, 0), g, -float("inf")), 0)
    centred = tl.where(listed, g - anchor, 0.0)
    mass = tl.sum(s, 0)
    deviation = centred - tl.sum(s * centred, 0) / tl.where(mass > 0.0, mass, 1.0)
    tl.store(DX + here + place, saturated(s * deviation, DX), mask=listed)
    slope = 0.0
    if NEEDS_ALPHA:
        rate = tl.max(curvature(tl.where(p > 0.0, p, 1.0)[None, :], epsilon, ROUGH), 0)
        moved = tl.where(listed, s * deviation, 0.0)
        slope += unbiased(tl.sum(moved * rate, 0), tl.sum(moved, 0), tl.sum(s * rate, 0), mass)
    return slope


@triton.jit
def backward_long_rows(
    P, G, A, DX, DA, MASSES, PLACES, COUNTS, n, slices, fixed_epsilon, size_b, size_c, ga, gb, gc, gn,
    K: tl.constexpr, PER_ROW: tl.constexpr, NEEDS_ALPHA: tl.constexpr,
    CHUNK: tl.constexpr, SLICE: tl.constexpr, CAPACITY: tl.constexpr, SLICES: tl.constexpr, SLOTS: tl.constexpr,
    SHORT: tl.constexpr,
):  # fmt: skip
    """s (g − ⟨g⟩) as in `backward_rows`, into what is cleared."""
    r = tl.program_id(0)
    row = r + tl.arange(0, 1)
    here = r.to(tl.int64) * n
    at = row_offsets(r, size_b, size_c, ga, gb, gc)
    epsilon = epsilon_of_rows(A, fixed_epsilon, row, row >= 0, PER_ROW, 1)
    ROUGH: tl.constexpr = P.dtype.element_ty.primitive_bitwidth == 16
    each = tl.arange(0, SLICES)
    longest = tl.max(tl.load(COUNTS + r * slices + each, mask=each < slices, other=0), 0)
    slope = tl.zeros([1], tl.float32)
    if longest <= tl.minimum(SHORT, CAPACITY):
        slope -= fill_listed(
            G, DX, MASSES, PLACES, COUNTS, r, at, here, slices, gn, epsilon, K, NEEDS_ALPHA, ROUGH, SLICE, CAPACITY,
            SLICES, SHORT,
        )  # fmt: skip
    elif (SHORT < SLOTS) & (longest <= CAPACITY):
        slope -= fill_listed(
            G, DX, MASSES, PLACES, COUNTS, r, at, here, slices, gn, epsilon, K, NEEDS_ALPHA, ROUGH, SLICE, CAPACITY,
            SLICES, SLOTS,
        )  # fmt: skip
    else:
        # The anchor is the cotangent of the largest weight; threads wait for each other once after each reading.
        top, anchors = tl.zeros([CHUNK], tl.float32), tl.zeros([CHUNK], tl.float32)
        wrong = tl.zeros([CHUNK], tl.float32)
        for start in range(0, n, CHUNK):
            columns = start + tl.arange(0, CHUNK)
            p = tl.load(P + here + columns, mask=columns < n, other=0.0).to(tl.float32)
            g = tl.load(G + at + columns * gn, mask=(columns < n) & (p > top), other=0.0).to(tl.float32)
            wrong += tl.where(p == p, 0.0, p)
            anchors = tl.where(p > top, g, anchors)
            top = tl.maximum(top, p)
        broken = tl.sum(wrong, 0)
        anchor = tl.max(tl.where(top == tl.max(top, 0), anchors, -float("inf")), 0)
        masses, moments = tl.zeros([CHUNK], tl.float32), tl.zeros([CHUNK], tl.float32)
        for start in range(0, n, CHUNK):
            columns = start + tl.arange(0, CHUNK)
            p = tl.load(P + here + columns, mask=columns < n, other=0.0).to(tl.float32)
            g = tl.load(G + at + columns * gn, mask=(columns < n) & (p > 0.0), other=0.0).to(tl.float32)
            s = tl.max(escort_of(p[None, :], epsilon, K, ROUGH), 0)
            masses += s
            moments += tl.where(p > 0.0, s * (g - anchor), 0.0)
        mass = tl.sum(masses, 0)
        mean = tl.sum(moments, 0) / tl.where(mass > 0.0, mass, 1.0)
        along, rest = tl.zeros([CHUNK], tl.float32), tl.zeros([CHUNK], tl.float32)
        rates = tl.zeros([CHUNK], tl.float32)
        for start in range(0, n, CHUNK):
            columns = start + tl.arange(0, CHUNK)
            p = tl.load(P + here + columns, mask=columns < n, other=0.0).to(tl.float32)
            g = tl.load(G + at + columns * gn, mask=(columns < n) & (p > 0.0), other=0.0).to(tl.float32)
            s = tl.max(escort_of(p[None, :], epsilon, K, ROUGH), 0)
            deviation = tl.where(p > 0.0, g - anchor - mean, 0.0)
            tl.store(DX + here + columns, saturated(s * deviation, DX) + broken, mask=columns < n)
            if NEEDS_ALPHA:
                rate = tl.max(curvature(tl.where(p > 0.0, p, 1.0)[None, :], epsilon, ROUGH), 0)
                along += s * rate * deviation
                rest += s * deviation
                rates += s * rate
        slope += broken - unbiased(tl.sum(along, 0), tl.sum(rest, 0), tl.sum(rates, 0), mass)
    if NEEDS_ALPHA:
        tl.store(DA + row, slope)
