"""Every α on the line against mpmath, and ∂r/∂α through α = 1 on the line and in space."""

import math

import mpmath
import pytest
import torch

import contmax
from contmax.basis import GaussianBasis, MultivariateGaussianBasis
from contmax.densities import BetaGaussian, MultivariateBetaGaussian

F64 = torch.float64
# Functions that are wide, as wide as the density, narrow inside, and narrow where its support may end.
PLACES = [(0.1, 0.05), (0.3, 0.1), (0.9, 0.02), (0.2, 1.5), (1.6, 0.01), (-0.4, 0.3)]
ALPHAS = [0.36, 0.5, 0.8, 0.99, 0.999, 1 - 2**-20, 1 + 2**-20, 1.001, 1.01, 1.1, 1.25, 1.7, 2.0, 2.5, 4.0, 20.0, 100.0]


def exact(mu, sigma, alpha, centre, width):
    """r to 20 digits: the density from its formula, with its own normaliser, on intervals that shrink to its ends."""
    mpmath.mp.dps = 30
    mu, sigma, alpha, centre, width = (mpmath.mpf(x) for x in (mu, sigma, alpha, centre, width))
    gap = alpha - 1

    def psi(t):
        return mpmath.exp(-(((t - centre) / width) ** 2) / 2) / (mpmath.sqrt(2 * mpmath.pi) * width)

    if gap == 0:
        def p(t):
            return mpmath.exp(-(((t - mu) / sigma) ** 2) / 2) / (mpmath.sqrt(2 * mpmath.pi) * sigma)
    elif gap > 0:
        k = 1 / gap
        log_ratio = mpmath.loggamma(k + 1.5) - mpmath.loggamma(k + 1) - mpmath.log(2 * mpmath.pi * k) / 2
        rho = mpmath.exp((log_ratio - mpmath.log(sigma)) / (k + mpmath.mpf(1) / 2))
        radius = sigma * mpmath.sqrt(2 * k * rho)

        def p(t):
            room = 1 - ((t - mu) / radius) ** 2
            return mpmath.exp(k * mpmath.log(rho * room)) if room > 0 else mpmath.mpf(0)
    else:
        k = -1 / gap
        log_c = (
            mpmath.log(sigma) + k * mpmath.log(2 * k) + mpmath.log(mpmath.pi) / 2
            + mpmath.loggamma(k - mpmath.mpf(1) / 2) - mpmath.loggamma(k)
        ) * 2 / (2 * k - 1)

        def p(t):
            return mpmath.exp(-k * mpmath.log((mpmath.exp(log_c) + ((t - mu) / sigma) ** 2) / (2 * k)))

    low, high = centre - 14 * width, centre + 14 * width
    if gap > 0:
        low, high = max(low, mu - radius), min(high, mu + radius)
    if not low < high:
        return mpmath.mpf(0)
    inside = [x for x in (centre - 3 * width, centre, centre + 3 * width, mu - sigma, mu, mu + sigma) if low < x < high]
    return mpmath.quad(lambda t: p(t) * psi(t), sorted({low, high, *inside}))


def evaluate(mu, sigma, alpha, dtype):
    basis = GaussianBasis(*(torch.tensor(x, dtype=dtype) for x in zip(*PLACES, strict=True)))
    return contmax.expectation(BetaGaussian(torch.tensor(mu, dtype=dtype), torch.tensor(sigma, dtype=dtype), alpha), basis)


@pytest.mark.parametrize("alpha", ALPHAS)
@pytest.mark.parametrize("sigma", [0.125, 1.0])
def test_values(alpha, sigma):
    expected = torch.tensor([float(exact(0.25, sigma, alpha, *place)) for place in PLACES], dtype=F64)
    # The largest r of a function of the same width.
    top = torch.tensor([float(exact(0.25, sigma, alpha, 0.25, width)) for _, width in PLACES], dtype=F64)
    for index in (alpha, torch.tensor(alpha, dtype=F64)):
        assert ((evaluate(0.25, sigma, index, F64) - expected).abs() / top).max() < 1e-12
        assert ((evaluate(0.25, sigma, index, torch.float32) - expected).abs() / top).max() < 1e-6


@pytest.mark.parametrize("alpha", ALPHAS)
def test_gradients(alpha):
    """In μ, σ, α, μ_j and σ_j, each relative to its natural size: r over the width that it changes on."""
    mu, sigma, centre, width = 0.25, 0.5, 0.4375, 0.25
    step = mpmath.mpf(10) ** -8
    arguments = [mu, sigma, alpha, centre, width]
    size = float(exact(mu, sigma, alpha, mu, width)) / width
    expected = []
    for i in range(5):
        mpmath.mp.dps = 30
        ahead, back = list(arguments), list(arguments)
        ahead[i], back[i] = arguments[i] + step, arguments[i] - step
        expected.append(float((exact(*ahead) - exact(*back)) / (2 * step)))
    for dtype, tolerance in ((F64, 2e-12), (torch.float32, 3e-6)):
        loc, scale = (torch.tensor(x, dtype=dtype, requires_grad=True) for x in (mu, sigma))
        index = torch.tensor(alpha, dtype=F64, requires_grad=True)
        for given in (index, alpha):
            basis = GaussianBasis(
                torch.tensor([centre], dtype=dtype), torch.tensor([width], dtype=dtype), learnable=True
            )
            r = contmax.expectation(BetaGaussian(loc, scale, given), basis)
            wanted = (loc, scale, *([index] if given is index else []), *basis.parameters())
            got = torch.autograd.grad(r.sum(), wanted)
            truth = [e for e in expected if given is index or e is not expected[2]]
            truth[-1] = truth[-1] * width  # the parameter is the logarithm of the width
            for mine, theirs in zip(got, truth, strict=True):
                assert abs(mine.item() - theirs) < tolerance * size


def test_the_slope_in_the_index_at_one():
    truth = 0.0147892078
    basis = GaussianBasis(torch.tensor([0.3], dtype=F64), torch.tensor([0.1], dtype=F64))
    for dtype, tolerance in ((F64, 1e-8), (torch.float32, 1e-5)):
        slopes = []
        for gap in (-1e-3, -1e-6, -1e-12, 0.0, 1e-12, 1e-6, 1e-3):
            index = torch.tensor(1 + gap, dtype=F64, requires_grad=True)
            density = BetaGaussian(torch.tensor(0.4, dtype=dtype), torch.tensor(0.1, dtype=dtype), index)
            (slope,) = torch.autograd.grad(contmax.expectation(density, basis.to(dtype)).sum(), index, create_graph=True)
            (bend,) = torch.autograd.grad(slope, index)
            slopes.append(slope.item())
            assert bend.isfinite()
        assert slopes[3] == pytest.approx(truth, rel=tolerance)
        assert slopes[2] == pytest.approx(slopes[4], rel=1e-9 if dtype == F64 else 1e-5)


def family(dim, dtype=F64):
    generator = torch.Generator().manual_seed(dim)
    spread = 0.3 * torch.randn(dim, dim, dtype=F64, generator=generator)
    matrix = spread @ spread.mT + 0.05 * torch.eye(dim, dtype=F64)
    shapes = torch.stack([torch.eye(dim, dtype=F64) * w**2 for w in (0.05, 0.2, 0.8)])
    centres = torch.rand(3, dim, dtype=F64, generator=generator)
    loc = torch.rand(dim, dtype=F64, generator=generator)
    basis = MultivariateGaussianBasis(centres, shapes).to(dtype)
    return lambda index: contmax.expectation(MultivariateBetaGaussian(loc.to(dtype), matrix.to(dtype), index), basis)


@pytest.mark.parametrize("dim", [2, 3])
@pytest.mark.parametrize("gap", [-1e-2, -4e-3, -1e-3, -1e-6, -1e-12, 0.0, 1e-12, 1e-6, 1e-3, 4e-3, 1e-2])
def test_the_slope_in_the_index_in_space(gap, dim):
    """Against differences of eighth order over steps at which both sides of α = 1 are far from it."""
    r = family(dim)
    index = torch.tensor(1 + gap, dtype=F64)
    jacobian = torch.func.jacfwd(r)(index)
    torch.testing.assert_close(torch.func.jacrev(r)(index), jacobian, rtol=1e-9, atol=1e-11)
    coefficients = (4 / 5, -1 / 5, 4 / 105, -1 / 280)
    step = 4e-3
    wide = sum(c * (r(index + n * step) - r(index - n * step)) / step for n, c in enumerate(coefficients, 1))
    torch.testing.assert_close(jacobian, wide, rtol=1e-9, atol=1e-10)
    single = family(dim, torch.float32)
    torch.testing.assert_close(torch.func.jacrev(single)(index).double(), jacobian, rtol=1e-4, atol=1e-5)
    bend = torch.func.jacrev(torch.func.jacrev(r))(index)
    slope = torch.func.jacfwd(r)
    torch.testing.assert_close(
        bend,
        sum(c * (slope(index + n * step) - slope(index - n * step)) / step for n, c in enumerate(coefficients, 1)),
        rtol=1e-6,
        atol=1e-7,
    )


@pytest.mark.parametrize("alpha", [0.9, 1.0005, 1.3, 2.0, 3.0, math.inf])
def test_the_plane_in_float32_against_functions_of_a_hundredth_of_its_width(alpha):
    generator = torch.Generator().manual_seed(0)
    density = MultivariateBetaGaussian(torch.zeros(2), 0.05 * torch.eye(2), alpha)
    reach = density.radius.item() * 0.05**0.5 if alpha > 1.1 else 0.6
    angle, share = 2 * math.pi * torch.rand(400, generator=generator), 1.1 * torch.rand(400, generator=generator)
    loc = reach * share[:, None] * torch.stack([angle.cos(), angle.sin()], -1)
    width = torch.tensor((0.01 * reach) ** 2)
    single = contmax.expectation(density, MultivariateGaussianBasis(loc, width * torch.eye(2)))
    double = contmax.expectation(
        MultivariateBetaGaussian(torch.zeros(2).double(), (0.05 * torch.eye(2)).double(), alpha),
        MultivariateGaussianBasis(loc.double(), (width * torch.eye(2)).double()),
    )
    assert (single - double).abs().max() < 1e-6 * double.max()
