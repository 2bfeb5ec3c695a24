"""Errors of probabilities against values of float64 that none of the libraries computed."""

import dataclasses
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor


def exact_entmax(scores: Tensor, alpha: float | Tensor) -> Tensor:
    r"""α-entmax over the last axis by bisection in float64: slow, and simple enough to be believed.

    .. math::
        p_i = [u_i - t]_+^{1/(\alpha-1)}, \quad u_i = (\alpha-1)(x_i - \max_j x_j), \quad -1 \le t \le -n^{1-\alpha}

    Args:
        scores: x (*batch, n), finite.
        alpha: α > 1, a float or a tensor of shape (*batch, 1).

    Returns:
        p (*batch, n) in float64.

    Example:
        >>> exact_entmax(torch.tensor([1.0, 0.5, -1.0]), 2.0)
        tensor([0.7500, 0.2500, 0.0000], dtype=torch.float64)
    """
    x = scores.detach().double()
    excess = (alpha.detach().double() if isinstance(alpha, Tensor) else torch.tensor(alpha, dtype=x.dtype)) - 1
    u = excess * (x - x.amax(-1, keepdim=True))
    # At the lower end the largest p alone is 1, at the upper end none exceeds 1/n.
    low = torch.full_like(u[..., :1], -1.0)
    high = -(float(x.shape[-1]) ** -excess).expand_as(low)
    for _ in range(60):
        middle = (low + high) / 2
        too_much = _powers(u - middle, excess).sum(-1, keepdim=True) > 1
        low, high = torch.where(too_much, middle, low), torch.where(too_much, high, middle)
    p = _powers(u - (low + high) / 2, excess)
    return p / p.sum(-1, keepdim=True)


@dataclasses.dataclass(frozen=True)
class Errors:
    """Largest errors of a map on one input.

    Args:
        float32: in a probability, float32.
        float32_sum: of the sum of a row, float32.
        bfloat16: in a probability, bfloat16, beyond the half unit in the last place that one rounding costs.
    """

    float32: float
    float32_sum: float
    bfloat16: float


@dataclasses.dataclass(frozen=True)
class Solved:
    """Scores with their exact probabilities, which take longer than all that is compared with them.

    Args:
        scores: float32.
        alpha: α > 1.
        exact: at the scores.
        exact_of_rounded: at the scores rounded to bfloat16.
    """

    scores: Tensor
    alpha: float | Tensor
    exact: Tensor
    exact_of_rounded: Tensor

    @classmethod
    def of(cls, scores: Tensor, alpha: float | Tensor) -> "Solved":
        """Solve for the probabilities."""
        return cls(scores, alpha, exact_entmax(scores, alpha), exact_entmax(scores.bfloat16(), alpha))


def errors(function: Callable[[Tensor, Any], Tensor], solved: Solved) -> Errors:
    """Errors of a map at float32 scores and at the same scores rounded to bfloat16."""
    scores, alpha, expected = solved.scores, solved.alpha, solved.exact_of_rounded
    with torch.no_grad():
        p, rounded = function(scores, alpha).double(), function(scores.bfloat16(), alpha).double()
    # frexp has mantissas in [½, 1), of which bfloat16 keeps 8 bits: half a unit in the last place is 2^(exponent − 9).
    one_rounding = torch.ldexp(torch.ones_like(expected), torch.frexp(expected).exponent - 9)
    return Errors(
        float32=float((p - solved.exact).abs().max()),
        float32_sum=float((p.sum(-1) - 1).abs().max()),
        bfloat16=float(((rounded - expected).abs() - one_rounding).clamp(min=0).max()),
    )


def _powers(base: Tensor, excess: Tensor) -> Tensor:
    return base.clamp(min=0) ** (1 / excess)
