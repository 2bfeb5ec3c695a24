r"""Ratios of gamma functions that stay accurate, and smooth, where the β-Gaussian becomes the Gaussian.

With ε = α − 1 and k = 1/ε the normaliser of a β-Gaussian in N dimensions needs

.. math:: G_N(\varepsilon) = \ln\Gamma(k+1+\tfrac N2) - \ln\Gamma(k+1) - \tfrac N2 \ln k   \qquad (\varepsilon > 0)

and, for ε < 0 with κ = −k, :math:`\ln\Gamma(\kappa) - \ln\Gamma(\kappa-\tfrac N2) - \tfrac N2\ln\kappa`. Together
they are one smooth function with G(0) = 0. Subtracting log-gammas would lose digits for large k. Instead, each whole
step Γ(x+1) = xΓ(x) adds a logarithm, and the half step left in odd dimensions is a short series in a shifted argument.
"""

import math
from collections.abc import Callable
from typing import Any, TypeVar

import torch
from torch import Tensor

Scalar = TypeVar("Scalar", bound=float | Tensor)

# ln Γ(w+¾)/Γ(w+¼) = ½ ln w + Σ cⱼ w⁻²ʲ with cⱼ = (−1)ʲ⁺¹ |E₂ⱼ| / (j 4²ʲ⁺¹), E the Euler numbers. With the argument
# shifted up by 8, the first term left out is below 2e-16.
_SHIFT = 8
_EULER = (1, 5, 61, 1385, 50521, 2702765, 199360981)
_HALF_STEP = tuple((-1) ** j * euler / ((j + 1) * 4 ** (2 * j + 3)) for j, euler in enumerate(_EULER))


def log_gamma_ratio(gap: Scalar, dim: int) -> Scalar:
    """G_N(ε) for a finite ε = α − 1 > −2/N, a number or a float64 tensor; differentiable to any order, through ε = 0.

    Example:
        >>> log_gamma_ratio(1.0, dim=2) == math.log(2)
        True
    """
    start: Any = _half_step(gap) if dim % 2 else gap * 0.0
    value: Scalar = start + sum([_log1p(step * gap) for step in _whole_steps(dim)])
    return value


def log_gamma_ratio_slope(gap: Scalar, dim: int) -> Scalar:
    r"""Derivative of :func:`log_gamma_ratio`, :math:`G_N' = k[\tfrac N2 - k(\psi(k+1+\tfrac N2) - \psi(k+1))]`.

    Example:
        >>> log_gamma_ratio_slope(0.0, dim=2)
        1.0
    """
    start: Any = _half_step_slope(gap) if dim % 2 else gap * 0.0
    slope: Scalar = start + sum([step / (1 + step * gap) for step in _whole_steps(dim)])
    return slope


def _whole_steps(dim: int) -> list[float]:
    """The steps j with Γ(k+1+N/2)/Γ(k+1) = ∏(k+j) for even N, and Γ(k+1+N/2)/Γ(k+3/2) = ∏(k+j) for odd N."""
    return [step + dim % 2 / 2 for step in range(1, dim // 2 + 1)]


def _half_step(gap: Any) -> Any:
    """G₁(ε): the series, with |1/ε| shifted up by 8 away from the poles of Γ, minus a logarithm for each unit shift."""
    sign = _sign(gap)
    size = sign * gap
    offset = _SHIFT + 0.75 * sign
    inverse = size / (1 + offset * size)
    square = inverse * inverse
    value = square * 0.0
    for coefficient in reversed(_HALF_STEP):
        value = (value + coefficient) * square
    value = value + 0.5 * _log1p(offset * size)
    return value - sign * _over_the_shift(
        lambda j, sign, size: _log1p(0.5 * sign * size / (1 + (j - (1 - sign) / 2) * size)), sign, size
    )


def _half_step_slope(gap: Any) -> Any:
    """dG₁/dε, the derivative of each term of :func:`_half_step`."""
    sign = _sign(gap)
    size = sign * gap
    offset = _SHIFT + 0.75 * sign
    scale = 1 / (1 + offset * size)
    inverse = size * scale
    square = inverse * inverse
    series = square * 0.0
    for j, coefficient in reversed(list(enumerate(_HALF_STEP, 1))):
        series = series * square + 2 * j * coefficient
    slope = series * inverse * scale * scale + 0.5 * offset * scale
    return sign * slope - sign * _over_the_shift(
        lambda j, sign, size: 0.5 / ((1 + (j - (1 - sign) / 2) * size) * (1 + (j + sign - 0.5) * size)), sign, size
    )


def _over_the_shift(term: Callable[..., Any], sign: Any, size: Any) -> Any:
    """Σⱼ term(j, sign, size) over the steps j = 1 … 8 of the shift; vectorised over j for tensors."""
    if not isinstance(size, Tensor):
        return sum(term(j, sign, size) for j in range(1, _SHIFT + 1))
    steps = torch.arange(1, _SHIFT + 1, dtype=size.dtype, device=size.device)
    return term(steps, sign.unsqueeze(-1), size.unsqueeze(-1)).sum(-1)


def _log1p(x: Any) -> Any:
    return torch.log1p(x) if isinstance(x, Tensor) else math.log1p(x)


def _sign(x: Any) -> Any:
    """The sign of x, but +1 at zero, where |x| = sign·x then has the derivative 1."""
    if isinstance(x, Tensor):
        return torch.where(x < 0, -1.0, 1.0).to(x.dtype)
    return -1.0 if x < 0 else 1.0
