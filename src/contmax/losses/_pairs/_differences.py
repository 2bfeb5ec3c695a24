"""Differences that keep their digits and their sign, and powers that overflow without a trace in the gradient."""

import torch
from torch import Tensor

from contmax._smooth import ARTANH_EXCESS
from contmax._typing import Float
from contmax.deformed import expm1_over, mean_u_exp

#: Beyond this an exponential counts as infinite: room is left for what its derivatives multiply it with.
EXPONENT_MAX = 600.0
#: A density counts as bounded by one up to this: its logarithm may be rounded.
HEIGHT_SLACK = 1e-6


def log_ratio_and_excess(
    numerator: Float[Tensor, "..."], denominator: Float[Tensor, "..."]
) -> tuple[Float[Tensor, "..."], Float[Tensor, "..."]]:
    r"""ln(n/d), and φ(x) = x − ln(1+x) ≥ 0 for x = n/d − 1.

    From :math:`\ln(1+x) = 2\operatorname{artanh} w` with w = x/(2+x) where the two are within a factor of two.

    Args:
        numerator: n > 0, float64.
        denominator: d > 0, float64.

    Returns:
        Two tensors of the broadcast shape, to relative accuracy, as are their derivatives.

    Example:
        >>> one = torch.ones((), dtype=torch.float64)
        >>> log, excess = log_ratio_and_excess(one + 1e-9, one)
        >>> round(log.item() * 1e9, 6), round(excess.item() * 1e18, 6)
        (1.0, 0.5)
    """
    x = (numerator - denominator) / denominator
    near = (x > -0.5) & (x < 1)
    inner = torch.where(near, x, 0.0)
    w = inner / (2 + inner)
    square = w * w
    series = torch.zeros_like(w)
    for coefficient in reversed(ARTANH_EXCESS):
        series = (series + coefficient) * square
    log = numerator.log() - denominator.log()
    return torch.where(near, 2 * w * (1 + series), log), torch.where(near, w * (inner - 2 * series), x - log)


def expm1_excess_over(x: Float[Tensor, "..."]) -> Float[Tensor, "..."]:
    r"""χ(x)/x² = (eˣ − 1 − x)/x², smooth at 0.

    .. math:: \int_0^1 (1-s)\,e^{sx}\,ds = e^x \int_0^1 s\,e^{-sx}\,ds

    Args:
        x: argument, float64.

    Returns:
        The shape of ``x``; ½ at 0.

    Example:
        >>> expm1_excess_over(torch.tensor([0.0, 1.0]))
        tensor([0.5000, 0.7183])
    """
    grows = x > 0
    up, down = torch.where(grows, x, 0.0), torch.where(grows, 0.0, x)
    return torch.where(grows, torch.exp(up) * mean_u_exp(-up), expm1_over(down) - mean_u_exp(down))


def tsallis_rate(y: Float[Tensor, "..."], gap: float | Tensor) -> Float[Tensor, "..."]:
    r"""log_{2−α}(eʸ)/α = (e^{εy} − 1)/(αε): Ω_α of the Rényi negentropy y, and what a density eʸ adds to its mean.

    Args:
        y: argument, float64.
        gap: ε = α − 1, finite.

    Returns:
        The broadcast shape; +∞ with zero gradient where it overflows.

    Example:
        >>> tsallis_rate(torch.tensor([0.0, 1.0, 1e4]).double(), 1.0)
        tensor([0.0000, 0.8591,    inf], dtype=torch.float64)
    """
    over = gap * y > EXPONENT_MAX
    inner = torch.where(over, 0.0, y)
    return torch.where(over, torch.inf, inner * expm1_over(gap * inner) / (1 + gap))


def not_negative(x: Float[Tensor, "..."]) -> Float[Tensor, "..."]:
    """What is known not to be negative, without its rounding below zero; the gradient is that of ``x``.

    Example:
        >>> not_negative(torch.tensor([-1e-9, 2.0]))
        tensor([0., 2.])
    """
    return x - x.detach().clamp(max=0)
