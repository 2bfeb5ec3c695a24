"""What a loss needs of a row of soft targets: their mass, ⟨z, y⟩ and Ω_α(y), for weights y ≥ 0 that need not sum to 1.

With S = Σ y and h(y) = log_{2−α} y = (y^ε − 1)/ε, which is smooth through ε = α − 1 = 0,

    Ω_α(y/S) = Σ (y/S) h(y/S) / α,      h(y/S) = S^{−ε} h(y) + h(1/S),

so that one reading of y is enough.
"""

import triton
import triton.language as tl

from contmax.kernels.rows._gpu_rows import inverse_cube_root
from contmax.kernels.rows._gpu_solve import log

# Below it the powers of a weight count nothing, and their logarithms would need special cases.
_LEAST = tl.constexpr(1e-37)
# As far from α = 1 as `contmax.deformed.tsallis_negentropy` takes the definition to be exact enough, in float32.
_FAR_FROM_ONE = tl.constexpr(0.0186)


@triton.jit
def deformed_log(y, epsilon, K: tl.constexpr):
    """h(y) for y > 0, (R, B); ε is (R,)."""
    y = tl.maximum(y, _LEAST)
    if K == 1:
        return y - 1.0
    elif K == 2:
        return 2.0 * tl.sqrt(y) - 2.0
    elif K == 3:
        root = inverse_cube_root(y, False)
        return 3.0 * (y * root * root) - 3.0
    elif K == 4:
        return 4.0 * tl.sqrt(tl.sqrt(y)) - 4.0
    else:
        log_y = log(y)
        x = log_y * epsilon[:, None]
        series = 1.0 + x * (0.5 + x * (0.16666667 + x * (0.041666667 + x * (0.0083333333 + x * 0.0013888889))))
        wide = tl.abs(x) > 0.2
        return log_y * tl.where(wide, (tl.exp(x) - 1.0) / tl.where(wide, x, 1.0), series)


@triton.jit
def soft_sums(y, below, epsilon, K: tl.constexpr):
    """Σ y, Σ y h(y), Σ y·(score less a level) where that is finite, and whether any y > 0 has none; each (R,)."""
    lies = y > 0.0
    possible = below > -float("inf")
    # A NaN among the targets stays one.
    bits = tl.where(lies, y * deformed_log(tl.where(lies, y, 1.0), epsilon, K), y * 0.0)
    product = tl.where(possible, y * below, 0.0)
    impossible = tl.max((lies & (below == -float("inf"))).to(tl.int32), 1)
    return tl.sum(y, 1), tl.sum(bits, 1), tl.sum(product, 1), impossible


@triton.jit
def soft_terms(mass, bits, product, impossible, epsilon, smoothing, K: tl.constexpr):
    """Ω(q) − ⟨z, q⟩ for q = y/S and the factor of y in the gradient, (1−s)/S, negative where no score is finite."""
    mass = tl.where(mass == 0.0, 1.0, mass)
    shift = deformed_log((1.0 / mass)[:, None], epsilon, K)
    # S^{−ε} = 1 + ε h(1/S).
    shift = tl.sum(shift, 1)
    negentropy = ((1.0 + epsilon * shift) * (bits / mass) + shift) / (1.0 + epsilon)
    cost = tl.where(impossible > 0, float("inf"), negentropy - product / mass)
    scale = (1.0 - smoothing) / mass
    return tl.where(smoothing < 1.0, (1.0 - smoothing) * cost, 0.0), tl.where(impossible > 0, -scale, scale)


@triton.jit
def slope_of_negentropy(y, scale, smoothing, epsilon, K: tl.constexpr):
    """∂Ω(q)/∂q at q = y/S for y > 0, else 0, (R, B); the scale of `soft_terms` and ε are (R,)."""
    q = y * (tl.abs(scale) / tl.where(smoothing < 1.0, 1.0 - smoothing, 1.0))[:, None]
    # Along the simplex a constant changes nothing: it is that of the form that torch's path differentiates.
    far = tl.abs(epsilon) >= _FAR_FROM_ONE
    constant = tl.where(far, 1.0 / tl.where(far, epsilon, 1.0), 1.0 / (1.0 + epsilon))
    return tl.where(q > 0.0, deformed_log(tl.where(q > 0.0, q, 1.0), epsilon, K) + constant[:, None], 0.0)
