"""Other ways to build a density: moments, support, canonical parameters, samples, escorts."""

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from line_quadrature import integral
from scipy.integrate import quad
from torch.distributions import Categorical

from contmax.densities import (
    BetaGaussian,
    LocationScale,
    Mixture,
    MultivariateBetaGaussian,
    Triangular,
    TruncatedParabola,
    TruncatedParaboloid,
)

D = torch.float64
ALPHAS = [0.7, 0.99, 1.0, 1.000001, 4 / 3, 1.5, 2.0, 3.0, 20.0]
MATRIX = torch.tensor([[1.1, 0.4, 0.0], [0.4, 0.6, -0.1], [0.0, -0.1, 0.3]], dtype=D)
LOC = torch.tensor([0.2, -0.5, 1.0], dtype=D)


def scalar(value: float) -> torch.Tensor:
    return torch.tensor(value, dtype=D)


@pytest.mark.parametrize("alpha", ALPHAS)
def test_moments_round_trip(alpha):
    for index in (alpha, scalar(alpha)):
        p = BetaGaussian.from_moments(scalar(0.4), scalar(0.03), index)
        torch.testing.assert_close(p.variance, scalar(0.03), rtol=1e-12, atol=0)
        q = MultivariateBetaGaussian.from_moments(LOC, MATRIX, index)
        torch.testing.assert_close(q.covariance_matrix, MATRIX, rtol=1e-11, atol=1e-14)
        assert torch.equal(q.mean, LOC)


@pytest.mark.parametrize("alpha", [alpha for alpha in ALPHAS if alpha > 1])
def test_support_round_trip(alpha):
    for index in (alpha, scalar(alpha)):
        p = BetaGaussian.from_support(scalar(-1.0), scalar(4.0), index)
        torch.testing.assert_close(p.half_width, scalar(2.5), rtol=1e-9, atol=0)
        q = MultivariateBetaGaussian.from_support(LOC, MATRIX, index)
        torch.testing.assert_close(q.radius.square() * q.scale_matrix, MATRIX, rtol=1e-9, atol=1e-12)


def test_formulas_of_the_parabola():
    """σ² = ⅔(5·var)^{3/2} and σ² = ⅔a³."""
    p = TruncatedParabola.from_moments(scalar(0.0), scalar(0.31))
    torch.testing.assert_close(p.scale.square(), scalar(2 / 3 * (5 * 0.31) ** 1.5))
    q = TruncatedParabola.from_support(scalar(-1.7), scalar(1.7))
    torch.testing.assert_close(q.scale.square(), scalar(2 / 3 * 1.7**3))
    assert type(p) is type(q) is TruncatedParabola


@pytest.mark.parametrize("alpha", [*ALPHAS, math.inf])
def test_canonical_round_trip(alpha):
    p = BetaGaussian(scalar(0.3), scalar(0.8), alpha)
    linear, quadratic = p.canonical
    torch.testing.assert_close(linear, scalar(0.3 / 0.64))
    torch.testing.assert_close(quadratic, scalar(-0.5 / 0.64))
    again = BetaGaussian.from_canonical(*p.canonical, alpha)
    torch.testing.assert_close(torch.stack((again.loc, again.scale)), torch.stack((p.loc, p.scale)))
    q = MultivariateBetaGaussian(LOC, MATRIX, alpha)
    again = MultivariateBetaGaussian.from_canonical(*q.canonical, alpha)
    torch.testing.assert_close(again.loc, LOC)
    torch.testing.assert_close(again.scale_matrix, MATRIX)


def test_log_partition_in_canonical_parameters():
    """A₂(θ) = −θ₁²/4θ₂ − (−9θ₂/16)^{1/3} + 1, of the score that is not centred."""
    p = TruncatedParabola(scalar(0.3), scalar(0.8))
    linear, quadratic = p.canonical
    expected = -(linear**2) / (4 * quadratic) - (-9 * quadratic / 16) ** (1 / 3) + 1
    torch.testing.assert_close(p.normalizer + 0.5 * (p.loc / p.scale) ** 2, expected)


@pytest.mark.parametrize("alpha", [0.7, 1.0, 1.000001, 1.2, 1.5, 1.9, 2.0, 5.0, math.inf])
@pytest.mark.parametrize("beta", [0.5, 1.0, 1.3])
def test_escort_is_the_normalised_power(alpha, beta):
    p = BetaGaussian(scalar(0.3), scalar(0.8), alpha)
    q = p.escort(beta)
    t = p.loc + torch.linspace(-0.3, 0.3, 7, dtype=D)
    expected = beta * p.log_prob(t) - p.power_integral(beta).log()
    torch.testing.assert_close(q.log_prob(t), expected, rtol=1e-9, atol=1e-9)
    if alpha > 1:
        torch.testing.assert_close(q.half_width, p.half_width, rtol=1e-10, atol=0)
    several = MultivariateBetaGaussian(LOC, MATRIX, max(alpha, 0.8))
    t = LOC + 0.1 * torch.linspace(-0.3, 0.3, 7, dtype=D).unsqueeze(-1)
    expected = beta * several.log_prob(t) - several.power_integral(beta).log()
    torch.testing.assert_close(several.escort(beta).log_prob(t), expected, rtol=1e-9, atol=1e-9)


def test_escort_duality():
    """The (2−α)-escort of an α-Gaussian is the 1/(2−α)-Gaussian with covariance R²Σ/(N+2k)."""
    for alpha in (1.2, 1.5, 1.8):
        p = MultivariateBetaGaussian(LOC, MATRIX, alpha)
        q = p.escort(2 - alpha)
        assert q.alpha == pytest.approx(1 / (2 - alpha))
        expected = p.radius.square() * MATRIX / (3 + 2 / (alpha - 1))
        torch.testing.assert_close(q.covariance_matrix, expected, rtol=1e-10, atol=1e-13)


def test_escort_of_tensor_alpha_is_differentiable():
    alpha = torch.tensor([0.9, 1.0, 1.5], dtype=D, requires_grad=True)
    q = BetaGaussian(scalar(0.0), scalar(1.0), alpha).escort(0.7)
    (grad,) = torch.autograd.grad(q.scale.sum(), alpha)
    assert torch.isfinite(grad).all()


def test_power_integral_matches_the_gaussian():
    p = MultivariateBetaGaussian(LOC, MATRIX, 1.0)
    expected = torch.linalg.det(2 * math.pi * MATRIX) ** (-0.25) * 1.5 ** (-1.5)
    torch.testing.assert_close(p.power_integral(1.5), expected)
    torch.testing.assert_close(p.power_integral(scalar(1.5)), expected)


def test_fit_matches_the_samples():
    generator = torch.Generator().manual_seed(0)
    samples = torch.randn(200, 4, generator=generator, dtype=D)
    for alpha in (0.8, 1.0, 1.5, 2.0):
        p = BetaGaussian.fit(samples, alpha)
        torch.testing.assert_close(p.mean, samples.mean(0))
        torch.testing.assert_close(p.variance, samples.var(0, correction=0))
        q = MultivariateBetaGaussian.fit(samples, alpha)
        torch.testing.assert_close(q.covariance_matrix, torch.cov(samples.T, correction=0))
    weights = torch.rand(200, 1, generator=generator, dtype=D)
    p = TruncatedParabola.fit(samples, weights=weights)
    torch.testing.assert_close(p.mean, (weights * samples).sum(0) / weights.sum())
    assert TruncatedParaboloid.fit(samples).batch_shape == ()


def test_fit_minimises_the_fenchel_young_loss():
    """L = Ω*(f) − E[f], whose gradient vanishes at the fit."""
    samples = torch.randn(101, generator=torch.Generator().manual_seed(0), dtype=D)
    for alpha in (0.8, 1.0, 1.5, 2.0, 3.0):
        fitted = BetaGaussian.fit(samples, alpha)
        loc, scale = (value.clone().requires_grad_() for value in (fitted.loc, fitted.scale))
        p = BetaGaussian(loc, scale, alpha)
        loss = p.conjugate() + 0.5 * p.mahalanobis_sq(samples).mean()
        for grad in torch.autograd.grad(loss, (loc, scale)):
            assert abs(float(grad)) < 1e-12
    fitted = Triangular.fit(samples)
    scale = fitted.scale.clone().requires_grad_()
    loss = Triangular(fitted.loc, scale).conjugate() + (samples - fitted.loc).abs().mean() / scale
    (grad,) = torch.autograd.grad(loss, scale)
    assert abs(float(grad)) < 1e-12
    assert float(fitted.loc) == float(samples.median())


def test_other_families():
    p = Triangular.from_moments(scalar(1.0), scalar(0.5))
    torch.testing.assert_close(p.variance, scalar(0.5))
    p = Triangular.from_support(scalar(-1.0), scalar(2.0))
    torch.testing.assert_close(p.half_width, scalar(1.5))
    again = Triangular.from_canonical(*p.canonical)
    torch.testing.assert_close(again.scale, p.scale)
    for g in ("cube", "square", "cosh", "quartic", "exp", lambda x: x**2 + x**4):
        p = LocationScale.from_moments(scalar(1.0), scalar(0.5), g)
        torch.testing.assert_close(p.variance, scalar(0.5))
        p = LocationScale.from_support(scalar(-1.0), scalar(2.0), g)
        torch.testing.assert_close(p.half_width, scalar(1.5))


def test_parameters_of_a_generator_receive_gradients():
    """d/dc of the half-width of g = c·x²/2: a = 1/√c."""
    c = torch.tensor(2.0, dtype=D, requires_grad=True)
    p = LocationScale(scalar(0.0), scalar(1.0), lambda x: c * x**2 / 2)
    (slope,) = torch.autograd.grad(p.half_width, c, create_graph=True)
    torch.testing.assert_close(slope, -0.5 * c**-1.5)
    (bend,) = torch.autograd.grad(slope, c)
    torch.testing.assert_close(bend, 0.75 * c.detach() ** -2.5)


def test_scales_agree():
    dense = MultivariateBetaGaussian(LOC, MATRIX, 1.5)
    others = [
        MultivariateBetaGaussian(LOC, scale_tril=torch.linalg.cholesky(MATRIX), alpha=1.5),
        MultivariateBetaGaussian(LOC, precision_matrix=torch.linalg.inv(MATRIX), alpha=1.5),
    ]
    diagonal = torch.tensor([0.5, 0.7, 0.9], dtype=D)
    pairs = [(dense, other) for other in others]
    pairs.append(
        (
            MultivariateBetaGaussian(LOC, torch.diag(diagonal**2), 1.5),
            MultivariateBetaGaussian(LOC, scale_diag=diagonal, alpha=1.5),
        )
    )
    t = LOC + 0.2 * torch.randn(6, 3, generator=torch.Generator().manual_seed(0), dtype=D)
    for p, q in pairs:
        torch.testing.assert_close(p.log_prob(t), q.log_prob(t))
        for name in ("scale_matrix", "scale_tril", "precision_matrix", "covariance_matrix", "variance", "radius"):
            torch.testing.assert_close(getattr(p, name), getattr(q, name), rtol=1e-10, atol=1e-12)
        torch.testing.assert_close(p.canonical[0], q.canonical[0])


def test_gradient_of_a_matrix_is_symmetric():
    for name in ("scale_matrix", "precision_matrix"):
        matrix = MATRIX.clone().requires_grad_()
        p = MultivariateBetaGaussian(LOC, **{name: matrix}, alpha=1.5)
        (grad,) = torch.autograd.grad(p.log_prob(LOC + 0.1) + p.entropy(), matrix)
        torch.testing.assert_close(grad, grad.mT)
    identity = torch.eye(3, dtype=D, requires_grad=True)
    (grad,) = torch.autograd.grad(MultivariateBetaGaussian(LOC, identity).log_prob(LOC + 0.1), identity)
    assert torch.isfinite(grad).all()


@given(alpha=st.floats(0.4, 30.0), scale=st.floats(1e-3, 1e3), mean=st.floats(-10, 10), offset=st.floats(-0.99, 0.99))
def test_properties_on_the_line(alpha, scale, mean, offset):
    """Scaling t and σ together: the shape is that of α and of |Σ| alone, and moments invert exactly."""
    p = BetaGaussian(scalar(mean), scalar(scale), alpha)
    t = p.mean + offset * torch.minimum(p.half_width, 3 * p.stddev)
    assert float(p.density(t)) <= float(p.density(p.mode)) * (1 + 1e-12)
    assert 0 <= float(p.cdf(t)) <= 1
    again = BetaGaussian.from_moments(p.mean, p.variance, alpha)
    torch.testing.assert_close(again.scale, p.scale, rtol=1e-9, atol=0)
    # exp_{2−α}(f − A) is the density.
    if alpha != 1:
        base = 1 + (alpha - 1) * (-0.5 * p.mahalanobis_sq(t) - p.normalizer)
        if float(base) > 1e-3:
            torch.testing.assert_close(p.log_prob(t), base.log() / (alpha - 1), rtol=1e-7, atol=1e-7)


def test_uniform_member_has_volume_one():
    for n, volume in ((1, 2.0), (2, math.pi), (3, 4 / 3 * math.pi)):
        p = MultivariateBetaGaussian(torch.zeros(n, dtype=D), 0.3 * torch.eye(n, dtype=D), math.inf)
        size = volume * (p.radius * math.sqrt(0.3)) ** n
        torch.testing.assert_close(size, scalar(1.0))
        torch.testing.assert_close(p.density(torch.zeros(n, dtype=D)), scalar(1.0))
        near = MultivariateBetaGaussian(torch.zeros(n, dtype=D), 0.3 * torch.eye(n, dtype=D), 1e9)
        torch.testing.assert_close(near.radius, p.radius, rtol=1e-7, atol=0)
        torch.testing.assert_close(near.variance, p.variance, rtol=1e-7, atol=0)
        torch.testing.assert_close(near.conjugate(), p.conjugate(), rtol=1e-7, atol=0)


def test_weights_of_a_mixture():
    """Probabilities are taken as they are, zero included; logits as far as they reach."""
    components = TruncatedParabola(torch.tensor([0.0, 10.0]), 1.0)
    p = Mixture(Categorical(torch.tensor([1.0, 0.0])), components)
    assert p.density(torch.tensor(10.0)) == 0
    assert p.mean == 0
    tiny = Mixture(Categorical(torch.tensor([1.0, 1e-12])), components)
    torch.testing.assert_close(tiny.density(components.loc[1]), 1e-12 * components.density(components.loc)[1])
    far = Mixture(Categorical(logits=torch.tensor([0.0, -200.0])), components)
    torch.testing.assert_close(far.log_prob(components.loc[1]), components.log_prob(components.loc)[1] - 200)
    probs = torch.tensor([0.3, 0.7, 0.0], requires_grad=True)
    p = Mixture(Categorical(probs), TruncatedParabola(torch.tensor([0.0, 1.0, 2.0]), 1.0))
    (grad,) = torch.autograd.grad(p.log_prob(torch.tensor(0.5)) + p.variance, probs)
    assert torch.isfinite(grad).all()


def test_supports_say_what_they_are():
    components = TruncatedParabola.from_support(torch.tensor([0.0, 2.0]), torch.tensor([1.0, 3.0]))
    support = Mixture(Categorical(torch.ones(2)), components).support
    assert repr(support).startswith("Union(Interval(")
    assert support.check(torch.tensor([0.5, 1.5, 2.5])).tolist() == [True, False, True]
    assert repr(MultivariateBetaGaussian(torch.zeros(2), torch.eye(2)).support) == "Ellipsoid(dim=2)"


@pytest.mark.parametrize("dim", [3, 5, 6])
def test_points_in_front_of_a_batch_of_matrices(dim):
    """Each point meets the matrix of its own batch entry, in dimensions solved by substitution and by LAPACK."""
    generator = torch.Generator().manual_seed(0)
    tril = torch.randn(4, 2, dim, dim, generator=generator, dtype=D).tril(-1) + torch.eye(dim, dtype=D)
    loc = torch.randn(4, 2, dim, generator=generator, dtype=D)
    t = torch.randn(7, 3, 4, 2, dim, generator=generator, dtype=D)
    p = MultivariateBetaGaussian(loc, scale_tril=tril, alpha=1.0)
    expected = torch.distributions.MultivariateNormal(loc, scale_tril=tril).log_prob(t)
    torch.testing.assert_close(p.log_prob(t), expected)
    torch.testing.assert_close(p.log_prob(t[0, 0]), expected[0, 0])


def test_one_matrix_for_many_locations():
    loc = torch.randn(4, 2, generator=torch.Generator().manual_seed(0), dtype=D)
    matrix = MATRIX[:2, :2]
    for scale in ({"scale_matrix": matrix}, {"scale_diag": matrix.diagonal()}):
        p = MultivariateBetaGaussian(loc, **scale, alpha=1.5)
        assert p.batch_shape == (4,)
        assert p.variance.shape == p.stddev.shape == (4, 2)
        assert p.covariance_matrix.shape == p.scale_matrix.shape == p.canonical[1].shape == (4, 2, 2)
        assert p.radius.shape == p.entropy().shape == p.threshold.shape == (4,)
        torch.testing.assert_close(p.variance, p.covariance_matrix.diagonal(dim1=-2, dim2=-1))


@pytest.mark.parametrize(("alpha", "dim"), [(0.8, 3), (0.7, 2), (0.9, 5), (2.0, 3), (3.0, 1)])
def test_where_a_power_integral_exists(alpha, dim):
    """∫p^γ by quadrature of the radius, down to the γ at which it diverges."""
    p = MultivariateBetaGaussian(torch.zeros(dim, dtype=D), 0.7 * torch.eye(dim, dtype=D), alpha)
    bound = 1 - alpha if alpha > 1 else (1 - alpha) * dim / 2
    with pytest.raises(ValueError, match=f"exceed {bound:.6g}".replace("-", "[-]")):
        p.power_integral(bound - 1e-9)
    surface = 2 * math.pi ** (dim / 2) / math.gamma(dim / 2) * 0.7 ** (dim / 2)
    end = float(p.radius)
    for gamma in (bound + 0.3, 1.0, 1.4):

        def integrand(r: torch.Tensor, gamma: float = gamma) -> torch.Tensor:
            points = torch.nn.functional.pad(r[..., None] * math.sqrt(0.7), (0, dim - 1))
            return surface * r ** (dim - 1) * torch.exp(gamma * p.log_prob(points))

        if gamma < 0:
            # A pole at the edge: digits next to it are lost, and only extrapolation finds its mass.
            at = lambda r, each=integrand: float(each(torch.tensor(r, dtype=D)))  # noqa: E731
            expected = quad(at, 0, end, epsabs=0, epsrel=1e-9, limit=200)[0]
        else:
            expected = integral(integrand, [0.0, end] if math.isfinite(end) else [0.0, 1.0, end])
        assert float(p.power_integral(gamma)) == pytest.approx(expected, rel=1e-6)
