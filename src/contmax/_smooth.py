r"""Quotients such as log1p(y)/y, which are 0/0 where a deformed logarithm or exponential becomes the ordinary one.

A branch of ``torch.where`` gets a harmless argument wherever it is not selected. There the backward pass multiplies the
derivative of the branch by zero, and zero times NaN or ∞ would be NaN.
"""

import functools
import math
from typing import TypeVar

import torch
from torch import Tensor

from contmax._eager import carries_gradient, common_dtype, in_dtype, wide_dtype
from contmax._typing import Float

_Number = TypeVar("_Number", float, Tensor)

# Coefficients cₙ of artanh(w)/w − 1 ≈ Σ cₙ w²ⁿ, n ≥ 1, for |w| ≤ 1/3. This polynomial interpolates at Chebyshev nodes
# in w² and needs two thirds of the terms of the power series, whose coefficients are 1/(2n+1). _SINH_OVER and
# _SINH_OVER_SLOPE are power series: of sinh(x)/x = Σ x²ⁿ/(2n+1)! for |x| ≤ 1, and of its derivative in x². All three
# have enough terms for an error of the *second* derivative below one rounding in float64.
ARTANH_EXCESS = (
    0.3333333333333333,
    0.2,
    0.1428571428571441,
    0.11111111111086394,
    0.09090909093440278,
    0.07692307538354587,
    0.06666672661652989,
    0.05882197051336885,
    0.05265918906019942,
    0.04728581603605742,
    0.04615972136684124,
    0.026417061140686357,
    0.07469414242989923,
)
_ARTANH_OVER = (1.0, *ARTANH_EXCESS)
_SINH_OVER = tuple(1.0 / math.factorial(2 * n + 1) for n in range(10))
_SINH_OVER_SLOPE = tuple(n / math.factorial(2 * n + 1) for n in range(1, 11))


def log1p_over(y: Float[Tensor, "..."]) -> Float[Tensor, "..."]:
    r"""Building block: log1p(y)/y, smooth at 0.

    .. math:: \int_0^1 \frac{ds}{1+sy} = \frac{\ln(1+y)}{y}, \qquad \text{1 at } y = 0

    Args:
        y: argument, any shape; for y ≤ −1 the value is +∞, with zero derivative.

    Returns:
        A tensor of the shape of ``y``, accurate in value and in its first two derivatives.

    Example:
        >>> log1p_over(torch.tensor([-1.0, 0.0, 1.0]))
        tensor([   inf, 1.0000, 0.6931])

    References:
        :math:`\ln(1+y) = 2\operatorname{artanh}\frac{y}{2+y}`, Abramowitz & Stegun 4.1.27.
    """
    (y,), dtype = promote(0.0, y)
    if not carries_gradient(y):
        value = torch.where(y == 0, 1.0, torch.log1p(y.clamp(min=-1)) / y)
        return torch.where(y == math.inf, 0.0, value).to(dtype)
    below, infinite = y <= -1, y == math.inf
    near = near_log1p(y)
    far = torch.where(near | below | infinite, 1.0, y)
    value = torch.where(near, log1p_over_series(torch.where(near, y, 0.0)), torch.log1p(far) / far)
    return in_dtype(torch.where(below, math.inf, torch.where(infinite, 0.0, value)), dtype)


def expm1_over(y: Float[Tensor, "..."]) -> Float[Tensor, "..."]:
    r"""Building block: expm1(y)/y, smooth at 0.

    .. math:: \int_0^1 e^{sy}\,ds = \frac{e^y - 1}{y}, \qquad \text{1 at } y = 0

    Args:
        y: argument, any shape; where :math:`e^y` overflows the value is +∞, with zero derivative.

    Returns:
        A tensor of the shape of ``y``, accurate in value and in its first two derivatives.

    Example:
        >>> expm1_over(torch.tensor([-1.0, 0.0, 1.0]))
        tensor([0.6321, 1.0000, 1.7183])

    References:
        :math:`(e^y-1)/y = e^{y/2}\,\sinh(y/2)/(y/2)`.
    """
    (y,), dtype = promote(0.0, y)
    if not carries_gradient(y):
        value = torch.where(y == 0, 1.0, torch.expm1(y) / y)
        return torch.where(y > exponent_range(y.dtype)[1], math.inf, value).to(dtype)
    near, far, over = split_exp(y)
    # Use exp − 1, in which nothing cancels for |y| ≥ 2: torch's derivative of expm1, expm1(y) + 1, cancels for y < 0.
    value = torch.where(near, expm1_over_series(torch.where(near, y, 0.0)), (torch.exp(far) - 1) / far)
    return in_dtype(torch.where(over, math.inf, value), dtype)


def mean_u_exp(y: Float[Tensor, "..."]) -> Float[Tensor, "..."]:
    r"""Building block: the derivative of :func:`expm1_over`, smooth at 0.

    .. math:: \int_0^1 s\,e^{sy}\,ds = \frac{y e^y - e^y + 1}{y^2}, \qquad \tfrac12 \text{ at } y = 0

    Args:
        y: as for :func:`expm1_over`; the result has the shape of ``y``.

    Example:
        >>> mean_u_exp(torch.tensor([-1.0, 0.0, 1.0]))
        tensor([0.2642, 0.5000, 1.0000])

    References:
        Differentiate :math:`e^{y/2}\,\sinh(y/2)/(y/2)`.
    """
    (y,), dtype = promote(0.0, y)
    near, far, over = split_exp(y)
    half = torch.where(near, y, 0.0) / 2
    square = half * half
    series = torch.exp(half) * (polynomial(square, _SINH_OVER) / 2 + half * polynomial(square, _SINH_OVER_SLOPE))
    grown = torch.exp(far)
    value = torch.where(near, series, (grown - (grown - 1) / far) / far)
    return in_dtype(torch.where(over, math.inf, value), dtype)


def near_log1p(y: Tensor) -> Tensor:
    """Where log1p_over_series holds: |y/(2+y)| < 1/3."""
    return (y > -0.5) & (y < 1)


def log1p_over_series(y: Tensor) -> Tensor:
    """log1p(y)/y = (1 − w)·artanh(w)/w with w = y/(2+y), for |w| ≤ 1/3."""
    w = y / (2 + y)
    return (1 - w) * polynomial(w * w, _ARTANH_OVER)


def expm1_over_series(y: Tensor) -> Tensor:
    """expm1(y)/y = exp(y/2)·sinh(y/2)/(y/2), for |y| ≤ 2."""
    half = y / 2
    return torch.exp(half) * polynomial(half * half, _SINH_OVER)


def split_exp(y: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Where `expm1_over_series` holds; where exp(y) overflows (the last result); y elsewhere, a harmless −2 at both."""
    near, over = y.abs() < 2, y > exponent_range(y.dtype)[1]
    return near, torch.where(near | over, -2.0, y), over


def polynomial(x: _Number, coefficients: tuple[float, ...]) -> _Number:
    """Σ cₙ xⁿ of a number or a tensor, by Horner's rule."""
    value = x * coefficients[-1]
    for coefficient in coefficients[-2:0:-1]:
        value = (value + coefficient) * x
    return value + coefficients[0]


def exponent_range(dtype: torch.dtype) -> tuple[float, float]:
    """Bounds (low, high) of the arguments of exp: the result is 0 below low and finite up to high."""
    info = torch.finfo(dtype)
    return math.log(info.smallest_normal) + math.log(info.eps) - 1, math.log(info.max) * (1 - 4 * info.eps)


def promote(index: float | int | Tensor, *tensors: Tensor | None) -> tuple[tuple[Tensor, ...], torch.dtype]:
    """Tensors other than None, cast to at least float32; and the dtype of a result, promoted from them and `index`."""
    given = tuple(tensor for tensor in tensors if tensor is not None)
    if not given[0].is_floating_point():
        raise TypeError(f"expected a floating-point tensor; got {given[0].dtype}. Pass tensor.float().")
    # Promote as torch.result_type does, which tracers cannot follow: 0-dimensional tensors do not widen the others.
    others = (*given, index) if isinstance(index, Tensor) else given
    floating = [tensor for tensor in others if tensor.is_floating_point()]
    shaped = [tensor for tensor in floating if tensor.ndim > 0] or floating
    dtype = functools.reduce(common_dtype, [tensor.dtype for tensor in shaped])
    return tuple(in_dtype(tensor, wide_dtype(dtype)) for tensor in given), dtype
