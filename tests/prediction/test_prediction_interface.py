"""The interface of a prediction on every domain: shapes, cdf, quantiles, draws, batches, copies."""

import copy
import pickle

import pytest
import torch
from scipy.stats import kstest

import contmax
from contmax.domains import Nodes
from predicted_domains import ALL, ALPHAS, F64, KNOTS, LINE, LINES, NODES, PLANE, predict, wave


@pytest.mark.parametrize("alpha", [0.7, 1.0, 2.0, 3.0])
@pytest.mark.parametrize("domain", ALL, ids=lambda d: type(d).__name__)
def test_shapes_and_identities(domain, alpha):
    p = predict(domain, alpha)
    events = tuple(p.event_shape)
    assert p.batch_shape == (2,)
    assert p.mean.shape == p.variance.shape == p.mode.shape == (2, *events)
    assert p.covariance_matrix.shape == (2, max(1, len(events) and events[0]), max(1, len(events) and events[0]))
    torch.testing.assert_close(p.covariance_matrix.diagonal(dim1=-2, dim2=-1).reshape(p.variance.shape), p.variance)
    points = p.mode
    torch.testing.assert_close(p.log_prob(points).exp(), p.density(points))
    assert (p.density(points) >= p.density(p.mean) - 1e-9).all()
    assert p.support.check(points).all()
    assert p.sample((3,)).shape == (3, 2, *events)
    # Ω* + Ω − E_p f = 0, by what is known of f at its own points: f = A + log_{2−α} p.
    f = p.expectation(lambda t: wave(t.flatten(0, 1))[0].reshape(2, -1) if not events else _of_each(t))
    expected = torch.stack([f[0], p.expectation(lambda t: _second(t, events))[1]])
    gap = p.conjugate() + p.tsallis_negentropy() - expected
    knots = domain is KNOTS  # there the score is linear between the knots, not a wave
    if not knots:
        torch.testing.assert_close(gap, torch.zeros(2, dtype=F64), rtol=0, atol=1e-8 if not events else 1e-4)
    if alpha != 1:
        torch.testing.assert_close(p.normalizer - p.threshold, torch.full((2,), 1 / (alpha - 1), dtype=F64))


def _of_each(t):
    return wave(t.flatten(0, -2))[0].reshape(t.shape[:-1])


def _second(t, events):
    flat = t.flatten(0, -2) if events else t.flatten()
    return wave(flat)[1].reshape(t.shape[: t.dim() - len(events)])


@pytest.mark.parametrize("alpha", ALPHAS)
def test_fenchel_young_equality_on_knots(alpha):
    f = torch.tensor([0.1, 1.0, -0.5, 0.7, 0.2], dtype=F64, requires_grad=True)
    p = contmax.regularized_prediction(f, KNOTS, alpha)
    height = p.density(torch.tensor(-1.2, dtype=F64))
    value = torch.lerp(f[0], f[1], 0.8)  # f(−1.2)
    if height > 0:
        log = height.log() if alpha == 1 else (height ** (alpha - 1) - 1) / (alpha - 1)
        torch.testing.assert_close(log, value - p.normalizer, rtol=1e-11, atol=1e-11)
    # The derivative of Ω* in the score is the density: along hat functions, their masses.
    (gradient,) = torch.autograd.grad(p.conjugate(), f)
    hats = p.expectation(lambda t: _hats(t, KNOTS.points))
    torch.testing.assert_close(gradient, hats, rtol=1e-7, atol=1e-7)


def _hats(t, knots):
    index = torch.searchsorted(knots[1:-1], t.detach().contiguous(), right=True)
    share = ((t - knots[index]) / (knots[index + 1] - knots[index]))[..., None]
    eye = torch.eye(len(knots), dtype=t.dtype)
    return (1 - share) * eye[index] + share * eye[index + 1]


@pytest.mark.parametrize("alpha", ALPHAS)
@pytest.mark.parametrize("domain", LINES, ids=lambda d: type(d).__name__)
def test_cdf_and_quantiles(domain, alpha):
    p = predict(domain, alpha)
    level = torch.linspace(0.01, 0.99, 15, dtype=F64)[:, None].expand(-1, 2)
    torch.testing.assert_close(p.cdf(p.icdf(level)), level, rtol=1e-10, atol=1e-10)
    ends = p.icdf(torch.tensor([[0.0], [1.0]], dtype=F64))
    for row, (first, last) in enumerate(ends.T.tolist()):
        cells = p.support.cells[row]
        cells = cells[~cells.isnan().any(-1)]
        assert first == pytest.approx(cells[0, 0].item(), abs=1e-8)
        assert last == pytest.approx(cells[-1, 1].item(), abs=1e-8)
    assert p.icdf(torch.tensor([[-0.1], [1.1]], dtype=F64)).isnan().all()
    outside = p.cdf(torch.tensor([[-5.0], [5.0]], dtype=F64))
    torch.testing.assert_close(outside, torch.tensor([[0.0] * 2, [1.0] * 2], dtype=F64), rtol=1e-12, atol=1e-12)
    # p is the derivative of the cdf, and both vanish off the domain with zero gradient.
    t = torch.linspace(-2.5, 2.5, 33, dtype=F64)[:, None].repeat(1, 2).requires_grad_()
    (slope,) = torch.autograd.grad(p.cdf(t).sum(), t)
    torch.testing.assert_close(slope, p.density(t.detach()), rtol=1e-8, atol=1e-8)
    (push,) = torch.autograd.grad(p.log_prob(t).sum(), t)
    off = p.density(t) == 0
    assert off.any()
    assert (p.log_prob(t)[off] == -torch.inf).all()
    assert (push[off] == 0).all()
    assert push.isfinite().all()


def test_quantiles_of_nodes_come_back():
    for dtype in (F64, torch.float32):
        points = torch.linspace(0, 1, 501, dtype=dtype)
        p = contmax.regularized_prediction(lambda t: torch.sin(9 * t), Nodes(points), 1.3)
        live = points[p.probabilities > 1e-6]
        assert torch.equal(p.icdf(p.cdf(live)), live)
        ends = points[p.support.cells][[0, -1]]
        assert torch.equal(p.icdf(torch.tensor([0.0, 1.0], dtype=dtype)), ends)
    p = predict(NODES, 2.0)
    torch.testing.assert_close(
        p.cdf(torch.tensor([[-2.0], [9.0]], dtype=F64)), torch.tensor([[0.0] * 2, [1.0] * 2], dtype=F64)
    )
    assert p.log_prob(torch.full((2,), 0.123, dtype=F64)).tolist() == [-torch.inf] * 2


@pytest.mark.parametrize("alpha", [0.7, 1.0, 1.5, 2.0, 3.0])
@pytest.mark.parametrize("domain", LINES, ids=lambda d: type(d).__name__)
def test_draws_have_the_cdf(domain, alpha):
    torch.manual_seed(3)
    p = predict(domain, alpha)
    draws = p.sample((20_000,))
    for row in range(2):

        def cdf(t, row=row):
            return p.cdf(torch.as_tensor(t)[:, None].expand(-1, 2))[:, row].numpy()

        # Failure rate of the whole test for another seed: 20 × 1e-4.
        assert kstest(draws[:, row].numpy(), cdf).pvalue > 1e-4


@pytest.mark.parametrize("alpha", [1.0, 2.0])
def test_draws_in_a_plane(alpha):
    torch.manual_seed(3)
    p = predict(PLANE, alpha)
    draws = p.sample((20_000,))
    assert p.support.check(draws).all()
    error = (draws.mean(0) - p.mean) / (p.stddev / 20_000**0.5)
    assert (error.abs() < 4.5).all()
    spread = torch.stack([draws[:, row].T.cov() for row in range(2)])
    torch.testing.assert_close(spread, p.covariance_matrix, rtol=0.05, atol=0.01)
    # One coordinate against the marginal cdf of the rule.
    t = torch.linspace(-0.8, 0.8, 9, dtype=F64)
    share = (draws[:, :, 0, None] <= t).double().mean(0)
    expected = p.expectation(lambda x: (x[..., 0, None] <= t).double())
    torch.testing.assert_close(share, expected, rtol=0, atol=0.02)


def test_frequencies_of_nodes():
    torch.manual_seed(3)
    p = predict(NODES, 1.5)
    draws = p.sample((20_000,))
    share = (draws[..., None] == NODES.points).double().mean(0)
    torch.testing.assert_close(share, p.probabilities, rtol=0, atol=0.015)
    q = contmax.regularized_prediction(torch.zeros(2, dtype=F64), Nodes(torch.eye(2, dtype=F64)))
    assert q.sample((5,)).shape == (5, 2)
    torch.testing.assert_close(q.covariance_matrix, torch.tensor([[0.25, -0.25], [-0.25, 0.25]], dtype=F64))


@pytest.mark.parametrize("domain", ALL, ids=lambda d: type(d).__name__)
def test_expand_pickle_repr(domain):
    alpha = torch.tensor([1.5, 2.0], dtype=F64)
    p = predict(domain, alpha)
    wide = p.expand((3, 2))
    again = pickle.loads(pickle.dumps(p))
    for q in (again, copy.deepcopy(p), wide):
        for name in ("mean", "variance", "normalizer", "threshold", "mode", "alpha"):
            torch.testing.assert_close(getattr(q, name), getattr(p, name).expand(getattr(q, name).shape))
        torch.testing.assert_close(q.density(p.mode), p.density(p.mode).expand(q.batch_shape))
        assert q.sample((4,)).shape == (4, *q.batch_shape, *q.event_shape)
    assert wide.batch_shape == (3, 2)
    if domain in LINES:
        level = torch.full((3, 2), 0.4, dtype=F64)
        torch.testing.assert_close(wide.icdf(level)[1], p.icdf(level[1]))
        assert wide.support.cells.shape == (3, *p.support.cells.shape)
    assert type(p).__name__ in repr(p)
    assert "(2,)" in repr(p)
    assert "alpha: 1.5" in repr(predict(domain, 1.5))


def test_live_cells_of_a_plane_find_a_small_island():
    p = contmax.regularized_prediction(
        lambda t: -1e5 * (t - torch.tensor([0.3, -0.6], dtype=F64)).square().sum(-1), PLANE, 2.0
    )
    expected = torch.zeros(4, 4, dtype=torch.bool)
    expected[2, 0] = True
    assert torch.equal(p.support.cells, expected)
    torch.testing.assert_close(p.mode, torch.tensor([0.3, -0.6], dtype=F64), rtol=0, atol=1e-5)


def test_rounding_does_not_choose_among_the_points_of_a_ridge():
    """Scores of x + y are highest along a line. The mode is one of its points, the same one on every processor."""
    noise = torch.randn(20, 1, len(PLANE.nodes), dtype=F64)
    scores = wave(PLANE.nodes)
    expected = contmax.regularized_prediction(scores, PLANE, 2.0).mode
    rounded = contmax.regularized_prediction(scores * (1 + 2e-16 * noise), PLANE, 2.0).mode
    torch.testing.assert_close(rounded, expected.expand_as(rounded), rtol=0, atol=1e-6)
    torch.testing.assert_close(expected[1].sum(), torch.tensor(0.2, dtype=F64), rtol=0, atol=1e-6)


def test_a_batch_of_scores_and_indices():
    alpha = torch.tensor([[1.0], [1.5], [2.0]], dtype=F64)
    p = contmax.regularized_prediction(wave, LINE, alpha)
    assert p.batch_shape == (3, 2)
    for i, index in enumerate(alpha[:, 0].tolist()):
        one = predict(LINE, index)
        torch.testing.assert_close(p.mean[i], one.mean, rtol=1e-10, atol=1e-11)
        torch.testing.assert_close(p.entropy()[i], one.entropy(), rtol=1e-9, atol=1e-10)
    cells = contmax.regularized_prediction(wave, LINE, 2.0).support.cells
    assert cells.shape == (2, 2, 2)
    assert cells[1, 1].isnan().all()


def test_values_in_place_of_a_callable():
    for domain in ALL:
        p, q = predict(domain, 1.5), contmax.regularized_prediction(wave(domain.nodes), domain, 1.5)
        torch.testing.assert_close(q.mean, p.mean, rtol=1e-8, atol=1e-8)


@pytest.mark.parametrize("alpha", [0.7, 1.0, 2.0])
@pytest.mark.parametrize("domain", ALL, ids=lambda d: type(d).__name__)
def test_nan_points_stay_nan(domain, alpha):
    p = predict(domain, alpha)
    points = p.mean.clone()
    (points[0, 0] if p.event_shape else points[0]).fill_(torch.nan)
    for function in (p.log_prob, p.density, p.score, *(() if p.event_shape else (p.cdf, p.icdf))):
        assert function(points)[0].isnan(), function.__name__
    assert not p.support.check(points)[0]
