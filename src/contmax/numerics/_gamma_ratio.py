r"""Ratios of gamma functions that stay accurate, and smooth, where the β-Gaussian becomes the Gaussian.

With ε = α − 1 and k = 1/ε the normaliser of a β-Gaussian in N dimensions needs

.. math:: G_N(\varepsilon) = \ln\Gamma(k+1+\tfrac N2) - \ln\Gamma(k+1) - \tfrac N2 \ln k   \qquad (\varepsilon > 0)

and, for ε < 0 with κ = −k, :math:`\ln\Gamma(\kappa) - \ln\Gamma(\kappa-\tfrac N2) - \tfrac N2\ln\kappa`. Both are
one smooth function with G(0) = 0. Subtracting two log-gammas would lose k·ln k roundings. Here nothing is subtracted:
whole steps of Γ give logarithms, and the half step left over in odd N is a short series after a shift of its argument.
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
    """What is added to k in the factors of Γ(k+1+N/2)/Γ(k+1), or of Γ(k+1+N/2)/Γ(k+3/2) in odd dimensions."""
    return [step + dim % 2 / 2 for step in range(1, dim // 2 + 1)]


def _half_step(gap: Any) -> Any:
    """G₁(ε). The side of zero decides in which direction the argument of Γ is shifted, always away from its poles."""
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
    """dG₁/dε, term by term."""
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
    """The sum of a term over the steps of the shift: of a tensor in a dimension of its own, a few operations."""
    if not isinstance(size, Tensor):
        return sum(term(j, sign, size) for j in range(1, _SHIFT + 1))
    steps = torch.arange(1, _SHIFT + 1, dtype=size.dtype, device=size.device)
    return term(steps, sign.unsqueeze(-1), size.unsqueeze(-1)).sum(-1)


def _log1p(x: Any) -> Any:
    return torch.log1p(x) if isinstance(x, Tensor) else math.log1p(x)


def _sign(x: Any) -> Any:
    """±1, and +1 at zero, so that the derivative of |x| at zero is the one-sided derivative of a smooth branch."""
    if isinstance(x, Tensor):
        return torch.where(x < 0, -1.0, 1.0).to(x.dtype)
    return -1.0 if x < 0 else 1.0
