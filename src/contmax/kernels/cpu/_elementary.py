"""log, exp and max in a form that LLVM turns into vector code.

Calls into libm are not vectorised and cost about 10 ns each; straight-line arithmetic costs a tenth of that. log
and exp exist for float32 and float64, chosen by the type of the argument, accurate to two units in the last place (the
tests compare with libm). Python's max compiles to a branch that is not vectorised either.
"""

import numpy as np
from llvmlite import ir
from numba.core import types
from numba.extending import intrinsic, overload

from contmax.kernels.cpu._compiled import inlined

CONTRACT = {"contract"}  # fused multiply–add

# Adding 1.5·2⁵² (float32: 1.5·2²³) rounds a number to an integer, which is in the low bits of the sum.
_ROUND64, _ROUND64_BITS = 6755399441055744.0, 0x4338000000000000
_ROUND32 = np.float32(12582912.0)
_SQRT_HALF64, _SQRT_HALF32 = 0x3FE6A09E667F3BCD, np.int32(0x3F3504F3)
_LN2_HIGH64, _LN2_LOW64 = 0.693147180369123816490, 1.90821492927058770002e-10
_LN2_HIGH32, _LN2_LOW32 = np.float32(0.693359375), np.float32(-2.12194440e-4)
_LOG2E64, _LOG2E32, _LN2_32 = 1.4426950408889634, np.float32(1.4426950408889634), np.float32(0.6931471805599453)
_ONE32, _ZERO32, _LOWEST32 = np.float32(1), np.float32(0), np.float32(-87)
# Minimax polynomials (Remez): ln(1 + f) = f + f² L(f) for √½ ≤ 1 + f ≤ √2, to 5e-9; eʳ = 1 + r + r² E(r) for
# |r| ≤ ½ ln 2, to 1e-8.
_L0, _L1, _L2 = np.float32(-0.4999998973), np.float32(0.3333332543), np.float32(-0.2500149187)
_L3, _L4, _L5 = np.float32(0.2000193692), np.float32(-0.1661058641), np.float32(0.1418313072)
_L6, _L7, _L8 = np.float32(-0.1323582022), np.float32(0.1289553374), np.float32(-0.07622165155)
_E0, _E1, _E2 = np.float32(0.499999920798), np.float32(0.166664201703), np.float32(0.0416682255661)
_E3, _E4 = np.float32(0.00837481577816), np.float32(0.00138368461369)


def log(x):  # type: ignore[no-untyped-def]
    """ln x = e ln 2 + ln m for x = 2ᵉ·m with √½ ≤ m < √2; x must be positive, finite and not subnormal."""


def exp(x):  # type: ignore[no-untyped-def]
    """eˣ for x ≤ 80; 0 where the result would be subnormal."""


@inlined(fastmath=CONTRACT, error_model="numpy")
def _log64(x):  # type: ignore[no-untyped-def]
    bits = np.float64(x).view(np.int64)
    exponent = (bits - _SQRT_HALF64) >> 52
    mantissa = np.int64(bits - (exponent << 52)).view(np.float64)
    e = np.int64(exponent + _ROUND64_BITS).view(np.float64) - _ROUND64
    # ln m = 2 artanh t
    t = (mantissa - 1.0) / (mantissa + 1.0)
    q = t * t
    tail = 2 / 15 + q * (2 / 17 + q * (2 / 19 + q * (2 / 21)))
    series = q * (2 / 3 + q * (2 / 5 + q * (2 / 7 + q * (2 / 9 + q * (2 / 11 + q * (2 / 13 + q * tail))))))
    return e * _LN2_HIGH64 + (e * _LN2_LOW64 + t * series + 2.0 * t)


@inlined(fastmath=CONTRACT, error_model="numpy")
def _log32(x):  # type: ignore[no-untyped-def]
    bits = np.float32(x).view(np.int32)
    exponent = np.int32(np.int32(bits - _SQRT_HALF32) >> np.int32(23))
    f = np.int32(bits - np.int32(exponent << np.int32(23))).view(np.float32) - _ONE32
    tail = _L4 + f * (_L5 + f * (_L6 + f * (_L7 + f * _L8)))
    return np.float32(exponent) * _LN2_32 + (f + f * f * (_L0 + f * (_L1 + f * (_L2 + f * (_L3 + f * tail)))))


@inlined(fastmath=CONTRACT, error_model="numpy")
def _exp64(x):  # type: ignore[no-untyped-def]
    inner = x if x > -700.0 else -700.0
    shifted = inner * _LOG2E64 + _ROUND64
    n = shifted - _ROUND64
    r = (inner - n * _LN2_HIGH64) - n * _LN2_LOW64
    tail = 1 / 40320 + r * (1 / 362880 + r * (1 / 3628800 + r * (1 / 39916800 + r * (1 / 479001600))))
    p = 1 + r * (
        1 + r * (1 / 2 + r * (1 / 6 + r * (1 / 24 + r * (1 / 120 + r * (1 / 720 + r * (1 / 5040 + r * tail))))))
    )
    # Multiply by 2ⁿ by adding n, the low bits of `shifted`, to the exponent field.
    value = np.int64(np.float64(p).view(np.int64) + (np.float64(shifted).view(np.int64) << 52)).view(np.float64)
    return value if x > -700.0 else 0.0


@inlined(fastmath=CONTRACT, error_model="numpy")
def _exp32(x):  # type: ignore[no-untyped-def]
    inner = x if x > _LOWEST32 else _LOWEST32
    shifted = inner * _LOG2E32 + _ROUND32
    n = shifted - _ROUND32
    r = (inner - n * _LN2_HIGH32) - n * _LN2_LOW32
    p = _ONE32 + r * (_ONE32 + r * (_E0 + r * (_E1 + r * (_E2 + r * (_E3 + r * _E4)))))
    scale = np.int32(np.float32(shifted).view(np.int32) << np.int32(23))
    value = np.int32(np.float32(p).view(np.int32) + scale).view(np.float32)
    return value if x > _LOWEST32 else _ZERO32


@overload(log)
def _log(x):  # type: ignore[no-untyped-def]
    return (lambda x: _log32(x)) if x == types.float32 else (lambda x: _log64(x))


@overload(exp)
def _exp(x):  # type: ignore[no-untyped-def]
    return (lambda x: _exp32(x)) if x == types.float32 else (lambda x: _exp64(x))


@intrinsic
def maximum(typing_context, a, b):  # type: ignore[no-untyped-def]
    """The larger of two floats that are not NaN."""

    def generate(context, builder, signature, arguments):  # type: ignore[no-untyped-def]
        kind = arguments[0].type
        declared = builder.module.declare_intrinsic("llvm.maxnum", [kind], ir.FunctionType(kind, [kind, kind]))
        return builder.call(declared, arguments, fastmath=("nnan", "nsz"))

    return a(a, b), generate
