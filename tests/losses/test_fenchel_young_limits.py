"""Where losses are infinite, the limit of index infinity, and targets that bring their own rule."""

import math

import numpy as np
import pytest
import torch
from torch.distributions import Cauchy, Distribution, Gumbel, Laplace, Normal, Pareto, StudentT, Uniform

from contmax.densities import BetaGaussian, MultivariateBetaGaussian, Triangular
from contmax.losses import fenchel_young

F64 = torch.float64


def t(*values):
    return torch.tensor(values if len(values) > 1 else values[0], dtype=F64)


@pytest.mark.parametrize("alpha", [0.8, 1.0, 2.0, math.inf])
def test_infinite_covariance_is_an_infinite_loss_with_zero_gradient(alpha):
    loc, scale = t(0.1, 0.1).requires_grad_(), t(0.5, 0.5).requires_grad_()
    freedom, width = t(1.5, 5.0).requires_grad_(), t(0.6, 0.6).requires_grad_()
    prediction = BetaGaussian(loc, scale, alpha)
    losses = fenchel_young(prediction, StudentT(freedom, t(0.0), 3 * width))
    assert losses.isinf().tolist() == [True, False]
    for gradient in torch.autograd.grad(losses.sum(), (loc, scale, freedom, width), allow_unused=True):
        assert gradient is None or (gradient.isfinite().all() and gradient[0] == 0)
    for target in (Cauchy(t(0.0, 0.0), 3 * width), Pareto(8 * width, t(1.5, 3.5))):
        losses = fenchel_young(prediction, target)
        assert losses[0] == math.inf
        assert losses[1].isinf() == isinstance(target, Cauchy)
        gradients = torch.autograd.grad(losses.sum(), (loc, scale, width), allow_unused=True)
        assert all(gradient is None or gradient.isfinite().all() for gradient in gradients)


def test_a_linear_score_needs_a_mean_only():
    loc, scale, width = t(0.1).requires_grad_(), t(0.5).requires_grad_(), t(0.5).requires_grad_()
    prediction = Triangular(loc, scale)
    assert fenchel_young(prediction, StudentT(t(1.5), t(0.0), width)).isfinite()
    for target in (StudentT(t(1.0), t(0.0), width), Cauchy(t(0.0), width)):
        loss = fenchel_young(prediction, target)
        assert loss == math.inf
        assert all(gradient == 0 for gradient in torch.autograd.grad(loss, (loc, scale, width)))


def test_index_infinity_admits_densities_up_to_one():
    prediction = BetaGaussian(t(0.0), t(1.0), math.inf)
    assert fenchel_young(prediction, BetaGaussian(t(0.0), t(3.0), math.inf)) == 0
    torch.testing.assert_close(fenchel_young(prediction, Uniform(t(-1.0), t(1.0))), t(1 / 6 - 1 / 24))
    for narrow in (Uniform(t(0.0), t(0.9)), Normal(t(0.0), t(0.3)), Laplace(t(0.0), t(0.4)), Gumbel(t(0.0), t(0.3))):
        assert fenchel_young(prediction, narrow) == math.inf
    for wide in (Normal(t(0.0), t(0.5)), Laplace(t(0.0), t(0.6)), Gumbel(t(0.0), t(0.5))):
        expected = prediction.conjugate() + 0.5 * (wide.variance + wide.mean.square())
        torch.testing.assert_close(fenchel_young(prediction, wide), expected, rtol=1e-9, atol=1e-12)
    # Two ellipsoids of volume one: the shape counts, the size does not.
    axes = MultivariateBetaGaussian(t(0.0, 0.0), scale_diag=t(1.0, 2.0), alpha=math.inf)
    larger = MultivariateBetaGaussian(t(0.0, 0.0), scale_diag=t(3.0, 6.0), alpha=math.inf)
    round_one = MultivariateBetaGaussian(t(0.0, 0.0), scale_diag=t(1.0, 1.0), alpha=math.inf)
    torch.testing.assert_close(fenchel_young(axes, larger), t(0.0), atol=1e-15, rtol=0)
    mean_score = 0.5 * (round_one.variance / t(1.0, 4.0)).sum()
    torch.testing.assert_close(fenchel_young(axes, round_one), axes.conjugate() + mean_score)


class OnNodes(Distribution):
    """A uniform density that averages by Gauss's rule, as predictions of arbitrary scores do by theirs."""

    support = torch.distributions.constraints.real

    def __init__(self, low, high):
        super().__init__(low.shape, validate_args=False)
        self.low, self.high = low, high

    def expand(self, batch_shape, _instance=None):
        return OnNodes(self.low.expand(batch_shape), self.high.expand(batch_shape))

    def log_prob(self, value):
        return Uniform(self.low, self.high, validate_args=False).log_prob(value)

    def expectation(self, function):
        nodes, weights = np.polynomial.legendre.leggauss(6)
        shares = torch.from_numpy(0.5 * (1 + nodes))
        points = self.low.unsqueeze(-1) + shares * (self.high - self.low).unsqueeze(-1)
        return (torch.from_numpy(weights / 2) * function(points)).sum(-1)


def test_targets_that_average_by_a_rule_of_their_own():
    target = OnNodes(t(-1.0), t(2.0))
    prediction = BetaGaussian(t(0.1, 0.7), t(0.5, 0.9), 1.5)
    torch.testing.assert_close(fenchel_young(prediction, target), fenchel_young(prediction, Uniform(t(-1.0), t(2.0))))
    with pytest.raises(NotImplementedError, match="kink"):
        fenchel_young(Triangular(t(0.1), t(0.5)), target)
