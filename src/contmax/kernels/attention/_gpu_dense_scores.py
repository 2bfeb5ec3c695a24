"""Scores of dense blocks of rows of attention, and what is made of them: weights, probabilities, sums.

Scores are kept as products, in units of the scale, where that will do: so one multiplication serves for both.
"""

import triton
import triton.language as tl

from contmax.kernels.attention._gpu_lists import DENSE_ROWS
from contmax.kernels.attention._gpu_powers import line_of_roots, powers_of_line
from contmax.kernels.attention._gpu_tops import ANY_POWER, LANES, PRECISION, end_of, with_extras
from contmax.kernels.rows._gpu_solve import NOTHING, log, relative_weights

# Times ε. In units of ε·score float32 has three digits or more behind the point below it.
_LARGE = tl.constexpr(1024.0)


@triton.jit
def fewest_keys(
    row, queries, exist, diagonal, has_shifts, CAUSAL: tl.constexpr, HAS_MASK: tl.constexpr, HAS_BIAS: tl.constexpr
):  # fmt: skip
    """Every row of the block that begins with this one attends so many keys, and they are scaled products alone."""
    if HAS_MASK or HAS_BIAS:
        return 0
    else:
        is_plain = (row + DENSE_ROWS <= queries) & (has_shifts == 0)
        return tl.where(is_plain, end_of(row, exist, diagonal, CAUSAL), 0)


@triton.jit
def dense_scores(
    q, k, fewest, SHIFTS, at_row, M, B, rows, n, ends, inside, b, h, scale, mb, mh, mi, mj, bb, bh, bi, bj,
    HAS_MASK: tl.constexpr, HAS_BIAS: tl.constexpr, HAS_SHIFTS: tl.constexpr,
):  # fmt: skip
    """Scores (rows, keys) of queries (rows, d) and keys (d, keys), from the key n on; NOTHING where not allowed.

    They are multiples of `unit_of_scores`, less the shift of their rows; where one is not 0, `fewest` must be.
    """
    z = tl.dot(q, k, input_precision=PRECISION)
    x = z * scale if HAS_BIAS else z
    if n + k.shape[1] > fewest:
        j = n + tl.arange(0, k.shape[1])
        allowed = inside[:, None] & (j[None, :] < ends[:, None])
        far, wide = rows.to(tl.int64)[:, None], j.to(tl.int64)[None, :]
        at_mask = b * mb + h * mh + far * mi + wide * mj
        at_bias = b * bb + h * bh + far * bi + wide * bj
        x = with_extras(z, M, B, at_mask, at_bias, allowed, scale if HAS_BIAS else 1.0, HAS_MASK, HAS_BIAS)
        if HAS_SHIFTS:
            x -= tl.load(SHIFTS + at_row, mask=inside, other=0.0)[:, None]
    return x


@triton.jit
def shift_of_rows(top, epsilon, unit):
    """What to take from the scores of each row before all else, from the largest: 0, unless that is so large that the
    line of roots would lose digits that differences of scores have.
    """
    return tl.where(tl.abs(top * unit) * epsilon > _LARGE, top, 0.0)


@triton.jit
def unit_of_scores(scale, HAS_BIAS: tl.constexpr):
    """What `dense_scores` are multiples of: the scale, or 1 where they are scaled because a bias is added."""
    if HAS_BIAS:
        return 1.0
    else:
        return scale


@triton.jit
def weights_of_scores(x, top, t, epsilon, unit, K: tl.constexpr, ROUGH: tl.constexpr):
    """`relative_weights` of scores (rows, keys), in half precision by `powers_of_line` where that will do: then their
    roots too.
    """
    if ROUGH and K != ANY_POWER:
        slope, base = line_of_roots(top, t, epsilon, unit, K)
        weight, escort, root = powers_of_line(x, slope, base, epsilon, K)
    else:
        weight, escort = relative_weights(_less(x, top, unit), t, epsilon, K, ROUGH)
        root = weight
    return weight, escort, root


@triton.jit
def probabilities(x, state, epsilon, unit, K: tl.constexpr, ROUGH: tl.constexpr):
    """p and p^{2−α} of scores (rows, keys) from the state of the rows, and p^{α−1} where `powers_of_line` are used."""
    first, second, factor, factor_escort = state
    if ROUGH and K != ANY_POWER:
        p, escort, u = powers_of_line(x, first, second, epsilon, K)
    else:
        weight, escort = relative_weights(_less(x, first, unit), second, epsilon, K, ROUGH)
        p, escort = weight * factor[:, None], escort * factor_escort[:, None]
        u = p
    return p, escort, u


@triton.jit
def state_of_rows(top, t, total, epsilon, unit, K: tl.constexpr, ROUGH: tl.constexpr):
    """Four numbers for each row, of which `probabilities` are made, from the sum of its weights.

    Where these are made by `powers_of_line` the first two are the line of p^{α−1}. Else they are the largest score and
    t. Then there are the factors of weights and escorts: p = weight/total, p^{2−α} = escort/total^{2−α}.
    """
    log_factor = -log(tl.where(total > 0.0, total, 1.0))
    if ROUGH and K != ANY_POWER:
        root = tl.exp(epsilon * log_factor)
        slope, base = line_of_roots(top, t, epsilon, unit, K)
        top, t = slope * root, base * root
    return top, t, tl.exp(log_factor), tl.exp((1.0 - epsilon) * log_factor)


@triton.jit
def _less(x, top, unit):
    """Scores less the largest of their rows; NOTHING as it was."""
    return tl.where(x <= NOTHING, NOTHING, tl.fma(x, unit, -top[:, None]))


@triton.jit
def by_lane(x):
    """Sums of what one thread has of each row of a product (R, n), (R, LANES): no thread has to ask another."""
    return tl.sum(tl.sum(tl.reshape(x, [x.shape[0], x.shape[1] // (2 * LANES), LANES, 2]), 3), 1)


@triton.jit
def by_lane_of_products(a, b):
    """`by_lane` of a·b, (R, LANES), with half of the products contracted into sums, which the compiler may not do."""
    shape: tl.constexpr = [a.shape[0], a.shape[1] // (2 * LANES), LANES, 2]
    a_left, a_right = tl.split(tl.reshape(a, shape))
    b_left, b_right = tl.split(tl.reshape(b, shape))
    return tl.sum(tl.fma(a_left, b_left, a_right * b_right), 1)


@triton.jit
def first_and_end(DENSE, at, exist):
    """The first and the end of the blocks of keys in which dense blocks of rows have mass."""
    span = tl.load(DENSE + at, mask=exist, other=0)
    return span.to(tl.int32), (span >> 32).to(tl.int32)
