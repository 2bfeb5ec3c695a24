"""Fits to samples: of any kind of numbers, with the index too, and what is said where there is nothing to fit."""

import numpy as np
import pytest
import torch

import contmax
from contmax.densities import (
    BetaGaussian,
    Empirical,
    MultivariateBetaGaussian,
    Triangular,
    TruncatedParabola,
    TruncatedParaboloid,
)
from contmax.losses import fenchel_young
from fresh import Program, run_each

F64 = torch.float64
LINE = [BetaGaussian, TruncatedParabola, Triangular]


@pytest.mark.parametrize("kind", LINE)
@pytest.mark.parametrize("dtype", [np.float64, np.float32])
def test_numpy_arrays_and_lists_are_samples(kind, dtype):
    numbers = np.random.default_rng(0).normal(3.0, 2.0, size=(50, 2)).astype(dtype)
    fitted, peer = kind.fit(numbers), kind.fit(torch.from_numpy(numbers))
    assert fitted.loc.dtype == peer.loc.dtype == torch.from_numpy(numbers).dtype
    assert torch.equal(fitted.loc, peer.loc)
    assert torch.equal(fitted.scale, peer.scale)
    assert torch.equal(kind.fit([1, 2, 4]).loc, kind.fit(torch.tensor([1.0, 2.0, 4.0])).loc)
    assert torch.equal(kind.fit(torch.tensor([1, 2, 4])).scale, kind.fit([1.0, 2.0, 4.0]).scale)


def test_numpy_arrays_in_space():
    points = np.random.default_rng(0).normal(size=(50, 2))
    for kind in (MultivariateBetaGaussian, TruncatedParaboloid):
        torch.testing.assert_close(kind.fit(points).loc, torch.from_numpy(points.mean(0)))


@pytest.mark.parametrize("kind", LINE)
@pytest.mark.parametrize(
    "samples",
    [
        torch.full((7,), 0.1),
        torch.full((1000,), 0.1, dtype=torch.float16),
        torch.tensor([[1.0, 3.0], [2.0, 3.0]]),
        torch.tensor([4.0]),
        [5, 5, 5],
    ],
)
def test_samples_that_are_all_equal(kind, samples):
    with pytest.raises(ValueError, match=r"samples must differ from each other; got \d+ .*from_support") as raised:
        kind.fit(samples)
    assert "\n" not in str(raised.value)


@pytest.mark.parametrize("kind", LINE)
def test_samples_that_are_no_samples(kind):
    for samples, says in (
        (torch.tensor([]), "observations along their first dimension"),
        (torch.tensor([1.0, float("nan"), 2.0]), "samples must be finite"),
        (torch.tensor([1.0, float("inf"), 2.0]), "samples must be finite"),
    ):
        with pytest.raises(ValueError, match=says):
            kind.fit(samples)


def test_samples_may_lie_outside_of_the_support_and_the_documentation_says_so():
    samples = torch.cat([torch.zeros(98), torch.tensor([-10.0, 10.0])])
    fitted = TruncatedParabola.fit(samples)
    assert fitted.log_prob(samples).min() == -torch.inf
    for kind in (BetaGaussian, TruncatedParabola, Triangular):
        assert "outside" in " ".join(kind.fit.__doc__.split())


@pytest.mark.parametrize("alpha", [0.85, 1.0, 1.2, 1.5, 2.0, 3.0])
def test_the_index_is_found(alpha):
    torch.manual_seed(0)
    true = BetaGaussian(torch.tensor([1.0, -2.0], dtype=F64), torch.tensor([0.5, 3.0], dtype=F64), alpha)
    fitted = BetaGaussian.fit(true.sample((400_000,)), alpha=None)
    assert fitted.alpha.shape == (2,)
    torch.testing.assert_close(fitted.alpha, torch.full((2,), alpha, dtype=F64), rtol=0.1, atol=0)
    torch.testing.assert_close(fitted.variance, true.variance, rtol=0.02, atol=0)


def test_the_index_is_that_of_four_moments():
    """Of the quantiles of a law, the kurtosis is that of the law."""
    samples = torch.tensor([-2.0, -1.0, 0.0, 1.0, 2.0], dtype=F64)
    fitted = BetaGaussian.fit(samples, alpha=None)
    kurtosis = 34 / 5 / 4  # Σ t⁴/n over (Σ t²/n)²
    assert kurtosis < 1.8
    assert 2 < fitted.alpha < 200
    weights = torch.tensor([1.0, 4.0, 6.0, 4.0, 1.0], dtype=F64)
    repeated = torch.repeat_interleave(samples, weights.long())
    mine, other = (BetaGaussian.fit(*x, alpha=None) if len(x) == 1 else BetaGaussian.fit(x[0], None, weights=x[1])
                   for x in ((repeated,), (samples, weights)))  # fmt: skip
    torch.testing.assert_close(mine.alpha, other.alpha)
    draws = mine.sample((200_000,))
    centred = repeated - repeated.mean()
    expected = centred.pow(4).mean() / centred.square().mean().square()
    found = (draws - draws.mean()).pow(4).mean() / draws.var().square()
    torch.testing.assert_close(found, expected, rtol=0.03, atol=0)


def test_the_index_is_differentiable_and_truncated_parabolas_have_none():
    samples = torch.randn(50, dtype=F64, requires_grad=True)
    BetaGaussian.fit(samples, alpha=None).alpha.backward()
    assert samples.grad.isfinite().all()
    with pytest.raises(ValueError, match="alpha is 2 for this density"):
        TruncatedParabola.fit(samples, alpha=None)


def test_the_interface_of_scipy_fits_the_index_too():
    data = np.random.default_rng(0).normal(size=5000)
    loc, scale, alpha = contmax.densities.stats.beta_gaussian.fit(data, alpha=None)
    assert abs(alpha - 1) < 0.1
    assert abs(loc) < 0.1
    assert abs(contmax.densities.stats.beta_gaussian.std(loc=loc, scale=scale, alpha=alpha) - 1) < 0.05


def test_the_interface_of_scipy_needs_no_import_of_its_own_and_is_loaded_when_it_is_used():
    source = """
        import sys, contmax
        contmax.densities.BetaGaussian
        assert "contmax.densities.stats" not in sys.modules
        assert contmax.densities.stats.triangular.pdf(0.0) == 1.0
        assert "stats" in dir(contmax.densities)
        try:
            contmax.densities.nothing
        except AttributeError as error:
            print(error)
    """
    import textwrap

    [done] = run_each([Program("stats", textwrap.dedent(source))])
    assert done.code == 0, done.complaint
    assert done.printed == "module 'contmax.densities' has no attribute 'nothing'\n"


def test_a_triangular_density_has_the_deviation_from_the_median_of_skewed_samples():
    samples = torch.tensor([0.0, 1.0, 2.0, 10.0, 30.0], dtype=torch.float64)
    fitted = Triangular.fit(samples)
    assert fitted.loc == 2
    torch.testing.assert_close(fitted.scale, torch.tensor(9 * (39 / 5) ** 2, dtype=torch.float64))
    target = Empirical(samples)
    best = fenchel_young(fitted, target)
    for loc, factor in ((2.1, 1.0), (1.9, 1.0), (2.0, 1.02), (2.0, 0.98)):
        other = Triangular(torch.tensor(loc, dtype=torch.float64), factor * fitted.scale)
        assert fenchel_young(other, target) > best
