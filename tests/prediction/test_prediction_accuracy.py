"""Stated accuracy of predictions against independent oracles: double-exponential quadrature, closed forms, grids."""

import numpy as np
import pytest
import torch
from scipy.optimize import brentq

import contmax
from contmax.domains import Box, Interval, Knots, Nodes
from contmax.maps import _threshold

F64 = torch.float64


# The oracle: zeros of f − λ by a scan and Brent's method, tanh–sinh quadrature on 40 panels between them.
_STEPS = np.linspace(-4.2, 4.2, 161)
_SINH = np.pi / 2 * np.sinh(_STEPS)
SHARE = 1 / (1 + np.exp(-2 * _SINH))
WEIGHT = (_STEPS[1] - _STEPS[0]) * np.pi / 4 * np.cosh(_STEPS) / np.cosh(_SINH) ** 2


def exponential(u, alpha):
    if alpha == 1:
        return np.exp(u)
    gap = 1 + (alpha - 1) * u
    return np.where(gap > 0, np.exp(np.log(np.where(gap > 0, gap, 1)) / (alpha - 1)), 0)


def ends_of_support(f, low, high, level, bends):
    """The maximal intervals where f exceeds a level."""
    grid = np.unique(np.concatenate([np.linspace(low, high, 4001), bends]))
    above = f(grid) > level
    where = np.nonzero(above[1:] != above[:-1])[0]
    roots = [brentq(lambda t: float(f(np.array(t)) - level), grid[i], grid[i + 1], xtol=1e-15) for i in where]
    ends = ([low] if above[0] else []) + roots + ([high] if above[-1] else [])
    return np.array(ends).reshape(-1, 2)


class Oracle:
    def __init__(self, f, low, high, alpha, bends=()):
        self.f, self.low, self.high, self.alpha, self.bends = f, low, high, alpha, np.array(bends, dtype=float)
        grid = f(np.linspace(low, high, 4001))
        volume = high - low
        shift = np.log(volume) if alpha == 1 else (1 - volume ** (1 - alpha)) / (alpha - 1)
        least = grid.min() + shift if alpha >= 1 else max(grid.min() + shift, grid.max() - 1 / (1 - alpha) + 1e-6)
        self.normalizer = brentq(
            lambda a: self.integral(lambda t: 1.0, a) - 1, least, grid.max() + shift, xtol=1e-15, rtol=1e-14
        )
        self.mean = self.integral(lambda t: t)
        self.variance = self.integral(lambda t: (t - self.mean) ** 2)

    def cells(self, normalizer=None):
        a = self.normalizer if normalizer is None else normalizer
        level = a - 1 / (self.alpha - 1) if self.alpha > 1 else -np.inf
        return ends_of_support(self.f, self.low, self.high, level, self.bends)

    def integral(self, psi, normalizer=None):
        a = self.normalizer if normalizer is None else normalizer
        total, panels = 0.0, np.concatenate([np.linspace(self.low, self.high, 41), self.bends])
        for start, stop in self.cells(a):
            cuts = np.unique(np.concatenate([[start, stop], panels[(panels > start) & (panels < stop)]]))
            length = np.diff(cuts)[:, None]
            t = cuts[:-1, None] + length * SHARE
            total += np.sum(length * WEIGHT * exponential(self.f(t) - a, self.alpha) * psi(t))
        return total


SCORES = {
    "several intervals": (lambda t, m: 3 * m.sin(7 * t) + 0.2 * t, -2.0, 3.0, ()),
    "two peaks": (lambda t, m: 4 * m.exp(-8 * (t - 1) ** 2) + 3.5 * m.exp(-20 * (t + 1) ** 2), -3.0, 3.0, ()),
    # Halved once, the kink lies between the last node of a cell and its edge, where only the neighbour tells of it.
    "kink": (lambda t, m: -2 * abs(t - 0.3123), -2.0, 2.0, (0.3123,)),
    "jumps": (lambda t, m: 1.0 * (t > 0.25) + 0.5 * (t > -0.3123) - t * t, -1.0, 1.0, (0.25, -0.3123)),
    "narrow peak": (
        lambda t, m: 50 * m.exp(-0.5 * ((t - 0.123) / 1e-3) ** 2) - t * t,
        -1.0,
        1.0,
        tuple(0.123 + 1e-3 * np.linspace(-8, 8, 33)),
    ),
    "linear": (lambda t, m: 5 * t, 0.0, 1.0, ()),
}


# A prediction takes half a second: every score with some of the usual indices, the others with a score each.
CASES = [(name, alpha) for name in ("several intervals", "kink", "narrow peak") for alpha in (1.0, 1.5, 2.0)]
CASES += [("two peaks", 1.5), ("jumps", 1.0), ("jumps", 2.0), ("linear", 1.5), ("linear", 2.0)]
CASES += [("several intervals", 0.7), ("narrow peak", 0.7), ("kink", 4.0), ("narrow peak", 4.0)]
CASES += [("several intervals", 1.2), ("jumps", 1.7), ("two peaks", 2.5), ("linear", 3.0)]


@pytest.mark.parametrize(("name", "alpha"), CASES)
def test_intervals_to_ten_digits(name, alpha):
    score, low, high, bends = SCORES[name]
    oracle = Oracle(lambda t: score(t, np), low, high, alpha, bends)
    p = contmax.regularized_prediction(lambda t: score(t, torch), Interval(torch.tensor(low, dtype=F64), high), alpha)
    assert p.normalizer.item() == pytest.approx(oracle.normalizer, rel=1e-10, abs=1e-10)
    assert p.mean.item() == pytest.approx(oracle.mean, rel=1e-10, abs=1e-10)
    assert p.variance.item() == pytest.approx(oracle.variance, rel=1e-10)
    np.testing.assert_allclose(p.support.cells.numpy(), oracle.cells(), rtol=0, atol=1e-10)
    # Between the ends of the support, where 1/(α−1) < 1 does not blow up the error of an end.
    t = torch.cat([torch.linspace(low, high, 101, dtype=F64)[1:-1] + 1e-3, torch.tensor([0.123], dtype=F64)])
    expected = exponential(score(t.numpy(), np) - oracle.normalizer, alpha)
    np.testing.assert_allclose(p.density(t).numpy(), expected, rtol=1e-9, atol=1e-9 * expected.max())
    fourth = p.expectation(lambda t: (t - 0.3) ** 4).item()
    assert fourth == pytest.approx(oracle.integral(lambda t: (t - 0.3) ** 4), rel=1e-10)


def test_scores_of_a_batch_share_cells_and_keep_their_digits():
    centre = torch.tensor([-0.7, 0.1234, 0.9], dtype=F64)[:, None]
    p = contmax.regularized_prediction(
        lambda t: -3 * (t - centre).abs(), Interval(torch.tensor(-2.0, dtype=F64), 2.0), 2.0
    )
    half = 3**-0.5
    torch.testing.assert_close(p.threshold, torch.full((3,), -3 * half, dtype=F64), rtol=1e-11, atol=0)
    torch.testing.assert_close(p.variance, torch.full((3,), half**2 / 6, dtype=F64), rtol=1e-11, atol=0)
    torch.testing.assert_close(p.mean, centre[:, 0], rtol=1e-11, atol=1e-12)


@pytest.mark.parametrize("alpha", [0.5, 1.0, 1.2, 1.5, 2.0, 3.0, 7.0, 30.0])
def test_knots_in_closed_form(alpha):
    t = np.array([-1.0, -0.2, 0.1, 0.5, 1.7])
    f = np.array([0.4, 1.5, 1.5, -2.0, 1.1])  # a flat segment among them
    oracle = Oracle(lambda x: np.interp(x, t, f), t[0], t[-1], alpha, t)
    p = contmax.regularized_prediction(torch.tensor(f), Knots(torch.tensor(t)), alpha)
    # The oracle loses digits at the ends of the support, where p is a small power of the distance.
    rel = 1e-12 if alpha <= 3 else 1e-9
    assert p.normalizer.item() == pytest.approx(oracle.normalizer, rel=rel, abs=rel)
    assert p.mean.item() == pytest.approx(oracle.mean, rel=1e-9)
    assert p.variance.item() == pytest.approx(oracle.variance, rel=1e-9)
    np.testing.assert_allclose(p.support.cells.numpy(), oracle.cells(), rtol=0, atol=1e-9)
    at = torch.linspace(-0.9, 1.6, 7, dtype=F64)
    for x, reached in zip(at.tolist(), p.cdf(at).tolist(), strict=True):
        assert reached == pytest.approx(oracle.integral(lambda s, x=x: 1.0 * (s <= x)), abs=3e-3)
    # The cdf is the integral of the density, by its own derivative.
    at.requires_grad_()
    (slope,) = torch.autograd.grad(p.cdf(at).sum(), at)
    torch.testing.assert_close(slope, p.density(at.detach()), rtol=1e-9, atol=1e-10)


def test_knots_agree_with_the_paper_at_two():
    # A tent of slope s and unit mass: λ = top − √s.
    for s in (1.0, 4.0, 25.0):
        p = contmax.regularized_prediction(
            torch.tensor([-3 * s, 0.0, -3 * s], dtype=F64), Knots(torch.tensor([-3.0, 0.0, 3.0], dtype=F64)), 2.0
        )
        assert p.threshold.item() == pytest.approx(-(s**0.5), rel=1e-14)
        assert p.support.cells[0].tolist() == pytest.approx([-(s**-0.5), s**-0.5], rel=1e-14)


@pytest.mark.parametrize("alpha", [0.8, 1.0, 1.5, 2.0, 4.0])
def test_knots_and_intervals_agree_on_straight_lines(alpha):
    knots = torch.tensor([0.0, 0.25, 1.0], dtype=F64)
    f = torch.tensor([0.0, 2.0, -1.0], dtype=F64)
    p = contmax.regularized_prediction(f, Knots(knots), alpha)
    q = contmax.regularized_prediction(
        lambda t: torch.where(t < 0.25, 8 * t, 2 - 4 * (t - 0.25)), Interval(knots[0], knots[-1]), alpha
    )
    for name in ("normalizer", "mean", "variance", "mode"):
        torch.testing.assert_close(getattr(p, name), getattr(q, name), rtol=1e-10, atol=1e-10)
    for name in ("entropy", "tsallis_negentropy", "conjugate"):
        torch.testing.assert_close(getattr(p, name)(), getattr(q, name)(), rtol=1e-9, atol=1e-9)
    level = torch.linspace(0, 1, 9, dtype=F64)
    torch.testing.assert_close(p.icdf(level), q.icdf(level), rtol=1e-8, atol=1e-8)


@pytest.mark.parametrize("alpha", [0.7, 1.0, 1.5, 2.0, 3.0])
def test_a_fine_rule_as_nodes_is_the_interval(alpha):
    domain = Interval(torch.tensor(0.0, dtype=F64), 2.0)
    count = 20_000
    points = (torch.arange(count, dtype=F64) + 0.5) * 2 / count
    nodes = Nodes(points, torch.full_like(points, 2 / count))
    p, q = (contmax.regularized_prediction(lambda t: (3 * t).sin(), where, alpha) for where in (nodes, domain))
    assert p.normalizer.item() == pytest.approx(q.normalizer.item(), abs=1e-5)
    assert p.variance.item() == pytest.approx(q.variance.item(), rel=1e-5)
    assert p.tsallis_negentropy().item() == pytest.approx(q.tsallis_negentropy().item(), abs=1e-5)


@pytest.mark.parametrize("alpha", [0.6, 1.0, 1.5, 2.0, 2.5, 4.0])
def test_nodes_with_weights_are_repeated_points(alpha):
    f = torch.randn(5, dtype=F64)
    weights = torch.tensor([1.0, 2.0, 1.0, 3.0, 1.0], dtype=F64)
    p = contmax.regularized_prediction(f, Nodes(torch.arange(5, dtype=F64), weights), alpha)
    repeated = contmax.entmax(f.repeat_interleave(weights.long()), alpha)
    each = repeated[(weights.long().cumsum(0) - 1)]
    torch.testing.assert_close(p.density(torch.arange(5, dtype=F64)), each, rtol=1e-9, atol=1e-11)
    torch.testing.assert_close(p.probabilities, each * weights, rtol=1e-9, atol=1e-11)


@pytest.mark.parametrize("alpha", [1.0, 1.5, 3.0])
def test_planes_to_five_digits(alpha):
    loc = torch.tensor([0.1, 0.3], dtype=F64)
    scale = torch.tensor([[0.08, 0.03], [0.03, 0.05]], dtype=F64)
    known = contmax.densities.MultivariateBetaGaussian(loc, scale, alpha)
    precision = scale.inverse()
    low = torch.full((2,), -3.0, dtype=F64)
    p = contmax.regularized_prediction(
        lambda t: -0.5 * ((t - loc) @ precision * (t - loc)).sum(-1), Box(low, -low), alpha
    )
    torch.testing.assert_close(p.covariance_matrix, known.covariance_matrix, rtol=1e-5, atol=1e-7)
    torch.testing.assert_close(p.mean, loc, rtol=1e-5, atol=1e-6)
    torch.testing.assert_close(p.entropy(), known.entropy(), rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(p.tsallis_negentropy(), known.tsallis_negentropy(), rtol=1e-5, atol=1e-5)
    t = loc + 0.2 * torch.randn(50, 2, dtype=F64)
    peak = known.density(loc).item()
    torch.testing.assert_close(p.density(t), known.density(t), rtol=1e-5, atol=1e-5 * peak)


@pytest.mark.parametrize("alpha", [1.5, 2.0])
def test_two_islands_in_a_plane_against_a_dense_grid(alpha):
    def score(t):
        return 3 * torch.exp(-20 * (t - 0.3).square().sum(-1)) + 2.5 * torch.exp(-40 * (t - 0.8).square().sum(-1))

    p = contmax.regularized_prediction(score, Box(torch.zeros(2, dtype=F64), torch.ones(2, dtype=F64)), alpha)
    count = 1000
    axis = (torch.arange(count, dtype=F64) + 0.5) / count
    grid = torch.cartesian_prod(axis, axis)
    dense = contmax.regularized_prediction(score, Nodes(grid, torch.full((count**2,), count**-2.0, dtype=F64)), alpha)
    # The grid itself errs by about the square of its step.
    torch.testing.assert_close(p.normalizer, dense.normalizer, rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(p.mean, dense.mean, rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(p.covariance_matrix, dense.covariance_matrix, rtol=2e-5, atol=1e-6)


@pytest.mark.parametrize("alpha", [1.5])
def test_space_to_three_digits(alpha):
    loc = torch.tensor([0.1, 0.3, -0.2], dtype=F64)
    known = contmax.densities.MultivariateBetaGaussian(loc, 0.08 * torch.eye(3, dtype=F64), alpha)
    low = torch.full((3,), -3.0, dtype=F64)
    p = contmax.regularized_prediction(lambda t: -0.5 * (t - loc).square().sum(-1) / 0.08, Box(low, -low), alpha)
    torch.testing.assert_close(p.covariance_matrix, known.covariance_matrix, rtol=1e-3, atol=1e-5)
    torch.testing.assert_close(p.mean, loc, rtol=1e-3, atol=1e-4)
    torch.testing.assert_close(p.entropy(), known.entropy(), rtol=1e-3, atol=1e-3)
    torch.testing.assert_close(p.density(loc), known.density(loc), rtol=1e-3, atol=0)


@pytest.mark.parametrize("alpha", [1.0, 1.5, 2.0, 3.0])
def test_a_box_on_a_line_is_an_interval(alpha):
    low, high = torch.tensor(-1.0, dtype=F64), torch.tensor(2.0, dtype=F64)
    p = contmax.regularized_prediction(lambda t: 2 * (3 * t[:, 0]).sin(), Box(low[None], high[None]), alpha)
    q = contmax.regularized_prediction(lambda t: 2 * (3 * t).sin(), Interval(low, high), alpha)
    torch.testing.assert_close(p.mean[0], q.mean, rtol=1e-10, atol=1e-10)
    torch.testing.assert_close(p.covariance_matrix, q.covariance_matrix, rtol=1e-10, atol=1e-10)
    torch.testing.assert_close(p.threshold, q.threshold, rtol=1e-10, atol=1e-10)


def test_newtons_method_ends_where_the_normalizer_is_far_below_zero(monkeypatch):
    steps, logarithms_of = [], _threshold._log_of_deformed_exp
    monkeypatch.setattr(_threshold, "_log_of_deformed_exp", lambda *given: steps.append(given) or logarithms_of(*given))
    points = torch.linspace(0.0, 0.01, 50, dtype=F64)
    p = contmax.regularized_prediction(points.sin(), Nodes(points, torch.full_like(points, 2e-4)), 1.5)
    assert p.normalizer < -1
    assert 1 < len(steps) < 20
