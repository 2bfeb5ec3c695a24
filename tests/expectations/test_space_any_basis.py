"""Bases that no rule knows, in two and three dimensions, under every kind of density."""

import math

import pytest
import torch
from torch.distributions import Categorical, Dirichlet, Independent, Laplace, MultivariateNormal, Uniform

import contmax
from contmax.basis import Basis, MultivariateGaussianBasis
from contmax.densities import Mixture, MultivariateBetaGaussian

F64 = torch.float64


class Hidden(Basis):
    """A Gaussian basis under another name, and a product of cosines."""

    def __init__(self, inner):
        super().__init__()
        self.inner = inner
        self.num_functions, self.event_dim = inner.num_functions + 1, inner.event_dim

    def forward(self, t):
        return torch.cat([self.inner(t), t.cos().prod(-1, keepdim=True)], -1)


def family(dim, share):
    """Functions whose width is a share of the standard deviation of the density along its narrowest axis."""
    matrix = 0.04 * torch.eye(dim, dtype=F64) + 0.02
    loc = torch.linspace(0.2, 0.6, dim, dtype=F64)
    centres = loc + torch.tensor([0.0, 0.1, -0.2], dtype=F64)[:, None]
    return (
        loc,
        matrix,
        lambda deviation: MultivariateGaussianBasis(centres, (share * deviation) ** 2 * torch.eye(dim, dtype=F64)),
    )


@pytest.mark.parametrize("dim", [2, 3])
@pytest.mark.parametrize("alpha", [0.9, 1.0, 1.5, 2.0, 3.0, math.inf, "tensor"])
@pytest.mark.parametrize(("share", "tolerance"), [(1.0, 1e-9), (0.5, 1e-5)])
def test_beta_gaussians(alpha, dim, share, tolerance):
    loc, matrix, build = family(dim, share)
    index = torch.tensor(1.7, dtype=F64) if alpha == "tensor" else alpha
    density = MultivariateBetaGaussian(loc, matrix, index)
    inner = build(torch.linalg.eigvalsh(density.covariance_matrix)[0].sqrt())
    r = contmax.expectation(density, Hidden(inner))
    truth = contmax.expectation(density, inner)
    assert r.shape == (4,)
    torch.testing.assert_close(r[:3], truth, rtol=0, atol=tolerance * truth.max().item())


def test_normal_in_closed_form():
    """E[Π cos t_n] of independent normals is Π cos μ_n exp(−σ_n²/2)."""
    loc, scale = torch.tensor([0.2, 0.5], dtype=F64), torch.tensor([0.3, 0.7], dtype=F64)
    density = MultivariateNormal(loc, torch.diag(scale**2))
    expected = (loc.cos() * torch.exp(-(scale**2) / 2)).prod()
    r = contmax.expectation(density.expand((5,)), Hidden(MultivariateGaussianBasis.grid(2, 0.5).double()))
    torch.testing.assert_close(r[:, -1], expected.expand(5), rtol=1e-10, atol=0)


@pytest.mark.parametrize("dim", [2, 3])
def test_boxes_mixtures_and_tails(dim):
    inner = MultivariateGaussianBasis.grid(2, 0.4, dim=dim).double()
    basis = Hidden(inner)
    box = Independent(Uniform(torch.zeros(dim, dtype=F64), torch.ones(dim, dtype=F64)), 1)
    sines = math.sin(1.0) ** dim
    assert contmax.expectation(box, basis)[-1].item() == pytest.approx(sines, rel=1e-9)
    torch.testing.assert_close(contmax.expectation(box, basis)[:-1], contmax.expectation(box, inner), rtol=1e-6, atol=0)
    parts = MultivariateBetaGaussian(torch.rand(2, dim, dtype=F64), 0.01 * torch.eye(dim, dtype=F64), 1.5)
    both = Mixture(Categorical(torch.tensor([0.3, 0.7], dtype=F64)), parts)
    torch.testing.assert_close(
        contmax.expectation(both, basis)[:-1], contmax.expectation(both, inner), rtol=1e-6, atol=0
    )
    sharp = Independent(Laplace(torch.full((dim,), 0.4, dtype=F64), 0.3), 1)
    truth = (math.cos(0.4) / (1 + 0.3**2)) ** dim
    assert contmax.expectation(sharp, basis)[-1].item() == pytest.approx(truth, rel=1e-4)


def test_gradients_reach_every_parameter():
    loc = torch.tensor([0.2, 0.4], dtype=F64, requires_grad=True)
    tril = (0.2 * torch.eye(2, dtype=F64)).requires_grad_()
    alpha = torch.tensor(1.6, dtype=F64, requires_grad=True)
    inner = MultivariateGaussianBasis.grid(2, 0.4).double()

    def r(basis):
        density = MultivariateBetaGaussian(loc, scale_tril=tril, alpha=alpha)
        return torch.autograd.grad(contmax.expectation(density, basis)[:4].sum(), (loc, tril, alpha))

    torch.testing.assert_close(r(Hidden(inner)), r(inner), rtol=1e-7, atol=1e-9)


def test_four_dimensions_say_what_to_do():
    density = Dirichlet(torch.ones(4, dtype=F64))
    with pytest.raises(NotImplementedError, match="register_expectation"):
        contmax.expectation(density, Hidden(MultivariateGaussianBasis.grid(2, 0.4, dim=4).double()))


class Waves(Basis):
    """Cosines along the axes, without a matrix product of their own."""

    num_functions, event_dim = 2, 2

    def forward(self, t):
        return (3 * t).cos()


def test_autocast_changes_nothing():
    density = MultivariateBetaGaussian(torch.tensor([0.31, 0.62]), 0.05 * torch.eye(2), 1.5)
    gaussians = MultivariateGaussianBasis.grid(2, 0.4)
    plain = contmax.expectation(density, Waves()), *contmax.expectations.canonical_jacobian(density, gaussians)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        cast = contmax.expectation(density, Waves()), *contmax.expectations.canonical_jacobian(density, gaussians)
    torch.testing.assert_close(cast, plain, rtol=1e-6, atol=1e-6)
