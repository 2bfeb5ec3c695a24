r"""Theorems of the paper about Ω_α-maps of quadratic scores, against quadrature and automatic differentiation.

``gradient_A``: :math:`\nabla_\theta A_\alpha(\theta) = E_{\tilde p^{2-\alpha}}[\phi(t)]`, the mean of the sufficient
statistics under the (2−α)-escort. Appendix: the map is the solution of largest Tsallis entropy among all densities with
its mean and covariance.
"""

import functools
import math

import numpy as np
import pytest
import torch
from line_quadrature import integral
from scipy import stats

from contmax.densities import BetaGaussian, MultivariateBetaGaussian

D = torch.float64
INDICES = [0.8, 1.0, 1.000001, 1.3, 1.5, 1.9]


def log_partition(p: BetaGaussian | MultivariateBetaGaussian) -> torch.Tensor:
    """A(θ) of the score θ₁ᵀt + tr(Θ₂ttᵀ): that of the centred score, and ½μᵀΣ⁻¹μ from the completed square."""
    return p.normalizer + 0.5 * p.mahalanobis_sq(torch.zeros_like(p.loc))


@pytest.mark.parametrize("alpha", INDICES)
def test_gradient_of_the_log_partition_on_the_line(alpha):
    """∇A = (E[t], E[t²]) under the (2−α)-escort, by its own moments and by quadrature of the density's power."""
    theta = torch.tensor([0.7, -0.9], dtype=D, requires_grad=True)
    p = BetaGaussian.from_canonical(theta[0], theta[1], alpha)
    torch.testing.assert_close(torch.stack(p.canonical), theta)
    (gradient,) = torch.autograd.grad(log_partition(p), theta)
    escort = p.escort(2 - alpha)
    torch.testing.assert_close(
        gradient, torch.stack((escort.mean, escort.variance + escort.mean**2)), rtol=1e-9, atol=0
    )
    p = BetaGaussian(p.loc.detach(), p.scale.detach(), alpha)
    half = min(float(p.half_width), 60 * float(p.stddev)) if alpha >= 1 else math.inf
    loc = float(p.loc)

    def moment(power: int) -> float:
        escorted = lambda t: t**power * torch.exp((2 - alpha) * p.log_prob(t))  # noqa: E731
        return integral(escorted, [loc - half, loc, loc + half])

    mass = moment(0)
    expected = torch.tensor([moment(1) / mass, moment(2) / mass], dtype=D)
    torch.testing.assert_close(gradient, expected, rtol=1e-7, atol=1e-9)


def test_gradient_of_the_log_partition_of_the_parabola():
    """α = 2: the 0-escort is uniform on the support."""
    theta = torch.tensor([0.7, -0.9], dtype=D, requires_grad=True)
    p = BetaGaussian.from_canonical(theta[0], theta[1], 2.0)
    (gradient,) = torch.autograd.grad(log_partition(p), theta)
    expected = torch.stack((p.loc, p.loc**2 + p.half_width**2 / 3))
    torch.testing.assert_close(gradient, expected, rtol=1e-12, atol=0)


@pytest.mark.parametrize("alpha", [0.9, 1.0, 1.3, 1.5, 1.9])
@pytest.mark.parametrize("dim", [2, 3, 5])
def test_gradient_of_the_log_partition_in_several_dimensions(dim, alpha):
    """∇_{θ₁}A = E[t] and ∇_{Θ₂}A = E[ttᵀ] under the escort, by its moments and by averaging over draws of p."""
    generator = torch.Generator().manual_seed(dim)
    factor = torch.randn(dim, dim, generator=generator, dtype=D)
    precision = factor @ factor.mT / dim + torch.eye(dim, dtype=D)
    linear = torch.randn(dim, generator=generator, dtype=D).requires_grad_()
    quadratic = (-0.5 * precision).requires_grad_()
    p = MultivariateBetaGaussian.from_canonical(linear, quadratic, alpha)
    gradients = torch.autograd.grad(log_partition(p), (linear, quadratic))
    escort = p.escort(2 - alpha)
    second = escort.covariance_matrix + escort.mean.unsqueeze(-1) * escort.mean.unsqueeze(-2)
    for got, expected in zip(gradients, (escort.mean, second), strict=True):
        torch.testing.assert_close(got, expected, rtol=1e-8, atol=1e-10)
    # p^{2−α} = p·p^{1−α}: draws of p with these weights follow the escort, and no code of ours makes it.
    with torch.no_grad():
        t = p.sample((40_000,))
        weights = torch.softmax((1 - alpha) * p.log_prob(t), 0)
        sampled = torch.einsum("n,ni,nj->ij", weights, t, t)
    torch.testing.assert_close(gradients[1], sampled, rtol=0.1, atol=0.1 * float(sampled.abs().max()))


def tsallis_entropy(log_density, alpha: float, low: float, high: float) -> float:
    """−Ω_α(p) = (1 − ∫p^α)/(α(α−1)), Shannon's at α = 1, by quadrature."""

    def integrand(t: torch.Tensor) -> torch.Tensor:
        log_p = log_density(t)
        value = -log_p * torch.exp(log_p) if alpha == 1 else torch.exp(alpha * log_p)
        return torch.where(log_p == -math.inf, 0.0, value)

    total = integral(integrand, [low, 0.0, high])
    return total if alpha == 1 else (1 - total) / (alpha * (alpha - 1))


@functools.cache
def rivals() -> dict[str, stats.rv_continuous]:
    """Laws of mean 0 and variance 1, symmetric and skewed, of bounded and of unbounded support."""
    root3 = math.sqrt(3)
    skewed = stats.beta(2, 5)
    return {
        "uniform": stats.uniform(-root3, 2 * root3),
        "normal": stats.norm(),
        "laplace": stats.laplace(0, math.sqrt(0.5)),
        "triangular": stats.triang(0.5, -math.sqrt(6), 2 * math.sqrt(6)),
        "logistic": stats.logistic(0, root3 / math.pi),
        "skewed": stats.beta(2, 5, -skewed.mean() / skewed.std(), 1 / skewed.std()),
        "gamma": stats.gamma(4, -2, 0.5),
        "cosine": stats.cosine(0, 1 / stats.cosine().std()),
    }


@pytest.mark.parametrize("alpha", [0.7, 1.0, 1.2, 1.5, 2.0, 3.0])
def test_largest_tsallis_entropy_among_equal_moments(alpha):
    p = BetaGaussian.from_moments(torch.tensor(0.0, dtype=D), torch.tensor(1.0, dtype=D), alpha)
    end = float(p.half_width)
    own = tsallis_entropy(p.log_prob, alpha, -end, end)
    assert own == pytest.approx(-float(p.tsallis_negentropy()), rel=1e-6)
    for name, rival in rivals().items():
        low, high = rival.support()
        assert (rival.mean(), rival.var()) == pytest.approx((0, 1), abs=1e-9)
        log_density = lambda t, q=rival: torch.from_numpy(q.logpdf(t.numpy()))  # noqa: E731
        entropy = tsallis_entropy(log_density, alpha, max(low, -60.0), min(high, 60.0))
        margin = 1e-6 if (name, alpha) == ("normal", 1.0) else -1e-4
        assert entropy < own + margin, name
    for other in (0.6, 0.9, 1.1, 1.4, 1.8, 2.5, 8.0):
        rival = BetaGaussian.from_moments(p.mean, p.variance, other)
        # ∫q^α of another index, in closed form, tested elsewhere against quadrature.
        power = float(rival.power_integral(alpha))
        entropy = float(rival.entropy()) if alpha == 1 else (1 - power) / (alpha * (alpha - 1))
        assert entropy < own - 1e-5, other


@pytest.mark.parametrize("alpha", [0.8, 1.0, 1.5, 2.0])
def test_entropy_falls_in_every_direction_that_keeps_the_moments(alpha):
    """p + h·q with q ⟂ 1, t, t² on the support: the entropy is stationary at p and concave."""
    p = BetaGaussian.from_moments(torch.tensor(0.3, dtype=D), torch.tensor(0.5, dtype=D), alpha)
    half = min(float(p.half_width), 12 * float(p.stddev))
    nodes, weights = np.polynomial.legendre.leggauss(400)
    t, w = torch.from_numpy(0.3 + half * nodes), torch.from_numpy(half * weights)
    density = p.density(t)
    moments = torch.stack((torch.ones_like(t), t - 0.3, (t - 0.3) ** 2))

    def entropy(q: torch.Tensor) -> float:
        if alpha == 1:
            return -float((w * torch.xlogy(q, q)).sum())
        return float((1 - (w * q**alpha).sum()) / (alpha * (alpha - 1)))

    for frequency in (2.0, 3.0, 5.0):
        for wave in (torch.cos(frequency * (t - 0.3)), torch.sin(frequency * (t - 0.3))):
            gram = torch.einsum("n,in,jn->ij", w * density, moments, moments)
            share = torch.linalg.solve(gram, torch.einsum("n,in,n->i", w * density, moments, wave))
            direction = density * (wave - share @ moments)
            direction = direction / direction.abs().max() * density.max()
            scale = float((density / direction.abs().clamp(min=1e-300)).min())
            step = 0.2 * min(scale, 1.0)
            up, down, here = (entropy(density + h * direction) for h in (step, -step, 0.0))
            assert max(up, down) < here
            assert abs(up - down) < 0.2 * (2 * here - up - down) + 1e-12, "the slope at p is zero"


@pytest.mark.parametrize("alpha", [1.0, 1.5, 2.0])
def test_largest_tsallis_entropy_in_the_plane(alpha):
    """Against products of laws on the line and against other indices, of the same covariance."""
    covariance = torch.eye(2, dtype=D)
    p = MultivariateBetaGaussian.from_moments(torch.zeros(2, dtype=D), covariance, alpha)
    own = -float(p.tsallis_negentropy())
    for rival in rivals().values():
        low, high = rival.support()
        if alpha == 1:
            entropy = 2 * float(rival.entropy())
            assert entropy < own + 1e-9
            continue
        density = lambda t, q=rival: torch.from_numpy(q.pdf(t.numpy()))  # noqa: E731
        power = integral(lambda t, q=density: q(t) ** alpha, [max(low, -60.0), 0.0, min(high, 60.0)]) ** 2
        assert (1 - power) / (alpha * (alpha - 1)) < own - 1e-4
    for other in (0.8, 1.2, 1.8, 3.0):
        rival = MultivariateBetaGaussian.from_moments(p.mean, covariance, other)
        power = float(rival.power_integral(alpha))
        entropy = float(rival.entropy()) if alpha == 1 else (1 - power) / (alpha * (alpha - 1))
        assert entropy < own - 1e-5
