"""Samples with weights as a density: moments, distribution function and quantiles."""

import math

import pytest
import torch

from contmax.densities import Empirical

D = torch.float64


def scalar(value: float) -> torch.Tensor:
    return torch.tensor(value, dtype=D)


def test_empirical():
    samples = torch.tensor([[3.0, 1.0], [0.0, 2.0], [1.0, 5.0]], dtype=D)
    p = Empirical(samples)
    torch.testing.assert_close(p.mean, samples.mean(0))
    torch.testing.assert_close(p.covariance_matrix, torch.cov(samples.T, correction=0))
    torch.testing.assert_close(p.variance, samples.var(0, correction=0))
    assert p.event_shape == (2,)
    assert p.sample((5,)).shape == (5, 2)
    line = Empirical(samples[:, 0], weights=torch.tensor([1.0, 2.0, 1.0]))
    torch.testing.assert_close(
        line.cdf(torch.tensor([-1.0, 0.0, 1.5, 3.0])), torch.tensor([0.0, 0.5, 0.75, 1.0]).double()
    )
    assert line.icdf(torch.tensor([0.0, 0.5, 0.51, 0.75, 1.0])).tolist() == [0.0, 0.0, 1.0, 1.0, 3.0]
    batch = Empirical(torch.randn(4, 50, dtype=D), event_dim=0)
    assert batch.batch_shape == (4,)
    assert batch.expand((3, 4)).sample((2,)).shape == (2, 3, 4)
    with pytest.raises(NotImplementedError):
        p.log_prob(samples)
    with pytest.raises(NotImplementedError):
        p.rsample()
    draws = line.sample((20_000,))
    assert abs(float(draws.mean() - line.mean)) < 0.05


@pytest.mark.parametrize("dtype", [torch.float32, D], ids=str)
def test_empirical_quantiles_invert_the_distribution_function(dtype):
    """Each sample is the quantile of its own cdf; the quantile of q reaches q, and nothing below it does."""
    for seed in range(20):
        generator = torch.Generator().manual_seed(seed)
        samples = torch.randn(3, 60, generator=generator, dtype=dtype)
        p = Empirical(samples, weights=torch.rand(3, 60, generator=generator, dtype=dtype) ** 4 + 1e-6, event_dim=0)
        t = samples.mT
        assert torch.equal(p.icdf(p.cdf(t)), t)
        q = torch.rand(40, 3, generator=generator, dtype=dtype)
        slack = 8 * torch.finfo(dtype).eps
        reached = p.cdf(p.icdf(q))
        assert (reached >= q - slack).all()
        before = torch.nextafter(p.icdf(q), torch.tensor(-math.inf, dtype=dtype))
        assert (p.cdf(before) < q).all()
    tenths = Empirical(torch.arange(10, dtype=dtype))
    assert tenths.icdf(torch.arange(1, 11, dtype=dtype) / 10).tolist() == list(range(10))
    many = Empirical(torch.arange(3_000_000, dtype=dtype))
    t = torch.tensor([1e6, 2_000_001.0, 2_999_998.0], dtype=dtype)
    assert torch.equal(many.icdf(many.cdf(t)), t)


def test_nan_points_stay_nan():
    p = Empirical(torch.tensor([1.0, 2.0, 3.0]))
    assert p.cdf(torch.tensor([math.nan, 2.5])).isnan().tolist() == [True, False]
    assert p.icdf(torch.tensor([math.nan, 0.5])).isnan().tolist() == [True, False]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("count", [3, 7, 10, 20, 49])
def test_round_shares_are_reached_by_the_sample_that_reaches_them(count, dtype):
    """Eight weights of 0.1 add up to less than 0.8: the quantile of 0.8 is the eighth sample all the same."""
    samples = torch.arange(count, dtype=dtype)
    shares = torch.arange(1, count + 1, dtype=dtype) / count
    assert torch.equal(Empirical(samples).icdf(shares), samples)
    between = shares - 0.5 / count
    assert torch.equal(Empirical(samples).icdf(between), samples)
