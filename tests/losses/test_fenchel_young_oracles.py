"""Every pair of prediction and target against brute quadrature: threshold, conjugate, negentropy and mean score."""

import itertools
import math

import numpy as np
import pytest
import scipy.stats as stats
import torch
from scipy.optimize import brentq
from torch.distributions import (
    AffineTransform,
    Beta,
    Categorical,
    Exponential,
    Gamma,
    Gumbel,
    HalfNormal,
    Independent,
    Laplace,
    LogNormal,
    LowRankMultivariateNormal,
    MixtureSameFamily,
    MultivariateNormal,
    Normal,
    SigmoidTransform,
    StudentT,
    TransformedDistribution,
    Uniform,
)

from contmax.densities import (
    BetaGaussian,
    Empirical,
    LocationScale,
    Mixture,
    MultivariateBetaGaussian,
    Triangular,
    TruncatedParabola,
)
from contmax.losses import fenchel_young

F64 = torch.float64
LOC, SCALE = 0.3, 0.7


def t(*values):
    return torch.tensor(values if len(values) > 1 else values[0], dtype=F64)


def quadratic(x):
    return -((x / SCALE) ** 2) / 2


# Prediction, its score as a function of |t − μ|, its index.
PREDICTIONS = {
    **{f"α={a}": (BetaGaussian(t(LOC), t(SCALE), a), quadratic, a) for a in (0.8, 1.0, 1.0001, 1.5, 2.0, 3.0, 12.0)},
    "normal": (Normal(t(LOC), t(SCALE)), quadratic, 1.0),
    "laplace": (Laplace(t(LOC), t(SCALE)), lambda x: -x / SCALE, 1.0),
    "triangular": (Triangular(t(LOC), t(SCALE)), lambda x: -x / SCALE, 2.0),
    "cosh": (LocationScale(t(LOC), t(SCALE), "cosh"), lambda x: -np.sinh(x / SCALE) / SCALE, 2.0),
    "quartic": (
        LocationScale(t(LOC), t(SCALE), "quartic"),
        lambda x: -((x / SCALE) ** 3 / 3 + 2 * x / SCALE) / SCALE,
        2.0,
    ),
}


def parabola(x, low, high):
    middle, width = (low + high) / 2, (high - low) / 2
    return np.maximum(0.0, 0.75 * (1 - ((x - middle) / width) ** 2) / width)


def mixture_of_parabolas(x):
    return 0.3 * parabola(x, -1.0, -0.2) + 0.7 * parabola(x, 0.5, 1.5)


def mixture_of_normals(x):
    return 0.3 * stats.norm.pdf(x, -0.5, 0.05) + 0.7 * stats.norm.pdf(x, 0.5, 0.3)


WIDTH = 0.5**0.5
SPLIT = Categorical(t(0.3, 0.7))
# Target, its density by other means, and points between which that is smooth.
TARGETS = {
    "uniform": (Uniform(t(-0.5), t(1.2)), stats.uniform(-0.5, 1.7).pdf, [-0.5, 1.2]),
    "normal": (Normal(t(0.1), t(0.4)), stats.norm(0.1, 0.4).pdf, [-5, -1, 0.1, 1, 5]),
    "laplace": (Laplace(t(0.1), t(0.2)), stats.laplace(0.1, 0.2).pdf, [-9, -1, 0.1, 1, 9]),
    "student": (StudentT(t(5.0), t(0.1), t(0.4)), stats.t(5, 0.1, 0.4).pdf, [-np.inf, -50, -5, 0.1, 5, 50, np.inf]),
    "gumbel": (Gumbel(t(0.1), t(0.2)), stats.gumbel_r(0.1, 0.2).pdf, [-2, -0.5, 0.1, 1, 9]),
    "gamma": (Gamma(t(2.0), t(4.0)), stats.gamma(2, scale=0.25).pdf, [0, 0.5, 1, 3, 12]),
    "beta": (Beta(t(2.0), t(3.0)), stats.beta(2, 3).pdf, [0, 0.5, 1]),
    "exponential": (Exponential(t(4.0)), stats.expon(scale=0.25).pdf, [0, 1, 5, 12]),
    "half normal": (HalfNormal(t(0.5)), stats.halfnorm(scale=0.5).pdf, [0, 1, 5]),
    "lognormal": (LogNormal(t(-0.5), t(0.5)), stats.lognorm(0.5, scale=math.exp(-0.5)).pdf, [0, 0.1, 0.6, 2, 10, 60]),
    "parabola": (TruncatedParabola.from_support(t(-0.7), t(0.9)), lambda x: parabola(x, -0.7, 0.9), [-0.7, 0.9]),
    "triangular": (
        Triangular(t(0.1), t(0.5)),
        lambda x: np.maximum(0.0, (1 - abs(x - 0.1) / WIDTH) / WIDTH),
        [0.1 - WIDTH, 0.1, 0.1 + WIDTH],
    ),
    "location–scale": (
        LocationScale(t(0.1), t(2.0), "square"),
        lambda x: np.maximum(0.0, (1 - abs(x - 0.1) / 2) / 2),
        [-1.9, 0.1, 2.1],
    ),
    "mixture": (
        Mixture(SPLIT, TruncatedParabola.from_support(t(-1.0, 0.5), t(-0.2, 1.5))),
        mixture_of_parabolas,
        [-1, -0.2, 0.5, 1.5],
    ),
    "torch mixture": (
        MixtureSameFamily(SPLIT, Normal(t(-0.5, 0.5), t(0.05, 0.3))),
        mixture_of_normals,
        [-2, -0.8, -0.5, -0.2, 0.5, 1, 4],
    ),
    "stretched beta": (
        TransformedDistribution(Beta(t(2.0), t(3.0)), [AffineTransform(-0.5, 2.0)]),
        stats.beta(2, 3, loc=-0.5, scale=2).pdf,
        [-0.5, 0.5, 1.5],
    ),
    "logistic": (
        TransformedDistribution(Uniform(t(0.0), t(1.0)), [SigmoidTransform().inv, AffineTransform(0.1, 0.1)]),
        stats.logistic(0.1, 0.1).pdf,
        [-3.5, -1, 0.1, 1, 3.5],
    ),
}


# Double-exponential rules: distances from an end of an interval, and of a half-line, and what weights have in common.
_Z = np.arange(-140, 141) / 32
_RATE = math.pi / 2 * np.cosh(_Z) / 32
_SHARE = 1 / (1 + np.exp(math.pi * np.sinh(-_Z)))
_FAR = np.exp(math.pi / 2 * np.sinh(_Z))


def piece(function, a, b):
    """∫ from a to b, of which one may be infinite, of a function that is smooth in between."""
    if math.isinf(a):
        return piece(lambda x: function(-x), -b, -a)
    if math.isinf(b):
        return float(_FAR * _RATE @ function(a + _FAR))
    # Each half by the distance from its own end.
    left = _SHARE <= 0.5
    x = np.where(left, a + (b - a) * _SHARE, b - (b - a) * _SHARE[::-1])
    return float(2 * (b - a) * _SHARE * _SHARE[::-1] * _RATE @ function(x))


def integral(function, points):
    return sum(piece(function, a, b) for a, b in itertools.pairwise(points))


def exp_deformed(u, alpha):
    base = 1 + (alpha - 1) * u
    return np.exp(u) if alpha == 1 else np.maximum(base, 0.0) ** (1 / (alpha - 1))


def omega(p, alpha):
    some = np.where(p > 0, p, 1.0)
    return np.where(p > 0, some * np.log(some) if alpha == 1 else (some**alpha - some) / (alpha * (alpha - 1)), 0.0)


def brute_conjugate(score, alpha):
    """Ω*(f) = max_p E_p[f] − Ω(p), with the normaliser found by bisection and no closed form."""

    def reach(normaliser):
        if alpha <= 1:
            return math.inf
        level = normaliser - 1 / (alpha - 1)
        far = 1e-6
        while score(far) > level:
            far *= 2
        return brentq(lambda x: score(x) - level, 0, far, xtol=1e-15) if score(0) > level else 0.0

    def over_support(function, normaliser):
        end = reach(normaliser)
        if math.isinf(end):
            return 2 * integral(function, [0, 1, 4, 20, np.inf])
        return 2 * integral(function, [0, end])

    def excess(normaliser):
        return over_support(lambda x: exp_deformed(score(x) - normaliser, alpha), normaliser) - 1

    low, high = score(0) - 3, score(0) + 3
    normaliser = brentq(excess, low, high, xtol=1e-14)

    def gain(x):
        p = exp_deformed(score(x) - normaliser, alpha)
        return p * score(x) - omega(p, alpha)

    return over_support(gain, normaliser)


@pytest.mark.parametrize("name", PREDICTIONS)
def test_every_pair_on_the_line(name):
    prediction, score, alpha = PREDICTIONS[name]
    conjugate = brute_conjugate(score, alpha)
    torch.testing.assert_close(fenchel_young(prediction, t(0.9)).item(), conjugate - score(0.6), rtol=1e-10, atol=1e-10)
    for other, (target, density, points) in TARGETS.items():
        if name == "cosh" and other in ("student", "lognormal"):
            assert fenchel_young(prediction, target) == math.inf
            continue
        points = sorted({*points, *([LOC] if points[0] < LOC < points[-1] else [])})

        def rate(x, density=density):
            p = density(x)
            return omega(p, alpha) - p * np.where(p > 0, score(abs(x - LOC)), 0.0)

        expected = conjugate + integral(rate, points)
        got = fenchel_young(prediction, target).item()
        assert abs(got - expected) < 2e-10 * (1 + abs(expected)), (other, got, expected)


@pytest.mark.parametrize("alpha", [0.8, 1.0, 1.5, 2.0, 3.0])
@pytest.mark.parametrize("alpha_p", [0.8, 1.0, 1.2, 2.0, 3.0, 9.0, math.inf])
def test_every_pair_of_indices_on_the_line(alpha, alpha_p):
    prediction, target = BetaGaussian(t(0.2), t(0.5), alpha), BetaGaussian(t(-0.1), t(0.6), alpha_p)
    end = float(target.half_width)

    def rate(x):
        p = target.density(-0.1 + torch.from_numpy(x)).numpy()
        return omega(p, alpha) + p * (-0.1 + x - 0.2) ** 2 / (2 * 0.25)

    expected = float(prediction.conjugate()) + integral(rate, [-end, 0, end])
    assert abs(fenchel_young(prediction, target).item() - expected) < 1e-9
    tensors = fenchel_young(
        BetaGaussian(t(0.2), t(0.5), t(alpha)),
        target if alpha_p == math.inf else BetaGaussian(t(-0.1), t(0.6), t(alpha_p)),
    )
    torch.testing.assert_close(tensors, fenchel_young(prediction, target), rtol=1e-12, atol=1e-14)


@pytest.mark.parametrize("alpha", [1.0, 3.0])
def test_independent_coordinates(alpha):
    loc, matrix = t(0.2, -0.1), torch.tensor([[0.8, 0.3], [0.3, 0.5]], dtype=F64)
    prediction = MultivariateBetaGaussian(loc, matrix, alpha)
    marginals = (
        (Uniform(t(-1.0, 0.0), t(1.0, 0.7)), [(-1.0, 1.0), (0.0, 0.7)]),
        (Laplace(t(-1.0, 0.0), t(0.1, 0.3)), [(-np.inf, -1.0, np.inf), (-np.inf, 0.0, np.inf)]),
        (Triangular(t(-1.0, 0.0), t(1.0, 0.49)), [(-2.0, -1.0, 0.0), (-0.7, 0.0, 0.7)]),
        (BetaGaussian(t(-1.0, 0.0), t(0.4, 0.6), 2.0), None),
    )
    for base, pieces in marginals:
        if pieces is None:
            ends = base.loc - base.half_width, base.loc + base.half_width
            pieces = [(float(ends[0][i]), float(ends[1][i])) for i in (0, 1)]

        def density(x, i, base=base):
            return base.log_prob(torch.from_numpy(x)[:, None]).exp()[:, i].numpy()

        base._validate_args = False
        powers = [integral(lambda x, i=i: density(x, i) ** alpha, pieces[i]) for i in (0, 1)]
        if alpha == 1:
            negentropy = sum(integral(lambda x, i=i: omega(density(x, i), 1.0), pieces[i]) for i in (0, 1))
        else:
            negentropy = (powers[0] * powers[1] - 1) / (alpha * (alpha - 1))
        offset = base.mean - loc
        trace = (matrix.inverse().diagonal() * base.variance).sum()
        expected = prediction.conjugate() + negentropy + 0.5 * (trace + offset @ matrix.inverse() @ offset)
        torch.testing.assert_close(fenchel_young(prediction, Independent(base, 1)), expected, rtol=1e-9, atol=1e-9)


def test_gaussian_targets_in_several_dimensions():
    loc, factor = t(0.2, -0.1), torch.tensor([[0.8, 0.0], [0.3, 0.5]], dtype=F64)
    prediction = MultivariateBetaGaussian(t(0.0, 0.0), torch.eye(2, dtype=F64), 1.7)
    ours = fenchel_young(prediction, MultivariateBetaGaussian(loc, scale_tril=factor, alpha=1.0))
    torch.testing.assert_close(fenchel_young(prediction, MultivariateNormal(loc, scale_tril=factor)), ours)
    low_rank = LowRankMultivariateNormal(loc, t(0.5, 0.2)[:, None], t(0.3, 0.4))
    dense = MultivariateNormal(loc, low_rank.covariance_matrix)
    torch.testing.assert_close(fenchel_young(prediction, low_rank), fenchel_young(prediction, dense))
    torch.testing.assert_close(fenchel_young(low_rank, dense), t(0.0), atol=1e-14, rtol=0)


def test_samples_in_several_dimensions_by_sufficient_statistics():
    samples, weights = torch.randn(40, 3, dtype=F64), torch.rand(40, dtype=F64)
    factor = torch.randn(7, 3, 3, dtype=F64).tril(-1) + torch.eye(3, dtype=F64)
    loc = torch.randn(7, 3, dtype=F64)
    for prediction in (
        MultivariateBetaGaussian(loc, scale_tril=factor, alpha=1.5),
        MultivariateBetaGaussian(loc, scale_diag=factor.square().sum(-1), alpha=1.5),
    ):
        each = fenchel_young(prediction, samples[:, None])
        expected = (weights[:, None] * each).sum(0) / weights.sum()
        torch.testing.assert_close(fenchel_young(prediction, Empirical(samples, weights)), expected)
