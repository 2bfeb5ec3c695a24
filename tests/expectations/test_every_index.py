"""Every α on the line against mpmath, and ∂r/∂α through α = 1 on the line and in space."""

import math

import mpmath
import numpy as np
import pytest
import torch

import contmax
from contmax.basis import GaussianBasis, MultivariateGaussianBasis
from contmax.deformed import expm1_over
from contmax.densities import BetaGaussian, MultivariateBetaGaussian

F64 = torch.float64
# Functions that are wide, as wide as the density, narrow inside, and narrow where its support may end.
PLACES = [(0.1, 0.05), (0.3, 0.1), (0.9, 0.02), (0.2, 1.5), (1.6, 0.01), (-0.4, 0.3)]
ALPHAS = [0.36, 0.5, 0.8, 0.99, 0.999, 1 - 2**-20, 1.0, 1 + 2**-20, 1.001, 1.01, 1.1, 1.25, 1.7, 2.5, 4.0, 20.0, 100.0]
PANELS = 300
UNIT, UNIT_WEIGHTS = (torch.from_numpy(x) for x in np.polynomial.legendre.leggauss(20))


def exact(mu, sigma, alpha, centre, width):
    """r of one density and one function by plain quadrature, differentiable in all five, float64 tensors.

    With 1 − (α−1)u = exp(−(α−1)ξ²/2α) the density (1 − (α−1)u)^{1/(α−1)} dt is exp(−ξ²/2) times a smooth function of ξ
    for every α, and its normaliser is an integral of the same kind.
    """
    share = (alpha - 1) / alpha

    def stretched(low, high):
        cells = low + (high - low) * torch.linspace(0, 1, PANELS + 1, dtype=F64)
        half = cells.diff()[:, None] / 2
        xi = (cells[:-1, None] + half + half * UNIT).flatten()
        ratio = expm1_over(-share * xi * xi / 2)
        mass = torch.exp(-xi * xi / 2) / (alpha * ratio).sqrt() * (half * UNIT_WEIGHTS).flatten()
        return xi * (ratio / alpha).sqrt(), mass

    total = stretched(torch.tensor(-9.5, dtype=F64), torch.tensor(9.5, dtype=F64))[1].sum()
    log_peak = -(total.log() + sigma.log()) / (1 + (alpha - 1) / 2)
    unit = sigma * torch.exp((alpha - 1) * log_peak / 2)
    with torch.no_grad():
        ends = (centre + 11 * width * torch.tensor([-1.0, 1.0], dtype=F64) - mu) / unit
        room = 1 - (alpha - 1) * ends.square() / 2
        xi = torch.where(room > 0, (-2 / share * room.clamp(min=1e-300).log()).sqrt() if share else ends.abs(), 99.0)
        low, high = (ends.sign() * xi).clamp(-11, 11)
    position, mass = stretched(low, high)
    z = (mu + unit * position - centre) / width
    return log_peak.exp() * unit * (mass * torch.exp(-z * z / 2)).sum() / (math.sqrt(2 * math.pi) * width)


def numbers(*values):
    return [torch.tensor(float(v), dtype=F64) for v in values]


@pytest.mark.parametrize(("alpha", "expected"), [(2.5, 0.72938214523), (2.0, None)])
def test_the_oracle_against_mpmath(alpha, expected):
    """The density from its printed formula, ∫ by mpmath, at σ = 1 and ψ with centre 0.1 and width 0.05."""
    mpmath.mp.dps = 25
    k = 1 / (mpmath.mpf(alpha) - 1)
    log_ratio = mpmath.loggamma(k + 1.5) - mpmath.loggamma(k + 1) - mpmath.log(2 * mpmath.pi * k) / 2
    rho = mpmath.exp(log_ratio / (k + 0.5))
    end = mpmath.sqrt(2 * k * rho)

    def integrand(t):
        return (rho * (1 - (t / end) ** 2)) ** k * mpmath.npdf(t, 0.1, 0.05)

    truth = float(mpmath.quad(integrand, [-0.4, 0.1, 0.6]))
    assert exact(*numbers(0, 1, alpha, 0.1, 0.05)).item() == pytest.approx(truth, rel=1e-13)
    if expected is not None:
        assert truth == pytest.approx(expected, rel=1e-10)


def evaluate(mu, sigma, alpha, dtype):
    basis = GaussianBasis(*(torch.tensor(x, dtype=dtype) for x in zip(*PLACES, strict=True)))
    loc, scale = torch.tensor(mu, dtype=dtype), torch.tensor(sigma, dtype=dtype)
    rounded = [(c.item(), w.item()) for c, w in zip(basis.loc, basis.scale, strict=True)]
    expected = torch.stack([exact(*numbers(mu, sigma, alpha, *place)) for place in rounded])
    # The largest r of a function of the same width.
    top = torch.stack([exact(*numbers(mu, sigma, alpha, mu, width)) for _, width in rounded])
    for index in (float(alpha), torch.tensor(alpha, dtype=F64)):
        yield ((contmax.expectation(BetaGaussian(loc, scale, index), basis) - expected).abs() / top).max().item()


@pytest.mark.parametrize("alpha", ALPHAS)
@pytest.mark.parametrize("sigma", [0.125, 1.0])
def test_values(alpha, sigma):
    assert max(evaluate(0.25, sigma, alpha, F64)) < (1e-12 if alpha > 0.4 else 2e-11)
    assert max(evaluate(0.25, sigma, alpha, torch.float32)) < 1e-6


@pytest.mark.parametrize("alpha", ALPHAS)
@pytest.mark.parametrize("width", [0.015625, 0.25, 4.0])
def test_gradients(alpha, width):
    """In μ, σ, α, μ_j and ln σ_j, each relative to its natural size: r over the width that it changes on."""
    arguments = [x.requires_grad_() for x in numbers(0.25, 0.5, alpha, 0.4375, width)]
    value = exact(*arguments)
    expected = list(torch.autograd.grad(value, arguments))
    expected[4] = expected[4] * width
    size = value.item() / min(width, 0.1)
    for dtype, tolerance in ((F64, 1e-12 if alpha > 0.4 else 1e-10), (torch.float32, 2e-6)):
        loc, scale = (torch.tensor(x, dtype=dtype, requires_grad=True) for x in (0.25, 0.5))
        basis = GaussianBasis(torch.tensor([0.4375], dtype=dtype), torch.tensor([width], dtype=dtype), learnable=True)
        index = torch.tensor(alpha, dtype=F64, requires_grad=True)
        r = contmax.expectation(BetaGaussian(loc, scale, index), basis)
        got = torch.autograd.grad(r.sum(), (loc, scale, index, *basis.parameters()))
        for mine, theirs in zip(got, expected, strict=True):
            assert abs(mine.item() - theirs.item()) < tolerance * size
        number = contmax.expectation(BetaGaussian(loc, scale, alpha), basis)
        for mine, theirs in zip(torch.autograd.grad(number.sum(), (loc, scale)), expected, strict=False):
            assert abs(mine.item() - theirs.item()) < tolerance * size


def test_the_slope_in_the_index_at_one():
    truth = 0.0147892078
    basis = GaussianBasis(torch.tensor([0.3], dtype=F64), torch.tensor([0.1], dtype=F64))
    for dtype, tolerance in ((F64, 1e-8), (torch.float32, 1e-5)):
        slopes = []
        for gap in (-1e-3, -1e-6, -1e-12, 0.0, 1e-12, 1e-6, 1e-3):
            index = torch.tensor(1 + gap, dtype=F64, requires_grad=True)
            density = BetaGaussian(torch.tensor(0.4, dtype=dtype), torch.tensor(0.1, dtype=dtype), index)
            r = contmax.expectation(density, basis.to(dtype))
            (slope,) = torch.autograd.grad(r.sum(), index, create_graph=True)
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
def test_the_slope_in_the_index_in_space(dim):
    """Against differences of eighth order over steps at which both sides of α = 1 are far from it."""
    r, vmap, jacrev = family(dim), torch.func.vmap, torch.func.jacrev
    index = 1 + torch.tensor([-1e-2, -1e-3, -1e-6, 0.0, 1e-6, 1e-2], dtype=F64)
    jacobian = vmap(torch.func.jacfwd(r))(index)
    torch.testing.assert_close(vmap(jacrev(r))(index), jacobian, rtol=1e-9, atol=1e-11)
    # All neighbours in one call, their values and slopes.
    step, coefficients = 4e-3, torch.tensor([4 / 5, -1 / 5, 4 / 105, -1 / 280], dtype=F64)
    away = step * torch.arange(1, 5, dtype=F64)
    neighbours = index[:, None] + torch.cat([away, -away])
    values, slopes = torch.func.jvp(r, (neighbours,), (torch.ones_like(neighbours),))

    def difference(at):
        return coefficients @ (at[:, :4] - at[:, 4:]) / step

    torch.testing.assert_close(jacobian, difference(values), rtol=1e-9, atol=1e-10)
    single = family(dim, torch.float32)
    torch.testing.assert_close(vmap(jacrev(single))(index).double(), jacobian, rtol=1e-4, atol=1e-5)
    bend = vmap(jacrev(jacrev(r)))(index)
    torch.testing.assert_close(bend, difference(slopes), rtol=1e-6, atol=1e-7)


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
