"""Densities at extreme scales and indices, in float64 and float32: no NaN, forward or backward."""

import math

import mpmath
import pytest
import torch
from torch.distributions import Categorical

from contmax.densities import BetaGaussian, LocationScale, Mixture, MultivariateBetaGaussian, Triangular

F64, F32 = torch.float64, torch.float32
MIXED = torch.tensor([0.34, 0.6, 1 - 1e-9, 1.0, 1 + 1e-9, 1.5, 2.0, 5.0, 1e3, 1e8], dtype=F64)
COUNT = 100


def spread(dtype, *shape):
    """Positive numbers over sixteen powers of ten."""
    return (10 ** (8 * (2 * torch.rand(COUNT, *shape, dtype=F64) - 1))).to(dtype)


def mixed_index(dtype, least=0.0):
    return (least + MIXED)[torch.randint(len(MIXED), (COUNT,))].to(dtype).requires_grad_()


def mixture(loc, scale):
    weights = Categorical(torch.ones(COUNT, 2, dtype=loc.dtype))
    return Mixture(weights, BetaGaussian(torch.stack([loc, 2 * loc], -1), torch.stack([scale, 2 * scale], -1), 1.5))


FAMILIES = {
    **{str(a): lambda m, s, a=a: BetaGaussian(m, s, a) for a in (0.34, 0.9, 1 - 1e-9, 1.0, 1 + 1e-12, 1 + 1e-7)},
    **{str(a): lambda m, s, a=a: BetaGaussian(m, s, a) for a in (1.5, 1.7, 2.0, 10.0, 1e3, 1e6, math.inf)},
    "mixed": None,
    "triangular": Triangular,
    **{g: lambda m, s, g=g: LocationScale(m, s, g) for g in ("cosh", "exp", "quartic")},
    "mixture": mixture,
}


def assert_no_nan(value, parameters):
    assert not value.isnan().any()
    if value.requires_grad:
        gradients = torch.autograd.grad(value.sum(), parameters, allow_unused=True, retain_graph=True)
        assert all(gradient is None or not gradient.isnan().any() for gradient in gradients)


@pytest.mark.parametrize("dtype", [F64, F32], ids=str)
@pytest.mark.parametrize("name", FAMILIES)
def test_no_nan_on_the_line(name, dtype):
    loc, scale = (torch.randn(COUNT) * spread(dtype)).to(dtype).requires_grad_(), spread(dtype).requires_grad_()
    parameters = [loc, scale]
    if name == "mixed":
        parameters.append(mixed_index(dtype))
        p = BetaGaussian(*parameters)
    else:
        p = FAMILIES[name](loc, scale)
    deviation = p.stddev.detach()
    middle = p.mean.detach()
    end = p.icdf(torch.ones((), dtype=dtype)).detach()
    end = torch.where(end.isinf(), middle, end)
    t = torch.stack([middle, middle + 0.3 * deviation, end, middle + 1e3 * deviation]).requires_grad_()
    for value in (p.log_prob(t).clamp(min=-1e30), p.density(t).clamp(max=1e30), p.cdf(t)):
        assert_no_nan(value, [*parameters, t])
    assert_no_nan(p.icdf(torch.tensor([[0.0], [1e-12], [1e-3], [0.5], [0.9], [1.0]], dtype=dtype)), parameters)
    for attribute in ("variance", "threshold", "radius", "normalizer", "half_width"):
        if name != "mixture" or attribute == "variance":
            assert_no_nan(getattr(p, attribute), parameters)
    for method in ("entropy", "tsallis_negentropy", "conjugate"):
        if name != "mixture" or method == "entropy":
            assert_no_nan(getattr(p, method)(), parameters)
    assert_no_nan(p.rsample((3,)), parameters)


@pytest.mark.parametrize("dim", [2, 5])
@pytest.mark.parametrize("alpha", [0.76, 1.0, 1 + 1e-9, 2.0, 1e4, math.inf, "mixed"])
def test_no_nan_in_several_dimensions(alpha, dim):
    for dtype in (F64, F32):
        factor = torch.randn(COUNT, dim, dim).tril(-1) + torch.diag_embed(0.1 + torch.rand(COUNT, dim))
        factor = (factor.to(dtype) * spread(dtype)[:, None, None]).requires_grad_()
        loc = (torch.randn(COUNT, dim) * spread(dtype, 1)).to(dtype).requires_grad_()
        parameters = [loc, factor]
        if alpha == "mixed":
            parameters.append(mixed_index(dtype, 0.42))
        p = MultivariateBetaGaussian(loc, scale_tril=factor, alpha=parameters[-1] if alpha == "mixed" else alpha)
        # A variance may overflow; the points at which to look may not.
        deviation = p.stddev.detach().clamp(max=1e15)
        for t in (loc.detach(), loc.detach() + 0.1 * deviation, loc.detach() + 1e3 * deviation):
            assert_no_nan(p.log_prob(t).clamp(min=-1e30), parameters)
        for value in (p.entropy(), p.conjugate(), p.threshold, p.radius, p.rsample()):
            assert_no_nan(value, parameters)


@pytest.mark.parametrize("dim", [1, 2, 5])
def test_float32_index_next_to_its_bound(dim):
    """At α → N/(N+2) the variance is infinite: a tensor α in float32 is taken for the number it is."""
    alpha = torch.tensor([dim / (dim + 2)])
    for _ in range(6):
        alpha = torch.nextafter(alpha, torch.ones(1))
        if float(alpha) <= dim / (dim + 2):
            continue
        eye = 0.7 * torch.eye(dim)
        p = MultivariateBetaGaussian(torch.zeros(dim), eye, alpha)
        exact = MultivariateBetaGaussian(torch.zeros(dim, dtype=F64), eye.double(), float(alpha))
        torch.testing.assert_close(p.variance[0].double(), exact.variance, rtol=1e-5, atol=0)
        for name in ("entropy", "tsallis_negentropy", "conjugate"):
            got, wanted = getattr(p, name)()[0].double(), getattr(exact, name)()
            torch.testing.assert_close(got, wanted, rtol=1e-5, atol=0)
        same = MultivariateBetaGaussian.from_moments(torch.zeros(dim), p.covariance_matrix[0], alpha)
        torch.testing.assert_close(same.scale_matrix[0], eye, rtol=1e-4, atol=0)


@pytest.mark.parametrize("alpha", [0.6, 1.0, 1.5, 1.7, math.inf, "tensor", "triangular", "cosh"])
def test_a_point_too_far_for_its_derivative(alpha):
    """t/σ² overflows in float32 although t and σ do not; a derivative is zero there, not NaN."""
    for point, size in ((1e30, 1.0), (1.0, 1e-25), (1e30, 1e-20), (3e38, 1e-30)):
        scale, t = torch.tensor(size, requires_grad=True), torch.tensor([point, -point], requires_grad=True)
        if alpha == "triangular":
            p = Triangular(0.0, scale)
        elif alpha == "cosh":
            p = LocationScale(0.0, scale, "cosh")
        else:
            p = BetaGaussian(0.0, scale, torch.tensor(1.2) if alpha == "tensor" else alpha)
        torch.testing.assert_close(p.cdf(t).detach(), torch.tensor([1.0, 0.0]))
        for value in (p.density(t), p.cdf(t), p.log_prob(t).clamp(min=-1e30)):
            for grad in torch.autograd.grad(value.sum(), (scale, t), allow_unused=True):
                assert grad is None or not grad.isnan().any()


@pytest.mark.parametrize("alpha", [5.0, 100.0, 1e8, math.inf, torch.tensor(5.0)], ids=str)
def test_float32_scales_whose_square_is_out_of_range(alpha):
    """σ = 1e±30: the half-width is an ordinary number, Δ = (t−μ)²/σ² and 1/σ² are not."""
    for size in (1e30, 1e-12):
        scale = torch.tensor(size, requires_grad=True)
        p, exact = (
            BetaGaussian(0.0, scale, alpha),
            BetaGaussian(torch.tensor(0.0).double(), scale.detach().double(), alpha),
        )
        t = p.half_width.detach() * torch.tensor([0.0, 0.3, -0.9, 1.1])
        torch.testing.assert_close(p.log_prob(t).double(), exact.log_prob(t.double()), rtol=1e-4, atol=1e-4)
        torch.testing.assert_close(p.conjugate().double(), exact.conjugate(), rtol=1e-4, atol=1e-9)
        assert_no_nan(p.density(t), [scale])
    tiny = BetaGaussian(0.0, torch.tensor(1e-30), alpha)
    assert tiny.conjugate() == -math.inf, "beyond float32, and no difference of two infinities"


@pytest.mark.parametrize("alpha", [1.0, torch.tensor(1.0)], ids=["number", "tensor"])
def test_the_threshold_of_a_gaussian_is_infinitely_low(alpha):
    assert BetaGaussian(0.0, 1.0, alpha).threshold == -math.inf


@pytest.mark.parametrize("alpha", [0.8, 1.0, 1.5, torch.tensor(1.5)], ids=str)
def test_points_whose_squared_distance_overflows_leave_gradients_finite(alpha):
    loc = torch.tensor(0.0, requires_grad=True)
    p = BetaGaussian(loc, 1.0, alpha)
    for t in (1e30, -1e37):
        (slope,) = torch.autograd.grad(p.density(torch.tensor(t)), loc)
        assert slope == 0


@pytest.mark.parametrize("dim", [1, 2, 3, 7])
def test_float64_index_next_to_its_bound(dim):
    """In Student's form p = [c(A² + Δ)]⁻ᵐ, m = 1/(1−α), moments have the factor 1/(2m−N−2): every digit of α counts."""
    half = mpmath.mpf(dim) / 2
    alpha = torch.tensor(dim / (dim + 2), dtype=F64)
    zero, eye = torch.zeros(dim, dtype=F64), 0.25 * torch.eye(dim, dtype=F64)
    for ulps in (1, 1, 1, 3, 1000):
        for _ in range(ulps):
            alpha = torch.nextafter(alpha, torch.ones_like(alpha))
        with mpmath.workdps(50):
            index = mpmath.mpf(float(alpha))
            if index * (dim + 2) <= dim:
                continue
            m, c = 1 / (1 - index), (1 - index) / 2
            log_mass = half * mpmath.log(mpmath.pi / 4) + mpmath.loggamma(m - half) - mpmath.loggamma(m)
            square = mpmath.exp(2 * (m * mpmath.log(c) - log_mass) / (dim - 2 * m))
            variance = square / (2 * m - dim - 2)
            negentropy = (c * (square + dim * variance) - 1) / (index * (index - 1))
            wanted = [float(x) for x in (variance / 4, negentropy, -dim * variance / 2 - negentropy)]
        for given in (alpha, float(alpha)):
            p = MultivariateBetaGaussian(zero, eye, given)
            got = torch.stack([p.variance[0], p.tsallis_negentropy(), p.conjugate()])
            torch.testing.assert_close(got, torch.tensor(wanted, dtype=F64), rtol=1e-12, atol=0)
            same = MultivariateBetaGaussian.from_moments(zero, wanted[0] * torch.eye(dim, dtype=F64), given)
            torch.testing.assert_close(same.scale_matrix, eye, rtol=1e-9, atol=0)
