"""Device functions that the attention kernels share: scores of blocks of queries and keys, and weights of scores.

`rows._gpu_solve` defines ε, k, A, t, roots, escorts, K (POWER in kernels) and ROUGH. A weight is the k-th power of a
root, and a root is a *line*, an affine function, of the score. A score in a kernel must be multiplied by `unit` to be
the true one: without a bias kernels do not scale the products ⟨q, k⟩, and `unit` is the scale; with a bias `unit` is 1.
In shapes, `heads` are B·H and `key heads` B·G.
"""

from typing import Any, NamedTuple

import triton
import triton.language as tl

from contmax.kernels.attention._sizes import DENSE_ROWS as _DENSE_ROWS
from contmax.kernels.rows._gpu_solve import AT_THRESHOLD, NOTHING, log, powers_of_roots, relative_weights

DENSE_ROWS = tl.constexpr(_DENSE_ROWS)
# The number of threads that share a row of a matrix product. The keys whose scores one thread holds are a tile
# (`_gpu_tile_maxima`), so the keys of LANES tiles interleave.
LANES = tl.constexpr(4)
# The precision of float32 products.
PRECISION = tl.constexpr("tf32x3")
# Arguments that Triton must not specialise (say, for multiples of 16), so that one compiled kernel serves all lengths.
ANY_SIZE = ("begin", "last", "queries", "keys", "diagonal", "abreast")
# If α is a tensor, each kernel contains its code twice, for two values of K (how powers are computed): ANY_POWER for
# any α, and FAR_POWER, which is faster, for α ≥ 1.1.
ANY_POWER = tl.constexpr(-1)
FAR_POWER = tl.constexpr(0)
# The maximum of a row is subtracted from its scores (`shift_of_rows`) if ε·|maximum| exceeds this. Up to this size
# float32 holds ε·score to three digits after the decimal point.
_LARGE = tl.constexpr(1024.0)


class Extras(NamedTuple):
    """Scale, mask and bias of the scores of one head of queries."""

    scale: Any  # factor of the products
    mask: Any  # pointer to the head's mask
    mask_strides: Any  # along queries and keys
    has_mask: tl.constexpr  # whether the mask is read
    bias: Any  # pointer to the head's bias
    bias_strides: Any  # along queries and keys
    has_bias: tl.constexpr  # whether the bias is read


class Rows(NamedTuple):
    """A dense block: DENSE_ROWS queries of one head."""

    first: Any  # index of the first query among the queries of all heads, int64
    index: Any  # position of each query in its sequence
    inside: Any  # whether each query exists
    begins: Any  # the first key that each query may attend, read only if `has_spans`
    ends: Any  # the end of the keys that each query may attend
    has_spans: tl.constexpr
    unmasked: Any  # scores of keys before this one need no mask, bias or shift
    shifts: Any  # pointer to the shift of the first row (`shift_of_rows`), read if `has_shifts`
    has_shifts: tl.constexpr


@triton.jit
def block_and_head(abreast):
    """The block and the head, int64, of a program in a grid of blocks and heads.

    With causal masks some blocks take much longer than others. If the blocks of one head started after those of
    another, the long blocks of the last head would begin late, and most of the chip would wait for them. So the first
    blocks of `abreast` heads start before their second blocks.
    """
    blocks, heads = tl.num_programs(0), tl.num_programs(1)
    turn = tl.program_id(1) * blocks + tl.program_id(0)  # programs start in this order
    first = tl.program_id(1) // abreast * abreast
    beside = tl.minimum(heads - first, abreast)
    turn -= first * blocks
    return turn // beside, (first + turn % beside).to(tl.int64)


@triton.jit
def last_block_and_head(abreast, heads):
    """The block and head of a program, last blocks first: under a causal mask these take longest.

    Returns the block, the head among the B·H (`block_and_head`), and this head's sequence b and place h in it.
    """
    turn, head = block_and_head(abreast)
    return tl.num_programs(0) - 1 - turn, head, head // heads, head % heads


@triton.jit
def keys_of(LENGTHS, b, keys, HAS_LENGTHS: tl.constexpr):
    """The number of keys of sequence b."""
    if HAS_LENGTHS:
        return tl.minimum(tl.load(LENGTHS + b), keys)
    else:
        return keys


@triton.jit
def end_of(row, key_count, diagonal, CAUSAL: tl.constexpr):
    """One past the last key that a row may attend under the length of its sequence and the causal mask."""
    if CAUSAL:
        return tl.minimum(tl.maximum(row + 1 + diagonal, 0), key_count)
    else:
        return row * 0 + key_count


@triton.jit
def limits_of(
    LIMITS, b, head, rows, inside, queries, keys, diagonal, CAUSAL: tl.constexpr, HAS_LENGTHS: tl.constexpr,
    HAS_SPANS: tl.constexpr,
):  # fmt: skip
    """(begins, ends): rows may attend keys begins ≤ j < ends. With spans LIMITS (heads, queries, 2) holds both."""
    if HAS_SPANS:
        at = LIMITS + (head * queries + rows) * 2
        return tl.load(at, mask=inside, other=0), tl.load(at + 1, mask=inside, other=0)
    else:
        return rows * 0, end_of(rows, keys_of(LIMITS, b, keys, HAS_LENGTHS), diagonal, CAUSAL)


@triton.jit
def first_of(begins, ends, block: tl.constexpr, HAS_SPANS: tl.constexpr):
    """The first key that any row may attend, rounded down to whole blocks; 0 without spans.

    If no row has keys (all `ends` are 0) the result is 2³⁰. A larger number would overflow, because pipelined loops
    add a block to the first key before they compare it with the end.
    """
    if HAS_SPANS:
        return tl.min(tl.where(ends > 0, begins, 2**30), 0) // block * block
    else:
        return 0


@triton.jit
def are_allowed(j, inside, begins, ends, HAS_SPANS: tl.constexpr):
    """Which keys j (n,) each row may attend, (R, n)."""
    allowed = inside[:, None] & (j[None, :] < ends[:, None])
    if HAS_SPANS:
        allowed = allowed & (j[None, :] >= begins[:, None])
    return allowed


@triton.jit
def start_of(row, stride):
    """The offset of a row, in 64 bits. (Offsets within a block of rows have 32 bits, to halve the instructions.)"""
    return tl.cast(row, tl.int64) * stride


@triton.jit
def load_rows(X, stride, n, inside, C: tl.constexpr, WIDTH: tl.constexpr):
    """Rows of a matrix X with C columns, from row n on, (R, WIDTH), with zeros outside of the matrix."""
    c = tl.arange(0, WIDTH)
    at = tl.arange(0, inside.shape[0])[:, None] * stride + c[None, :]
    return tl.load(X + start_of(n, stride) + at, mask=inside[:, None] & (c < C)[None, :], other=0.0)


@triton.jit
def store_rows(X, n, x, inside, C: tl.constexpr):
    """Store x (R, WIDTH) in rows of a contiguous matrix X with C columns, from row n on."""
    c = tl.arange(0, x.shape[1])
    at = tl.arange(0, x.shape[0])[:, None] * C + c[None, :]
    tl.store(X + start_of(n, C) + at, x.to(X.dtype.element_ty), mask=inside[:, None] & (c < C)[None, :])


@triton.jit
def load_columns(X, stride, n, count, C: tl.constexpr, WIDTH: tl.constexpr, COLUMNS: tl.constexpr):
    """Rows of a matrix X (count, C), from row n on, as columns (WIDTH, COLUMNS), with zeros outside of the matrix."""
    column, c = tl.arange(0, COLUMNS), tl.arange(0, WIDTH)
    at = column[None, :] * stride + c[:, None]
    return tl.load(X + start_of(n, stride) + at, mask=(n + column < count)[None, :] & (c < C)[:, None], other=0.0)


@triton.jit
def gathered(X, stride, j, exists, C: tl.constexpr, WIDTH: tl.constexpr):
    """Rows j (R, n) of a matrix X with C columns, (R, n, WIDTH), in float32; zeros where not `exists`."""
    c = tl.arange(0, WIDTH)
    wanted = exists[:, :, None] & (c < C)[None, None, :]
    return tl.load(X + j[:, :, None] * stride + c[None, None, :], mask=wanted, other=0.0).to(tl.float32)


@triton.jit
def next_where(wanted, places, start, other):
    """The smallest of the `wanted` places ≥ start; `other` if there is none."""
    return tl.min(tl.where(wanted & (places >= start), places, other), 0)


@triton.jit
def larger(a, b):
    """The larger of a and b; NaN if either is NaN."""
    return tl.maximum(a, b, propagate_nan=tl.PropagateNan.ALL)


@triton.jit
def epsilon_of_heads(A, fixed_epsilon, h, PER_HEAD: tl.constexpr, R: tl.constexpr):
    """ε = α − 1 of a head for R rows, (R,); NaN if a tensor holds an α outside of [1, 2]."""
    if PER_HEAD:
        epsilon = tl.load(A + h).to(tl.float32) - 1.0
        epsilon = tl.where((epsilon >= 0.0) & (epsilon <= 1.0), epsilon, float("nan"))
        return tl.zeros([R], tl.float32) + epsilon
    else:
        return tl.zeros([R], tl.float32) + fixed_epsilon


@triton.jit
def has_power(A, h, K: tl.constexpr, PER_HEAD: tl.constexpr):
    """Whether head h runs the code for K, in kernels that contain the code for several K in turn.

    The loop is ``for K in tl.static_range(ORDER, 1 if PER_HEAD else ORDER + 1)``. If α is one number, the only K is
    ORDER, and every head runs it. For α per head, heads with α ≥ 1.1 run FAR_POWER, others ANY_POWER.
    """
    if PER_HEAD:
        return (tl.load(A + h).to(tl.float32) >= 1.1) == (K == FAR_POWER)
    else:
        return tl.full([], True, tl.int1)


@triton.jit
def with_extras(z, row, j, allowed, scale, extras):
    """Scores from products z of queries `row` and keys j: scaled, biased, NOTHING where not allowed.

    `row` and j are int64 and broadcast to the products.
    """
    x = z * scale
    if extras.has_bias:
        at = row * extras.bias_strides[0] + j * extras.bias_strides[1]
        bias = tl.load(extras.bias + at, mask=allowed, other=0.0).to(tl.float32)
        allowed = allowed & (bias != -float("inf"))  # the product with a masked key may be NaN
        x += bias
    if extras.has_mask:
        at = row * extras.mask_strides[0] + j * extras.mask_strides[1]
        allowed = allowed & (tl.load(extras.mask + at, mask=allowed, other=0) != 0)
    return tl.where(allowed & ((x >= NOTHING) | (x != x)), x, NOTHING)


@triton.jit
def dense_rows(
    LIMITS, b, head, block, queries, keys, diagonal, extras, SHIFTS, is_shifted,
    CAUSAL: tl.constexpr, HAS_LENGTHS: tl.constexpr, HAS_SPANS: tl.constexpr, HAS_SHIFTS: tl.constexpr,
):  # fmt: skip
    """The `Rows` of a block. If `is_shifted` (a row may have a shift ≠ 0), `unmasked` is 0: all keys get the shift."""
    row = block * DENSE_ROWS
    index, first = row + tl.arange(0, DENSE_ROWS), head * queries + row
    inside = index < queries
    unmasked = 0
    if not (extras.has_mask or extras.has_bias or HAS_SPANS):
        is_whole = (row + DENSE_ROWS <= queries) & (is_shifted == 0)
        end = end_of(row, keys_of(LIMITS, b, keys, HAS_LENGTHS), diagonal, CAUSAL)
        unmasked = tl.where(is_whole, end, 0)
    begins, ends = limits_of(
        LIMITS, b, head, index, inside, queries, keys, diagonal, CAUSAL, HAS_LENGTHS, HAS_SPANS
    )  # fmt: skip
    return Rows(first, index, inside, begins, ends, HAS_SPANS, unmasked, SHIFTS + first, HAS_SHIFTS)


@triton.jit
def dense_scores(q, k, n, rows, extras):
    """Scores (rows, keys) of queries q (rows, d) and keys k (d, keys), the first of which is key n; NOTHING if masked.

    Scores are multiples of `unit`, less the shifts of their rows. Shifts are subtracted only from key `rows.unmasked`
    on, which must therefore be 0 if any shift is not 0.
    """
    z = tl.dot(q, k, input_precision=PRECISION)
    x = z * extras.scale if extras.has_bias else z
    if n + k.shape[1] > rows.unmasked:
        j = n + tl.arange(0, k.shape[1])
        allowed = are_allowed(j, rows.inside, rows.begins, rows.ends, rows.has_spans)
        row, wide = rows.index.to(tl.int64)[:, None], j.to(tl.int64)[None, :]
        x = with_extras(z, row, wide, allowed, extras.scale if extras.has_bias else 1.0, extras)
        if rows.has_shifts:
            shift = tl.load(rows.shifts + tl.arange(0, DENSE_ROWS), mask=rows.inside, other=0.0)
            x -= shift[:, None]
    return x


@triton.jit
def shift_of_rows(maximum, epsilon, unit):
    """The number to subtract from all scores of a row, (R,): the row's maximum if it is large, else 0.

    A root is an affine function of the score (`line_of_roots`). Where the scores of a row have a large common offset,
    the two terms of the affine function would be large and cancel, and the root would have few digits.
    """
    return tl.where(tl.abs(maximum * unit) * epsilon > _LARGE, maximum, 0.0)


@triton.jit
def line_of_roots(maximum, t, epsilon, unit, K: tl.constexpr):
    """The line u = slope·x + base that gives the root u of a score x in multiples of `unit`: slope and base, (R,) each.

    K is not ANY_POWER. t = 1 − εA, where A is the normaliser of scores less their maximum; for K = 0 roots are divided
    by t, the root of the maximum.
    """
    slope = epsilon if K > 0 else epsilon / t
    return slope * unit, (t if K > 0 else 1.0) - slope * maximum


@triton.jit
def powers_of_line(x, slope, base, epsilon, K: tl.constexpr):
    """Weights, escorts and roots of scores x, (R, n), to four digits; `slope` and `base` come from `line_of_roots`."""
    u = tl.fma(x, slope[:, None], base[:, None])
    # At α = 2 (K = 1) roots up to the rounding error of the line, a multiple of |base|, count as 0.
    u = tl.where(u > (tl.abs(base) * AT_THRESHOLD)[:, None], u, 0.0) if K == 1 else tl.maximum(u, 0.0)
    weight, escort = powers_of_roots(u, epsilon, K)
    return weight, escort, u


@triton.jit
def state_of_weights(maximum, t, epsilon, unit, K: tl.constexpr, ROUGH: tl.constexpr):
    """Two numbers per row for `weights_of_scores`: slope and base if ROUGH and K ≠ ANY_POWER, else maximum and t."""
    if ROUGH and K != ANY_POWER:
        return line_of_roots(maximum, t, epsilon, unit, K)
    else:
        return maximum, t


@triton.jit
def weights_of_scores(x, first, second, epsilon, unit, K: tl.constexpr, ROUGH: tl.constexpr):
    """Weights, escorts and roots of scores x; `first` and `second` come from `state_of_weights`.

    Roots are computed only if ROUGH and K ≠ ANY_POWER; else the third result is the weights again.
    """
    if ROUGH and K != ANY_POWER:
        return powers_of_line(x, first, second, epsilon, K)
    else:
        y = tl.where(x <= NOTHING, NOTHING, tl.fma(x, unit, -first[:, None]))
        weight, escort = relative_weights(y, second, epsilon, K, ROUGH)
        return weight, escort, weight


@triton.jit
def probabilities(x, state, epsilon, unit, K: tl.constexpr, ROUGH: tl.constexpr):
    """p, p^{2−α} and, if ROUGH and K ≠ ANY_POWER, p^{α−1} of scores (rows, keys), from the `state_of_rows`.

    Under other conditions the third result is not p^{α−1}, and callers must not use it.
    """
    p, escort, u = weights_of_scores(x, state[0], state[1], epsilon, unit, K, ROUGH)
    if not ROUGH or K == ANY_POWER:
        p, escort = p * state[2][:, None], escort * state[3][:, None]
    return p, escort, u


@triton.jit
def state_of_rows(maximum, t, total, epsilon, unit, K: tl.constexpr, ROUGH: tl.constexpr):
    """Four numbers per row for `probabilities`; `total`, (R,), is the sum of the row's weights.

    The first two come from `state_of_weights`, a line being scaled to give p^{α−1}. The others are factors of weights
    and escorts, 1/total and 1/total^{2−α}: p = weight/total, p^{2−α} = escort/total^{2−α}.
    """
    log_factor = -log(tl.where(total > 0.0, total, 1.0))
    first, second = state_of_weights(maximum, t, epsilon, unit, K, ROUGH)
    if ROUGH and K != ANY_POWER:
        root = tl.exp(epsilon * log_factor)
        first, second = first * root, second * root
    return first, second, tl.exp(log_factor), tl.exp((1.0 - epsilon) * log_factor)


@triton.jit
def by_lane(x):
    """Each thread's sum over its part of a row, (R, LANES), of a matrix product x (R, n): threads exchange nothing."""
    return tl.sum(tl.sum(tl.reshape(x, [x.shape[0], x.shape[1] // (2 * LANES), LANES, 2]), 3), 1)


@triton.jit
def by_lane_of_products(a, b):
    """`by_lane` of a·b. Launches contract no products and sums (`gpu/README.md`); `tl.fma` contracts half of them."""
    shape: tl.constexpr = [a.shape[0], a.shape[1] // (2 * LANES), LANES, 2]
    a_left, a_right = tl.split(tl.reshape(a, shape))
    b_left, b_right = tl.split(tl.reshape(b, shape))
    return tl.sum(tl.fma(a_left, b_left, a_right * b_right), 1)


@triton.jit
def first_and_end(DENSE, at, exists):
    """Unpack `AttentionLists.dense`: the first block of keys with mass, and the end, one past the last."""
    span = tl.load(DENSE + at, mask=exists, other=0)
    return span.to(tl.int32), (span >> 32).to(tl.int32)
