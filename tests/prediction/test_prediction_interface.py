"""The whole interface of a prediction on every domain: distributions, gradients, transforms, expectations."""

import copy
import pickle

import pytest
import torch
from scipy.stats import kstest
from torch.autograd import gradcheck, gradgradcheck

import contmax
from contmax.basis import GaussianBasis
from contmax.domains import Box, Interval, Knots, Nodes

F64 = torch.float64
LINE = Interval(torch.tensor(-2.0, dtype=F64), 2.0)
KNOTS = Knots(torch.tensor([-2.0, -1.0, 0.3, 0.8, 2.0], dtype=F64))
NODES = Nodes(torch.tensor([0.5, -1.0, 2.0, 0.1], dtype=F64), torch.tensor([1.0, 0.5, 2.0, 0.3], dtype=F64))
PLANE = Box(torch.full((2,), -1.0, dtype=F64), torch.ones(2, dtype=F64), resolution=4)
LINES = [LINE, KNOTS]
ALL = [LINE, KNOTS, NODES, PLANE]
ALPHAS = [0.7, 1.0, 1.5, 2.0, 3.0]


def wave(t):
    """Two scores, one of them with several peaks."""
    x = t if t.dim() == 1 else t.sum(-1)
    return torch.stack([2 * (3 * x).sin() + 0.3 * x, -1.5 * (x - 0.2).square()])


def predict(domain, alpha):
    return contmax.regularized_prediction(wave, domain, alpha)


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


class Quadratic(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.theta = torch.nn.Parameter(torch.tensor([0.4, -1.7], dtype=F64))

    def forward(self, t):
        x = t if t.dim() == 1 else t.sum(-1)
        return self.theta[0] * x + self.theta[1] * x.square()


@pytest.mark.parametrize("domain", ALL, ids=lambda d: type(d).__name__)
def test_gradients_reach_the_parameters_of_a_module(domain):
    module = Quadratic()
    contmax.regularized_prediction(module, domain, 1.5).conjugate().backward()
    # ∇Ω* = E_p[φ].
    p = contmax.regularized_prediction(Quadratic().requires_grad_(False), domain, 1.5)
    expected = p.expectation(lambda t: torch.stack([_sum(t, p), _sum(t, p).square()], -1))
    if domain is not KNOTS:
        torch.testing.assert_close(module.theta.grad, expected, rtol=1e-6, atol=1e-6)
    assert module.theta.grad.isfinite().all()
    assert (module.theta.grad != 0).any()


def _sum(t, p):
    return t.sum(-1) if p.event_shape else t


def summary(domain):
    def values(theta, alpha):
        p = contmax.regularized_prediction(lambda t: theta[0] * t + theta[1] * t * t + theta[2] * t**3, domain, alpha)
        level, at = torch.tensor(0.3, dtype=F64), torch.tensor(0.15, dtype=F64)
        return torch.stack(
            [p.mean, p.variance, p.entropy(), p.conjugate(), p.normalizer, p.cdf(at), p.log_prob(at), p.icdf(level)]
        )

    return values


@pytest.mark.parametrize("alpha", [0.8, 1.0, 1.5, 2.5])
@pytest.mark.parametrize("domain", LINES, ids=lambda d: type(d).__name__)
def test_first_derivatives(domain, alpha):
    theta = torch.tensor([0.3, -1.4, 0.2], dtype=F64, requires_grad=True)
    index = torch.tensor(alpha, dtype=F64, requires_grad=True)
    assert gradcheck(summary(domain), (theta, index), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("alpha", [1.0, 2.0])
def test_second_derivatives_on_knots(alpha):
    theta = torch.tensor([0.3, -1.4, 0.2], dtype=F64, requires_grad=True)
    index = torch.tensor(alpha, dtype=F64, requires_grad=True)
    assert gradgradcheck(summary(KNOTS), (theta, index), rtol=1e-3, atol=1e-5, fast_mode=True)


def test_derivatives_on_nodes_and_in_a_plane():
    def on(domain):
        def mean(theta):
            p = contmax.regularized_prediction(
                lambda t: theta[0] * _line(t) - theta[1] * _line(t).square(), domain, 1.5
            )
            return p.mean.sum() + p.entropy() + p.normalizer

        return mean

    theta = torch.tensor([0.3, 1.4], dtype=F64, requires_grad=True)
    assert gradcheck(on(NODES), (theta,))
    assert gradgradcheck(on(NODES), (theta,))
    small = Box(torch.full((2,), -1.0, dtype=F64), torch.ones(2, dtype=F64), resolution=2)
    assert gradcheck(on(small), (theta,), rtol=1e-4, atol=1e-5)


def _line(t):
    return t if t.dim() == 1 else (t * torch.tensor([1.0, 0.4], dtype=F64)).sum(-1) + t[:, 1].square()


@pytest.mark.parametrize("domain", [LINE, KNOTS, NODES], ids=lambda d: type(d).__name__)
@pytest.mark.parametrize("alpha", [1.0, 1.5, 2.0])
def test_transforms(domain, alpha):
    def moments(theta):
        p = contmax.regularized_prediction(lambda t: theta[0] * t - theta[1] * t.square(), domain, alpha)
        return torch.stack([p.mean, p.variance, p.conjugate()])

    theta = torch.tensor([[0.3, 1.4], [-0.2, 0.9], [0.0, 2.0]], dtype=F64)
    one_by_one = torch.stack([moments(row) for row in theta])
    torch.testing.assert_close(torch.func.vmap(moments)(theta), one_by_one, rtol=1e-8, atol=1e-8)
    jacobian = torch.func.vmap(torch.func.jacrev(moments))(theta)
    expected = torch.stack([torch.autograd.functional.jacobian(moments, row) for row in theta])
    torch.testing.assert_close(jacobian, expected, rtol=1e-6, atol=1e-7)


def test_quantiles_and_points_inside_vmap():
    def values(shift):
        found = []
        for domain in (LINE, KNOTS, NODES):
            p = contmax.regularized_prediction(lambda t: -(t - shift).square(), domain, 2.0)
            found += [p.icdf(torch.tensor(0.3, dtype=F64)), p.cdf(torch.tensor(0.1, dtype=F64)), p.mode]
        return torch.stack(found)

    shift = torch.tensor([0.0, 0.3, -0.4], dtype=F64)
    torch.testing.assert_close(
        torch.func.vmap(values)(shift), torch.stack([values(s) for s in shift]), rtol=1e-7, atol=1e-7
    )


@pytest.mark.parametrize("domain", LINES, ids=lambda d: type(d).__name__)
def test_reparametrised_draws_move_with_the_score(domain):
    shift = torch.tensor(0.1, dtype=F64, requires_grad=True)
    torch.manual_seed(5)
    p = contmax.regularized_prediction(lambda t: -2 * (t - shift).square(), domain, 2.0)
    draws = p.rsample((4000,))
    (pathwise,) = torch.autograd.grad(draws.mean(), shift, retain_graph=True)
    (exact,) = torch.autograd.grad(p.mean, shift)
    assert pathwise.item() == pytest.approx(exact.item(), abs=0.05)
    assert not p.sample((2,)).requires_grad


@pytest.mark.parametrize("alpha", [1.0, 1.5, 2.0, 3.0])
@pytest.mark.parametrize("domain", LINES, ids=lambda d: type(d).__name__)
def test_expectations_of_a_basis(domain, alpha):
    # Includes a basis function far narrower than the density, and a score with several peaks.
    basis = GaussianBasis(
        torch.tensor([-1.2, 0.0, 0.55, 0.6], dtype=F64), torch.tensor([0.3, 1.0, 0.1, 0.01], dtype=F64)
    )
    p = predict(domain, alpha)
    found = contmax.expectation(p, basis)
    assert found.shape == (2, 4)
    # The oracle: tanh–sinh between the ends of the support, the knots and a fine grid.
    step = torch.linspace(-3.6, 3.6, 61, dtype=F64)
    bend = torch.pi / 2 * step.sinh()
    share, weight = torch.sigmoid(2 * bend), 0.12 * torch.pi / 4 * step.cosh() / bend.cosh().square()
    for row in range(2):
        cells = p.support.cells[row]
        cuts = torch.cat([cells[~cells.isnan()], KNOTS.points, torch.linspace(-2, 2, 401, dtype=F64)]).unique()
        t = (cuts[:-1, None] + cuts.diff()[:, None] * share).flatten()
        mass = (cuts.diff()[:, None] * weight).flatten() * p.density(t[:, None].expand(-1, 2))[:, row]
        torch.testing.assert_close(found[row], mass @ basis(t), rtol=1e-8, atol=1e-9)


def test_expectations_of_a_basis_are_differentiable_and_cover_other_domains():
    basis = GaussianBasis(torch.tensor([0.0, 0.5], dtype=F64), torch.tensor([0.5, 0.02], dtype=F64))

    def of(domain):
        return lambda theta: contmax.expectation(
            contmax.regularized_prediction(lambda t: theta * t - t.square(), domain, 2.0), basis
        )

    theta = torch.tensor(0.4, dtype=F64, requires_grad=True)
    for domain in (LINE, KNOTS, NODES):
        assert gradcheck(of(domain), (theta,), rtol=1e-5, atol=1e-6)
    p = predict(NODES, 1.5)
    torch.testing.assert_close(contmax.expectation(p, basis), p.probabilities @ basis(NODES.points))
    plane = contmax.basis.MultivariateGaussianBasis(torch.zeros(1, 2, dtype=F64), 0.3 * torch.eye(2, dtype=F64)[None])
    q = predict(PLANE, 2.0)
    torch.testing.assert_close(contmax.expectation(q, plane), q.expectation(plane))
