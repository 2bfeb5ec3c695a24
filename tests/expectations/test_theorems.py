"""What the paper proves, as tests: the Jacobian is a generalised covariance, on the line and on finite sets."""

import numpy as np
import pytest
import torch

import contmax
from contmax.basis import GaussianBasis
from contmax.densities import BetaGaussian

F64 = torch.float64


def generalised_covariance(p, alpha, phi, psi, weights):
    """∫ p^{2−α} (φ − ∇A)ψ over the support, ∇A the mean of φ under the escort: p (n,), φ (n, M), ψ (n, K) → (M, K)."""
    escort = weights * torch.where(p > 0, p.clamp(min=torch.finfo(p.dtype).tiny) ** (2 - alpha), 0)
    mean = (escort[:, None] * phi).sum(0) / escort.sum()
    return (escort[:, None] * (phi - mean)).mT @ psi


@pytest.mark.parametrize("alpha", [1.0, 1.25, 4 / 3, 1.5, 2.0])
def test_jacobian_on_the_line(alpha):
    density = BetaGaussian(torch.tensor(0.4, dtype=F64), torch.tensor(0.15, dtype=F64), alpha)
    basis = GaussianBasis.linspace(5, scale=0.2).double()
    reach = density.half_width if alpha > 1 else 10 * density.scale
    nodes, weights = map(torch.from_numpy, np.polynomial.legendre.leggauss(400))
    t, weights = density.loc + reach * nodes, reach * weights
    expected = generalised_covariance(density.density(t), alpha, torch.stack([t, t * t], -1), basis(t), weights)
    torch.testing.assert_close(
        torch.stack(contmax.expectations.canonical_jacobian(density, basis)), expected, rtol=1e-8, atol=1e-10
    )


@pytest.mark.parametrize("alpha", [1.0, 1.3, 1.5, 2.0, 2.5])
def test_jacobian_on_a_finite_set(alpha):
    generator = torch.Generator().manual_seed(0)
    phi, psi = (torch.randn(12, n, dtype=F64, generator=generator) for n in (3, 4))
    theta = torch.randn(3, dtype=F64, generator=generator)

    def expectation(theta):
        return contmax.entmax(phi @ theta, alpha) @ psi

    p = contmax.entmax(phi @ theta, alpha)
    assert alpha <= 1 or (p == 0).any()
    expected = generalised_covariance(p, alpha, phi, psi, torch.ones(12, dtype=F64))
    torch.testing.assert_close(torch.func.jacrev(expectation)(theta).mT, expected, rtol=1e-8, atol=1e-9)


@pytest.mark.parametrize("alpha", [1.0, 1.5, 2.0])
def test_unit_vectors_as_features_are_discrete_attention(alpha):
    """φ(k) = ψ(k) = e_k on S = {1, …, n}: the expectation is p itself, the context Σ p_k h_k."""
    scores = torch.linspace(-1, 2, 6, dtype=F64)
    values = torch.arange(12, dtype=F64).reshape(6, 2)
    domain = contmax.domains.Nodes(torch.arange(6, dtype=F64), torch.ones(6, dtype=F64))
    density = contmax.regularized_prediction(scores, domain, alpha)
    cells = contmax.basis.RectangularBasis(torch.arange(7, dtype=F64) - 0.5)
    p = contmax.expectation(density, cells)
    torch.testing.assert_close(p, contmax.entmax(scores, alpha))
    signal = contmax.Signal(cells, coefficients=values)
    torch.testing.assert_close(signal.expectation(density), contmax.entmax(scores, alpha) @ values)


def test_expectations_are_continuous_at_the_gaussian():
    basis = GaussianBasis.linspace(5, scale=0.2).double()
    loc, scale = torch.tensor(0.4, dtype=F64), torch.tensor(0.15, dtype=F64)
    at_one = contmax.expectation(BetaGaussian(loc, scale, 1.0), basis)
    for gap in (1e-3, 1e-5, 1e-7):
        for alpha in (1 - gap, 1 + gap):
            near = contmax.expectation(BetaGaussian(loc, scale, alpha), basis)
            assert (near - at_one).abs().max() <= 5 * gap
