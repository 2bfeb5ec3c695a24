"""Draws: their derivatives, their shapes, and what they cost to differentiate near the Gaussian."""

import math

import pytest
import torch
from density_families import SEVERAL
from draw_shares import shares
from scipy.stats import kstest
from torch.distributions import Categorical

from contmax.densities import BetaGaussian, Empirical, Mixture, MultivariateBetaGaussian, TruncatedParabola

D = torch.float64


@pytest.mark.parametrize("dim", [1, 2, 3])
def test_derivative_of_draws_in_alpha(dim):
    """d/dα E‖t‖² from draws is d/dα tr Cov; the derivative of a single draw does not explode at α = 1."""
    torch.manual_seed(0)
    alpha = torch.tensor([0.9, 0.9999, 1.0, 1.0001, 1.3, 3.0], dtype=D, requires_grad=True)
    p = MultivariateBetaGaussian(torch.zeros(dim, dtype=D), 0.5 * torch.eye(dim, dtype=D), alpha)
    squares = p.rsample((3_000,)).square().sum(-1)
    (expected,) = torch.autograd.grad(p.variance.sum(), alpha)
    (got,) = torch.autograd.grad(squares.mean(0).sum(), alpha)
    torch.testing.assert_close(got, expected, rtol=0.1, atol=0)
    jacobian = torch.autograd.grad(p.rsample((50,)).square().sum(), alpha)[0] / 50
    assert jacobian.abs().max() < 100


def test_derivative_of_draws_in_alpha_on_the_line():
    torch.manual_seed(0)
    alpha = torch.tensor([0.9, 1.0, 1.0001, 1.5], dtype=D, requires_grad=True)
    p = BetaGaussian(torch.zeros(4, dtype=D), torch.ones(4, dtype=D), alpha)
    (got,) = torch.autograd.grad(p.rsample((8_000,)).square().mean(0).sum(), alpha)
    (expected,) = torch.autograd.grad(p.variance.sum(), alpha)
    torch.testing.assert_close(got, expected, rtol=0.1, atol=0)


def test_each_draw_keeps_its_share_of_the_mass():
    """The implicit derivative: along α, the mass inside the radius of a draw does not change."""
    torch.manual_seed(0)
    alpha = torch.tensor([0.8, 1.0, 1.4, 2.5], dtype=D, requires_grad=True)
    p = MultivariateBetaGaussian(torch.zeros(2, dtype=D), torch.eye(2, dtype=D), alpha)
    draws = p.rsample((3,))
    share = p.radial_cdf(p.mahalanobis_sq(draws).sqrt())
    (grad,) = torch.autograd.grad(share.sum(), alpha)
    torch.testing.assert_close(grad, torch.zeros_like(grad), rtol=0, atol=1e-9)


def test_derivative_of_draws_of_a_mixture():
    torch.manual_seed(0)
    logits = torch.tensor([0.1, 0.5], dtype=D, requires_grad=True)

    def build() -> Mixture:
        loc, scale = torch.tensor([0.0, 1.0], dtype=D), torch.tensor([1.0, 0.5], dtype=D)
        return Mixture(Categorical(logits=logits), TruncatedParabola(loc, scale))

    (got,) = torch.autograd.grad(build().rsample((50_000,)).square().mean(), logits)
    p = build()
    (expected,) = torch.autograd.grad(p.variance + p.mean**2, logits)
    torch.testing.assert_close(got, expected, rtol=0.05, atol=0)


@pytest.mark.parametrize("family", SEVERAL, ids=str)
def test_each_coordinate_follows_its_marginal_law(family):
    """A coordinate of a β-Gaussian in N dimensions is one on the line: k → k + (N−1)/2, with the same variance.

    Kolmogorov–Smirnov on 4·10⁴ draws; with fresh seeds a correct sampler fails with probability 1e-3.
    """
    torch.manual_seed(0)
    joint = family.make()
    p = joint.component_distribution if isinstance(joint, Mixture) else joint
    dim, alpha = p.event_shape[0], torch.as_tensor(p.alpha, dtype=D).expand(p.batch_shape)
    # 1/(k + s) without 0·∞: k = 1/(α−1).
    index = 1 + 1 / (1 / (alpha - 1) + (dim - 1) / 2)
    marginal = BetaGaussian.from_moments(p.mean[..., -1], p.variance[..., -1], index)
    if isinstance(joint, Mixture):
        marginal = Mixture(joint.mixture_distribution, marginal)
    draws = joint.sample((40_000 // max(1, joint.batch_shape.numel()),))[..., -1]
    assert kstest(shares(marginal.cdf, draws), "uniform").pvalue > 1e-3


def test_same_seed_same_draws():
    p = MultivariateBetaGaussian(torch.zeros(3), torch.eye(3), 1.7)
    torch.manual_seed(3)
    first = p.sample((10,))
    torch.manual_seed(3)
    assert torch.equal(first, p.sample((10,)))


def test_draws_of_float32_follow_alpha_in_float64():
    p = BetaGaussian(torch.zeros(2), torch.ones(2), torch.tensor([1.5, 0.8], dtype=D))
    assert p.sample((3,)).dtype == torch.float32
    assert p.log_prob(torch.zeros(2)).dtype == torch.float32


def test_autocast_does_not_round_draws():
    p = MultivariateBetaGaussian(torch.zeros(2), torch.eye(2) + 0.2, math.inf)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        draws = p.sample((1000,))
    assert draws.dtype == torch.float32
    assert p.support.check(draws).all()
    assert len(torch.unique(draws)) > 1900, "bfloat16 has 256 values between two powers of two"


@pytest.mark.parametrize("count", [1, 2])
def test_second_derivative_of_draws_of_a_mixture(count):
    """A draw is the quantile of its own share, with the same derivatives; those of a shift end with the first."""
    parameters = {
        "logits": torch.tensor([0.1, 0.5], dtype=D)[:count],
        "loc": torch.tensor([0.0, 1.0], dtype=D)[:count],
        "scale": torch.tensor([1.0, 0.5], dtype=D)[:count],
    }

    def build(logits, loc, scale) -> Mixture:
        return Mixture(Categorical(logits=logits, validate_args=False), TruncatedParabola(loc, scale))

    torch.manual_seed(0)
    share = build(**parameters).cdf(build(**parameters).sample((4,)))

    def draws(*values):
        torch.manual_seed(0)
        return build(*values).rsample((4,)).sum()

    def quantiles(*values):
        return build(*values).icdf(share).sum()

    values = tuple(parameters.values())
    got = _hessian(draws, values)
    for mine, other in zip(got, _hessian(quantiles, values), strict=True):
        torch.testing.assert_close(mine, other, rtol=1e-8, atol=1e-9)
    if count == 1:
        assert got[4].abs().max() < 1e-12, "d²t/dμ² of one component"


def _hessian(function, values):
    """Second derivatives of a number in every pair of tensors, row by row."""
    leaves = [value.clone().requires_grad_() for value in values]
    first = torch.autograd.grad(function(*leaves), leaves, create_graph=True)
    blocks = []
    for grad in first:
        rows = [torch.autograd.grad(entry, leaves, retain_graph=True) for entry in grad]
        blocks += [torch.stack(block) for block in zip(*rows, strict=True)]
    return blocks


@pytest.mark.parametrize("alpha", [0.7, 1.0, 1.4, 2.5])
def test_second_derivative_of_draws_in_alpha(alpha):
    """d²t/dα² at a fixed share of the mass, as the quantile has it."""
    # An index for each draw: one derivative of their sum is that of all of them.
    index = torch.full((5,), alpha, dtype=D, requires_grad=True)
    p = BetaGaussian(torch.tensor(0.3, dtype=D), torch.tensor(0.8, dtype=D), index)
    draws = p.rsample()
    quantiles = p.icdf(p.cdf(draws).detach())
    slope, wanted = (torch.autograd.grad(each.sum(), index, create_graph=True)[0] for each in (draws, quantiles))
    torch.testing.assert_close(slope, wanted, rtol=1e-8, atol=1e-10)
    bend, wanted = (torch.autograd.grad(each.sum(), index)[0] for each in (slope, wanted))
    torch.testing.assert_close(bend, wanted, rtol=1e-7, atol=1e-9)


def test_no_draws_at_all():
    p = Mixture(Categorical(torch.ones(2)), TruncatedParabola(torch.zeros(2), 1.0))
    assert p.rsample((0,)).shape == p.sample((0,)).shape == (0,)
    empty = Mixture(Categorical(torch.ones(2)), TruncatedParabola(torch.zeros(0, 2), 1.0))
    assert empty.sample((3,)).shape == (3, 0)
    assert Empirical(torch.zeros(4, 2)).sample((2, 0)).shape == (2, 0, 2)
