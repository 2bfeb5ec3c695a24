"""When a divergence is infinite, and when it is not implemented."""

import math

import pytest
import torch
from torch.distributions import Categorical, Laplace, Normal, Uniform, kl_divergence

from contmax.densities import (
    BetaGaussian,
    Mixture,
    MultivariateBetaGaussian,
    Triangular,
    TruncatedParabola,
    TruncatedParaboloid,
)


def test_infinite_unless_nested():
    inner = TruncatedParabola.from_support(torch.tensor([-1.0, -1.0, 0.5]), torch.tensor([1.0, 1.0, 1.5]))
    outer = BetaGaussian.from_support(torch.tensor([-2.0, -0.9, -1.0]), torch.tensor([1.5, 2.0, 1.0]), 1.5)
    assert torch.isfinite(kl_divergence(inner, outer)).tolist() == [True, False, False]
    assert kl_divergence(Normal(0.0, 1.0), TruncatedParabola(0.0, 1.0)) == math.inf
    assert kl_divergence(BetaGaussian(0.0, 1.0, 0.8), TruncatedParabola(0.0, 1.0)) == math.inf
    assert torch.isfinite(kl_divergence(TruncatedParabola(0.0, 1.0), Laplace(0.0, 1.0)))


def test_infinite_divergence_has_no_nan_gradient():
    loc = torch.tensor([0.0, 5.0], dtype=torch.float64, requires_grad=True)
    divergence = kl_divergence(TruncatedParabola(loc, 1.0), TruncatedParabola(0.0, 2.0))
    assert divergence[1] == math.inf
    (grad,) = torch.autograd.grad(divergence.sum(), loc)
    assert torch.isfinite(grad).all()


def test_equal_supports_count_as_nested():
    """Nested up to rounding: the escort of a density has the same support."""
    for alpha in (1.3, 1.5, 1.8):
        p = BetaGaussian(torch.tensor(0.3), torch.tensor(0.7), alpha)
        q = p.escort(2 - alpha)
        assert torch.isfinite(kl_divergence(p, q))
        assert torch.isfinite(kl_divergence(q, p))


def test_float32_keeps_supports_apart_far_from_zero():
    """Half-widths of 0.1 and 0.006 at 8·10⁵, where float32 has steps of 0.06; and a ratio of scales of 10⁻⁵."""
    loc = torch.tensor(-795936.8125)
    wide, narrow = TruncatedParabola(loc, 0.028), TruncatedParabola(loc, 0.00036)
    assert kl_divergence(wide, narrow) == math.inf
    exact = kl_divergence(
        TruncatedParabola(torch.tensor(0.0).double(), 0.00036), TruncatedParabola(torch.tensor(0.0).double(), 0.028)
    )
    torch.testing.assert_close(kl_divergence(narrow, wide).double(), exact, rtol=1e-4, atol=0)
    scale = torch.tensor([0.06, 12000.0], requires_grad=True)
    divergence = kl_divergence(BetaGaussian(0.0, scale[0], 1.0), BetaGaussian(0.0, scale[1], 1.0))
    torch.testing.assert_close(divergence, torch.tensor(math.log(12000 / 0.06) - 0.5))
    assert torch.autograd.grad(divergence, scale)[0].isfinite().all()


def test_uniform_against_a_parabola():
    """E_u[ln p] in closed form: −KL = ln(width) + ∫ ln(¾(1−t²))/2 over [−1, 1] = ln 2 + ln ¾ + 2 ln 2 − 2."""
    p = TruncatedParabola.from_support(torch.tensor(-1.0).double(), torch.tensor(1.0).double())
    u = Uniform(torch.tensor(-1.0).double(), torch.tensor(1.0).double())
    expected = -math.log(2) - math.log(0.75) - 2 * math.log(2) + 2
    assert float(kl_divergence(u, p)) == pytest.approx(expected, abs=1e-9)
    assert float(kl_divergence(p, Uniform(-1.0, 0.5))) == math.inf


def test_mixtures():
    weights = Categorical(torch.tensor([0.4, 0.6]).double())
    p = Mixture(weights, Triangular(torch.tensor([0.0, 3.0]).double(), torch.tensor([1.0, 0.5]).double()))
    q = Mixture(weights, BetaGaussian(torch.tensor([0.0, 3.0]).double(), torch.tensor([1.0, 0.5]).double(), 1.0))
    draws = p.sample((400_000,))
    sampled = p.log_prob(draws) - q.log_prob(draws)
    assert abs(float(kl_divergence(p, q) - sampled.mean())) < 5 * float(sampled.std()) / math.sqrt(len(draws))
    assert kl_divergence(q, p) == math.inf


def test_several_dimensions():
    zero, one = torch.zeros(2), torch.ones(2)
    small = TruncatedParaboloid.from_support(zero, torch.eye(2))
    large = TruncatedParaboloid.from_support(zero, 4 * torch.eye(2))
    moved = TruncatedParaboloid.from_support(one, 4 * torch.eye(2))
    with pytest.raises(NotImplementedError, match="nested"):
        kl_divergence(small, large)
    assert kl_divergence(large, small) == math.inf
    assert kl_divergence(small, moved) == math.inf, "the far corner of the unit disk is 1 + √2 away"
    assert kl_divergence(MultivariateBetaGaussian(zero, torch.eye(2), 1.0), large) == math.inf
    partly_unbounded = MultivariateBetaGaussian(3 * one, torch.eye(2), torch.tensor([0.9, 1.6]))
    assert kl_divergence(partly_unbounded, large).tolist() == [math.inf, math.inf]
    with pytest.raises(NotImplementedError, match="nested"):
        kl_divergence(small, TruncatedParaboloid.from_support(0.5 * one, 4 * torch.eye(2)))
    # A batch of one nested and one that leaves: no number is right for both.
    shapes = torch.stack((torch.eye(2), 9 * torch.eye(2)))
    with pytest.raises(NotImplementedError, match="nested"):
        kl_divergence(TruncatedParaboloid.from_support(zero, shapes), large)
    leaving = TruncatedParaboloid.from_support(zero, 5 * shapes)
    assert kl_divergence(leaving, large).tolist() == [math.inf, math.inf]
    with pytest.raises(ValueError, match="dimension"):
        kl_divergence(small, TruncatedParaboloid.from_support(torch.zeros(3), torch.eye(3)))
