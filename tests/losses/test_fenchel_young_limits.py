"""Where losses are infinite, the limit of index infinity, and targets that bring their own rule."""

import math

import pytest
import torch
from torch.distributions import Beta, Categorical, Cauchy, Gamma, Gumbel, Laplace, Normal, Pareto, StudentT, Uniform

from contmax.densities import BetaGaussian, Mixture, MultivariateBetaGaussian, Triangular, TruncatedParabola
from contmax.domains import Box, Interval
from contmax.losses import fenchel_young
from contmax.prediction import regularized_prediction

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


def test_densities_that_grow_without_bound_at_an_end():
    # p ~ x⁻ˢ: ∫p^α is finite for s < 1/α only. Gamma(½): s = ½; ∫p^{3/2} = Γ(¼)(2/3)^{1/4}/Γ(½)^{3/2}.
    shape = t(0.5).requires_grad_()
    for target in (Gamma(shape, t(1.0)), Beta(shape, t(0.7)), Beta(t(0.7), shape)):
        for prediction in (Triangular(t(0.1), t(0.5)), BetaGaussian(t(0.1), t(0.5), 2.5), BetaGaussian(t(0.1), t(0.5))):
            loss = fenchel_young(prediction, target)
            assert loss == math.inf
            assert torch.autograd.grad(loss, shape)[0] == 0
    prediction = BetaGaussian(t(0.1), t(0.5), 1.5)
    power = math.gamma(0.25) * (2 / 3) ** 0.25 / math.gamma(0.5) ** 1.5
    expected = prediction.conjugate() + (power - 1) / 0.75 + (0.5 + 0.4**2) / 0.5
    torch.testing.assert_close(fenchel_young(prediction, Gamma(t(0.5), t(1.0))), expected, rtol=1e-4, atol=0)


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


def test_predictions_of_arbitrary_scores_as_targets():
    interval, box = Interval(t(-4.0), t(4.0)), Box(t(-4.0, -4.0), t(4.0, 4.0))
    target = regularized_prediction(lambda x: -(x**2) / 0.98, interval, 1.5)
    loc = t(0.1, 0.7).requires_grad_()
    for alpha in (1.0, 1.5, 2.0):
        prediction = BetaGaussian(loc, t(0.5, 0.9), alpha)
        got, expected = (fenchel_young(prediction, p) for p in (target, BetaGaussian(t(0.0), t(0.7), 1.5)))
        torch.testing.assert_close(got, expected, rtol=1e-9, atol=1e-11)
        gradients = (torch.autograd.grad(loss.sum(), loc) for loss in (got, expected))
        torch.testing.assert_close(*gradients, rtol=1e-9, atol=1e-11)
    plane = MultivariateBetaGaussian(t(0.1, 0.0), scale_diag=t(0.7, 0.7))
    target = regularized_prediction(lambda x: -x.square().sum(-1) / 0.98, box)
    closed = MultivariateBetaGaussian(t(0.0, 0.0), scale_diag=t(0.7, 0.7))
    torch.testing.assert_close(fenchel_young(plane, target), fenchel_young(plane, closed), rtol=1e-4, atol=1e-6)
    kinked = Triangular(t(0.1), t(0.5))
    target = regularized_prediction(lambda x: -(x**2) / 0.98, interval, 1.5)
    got, expected = (fenchel_young(kinked, p) for p in (target, BetaGaussian(t(0.0), t(0.7), 1.5)))
    torch.testing.assert_close(got, expected, rtol=1e-9, atol=1e-11)


@pytest.mark.parametrize("alpha", [8.0, 40.0])
@pytest.mark.parametrize("width", [0.02, 0.5, 100.0])
def test_targets_unlike_any_member_of_the_family(alpha, width):
    # Uniform on [0, w]: ∫p^α = w^{1−α}. With large α the member of the same variance is far narrower, or wider.
    prediction, target = BetaGaussian(t(0.0), t(1.0), alpha), Uniform(t(0.0), t(width))
    negentropy = (width ** (1 - alpha) - 1) / (alpha * (alpha - 1))
    expected = prediction.conjugate() + negentropy + width**2 / 6
    torch.testing.assert_close(fenchel_young(prediction, target), expected, rtol=1e-11, atol=0)
    tensors = fenchel_young(BetaGaussian(t(0.0), t(1.0), t(alpha)), target)
    torch.testing.assert_close(tensors, expected, rtol=1e-11, atol=0)


def test_mixture_targets_fit_a_single_density_by_their_moments():
    target = Mixture(Categorical(t(0.3, 0.7)), TruncatedParabola(t(-1.0, 0.5), t(0.2, 0.4)))
    matched = TruncatedParabola.from_moments(target.mean, target.variance)
    loc, scale = matched.loc.clone().requires_grad_(), matched.scale.clone().requires_grad_()
    for gradient in torch.autograd.grad(fenchel_young(TruncatedParabola(loc, scale), target), (loc, scale)):
        assert gradient.abs() < 1e-10
