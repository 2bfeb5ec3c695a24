"""Theorems of the paper on arbitrary scores: the gradient of A is an escort mean; the map is the maximiser."""

import pytest
import torch

import contmax
from contmax.domains import Box, Interval, Knots, Nodes

F64 = torch.float64
LINE = Interval(torch.tensor(-1.0, dtype=F64), 2.0)
KNOTS = Knots(torch.tensor([-1.0, -0.3, 0.4, 1.1, 2.0], dtype=F64))
NODES = Nodes(torch.tensor([0.5, -1.0, 2.0, 0.1], dtype=F64), torch.tensor([1.0, 0.5, 2.0, 0.3], dtype=F64))
PLANE = Box(torch.full((2,), -1.0, dtype=F64), torch.ones(2, dtype=F64), resolution=4)
ALPHAS = [0.65, 1.0, 1.4, 2.0, 2.6, 3.8]


def features(t):
    """φ, three functions on a line or in a plane, (n, 3)."""
    x, y = (t, 0 * t) if t.dim() == 1 else t.unbind(-1)
    return torch.stack([x + 0.3 * y, -(x * x) - y * y, (2 * x - y).sin()], -1)


def on_knots(values, t):
    """Linear between its values at the knots, (5, …) ↦ (n, …)."""
    index = torch.searchsorted(KNOTS.points[1:-1], t)
    share = (t - KNOTS.points[index]) / KNOTS.points.diff()[index]
    share = share.reshape(-1, *(1,) * (values.dim() - 1))
    return values[index] * (1 - share) + values[index + 1] * share


def double_exponential(cuts):
    """Nodes and weights between cuts of a line, for functions with any integrable singularity at the cuts."""
    step = torch.linspace(-3.3, 3.3, 121, dtype=F64)
    bend = torch.pi / 2 * step.sinh()
    share, weight = torch.sigmoid(2 * bend), (step[1] - step[0]) * torch.pi / 4 * step.cosh() / bend.cosh().square()
    length = cuts.diff()[:, None]
    return (cuts[:-1, None] + length * share).flatten(), (length * weight).flatten()


def escort_mean(p, score, phi, cuts):
    """E[φ] under the density proportional to p^{2−α} on the support of p, by quadrature on a line."""
    ends = p.support.cells
    t, weight = double_exponential(torch.cat([ends.flatten(), cuts]).unique())
    excess = 1 + (p.alpha - 1) * (score(t) - p.normalizer)
    inside = excess > 0
    if p.alpha == 1:
        escort = weight * (score(t) - p.normalizer).exp()
    else:
        escort = weight * torch.where(inside, excess.clamp(min=1e-300) ** ((2 - p.alpha) / (p.alpha - 1)), 0)
    return (escort @ phi(t)) / escort.sum()


def tolerance(alpha):
    """Of the oracle: beside the ends of the support p^{2−α} is a large power of a difference that loses digits."""
    return 1e-6 if alpha < 3 else 2e-5


def gradient_of_normalizer(domain, alpha):
    theta = torch.tensor([0.8, 1.7, 0.6], dtype=F64, requires_grad=True)
    p = contmax.regularized_prediction(lambda t: features(t) @ theta, domain, alpha)
    (gradient,) = torch.autograd.grad(p.normalizer, theta)
    return theta.detach(), p, gradient


@pytest.mark.parametrize("alpha", ALPHAS)
def test_the_gradient_of_the_normalizer_is_the_escort_mean_on_an_interval(alpha):
    theta, p, gradient = gradient_of_normalizer(LINE, alpha)
    expected = escort_mean(p, lambda t: features(t) @ theta, features, torch.linspace(-1, 2, 41, dtype=F64))
    torch.testing.assert_close(gradient, expected, rtol=tolerance(alpha), atol=tolerance(alpha))


@pytest.mark.parametrize("alpha", ALPHAS)
def test_the_gradient_of_the_normalizer_is_the_escort_mean_on_knots(alpha):
    theta, p, gradient = gradient_of_normalizer(KNOTS, alpha)
    at_knots = features(KNOTS.points)
    expected = escort_mean(p, lambda t: on_knots(at_knots @ theta, t), lambda t: on_knots(at_knots, t), KNOTS.points)
    torch.testing.assert_close(gradient, expected, rtol=tolerance(alpha), atol=tolerance(alpha))


@pytest.mark.parametrize("alpha", ALPHAS)
def test_the_gradient_of_the_normalizer_is_the_escort_mean_on_nodes(alpha):
    _, p, gradient = gradient_of_normalizer(NODES, alpha)
    density = p.density(NODES.points).detach()
    escort = NODES.weights * torch.where(density > 0, density.clamp(min=1e-300) ** (2 - alpha), 0)
    torch.testing.assert_close(gradient, escort @ features(NODES.points) / escort.sum(), rtol=1e-8, atol=1e-9)


@pytest.mark.parametrize("alpha", [0.65, 1.0, 1.4, 2.0, 2.6])
def test_the_gradient_of_the_normalizer_is_the_escort_mean_in_a_plane(alpha):
    _, p, gradient = gradient_of_normalizer(PLANE, alpha)

    def weighted(t):
        # p^{1−α}, by which p becomes the escort p^{2−α}; rounding may put a node on the edge of the support.
        density = p.density(t).detach()
        share = torch.where(density > 0, density.clamp(min=1e-300) ** (1 - alpha), 0)
        return share[:, None] * torch.cat([features(t), torch.ones_like(t[:, :1])], -1)

    total = p.expectation(weighted).detach()
    torch.testing.assert_close(gradient, total[:3] / total[3], rtol=1e-3, atol=1e-4)


def dense(domain):
    """Points and weights of a fine midpoint rule on a domain, or the nodes themselves."""
    if isinstance(domain, Nodes):
        return domain.points, domain.weights
    count = 20_000 if domain is not PLANE else 300
    if domain is PLANE:
        axis = (torch.arange(count, dtype=F64) + 0.5) * 2 / count - 1
        return torch.cartesian_prod(axis, axis), torch.full((count**2,), 4.0 / count**2, dtype=F64)
    return -1 + (torch.arange(count, dtype=F64) + 0.5) * 3 / count, torch.full((count,), 3.0 / count, dtype=F64)


def negentropy(q, weights, alpha):
    """Ω_α(q) = (∫q^α − 1)/(α(α−1)), at α = 1 the Shannon negentropy."""
    if alpha == 1:
        return (weights * torch.special.xlogy(q, q)).sum()
    return ((weights * q**alpha).sum() - 1) / (alpha * (alpha - 1))


@pytest.mark.parametrize("alpha", [0.65, 1.0, 1.4, 2.0, 3.8])
@pytest.mark.parametrize("domain", [LINE, KNOTS, NODES, PLANE], ids=lambda d: type(d).__name__)
def test_no_density_has_a_higher_objective(domain, alpha):
    theta = torch.tensor([0.8, 1.7, 0.6], dtype=F64)
    p = contmax.regularized_prediction(lambda t: features(t) @ theta, domain, alpha)
    points, weights = dense(domain)
    phi = features(points)
    f = phi @ theta if domain is not KNOTS else on_knots(features(KNOTS.points) @ theta, points)

    def objective(q):
        q = q / (weights * q).sum()
        return (weights * q * f).sum() - negentropy(q, weights, alpha)

    best = p.density(points)
    # What the midpoint rule itself is good for; the nodes are exact.
    tolerance = 1e-9 if domain is NODES else 2e-4 if domain is PLANE else 1e-5
    assert objective(best).item() == pytest.approx(p.conjugate().item(), abs=tolerance)
    generator = torch.Generator().manual_seed(7)
    for _ in range(5):
        noise = torch.randn(3, generator=generator, dtype=F64)
        rival = (2 * phi @ noise).exp()
        rival = rival / (weights * rival).sum()
        assert objective(rival) <= p.conjugate() + tolerance
        for share in (0.1, 1e-3):
            assert objective((1 - share) * best + share * rival) <= p.conjugate() + tolerance
        # Far from the maximum the gap is no matter of rounding.
        assert p.conjugate() - objective(rival) > 1e-3
