"""Expectations by the kernels for the GPU against scipy: its laws under other names, integrated by its quadrature."""

import math

import numpy as np
import pytest
import torch
from scipy import integrate, special, stats

import contmax
from contmax.basis import GaussianBasis
from contmax.densities import BetaGaussian

pytestmark = pytest.mark.usefixtures("triton_takes_cpu_tensors")


def scipy_law(loc, scale, alpha):
    """The same density as a symmetric beta, normal or Student law; widths follow from a total mass of one."""
    if alpha == 1:
        return stats.norm(loc, scale)
    k = abs(1 / (alpha - 1))
    if alpha > 1:
        half = ((2 * k * scale**2) ** k / special.beta(0.5, k + 1)) ** (1 / (2 * k + 1))
        return stats.beta(k + 1, k + 1, loc - half, 2 * half)
    constant = math.exp(special.gammaln(k) - special.gammaln(k - 0.5)) / math.sqrt(math.pi)
    peak = (constant / (scale * math.sqrt(2 * k))) ** (1 / (1 - 0.5 / k))
    df = 2 * k - 1
    return stats.t(df, loc, constant / peak / math.sqrt(df))


def integrated(law, centre, width):
    def function(t):
        return law.pdf(t) * stats.norm.pdf(t, centre, width)

    low, high = max(law.support()[0], centre - 9 * width), min(law.support()[1], centre + 9 * width)
    cuts = [p for p in (law.mean(), centre) if low < p < high]
    return integrate.quad(function, low, high, points=cuts or None, epsabs=1e-11, limit=200)[0] if low < high else 0.0


@pytest.mark.parametrize("learned", [False, True])
def test_every_index_is_that_of_scipy(learned):
    centre, width = [0.1, 0.5, 0.9], [0.05, 0.2, 0.6]
    basis = GaussianBasis(centre, width)
    loc, scale, alphas = [0.4, 0.55, 0.2, 0.5], [0.1, 0.3, 0.2, 0.05], [0.6, 1.0, 1.4, 2.5]
    if learned:
        r = contmax.expectation(BetaGaussian(torch.tensor(loc), torch.tensor(scale), torch.tensor(alphas)), basis)
    else:
        numbers = zip(loc, scale, alphas, strict=True)
        r = torch.stack([contmax.expectation(BetaGaussian(*density), basis) for density in numbers])
    expected = [
        [integrated(scipy_law(*density), m, w) for m, w in zip(centre, width, strict=True)]
        for density in zip(loc, scale, alphas, strict=True)
    ]
    np.testing.assert_allclose(r, expected, rtol=1e-5, atol=1e-6)
