"""PTX instructions that Triton does not offer, each with an equivalent for the interpreter and for AMD's chips."""

import torch
import triton
import triton.language as tl

_HAS_PTX = tl.constexpr(not triton.knobs.runtime.interpret and torch.version.hip is None)


@triton.jit
def marked(x, place, BITS: tl.constexpr):
    """(x & BITS) | place as one instruction; the compiler would make two."""
    if _HAS_PTX:
        inputs = [x, tl.full(x.shape, BITS, tl.int32), tl.broadcast_to(place, x.shape)]
        return tl.inline_asm_elementwise("lop3.b32 $0, $1, $2, $3, 0xEA;", "=r,r,r,r", inputs, tl.int32, True, 1)
    else:
        return (x & BITS) | place


@triton.jit
def quick_log2(u):
    """log₂ u with an error of at most 2⁻²², absolute for ½ < u < 2 and relative elsewhere; −∞ for u < 1.2e-38."""
    if _HAS_PTX:
        return tl.inline_asm_elementwise("lg2.approx.ftz.f32 $0, $1;", "=f,f", [u], tl.float32, True, 1)
    else:
        return tl.log2(tl.where(u < 1.1754944e-38, 0.0, u))  # the instruction flushes subnormals to 0


@triton.jit
def quick_power(u, exponent):
    """u^exponent for u ≥ 0 to four digits; 0⁰ is 0, and so are results below 1.2e-38."""
    # Replace exponents next to 0 by 1e-6, because 0·log₂ 0 would be NaN.
    x = quick_log2(u) * tl.where(tl.abs(exponent) < 1e-6, 1e-6, exponent)
    if _HAS_PTX:
        return tl.inline_asm_elementwise("ex2.approx.ftz.f32 $0, $1;", "=f,f", [x], tl.float32, True, 1)
    else:
        power = tl.exp2(x)
        return tl.where(power < 1.1754944e-38, 0.0, power)


@triton.jit
def earlier_and_all(x):
    """For each thread of a warp: how many earlier threads, and how many threads, hold an equal x; (32,) each."""
    if _HAS_PTX:
        return tl.inline_asm_elementwise(
            """{
            .reg .b32 same, before;
            match.any.sync.b32 same, $2, 0xffffffff;
            mov.u32 before, %lanemask_lt;
            and.b32 before, before, same;
            popc.b32 $0, before;
            popc.b32 $1, same;
            }""",
            "=r,=r,r", [x], (tl.int32, tl.int32), False, 1,
        )  # fmt: skip
    else:
        thread = tl.arange(0, x.shape[0])
        same = x[:, None] == x[None, :]
        return tl.sum((same & (thread[None, :] < thread[:, None])).to(tl.int32), 1), tl.sum(same.to(tl.int32), 1)


@triton.jit
def earlier_ends(ends, n):
    """For each n: how many of the first 31 `ends` are ≤ n, and the largest of these ends (0 if none is); (32,) each.

    `ends`, (32,) in ascending order, and n, (32,), have one entry per thread of a warp. Threads search by bisection,
    and read each other's entries by `shfl`.
    """
    if _HAS_PTX:
        return tl.inline_asm_elementwise(
            """{
            .reg .pred reached;
            .reg .b32 at, end;
            mov.b32 $0, 0;
            shfl.sync.idx.b32 end, $2, 15, 31, 0xffffffff;
            setp.le.s32 reached, end, $3;
            @reached mov.b32 $0, 16;
            add.s32 at, $0, 7;
            shfl.sync.idx.b32 end, $2, at, 31, 0xffffffff;
            setp.le.s32 reached, end, $3;
            @reached add.s32 $0, $0, 8;
            add.s32 at, $0, 3;
            shfl.sync.idx.b32 end, $2, at, 31, 0xffffffff;
            setp.le.s32 reached, end, $3;
            @reached add.s32 $0, $0, 4;
            add.s32 at, $0, 1;
            shfl.sync.idx.b32 end, $2, at, 31, 0xffffffff;
            setp.le.s32 reached, end, $3;
            @reached add.s32 $0, $0, 2;
            shfl.sync.idx.b32 end, $2, $0, 31, 0xffffffff;
            setp.le.s32 reached, end, $3;
            @reached add.s32 $0, $0, 1;
            sub.s32 at, $0, 1;
            shfl.sync.idx.b32 end, $2, at, 31, 0xffffffff;
            setp.ne.s32 reached, $0, 0;
            selp.b32 $1, end, 0, reached;
            }""",
            "=&r,=&r,r,r", [ends, n], (tl.int32, tl.int32), False, 1,
        )  # fmt: skip
    else:
        thread = tl.arange(0, ends.shape[0])
        before = (ends[:, None] <= n[None, :]) & (thread < ends.shape[0] - 1)[:, None]
        return tl.sum(before.to(tl.int32), 0), tl.max(tl.where(before, ends[:, None], 0), 0)


@triton.jit
def load_scattered(at, wanted):
    """``tl.load(at, mask=wanted, other=0)`` for scattered addresses of 32-bit integers that no program writes.

    Triton expects neighbouring addresses and lets threads exchange them so that each loads a contiguous piece. For
    scattered addresses the exchange takes longer than the load, so each thread loads its own element instead.
    """
    if _HAS_PTX:
        return tl.inline_asm_elementwise(
            """{
            .reg .pred wanted;
            setp.ne.b32 wanted, $2, 0;
            mov.b32 $0, 0;
            @wanted ld.global.b32 $0, [$1];
            }""",
            "=r,l,r", [at, wanted.to(tl.int32)], tl.int32, True, 1,
        )  # fmt: skip
    else:
        return tl.load(at, mask=wanted, other=0)


@triton.jit
def store_scattered(to, x, wanted):
    """``tl.store(to, x, mask=wanted)`` for scattered addresses of 32-bit numbers; `load_scattered` says why."""
    if _HAS_PTX:
        tl.inline_asm_elementwise(
            """{
            .reg .pred wanted;
            setp.ne.b32 wanted, $3, 0;
            @wanted st.global.b32 [$1], $2;
            mov.b32 $0, 0;
            }""",
            "=r,l,r,r", [to, x.to(tl.int32, bitcast=True), wanted.to(tl.int32)], tl.int32, False, 1,
        )  # fmt: skip
    else:
        tl.store(to, x, mask=wanted)
