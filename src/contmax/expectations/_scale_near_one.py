r"""The law of the scale near α = 1, where it is so narrow that only its moments count.

With η = 1/ν the law of s has the moments, polynomials in η that are smooth through zero,

.. math:: E[(s-1)^{m+1}] = -\eta\,\big(m\,E[(s-1)^{m-1}] + (m+1)\,E[(s-1)^m]\big)

Against the Taylor series of N(s) about s = 1 they give the mean over s. The coefficients of the series are means of
N(s) over a circle about s = 1 (Cauchy's formula), so the whole is again a sum over nodes: fixed ones, whose weights are
polynomials in η. Nothing cancels, in the value or in any derivative, and at η = 0 it is N(1), the Gaussian.
"""

import math

import torch
from torch import Tensor

from contmax.expectations._matrix_form import MatrixForm
from contmax.expectations._plane_form import PlaneForm
from contmax.numerics import Complex

# Up to this |η| the moments left out, and the aliases of the coefficients, are below 1e-14 of the largest value.
NEAR_ONE = 4e-3
_MOMENTS, _NODES, _RADIUS = 16, 16, 0.3


def mean_near_one(form: PlaneForm | MatrixForm, eta: float | Tensor) -> Tensor:
    """The mean of N(μ; μ_j, Σ_j + V/s) over s, without the factor of the form.

    Args:
        form: the Gaussian as a function of s, in float64.
        eta: η = 1/ν, |η| ≤ NEAR_ONE, a number or a tensor that broadcasts to the pairs.

    Returns:
        One value for each pair, differentiable in the numbers of the form and in η.
    """
    like = form.pairs
    angle = (torch.arange(_NODES, dtype=like.dtype, device=like.device) + 0.5) * (math.pi / _NODES)
    angle = angle.view(_NODES, *(1,) * like.dim())
    nodes = Complex(1 + _RADIUS * angle.cos(), _RADIUS * angle.sin())
    real, imaginary = torch.zeros_like(angle), torch.zeros_like(angle)
    for m, moment in enumerate(_moments(eta)):
        # The lower half of the circle is in the weights.
        share = moment * (_RADIUS**-m / _NODES)
        real, imaginary = real + share * (m * angle).cos(), imaginary - share * (m * angle).sin()
    return form.integrate(nodes, Complex(real, imaginary), 0.0)


def _moments(eta: float | Tensor) -> list[float | Tensor]:
    """E[(s − 1)ᵐ] for m = 0, 1, …"""
    moments: list[float | Tensor] = [1.0, -eta]
    for m in range(1, _MOMENTS):
        moments.append(-eta * (m * moments[m - 1] + (m + 1) * moments[m]))
    return moments
