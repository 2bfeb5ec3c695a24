r"""Negentropies of families of densities with unit covariance, and functions that keep the digits of small differences.

The loss of an elliptical prediction needs :math:`\Omega_\alpha(p)` of its target, which follows from the Rényi
negentropy :math:`y = \ln(\int p^\alpha)/(\alpha-1)`. Rescaling p changes y only by −½ ln|Cov|. The rest of y,

.. math:: \eta_\alpha(p) = \frac{\ln\int p^\alpha}{\alpha-1} + \tfrac12\ln|\operatorname{Cov}_p|,

depends on the shape of p only, is a sum over independent coordinates, and is smooth in the order ε = α − 1 through 0,
where it is the Shannon negentropy. ε is a float, ∞ included, or a float64 tensor.
"""

import math
from typing import Any

import numpy as np
import torch
from torch import Tensor

from contmax._typing import Float
from contmax.deformed import expm1_over, log1p_over, mean_u_exp
from contmax.numerics import float64_of, log_gamma_ratio, log_gamma_ratio_slope

Number = float | Tensor

#: eˣ counts as infinite for larger x, because derivatives multiply eˣ by further factors.
EXPONENT_MAX = 600.0
#: A density counts as bounded by 1 if its logarithm, which may be rounded, is at most this.
HEIGHT_SLACK = 1e-6
_LOG_2PI = math.log(2 * math.pi)
# For |ε| below this, the quotient in `beta_gaussian` loses digits: average a derivative over eight Gauss nodes instead.
_ORDER_NEAR = 0.02
_GAUSS = tuple((0.5 + 0.5 * float(x), 0.5 * float(w)) for x, w in zip(*np.polynomial.legendre.leggauss(8), strict=True))

UNIFORM = -0.5 * math.log(12.0)


def order_of(alpha: float | Tensor) -> Number:
    """ε = α − 1."""
    return alpha.double() - 1 if isinstance(alpha, Tensor) else alpha - 1


def is_infinite(order: Number) -> bool:
    """Whether ε is the float ∞; tensors are finite."""
    return not isinstance(order, Tensor) and math.isinf(order)


def triangular(order: Number) -> Number:
    """η of a triangular density, which at half-width a has ∫p^α = 2a^{1−α}/(α+1)."""
    return -0.5 * math.log(6.0) - 0.5 * _log1p_over(0.5 * order)


def laplace(order: Number) -> Number:
    """η of a Laplace density, which at scale b has ∫p^α = (2b)^{1−α}/α."""
    return -0.5 * math.log(2.0) - _log1p_over(order)


def beta_gaussian(gap: Number, order: Number, dim: int) -> Number:
    r"""η of the β-Gaussian of index 1 + ε′ in N dimensions; G is `log_gamma_ratio`.

    .. math:: \eta = G(\varepsilon') - s\ln 2\pi - s\ln(1+(s+1)\varepsilon')
              + \frac{G(\varepsilon') - G(\frac{\varepsilon'}{1+\varepsilon}) - s\ln(1+\varepsilon)}{\varepsilon}

    Args:
        gap: ε′, the index of the density less one; ∞ for the uniform density on an ellipsoid.
        order: ε.
        dim: N = 2s.

    Returns:
        A number for two numbers, else a tensor.
    """
    half = dim / 2
    if is_infinite(gap):
        return math.lgamma(1 + half) - half * math.log(math.pi * (dim + 2))
    ratio = log_gamma_ratio(gap, dim)
    if is_infinite(order):
        quotient: Number = 0.0
    elif isinstance(gap, Tensor) or isinstance(order, Tensor):
        like = next(x for x in (gap, order) if isinstance(x, Tensor))
        wide: tuple[Tensor, ...] = torch.broadcast_tensors(float64_of(gap, like), float64_of(order, like))
        gap, order = wide
        near = order.abs() < _ORDER_NEAR
        slope = _mean_slope(gap, torch.where(near, order, 0.0), dim)
        quotient = torch.where(near, slope, _secant(ratio, gap, torch.where(near, 1.0, order), dim))
    else:
        quotient = _mean_slope(gap, order, dim) if abs(order) < _ORDER_NEAR else _secant(ratio, gap, order, dim)
    return ratio - half * (_LOG_2PI + _log1p((half + 1) * gap)) + quotient


def _secant(ratio: Number, gap: Number, order: Number, dim: int) -> Number:
    """The fraction in :func:`beta_gaussian`; `ratio` is G(ε′)."""
    return (ratio - log_gamma_ratio(gap / (1 + order), dim) - dim / 2 * _log1p(order)) / order


def _mean_slope(gap: Number, order: Number, dim: int) -> Number:
    """The fraction in :func:`beta_gaussian` for small ε: the mean of its numerator's derivative over [0, ε]."""
    if isinstance(order, Tensor):
        rates: Any = _slope(gap, torch.stack([1 + x * order for x, _ in _GAUSS]), dim)
    else:
        rates = [_slope(gap, 1 + x * order, dim) for x, _ in _GAUSS]
    return sum((weight * rate for (_, weight), rate in zip(_GAUSS, rates, strict=True)), 0.0 * gap)


def _slope(gap: Number, step: Number, dim: int) -> Number:
    inner = gap / step
    return (log_gamma_ratio_slope(inner, dim) * inner - dim / 2) / step


def _log1p(x: Number) -> Number:
    return torch.log1p(x) if isinstance(x, Tensor) else math.log1p(x)


def _log1p_over(x: Number) -> Number:
    if isinstance(x, Tensor):
        return log1p_over(x)
    if math.isinf(x):
        return 0.0
    return math.log1p(x) / x if x else 1.0


def expm1_excess_over(x: Float[Tensor, "..."]) -> Float[Tensor, "..."]:
    r"""(eˣ − 1 − x)/x², smooth at 0: :math:`\int_0^1 (1-s)\,e^{sx}\,ds = e^x \int_0^1 s\,e^{-sx}\,ds`.

    Example:
        >>> expm1_excess_over(torch.tensor([0.0, 1.0]))
        tensor([0.5000, 0.7183])
    """
    grows = x > 0
    up, down = torch.where(grows, x, 0.0), torch.where(grows, 0.0, x)
    return torch.where(grows, torch.exp(up) * mean_u_exp(-up), expm1_over(down) - mean_u_exp(down))


def tsallis_rate(y: Float[Tensor, "..."], gap: float | Tensor) -> Float[Tensor, "..."]:
    """(e^{εy} − 1)/(αε) with ε = `gap`: Ω_α(p) for the Rényi negentropy y of p, and log_{2−α}(p)/α for y = ln p.

    Overflow gives +∞ with zero gradient. The rate is 0 for α = ∞.

    Example:
        >>> tsallis_rate(torch.tensor([0.0, 1.0, 1e4]).double(), 1.0)
        tensor([0.0000, 0.8591,    inf], dtype=torch.float64)
    """
    if is_infinite(gap):
        return torch.zeros_like(y)
    over = gap * y > EXPONENT_MAX
    inner = torch.where(over, 0.0, y)
    return torch.where(over, torch.inf, inner * expm1_over(gap * inner) / (1 + gap))


def not_negative(x: Float[Tensor, "..."]) -> Float[Tensor, "..."]:
    """``x`` with negative values, which are rounding errors, set to 0; the gradient is that of ``x``.

    Example:
        >>> not_negative(torch.tensor([-1e-9, 2.0]))
        tensor([0., 2.])
    """
    return x - x.detach().clamp(max=0)
