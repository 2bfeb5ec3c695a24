"""Expectations of basis functions under predictions."""

import pytest
import torch
from torch.autograd import gradcheck

import contmax
from contmax.basis import GaussianBasis
from predicted_domains import F64, KNOTS, LINE, LINES, NODES, PLANE, predict


@pytest.mark.parametrize("alpha", [1.0, 1.5, 2.0, 3.0])
@pytest.mark.parametrize("domain", LINES, ids=lambda d: type(d).__name__)
def test_expectations_of_a_basis(domain, alpha):
    # Includes a basis function far narrower than the density, and a score with several peaks.
    basis = GaussianBasis(
        torch.tensor([-1.2, 0.0, 0.55, 0.6], dtype=F64), torch.tensor([0.3, 1.0, 0.1, 0.01], dtype=F64)
    )
    p = predict(domain, alpha)
    found = contmax.expectation(p, basis)
    assert found.shape == (2, 4)
    # The oracle: tanh–sinh between the ends of the support, the knots and a fine grid.
    step = torch.linspace(-3.6, 3.6, 61, dtype=F64)
    bend = torch.pi / 2 * step.sinh()
    share, weight = torch.sigmoid(2 * bend), 0.12 * torch.pi / 4 * step.cosh() / bend.cosh().square()
    for row in range(2):
        cells = p.support.cells[row]
        cuts = torch.cat([cells[~cells.isnan()], KNOTS.points, torch.linspace(-2, 2, 401, dtype=F64)]).unique()
        t = (cuts[:-1, None] + cuts.diff()[:, None] * share).flatten()
        mass = (cuts.diff()[:, None] * weight).flatten() * p.density(t[:, None].expand(-1, 2))[:, row]
        torch.testing.assert_close(found[row], mass @ basis(t), rtol=1e-8, atol=1e-9)


def test_expectations_of_a_basis_are_differentiable_and_cover_other_domains():
    basis = GaussianBasis(torch.tensor([0.0, 0.5], dtype=F64), torch.tensor([0.5, 0.02], dtype=F64))

    def of(domain):
        return lambda theta: contmax.expectation(
            contmax.regularized_prediction(lambda t: theta * t - t.square(), domain, 2.0), basis
        )

    theta = torch.tensor(0.4, dtype=F64, requires_grad=True)
    for domain in (LINE, KNOTS, NODES):
        assert gradcheck(of(domain), (theta,), rtol=1e-5, atol=1e-6)
    p = predict(NODES, 1.5)
    torch.testing.assert_close(contmax.expectation(p, basis), p.probabilities @ basis(NODES.points))
    plane = contmax.basis.MultivariateGaussianBasis(torch.zeros(1, 2, dtype=F64), 0.3 * torch.eye(2, dtype=F64)[None])
    q = predict(PLANE, 2.0)
    torch.testing.assert_close(contmax.expectation(q, plane), q.expectation(plane))
