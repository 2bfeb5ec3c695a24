r"""The normaliser A of rows of scores that are on the chip, and the mass of each score.

With ε = α − 1, k = 1/ε and y ≤ 0 a score less the maximum of its row, p = [1 + ε(y − A)]₊ᵏ = uᵏ. We call u = [t + εy]₊
the root, with t = 1 − εA = p_max^ε, and p^{2−α} = u^{k−1} the escort. For α > 1 scores y ≤ τ = A − k, the threshold,
have no mass. Newton's method solves (Σ p)^ε = 1 for A, as in `contmax.maps._threshold`.

A block of scores, (R, B), holds R rows. The compile-time constant K chooses how powers are computed. K = k if k is 1,
2, 3 or 4: powers are products. Any other α in (0, 2] takes one logarithm and one exponential per score: K = 0 if
|α − 1| ≥ 0.1, K = −1 if α may be closer to 1. The weight of a score is p for K > 0. For K ≤ 0 it is
p / p_max = [1 + ε y/t]₊ᵏ, which near α = 1 depends less on the rounding of t. In the end weights are divided by their
sum, so A need not be exact. If the constant ROUGH is true, weights are good to four digits and cost half as much: this
is enough for bounds, and for results in half precision.
"""

import triton
import triton.language as tl

from contmax.kernels.gpu._instructions import quick_log2, quick_power

# Scores at or below this number are masked.
NOTHING = tl.constexpr(-1.0e30)
_MOST_STEPS = tl.constexpr(40)
# `climb` ends with a step of A that is at most this number times t. The error that remains is about the square of this
# step, except at α = 2 (_LINEAR), where p has a kink.
_LAST_STEP = tl.constexpr(3e-4)
_LAST_STEP_ROUGH = tl.constexpr(3e-3)
_LAST_STEP_LINEAR = tl.constexpr(3e-7)
# The most by which Σ p may exceed 1: if ROUGH, before the last step of `climb`; else after this step.
_LAST_MASS_ROUGH = tl.constexpr(2e-2)
_LAST_MASS = tl.constexpr(4e-6)
# A root u of at most this fraction of the largest root counts as 0. In rows of tied scores the threshold may equal a
# score. At α = 2 the gradient jumps at the threshold, so rounding must not lift the score above it.
AT_THRESHOLD = tl.constexpr(4e-7)


@triton.jit
def below(x, top):
    """Scores (R, B) less `top`, the maxima of their rows, (R,); masked scores become NOTHING, NaN stays NaN."""
    y = x - tl.where(top == -float("inf"), 0.0, top)[:, None]
    return tl.where(y < NOTHING, NOTHING, y)


@triton.jit
def log(u):
    """ln u for u ≥ 1e-37, to an ulp; handling zeros, NaN and subnormal numbers would double the cost."""
    bits = u.to(tl.int32, bitcast=True)
    exponent = (bits - 0x3F2AAAAB) & -0x800000  # u = 2^e m, m in [2/3, 4/3)
    f = (bits - exponent).to(tl.float32, bitcast=True) - 1.0
    square = f * f
    r = tl.fma(tl.fma(f, -0.130187988, 0.140889585), square, tl.fma(f, -0.121489584, 0.139809534))
    r = tl.fma(tl.fma(tl.fma(tl.fma(r, f, -0.166845024), f, 0.200121149), f, -0.249996364), f, 0.333331943)
    r = tl.fma(tl.fma(r, f, -0.5), square, f)
    return tl.fma(exponent.to(tl.float32), 0.693147182 / 8388608, r)


@triton.jit
def rough_log(u):
    """ln u for u ≥ 1e-37, to four digits also next to u = 1."""
    bits = u.to(tl.int32, bitcast=True)
    exponent = (bits - 0x3F2AAAAB) & -0x800000
    f = (bits - exponent).to(tl.float32, bitcast=True) - 1.0
    r = tl.fma(tl.fma(tl.fma(f, 0.22171589, -0.27525285), f, 0.33271671), f, -0.4992835)
    return tl.fma(exponent.to(tl.float32), 0.693147182 / 8388608, tl.fma(r * f, f, f))


@triton.jit
def log1p(w):
    """ln(1 + w) for w > −1; at w = −1 the result is finite but meaningless."""
    u = 1.0 + w
    lost = tl.where(tl.abs(w) < 0.5, w - (u - 1.0), 0.0)  # the rounding error of 1 + w
    return tl.fma(lost, 2.0 - u, log(tl.maximum(u, 1e-37)))


@triton.jit
def expm1_ratio(x):
    """(eˣ − 1)/x to a few digits; 1 at x = 0."""
    small = tl.abs(x) < 0.02
    return tl.where(small, 1.0 + x * (0.5 + x * 0.16666667), (tl.exp(x) - 1.0) / tl.where(small, 1.0, x))


@triton.jit
def log1p_series(w):
    """1 − w/2 + w²/3, which is ln(1 + w)/w for small w."""
    return tl.fma(-w, tl.fma(w, -0.33333333, 0.5), 1.0)


@triton.jit
def log1p_ratio(w, epsilon, v):
    """ln(1 + w)/ε for w = ε v; at ε = 0 the result is v."""
    small = tl.abs(epsilon) < 1e-5
    curved = log1p(w) * (1.0 / tl.where(small, 1.0, epsilon))
    return tl.where(small, v * log1p_series(w), curved)


@triton.jit
def rough_escort(w, v, epsilon):
    """(1 + w)^{1/ε−1} to four digits for w = ε v ≥ −1, (R, B); ε is (R,)."""
    log_u = rough_log(tl.maximum(1.0 + w, 1e-37))
    small = tl.abs(epsilon) < 1e-3
    curved = log_u * (1.0 / tl.where(small, 1.0, epsilon))[:, None]
    ratio = tl.where(small[:, None], v * log1p_series(w), curved)
    return tl.exp2((ratio - log_u) * 1.4426950)


@triton.jit
def powers_of_roots(u, epsilon, K: tl.constexpr):
    """u^k and u^{k−1} of roots u ≥ 0, (R, B). K is k; K = 0 takes any k = 1/ε, to four digits."""
    if K == 1:
        return u, tl.where(u > 0.0, 1.0, 0.0)
    elif K == 2:
        return u * u, u
    elif K == 3:
        return u * u * u, u * u
    elif K == 4:
        square = u * u
        return square * square, square * u
    else:
        escort = quick_power(u, (1.0 / epsilon - 1.0)[:, None])
        return escort * u, escort


@triton.jit
def powers_of_pairs(u, K: tl.constexpr):
    """u^k and u^{k−1} of roots u ≥ 0, (R, B), each summed over pairs of neighbours, (R, B/2); K is 2, 3 or 4.

    The compiler contracts no products and sums (`gpu/README.md`): `tl.fma` contracts half of them.
    """
    left, right = tl.split(tl.reshape(u, [u.shape[0], u.shape[1] // 2, 2]))
    if K == 2:
        return tl.fma(left, left, right * right), left + right
    else:
        left_square, right_square = left * left, right * right
        cubes = tl.fma(left_square, left, right_square * right)
        if K == 3:
            return cubes, left_square + right_square
        else:
            return tl.fma(left_square, left_square, right_square * right_square), cubes


@triton.jit
def relative_weights(y, t, epsilon, K: tl.constexpr, ROUGH: tl.constexpr = False):
    """p and p^{2−α} of scores y (R, B); for K ≤ 0 each is divided by its value at the maximum. t and ε are (R,)."""
    if K == 1:
        u = tl.fma(y, epsilon[:, None], t[:, None])
        return powers_of_roots(tl.where(u > (t * AT_THRESHOLD)[:, None], u, 0.0), epsilon, K)
    elif K > 0:
        return powers_of_roots(tl.maximum(tl.fma(y, epsilon[:, None], t[:, None]), 0.0), epsilon, K)
    elif K == 0 and ROUGH:
        # Masked scores get no mass: for ε > 0 their root u is 0; for ε < 0 u ≥ 1e20, and u^{k−1} is 0, as k − 1 < −2.
        return powers_of_roots(tl.maximum(tl.fma(y, (epsilon / t)[:, None], 1.0), 0.0), epsilon, K)
    else:
        v = y * (1.0 / t)[:, None]
        w = v * epsilon[:, None]
        u = 1.0 + w
        inside = (u > AT_THRESHOLD) & (y > NOTHING)
        if ROUGH:
            escort = rough_escort(w, v, epsilon)
        elif K == 0:
            escort = tl.exp(log1p(w) * (1.0 / epsilon - 1.0)[:, None])
        else:
            escort = tl.exp(log1p_ratio(w, epsilon[:, None], v) - log1p(w))
        escort = tl.where(inside, escort, 0.0)
        return escort * u, escort


@triton.jit
def sums(weight, escort):
    """Sums over rows of two blocks (R, B), each (R,), in one reduction, so that threads wait for each other once."""
    return tl.split(tl.sum(tl.join(weight, escort), 1))


@triton.jit
def shrinking(total, K: tl.constexpr):
    """1 − total^{−1/K} with an error up to 2e-7, in few instructions, as nothing hides their latency in short rows.

    The error is harmless, because weights are divided by their sum in the end.
    """
    some = tl.maximum(total, 1e-37)
    if K == 1:
        return 1.0 - 1.0 / some
    elif K == 2:
        return 1.0 - tl.rsqrt(some)
    elif K == 3:
        return 1.0 - quick_power(some, -0.33333333)
    else:
        return 1.0 - tl.rsqrt(tl.sqrt(some))


@triton.jit
def log_mass(total, normaliser, t, epsilon, K: tl.constexpr, ROUGH: tl.constexpr = False):
    """ln Σ p, (R,), from `total`, the sum of `relative_weights`; if K = 0 and ROUGH, to four digits at less cost."""
    if K == 0 and ROUGH:
        return (quick_log2(tl.maximum(total, 1e-37)) + quick_log2(tl.maximum(t, 1e-37)) / epsilon) * 0.69314718
    log_total = log(tl.maximum(total, 1e-37))
    if K > 0:
        return log_total
    far = log(tl.maximum(t, 1e-37)) / tl.where(epsilon == 0.0, 1.0, epsilon)
    if K == 0:
        return log_total + far
    else:
        # ln p_max from A for |ε| < 0.1, where A is more accurate than t; else from t, which is better in flat rows.
        near = log1p_ratio(-epsilon * normaliser, epsilon, -normaliser)
        return log_total + tl.where(tl.abs(epsilon) < 0.1, near, far)


@triton.jit
def newton_step(total, slope, normaliser, t, epsilon, K: tl.constexpr, ROUGH: tl.constexpr = False):
    """Newton's step of A, (R,), from the sums of weights and of escorts; to four digits if K = 0 and ROUGH."""
    ratio = total / tl.maximum(slope, 1e-37)
    if K > 0:
        return ratio * shrinking(total, K) * K
    else:
        if K == 0:
            # The largest weight is 1, so p_max is 1/total after normalisation, and t should be p_max^ε.
            some = tl.maximum(total, 1e-37)
            next_t = quick_power(some, -epsilon) if ROUGH else tl.exp(-epsilon * log(some))
            return ratio * (t - next_t) / epsilon
        else:
            log_total = log_mass(total, normaliser, t, epsilon, K)
            return t * ratio * log_total * expm1_ratio(-epsilon * log_total)


@triton.jit
def is_climbing(step, t, K: tl.constexpr, ROUGH: tl.constexpr = False, TO_THE_END: tl.constexpr = False):
    """Whether `step` is so large that another step can improve p (TO_THE_END: even slightly), (R,); False for NaN."""
    if K == 1 or TO_THE_END:
        return step > t * _LAST_STEP_LINEAR
    elif ROUGH:
        return step > t * _LAST_STEP_ROUGH
    else:
        return step > t * _LAST_STEP


@triton.jit
def exceeds(total, normaliser, t, epsilon, K: tl.constexpr, ROUGH: tl.constexpr):
    """Whether Σ p exceeds 1 by more than rounding or, if ROUGH, by more than one further step corrects, (R,).

    `total` is the sum of `relative_weights`. The size of a step does not show the excess: where many scores are next to
    the threshold, a small step moves much mass.
    """
    most: tl.constexpr = _LAST_MASS_ROUGH if ROUGH else _LAST_MASS
    if K > 0:
        return total > 1.0 + most
    else:
        return log_mass(total, normaliser, t, epsilon, K, ROUGH) > most


@triton.jit
def first_bound(y, epsilon, B: tl.constexpr):
    """A lower bound of A and its t, each (R,), from the mean of the scores; NaN if a score is NaN.

    p is a convex function of the score, so at the mean of the scores p is at most the mean of all p, 1/B. The bound is
    the A for which p at the mean is 1/B. Scores below −1/ε have no mass, because A ≥ 0. They count as −1/ε, which
    raises the mean, and so the bound.
    """
    reaches = epsilon > 1e-3  # else the bound is A ≥ 0
    inverse = 1.0 / tl.where(reaches, epsilon, 1.0)
    lowest = tl.where(reaches, -inverse, 0.0)[:, None]
    mean = tl.sum(tl.where(y < lowest, lowest, y), 1) / B
    t = tl.where(reaches, tl.exp(-epsilon * tl.log(B * 1.0)) - epsilon * mean, 1.0 + 0.0 * mean)
    t = tl.where(t > 1.0, 1.0, t)
    return (1.0 - t) * inverse, t


@triton.jit
def climb(y, epsilon, normaliser, t, K: tl.constexpr, ROUGH: tl.constexpr, TO_THE_END: tl.constexpr = False):
    """A and t of rows y ≤ 0, (R, B), by Newton's method from a lower bound of A and its t, (R,); NaN stays NaN."""
    steps = 0
    climbing = True
    while climbing:
        if K > 1:
            weight, escort = powers_of_pairs(tl.maximum(tl.fma(y, epsilon[:, None], t[:, None]), 0.0), K)
        else:
            weight, escort = relative_weights(y, t, epsilon, K, ROUGH)
        total, slope = sums(weight, escort)
        step = newton_step(total, slope, normaliser, t, epsilon, K, ROUGH)
        moves = is_climbing(step, t, K, ROUGH, TO_THE_END)
        if ROUGH and K != 1:
            moves = moves | exceeds(total, normaliser, t, epsilon, K, ROUGH)
        normaliser += step
        t -= epsilon * step
        steps += 1
        climbing = (tl.max(moves.to(tl.int32), 0) > 0) & (steps < _MOST_STEPS)
    return normaliser, t


@triton.jit
def solve(y, epsilon, normaliser, t, K: tl.constexpr, ROUGH: tl.constexpr):
    """Like `climb`, but for wide rows it first takes only the largest of every four scores.

    The A of these scores is a lower bound of the row's A. These scores hold nearly all of the mass, so that few of the
    expensive steps over the whole row remain.
    """
    if y.shape[1] >= (4096 if K > 0 else 512):
        largest = tl.max(tl.reshape(y, [y.shape[0], y.shape[1] // 4, 4]), 2)
        normaliser, t = climb(largest, epsilon, normaliser, t, K, True)
    return climb(y, epsilon, normaliser, t, K, ROUGH)


@triton.jit
def solved_from(y, epsilon, normaliser, t, K: tl.constexpr, ROUGH: tl.constexpr):
    """A and t by `solve`, the weights of the scores, and the sums of weights and of escorts."""
    normaliser, t = solve(y, epsilon, normaliser, t, K, ROUGH)
    weight, escort = relative_weights(y, t, epsilon, K, ROUGH)
    total, slope = sums(weight, escort)
    # The last step, though small, may have left Σ p above 1. Then climb further. (For k > 2 this hardly happens.)
    if not ROUGH and K != 1 and K <= 2:  # noqa: SIM102, decided at compile time
        if tl.max(exceeds(total, normaliser, t, epsilon, K, ROUGH).to(tl.int32), 0) > 0:
            normaliser, t = climb(y, epsilon, normaliser, t, K, False, True)
            weight, escort = relative_weights(y, t, epsilon, K)
            total, slope = sums(weight, escort)
    return normaliser, t, weight, total, slope


@triton.jit
def solved_weights(y, epsilon, K: tl.constexpr, ROUGH: tl.constexpr, B: tl.constexpr):
    """`solved_from`, started from `first_bound`."""
    normaliser, t = first_bound(y, epsilon, B)
    return solved_from(y, epsilon, normaliser, t, K, ROUGH)


@triton.jit
def conjugate(product, total, slope, normaliser, t, epsilon, K: tl.constexpr):
    """Ω*_α(x) − max x, (R,), of scores x; Ω*_α is the convex conjugate of Tsallis' negentropy Ω_α.

    `product`, `total` and `slope` are sums over rows: of weights times y, of weights, and of escorts.
    """
    # Ω* − max x = ⟨y, p⟩ − Ω_α(p). On the support log_{2−α} p = y − A, so Ω_α(p) = ⟨p, log_{2−α} p⟩/α = (⟨y, p⟩ − A)/α.
    normaliser += newton_step(total, slope, normaliser, t, epsilon, K)
    return (epsilon * product / tl.where(total > 0.0, total, 1.0) + normaliser) / (1.0 + epsilon)
