"""Answers by other means: α-entmax of one row in as many digits as it takes."""

from collections.abc import Callable

import mpmath

Number = mpmath.mpf


def entmax_row(scores: list[float], alpha: float) -> list[float]:
    r"""p_i = [(α−1)(x_i − τ)]_+^{1/(α−1)}, to the rounding of a float.

    Args:
        scores: x, finite or −inf, at least one finite.
        alpha: α > 0.
    """
    # For α > 2, a probability of 1e-18 lies 1e-18^{α−1} from the edge of the support.
    with mpmath.workdps(int(60 + 18 * max(alpha - 2, 0))):
        top = max(scores)
        below = [mpmath.mpf(top) - mpmath.mpf(value) for value in scores if value > -mpmath.inf]
        found = iter((_softmax if alpha == 1 else _up_to_two if alpha <= 2 else _beyond_two)(below, mpmath.mpf(alpha)))
        return [float(next(found)) if value > -mpmath.inf else 0.0 for value in scores]


def _softmax(below: list[Number], alpha: Number) -> list[Number]:
    weights = [mpmath.exp(-distance) for distance in below]
    return [weight / mpmath.fsum(weights) for weight in weights]


def _up_to_two(below: list[Number], alpha: Number) -> list[Number]:
    """Bisection on log p_max, in which the sum is well conditioned."""
    step, power = alpha - 1, 1 / (alpha - 1)

    def probabilities(log_top: Number) -> list[Number]:
        left = [mpmath.exp(step * log_top) - step * distance for distance in below]
        return [value**power if value > 0 else mpmath.mpf(0) for value in left]

    return probabilities(_root(lambda u: mpmath.fsum(probabilities(u)), -mpmath.log(len(below)), mpmath.mpf(0)))


def _beyond_two(below: list[Number], alpha: Number) -> list[Number]:
    """Bisection on the smallest probability that is not zero, from which the others follow without loss."""
    step, power = alpha - 1, 1 / (alpha - 1)

    def probabilities(smallest: Number, edge: Number) -> list[Number]:
        left = [smallest**step + step * (edge - distance) for distance in below]
        return [value**power if value > 0 else mpmath.mpf(0) for value in left]

    # The support reaches as far as the sum stays below one when the last of it has no probability yet.
    edge = max(d for d in below if mpmath.fsum(probabilities(mpmath.mpf(0), d)) < 1)
    smallest = _root(lambda s: mpmath.fsum(probabilities(s, edge)), mpmath.mpf(0), mpmath.mpf(1))
    return probabilities(smallest, edge)


def _root(total: Callable[[Number], Number], low: Number, high: Number) -> Number:
    """Where a growing sum is one."""
    for _ in range(100):
        middle = (low + high) / 2
        low, high = (middle, high) if total(middle) < 1 else (low, middle)
    return high
