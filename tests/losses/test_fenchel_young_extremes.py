"""Continuous Fenchel–Young losses at extreme scales and indices: no NaN, and no digits lost that are there."""

import math

import pytest
import torch
from torch.distributions import (
    Categorical,
    Independent,
    Laplace,
    LogNormal,
    MultivariateNormal,
    Normal,
    StudentT,
    TanhTransform,
    TransformedDistribution,
    Uniform,
)

from contmax.densities import BetaGaussian, Empirical, LocationScale, Mixture, MultivariateBetaGaussian, Triangular
from contmax.losses import fenchel_young

F64, F32 = torch.float64, torch.float32
NUMBERS = [0.34, 0.9, 1 - 1e-9, 1.0, 1 + 1e-12, 1 + 1e-7, 1.5, 2.0, 10.0, 1e3, 1e8, math.inf]
#: Below, at and above one in one batch.
MIXED = torch.tensor([0.34, 0.6, 1 - 1e-9, 1.0, 1 + 1e-9, 1.5, 2.0, 5.0, 1e3, 1e8], dtype=F64)
COUNT = 120


def t(*values):
    return torch.tensor(values if len(values) > 1 else values[0], dtype=F64)


def spread(dtype, decades, *shape):
    """Positive numbers over many powers of ten."""
    return (10 ** (decades * (2 * torch.rand(COUNT, *shape, dtype=F64) - 1))).to(dtype)


def sometimes(other, given, share=0.3):
    """Entries of one tensor, some of them exactly those of another."""
    chosen = torch.rand(COUNT).reshape(-1, *[1] * (given.ndim - 1)) < share
    return torch.where(chosen, given.detach(), other).requires_grad_()


def assert_no_nan(losses, parameters, not_negative=True):
    assert not losses.isnan().any()
    assert not not_negative or (losses >= 0).all()
    # Shy of the largest float32 a loss may be finite where its gradient is not.
    counted = losses[(losses < 1e30) | losses.isinf()].sum()
    gradients = torch.autograd.grad(counted, parameters, allow_unused=True)
    assert all(gradient is None or not gradient.isnan().any() for gradient in gradients)


@pytest.mark.parametrize("dtype", [F64, F32], ids=str)
@pytest.mark.parametrize("alpha", [*NUMBERS, "mixed"])
def test_no_nan_on_the_line(alpha, dtype):
    loc, scale = (torch.randn(COUNT) * spread(dtype, 8)).to(dtype).requires_grad_(), spread(dtype, 8).requires_grad_()
    loc_p = sometimes((torch.randn(COUNT) * spread(dtype, 8)).to(dtype), loc)
    scale_p = sometimes(spread(dtype, 8), scale)
    parameters = [loc, scale, loc_p, scale_p]

    def index():
        if alpha != "mixed":
            return alpha
        parameters.append(MIXED[torch.randint(len(MIXED), (COUNT,))].to(dtype).requires_grad_())
        return parameters[-1]

    prediction = BetaGaussian(loc, scale, index())
    for target in (
        BetaGaussian(loc_p, scale_p, index()),
        BetaGaussian(loc_p, scale_p, 2.0),
        BetaGaussian(loc_p, scale_p, math.inf),
        Normal(loc_p, scale_p),
        Laplace(loc_p, scale_p),
        Triangular(loc_p, scale_p),
        StudentT(t(2.0).to(dtype), loc_p, scale_p),
        StudentT(t(2.5).to(dtype), loc_p, scale_p),
        LocationScale(loc_p, scale_p, "cosh"),
    ):
        assert_no_nan(fenchel_young(prediction, target), parameters)
    for target in (loc_p, Empirical(torch.stack([loc_p, scale_p], -1), event_dim=0)):
        assert_no_nan(fenchel_young(prediction, target), parameters, not_negative=False)


@pytest.mark.parametrize("dtype", [F64, F32], ids=str)
@pytest.mark.parametrize("family", [Triangular, Laplace, "cosh", "quartic", "exp"], ids=str)
def test_no_nan_from_scores_with_a_kink(family, dtype):
    loc, scale = (torch.randn(COUNT) * spread(dtype, 8)).to(dtype).requires_grad_(), spread(dtype, 8).requires_grad_()
    loc_p = sometimes((torch.randn(COUNT) * spread(dtype, 8)).to(dtype), loc)
    scale_p = sometimes(spread(dtype, 8), scale)
    parameters = [loc, scale, loc_p, scale_p]
    prediction = LocationScale(loc, scale, family) if isinstance(family, str) else family(loc, scale)
    pair = Categorical(torch.ones(COUNT, 2, dtype=dtype))
    for target in (
        BetaGaussian(loc_p, scale_p, 0.5),
        BetaGaussian(loc_p, scale_p, 5.0),
        Normal(loc_p, scale_p),
        Triangular(loc_p, scale_p),
        LocationScale(loc_p, scale_p, "cosh"),
        Mixture(pair, Triangular(torch.stack([loc_p, 2 * loc_p], -1), torch.stack([scale_p, 2 * scale_p], -1))),
    ):
        assert_no_nan(fenchel_young(prediction, target), parameters)
    for target in (loc_p, Empirical(torch.stack([loc_p, scale_p], -1), event_dim=0)):
        assert_no_nan(fenchel_young(prediction, target), parameters, not_negative=False)


@pytest.mark.parametrize("dim", [1, 2, 6])
@pytest.mark.parametrize("alpha", [0.76, 1.0, 1 + 1e-9, 1.5, 2.0, 1e4, math.inf, "mixed"])
def test_no_nan_in_several_dimensions(dim, alpha):
    for dtype in (F64, F32):
        factors = [
            (torch.randn(COUNT, dim, dim).tril(-1) + torch.diag_embed(0.1 + torch.rand(COUNT, dim))).to(dtype)
            * spread(dtype, 8)[:, None, None]
            for _ in (0, 1)
        ]
        loc = (torch.randn(COUNT, dim) * spread(dtype, 8, 1)).to(dtype).requires_grad_()
        loc_p = sometimes((torch.randn(COUNT, dim) * spread(dtype, 8, 1)).to(dtype), loc)
        factor = factors[0].requires_grad_()
        factor_p = sometimes(factors[1], factor)
        parameters = [loc, factor, loc_p, factor_p]

        def index(parameters=parameters, dtype=dtype):
            if alpha != "mixed":
                return alpha
            parameters.append((0.76 + MIXED.log1p())[torch.randint(len(MIXED), (COUNT,))].to(dtype).requires_grad_())
            return parameters[-1]

        prediction = MultivariateBetaGaussian(loc, scale_tril=factor, alpha=index())
        for target in (
            MultivariateBetaGaussian(loc_p, scale_tril=factor_p, alpha=index()),
            MultivariateBetaGaussian(loc_p, scale_tril=factor_p, alpha=2.0),
            MultivariateNormal(loc_p, scale_tril=factor_p),
            Independent(Triangular(loc_p, factor_p.diagonal(dim1=-2, dim2=-1)), 1),
        ):
            assert_no_nan(fenchel_young(prediction, target), parameters)
        for target in (loc_p, Empirical(torch.stack([loc_p, 2 * loc_p, loc_p + 1], -2))):
            assert_no_nan(fenchel_young(prediction, target), parameters, not_negative=False)


def test_a_loss_that_overflows_is_infinite_with_zero_gradient():
    # ∫p^α of a uniform density of width w is w^{1−α}: 10^999 here; and 10^45, too much for float32 only.
    for alpha, width, dtype in ((1000.0, 0.1, F64), (10.0, 1e-5, F32)):
        low, high = (torch.tensor(end, dtype=dtype, requires_grad=True) for end in (0.0, width))
        for index in (alpha, torch.tensor(alpha, dtype=dtype, requires_grad=True)):
            parameters = [low, high] + ([index] if isinstance(index, torch.Tensor) else [])
            loss = fenchel_young(BetaGaussian(torch.zeros((), dtype=dtype), 1.0, index), Uniform(low, high))
            assert loss == math.inf
            assert all(gradient == 0 for gradient in torch.autograd.grad(loss, parameters))
    # sinh(3000) overflows; a sample of no weight does not count.
    loc = t(0.0).requires_grad_()
    prediction = LocationScale(loc, t(1.0), "cosh")
    for target in (t(3000.0), Empirical(t(0.0, 3000.0))):
        loss = fenchel_young(prediction, target)
        assert loss == math.inf
        assert torch.autograd.grad(loss, loc)[0] == 0
    weights = t(1.0, 0.0).requires_grad_()
    loss = fenchel_young(prediction, Empirical(t(0.2, 3000.0), weights))
    torch.testing.assert_close(loss, fenchel_young(prediction, t(0.2)))
    assert not torch.autograd.grad(loss, weights)[0].isnan().any()


def test_heavy_tails_between_a_density_and_a_kink_far_away():
    # E|t − μ| for a Student-t of three degrees of freedom: σ√3·2/π·(1 + (z/√3)·arctan(z/√3)), z = (μ − m)/σ.
    target = StudentT(t(3.0), t(0.0), t(1.0))
    for distance in (1.0, 30.0, 1e3, 1e5, 1e7):
        z = distance / math.sqrt(3)
        mean_distance = math.sqrt(3) * 2 / math.pi * (1 + z * math.atan(z))
        prediction = Triangular(t(distance), t(2.0))
        # ∫p² = Γ(2)²Γ(7/2) / (√(3π)·Γ(3/2)²·Γ(4)).
        square = math.gamma(3.5) / (math.sqrt(3 * math.pi) * math.gamma(1.5) ** 2 * math.gamma(4))
        expected = prediction.conjugate() + 0.5 * (square - 1) + mean_distance / 2
        torch.testing.assert_close(fenchel_young(prediction, target), expected, rtol=1e-11, atol=0)


def test_batches_of_transformed_densities():
    loc, scale = t(0.1, -1.0, 2.0), t(0.5, 1.0, 2.0)
    prediction = BetaGaussian(t(0.3), t(0.7), 1.0)
    target = LogNormal(loc, scale)
    second = target.variance + (target.mean - 0.3).square()
    expected = prediction.conjugate() - target.entropy() + second / (2 * 0.49)
    torch.testing.assert_close(fenchel_young(prediction, target), expected, rtol=1e-9, atol=0)
    squashed = TransformedDistribution(Normal(loc, scale), [TanhTransform()])
    each = [TransformedDistribution(Normal(m, s), [TanhTransform()]) for m, s in zip(loc, scale, strict=True)]
    prediction = Triangular(t(0.1), t(1.0))
    together = torch.stack([fenchel_young(prediction, one) for one in each])
    torch.testing.assert_close(fenchel_young(prediction, squashed), together)


def test_float32_targets_far_from_zero():
    # The ends of the support, 100 ± 0.001, have four digits of the width in float32.
    for target in (Triangular(torch.tensor(100.0), torch.tensor(1e-6)), BetaGaussian(torch.tensor(100.0), 1e-3, 5.0)):
        wide = type(target)(target.loc.double(), target.scale.double(), *([5.0] if target.alpha == 5 else []))
        prediction = LocationScale(torch.tensor(99.0), 1.0, "cosh")
        exact = fenchel_young(LocationScale(t(99.0), t(1.0), "cosh"), wide)
        torch.testing.assert_close(fenchel_young(prediction, target), exact.float(), rtol=1e-6, atol=0)
