"""The SciPy-flavoured view against scipy itself."""

import numpy as np
import pytest
from scipy import stats as scipy_stats

from contmax.densities import stats

X = np.linspace(-2.5, 4.0, 41)
Q = np.linspace(0.0, 1.0, 21)


def ends(frozen):
    return frozen.support()


PAIRS = {
    "gaussian": lambda: (stats.beta_gaussian(1.0, 0.7, alpha=1.0), scipy_stats.norm(1.0, 0.7)),
    "parabola": lambda: (
        (ours := stats.truncated_parabola(1.0, 0.7)),
        scipy_stats.beta(2, 2, ends(ours)[0], ends(ours)[1] - ends(ours)[0]),
    ),
    "biweight": lambda: (
        (ours := stats.beta_gaussian(1.0, 0.7, alpha=1.5)),
        scipy_stats.beta(3, 3, ends(ours)[0], ends(ours)[1] - ends(ours)[0]),
    ),
    "semicircle": lambda: (
        (ours := stats.beta_gaussian(1.0, 0.7, alpha=3.0)),
        scipy_stats.semicircular(1.0, (ends(ours)[1] - ends(ours)[0]) / 2),
    ),
    "triangular": lambda: (
        (ours := stats.triangular(1.0, 0.7)),
        scipy_stats.triang(0.5, ends(ours)[0], ends(ours)[1] - ends(ours)[0]),
    ),
}


@pytest.mark.parametrize("make", PAIRS.values(), ids=PAIRS)
def test_methods_agree_with_scipy(make):
    ours, theirs = make()
    for method in ("pdf", "cdf", "sf"):
        np.testing.assert_allclose(getattr(ours, method)(X), getattr(theirs, method)(X), rtol=1e-9, atol=1e-12)
    with np.errstate(divide="ignore"):
        np.testing.assert_allclose(ours.logpdf(X), theirs.logpdf(X), rtol=1e-8)
    for method in ("ppf", "isf"):
        np.testing.assert_allclose(getattr(ours, method)(Q), getattr(theirs, method)(Q), rtol=1e-9)
    for method in ("mean", "var", "std", "median", "entropy"):
        np.testing.assert_allclose(getattr(ours, method)(), getattr(theirs, method)(), rtol=1e-9)
    np.testing.assert_allclose(ours.interval(0.9), theirs.interval(0.9), rtol=1e-9)
    np.testing.assert_allclose(ours.stats("mv"), theirs.stats("mv"), rtol=1e-9)


def test_families_take_parameters_and_arrays():
    assert isinstance(stats.truncated_parabola.pdf(0.1), float)
    locations = np.array([0.0, 1.0, 2.0])
    np.testing.assert_allclose(
        stats.truncated_parabola.pdf(1.0, loc=locations, scale=0.5),
        [stats.truncated_parabola.pdf(1.0, loc=m, scale=0.5) for m in locations],
    )
    np.testing.assert_allclose(
        stats.beta_gaussian.cdf(0.2, loc=0.0, scale=1.0, alpha=1.3), stats.beta_gaussian(0.0, 1.0, alpha=1.3).cdf(0.2)
    )
    assert stats.location_scale(0.0, 1.0, g="cosh").pdf(0.0) > 0
    assert repr(stats.triangular) == "contmax.densities.stats.triangular"


def test_draws_are_reproducible_and_fits_recover_parameters():
    draws = stats.triangular.rvs(20_000, random_state=3, loc=2.0, scale=4.0)
    np.testing.assert_array_equal(draws, stats.triangular.rvs(20_000, random_state=3, loc=2.0, scale=4.0))
    assert draws.shape == (20_000,)
    assert scipy_stats.kstest(draws, stats.triangular(2.0, 4.0).cdf).pvalue > 1e-3
    np.testing.assert_allclose(stats.triangular.fit(draws), (2.0, 4.0), rtol=0.05)
    generator = np.random.default_rng(0)
    draws = stats.beta_gaussian.rvs((100, 200), random_state=generator, loc=-1.0, scale=0.5, alpha=1.5)
    np.testing.assert_allclose(stats.beta_gaussian.fit(draws.ravel(), alpha=1.5), (-1.0, 0.5), rtol=0.05)


def test_errors_say_what_is_wrong():
    with pytest.raises(ValueError, match="made of 'm' and 'v'"):
        stats.triangular().stats("k")
    with pytest.raises(NotImplementedError, match="no closed-form fit"):
        stats.location_scale.fit([0.0, 1.0])
    with pytest.raises(AttributeError, match="moment"):
        _ = stats.triangular.moment
