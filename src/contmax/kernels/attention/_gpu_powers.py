"""Weights of scores of attention to four digits, straight from products: for half precision, and for bounds.

With ε = α − 1 and k = 1/ε a weight is the k-th power of a root, and roots are a line of scores (`_solve`). So scores
need not be made: a product is multiplied once, by the slope of the line in units of the products.
"""

import triton
import triton.language as tl

from contmax.kernels.rows._gpu_solve import AT_THRESHOLD, powers_of_roots


@triton.jit
def line_of_roots(top, t, epsilon, unit, K: tl.constexpr):
    """Roots as a function of products, which are scores in this unit: slope and value at 0, (R,) each.

    K is as in `_solve`, but α is not next to one; `top` is the largest score.
    """
    slope = epsilon if K > 0 else epsilon / t
    return slope * unit, (t if K > 0 else 1.0) - slope * top


@triton.jit
def powers_of_line(x, slope, base, epsilon, K: tl.constexpr):
    """Weights and escorts of products x, (R, n), and roots: weights are their k-th powers."""
    u = tl.fma(x, slope[:, None], base[:, None])
    # The line loses the last bits of its value at 0.
    u = tl.where(u > (tl.abs(base) * AT_THRESHOLD)[:, None], u, 0.0) if K == 1 else tl.maximum(u, 0.0)
    weight, escort = powers_of_roots(u, epsilon, K)
    return weight, escort, u
