"""Expectations on the line: golden values, quadrature oracles, the sweep of float32, hostile parameters."""

import math

import numpy as np
import pytest
import torch
from torch.distributions import Categorical, Laplace, MixtureSameFamily, Normal, Poisson, Uniform

import contmax
from contmax.basis import (
    BSplineBasis,
    CosineBasis,
    GaussianBasis,
    PowerBasis,
    RectangularBasis,
    SineBasis,
)
from contmax.densities import BetaGaussian, LocationScale, Triangular, TruncatedParabola

F64 = torch.float64
GAUSSIANS = GaussianBasis.linspace(6, (0.1, 0.5)).double()


def number(text):
    return torch.tensor([float(text)], dtype=F64)


def oracle(density, basis, low, high):
    """Gauss–Legendre on many small panels, cut wherever density or basis may bend."""
    cuts = {*np.linspace(low, high, 800), *[c for c in torch.linspace(-1, 2, 61).tolist() if low < c < high]}
    if low < density.mean.item() < high:
        cuts.add(density.mean.item())
    if basis.breakpoints is not None:
        cuts |= {c for c in basis.breakpoints.tolist() if low < c < high}
    # Densities with k < 1 rise like a root at the ends of their support: panels shrink towards them.
    shrinking = [(high - low) * 0.5**n for n in range(5, 50)]
    cuts |= {low + s for s in shrinking} | {high - s for s in shrinking}
    edges = np.array(sorted(cuts))
    x, w = np.polynomial.legendre.leggauss(20)
    half = np.diff(edges)[:, None] / 2
    t = torch.from_numpy(((edges[:-1] + edges[1:])[:, None] / 2 + half * x).ravel())
    mass = torch.from_numpy((half * w).ravel()) * density.log_prob(t).exp()
    return mass @ basis(t)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
def test_golden_beta_gaussians(golden, dtype):
    for case in golden["cont_entmax_1d"]:
        inputs, outputs = case["inputs"], case["outputs"]
        alpha = float(inputs["alpha"])
        mu, variance, centre, width = (number(inputs[n]).to(dtype) for n in ("mu", "sigma2", "mu_j", "sigma_j"))
        mu.requires_grad_()
        variance.requires_grad_()
        basis = GaussianBasis(centre, width)
        r = contmax.expectation(BetaGaussian(mu, variance.sqrt(), alpha), basis)
        by_mu, by_variance = torch.autograd.grad(r.sum(), (mu, variance))
        double = BetaGaussian(mu.detach().double(), variance.detach().double().sqrt(), alpha)
        top = contmax.expectation(double, GaussianBasis(double.loc, width.double())).item()
        if dtype == F64:
            tolerance, floor = 1e-12, 1e-13
            expected = [float(outputs[n]) for n in ("r", "d_mu", "d_sigma2")]
        else:
            tolerance, floor = 2e-5, 2e-6
            exact_mu = mu.detach().double().requires_grad_()
            exact_variance = variance.detach().double().requires_grad_()
            exact_basis = GaussianBasis(centre.double(), width.double())
            exact = contmax.expectation(BetaGaussian(exact_mu, exact_variance.sqrt(), alpha), exact_basis)
            grads = torch.autograd.grad(exact.sum(), (exact_mu, exact_variance))
            expected = [exact.item(), *(g.item() for g in grads)]
        sizes = (top, top / width.item(), top / variance.item())
        for got, want, size in zip((r, by_mu, by_variance), expected, sizes, strict=True):
            assert got.item() == pytest.approx(want, rel=tolerance, abs=floor * size)


def test_golden_canonical_gradients(golden):
    for case in golden["cont_entmax_1d"]:
        inputs, outputs = case["inputs"], case["outputs"]
        density = BetaGaussian(number(inputs["mu"])[0], number(inputs["sigma2"])[0].sqrt(), float(inputs["alpha"]))
        basis = GaussianBasis(number(inputs["mu_j"]), number(inputs["sigma_j"]))
        first, second = contmax.expectations.canonical_jacobian(density, basis)
        size = abs(float(outputs["d_theta1"])) + 1e-3
        assert first.item() == pytest.approx(float(outputs["d_theta1"]), rel=1e-9, abs=1e-12 * size)
        assert second.item() == pytest.approx(float(outputs["d_theta2"]), rel=1e-7, abs=1e-10 * size)


def test_golden_gaussians(golden):
    for case in golden["cont_softmax"]:
        inputs, outputs = case["inputs"], case["outputs"]
        if len(inputs["mu"]) > 1:
            continue
        mu = number(inputs["mu"][0]).requires_grad_()
        variance = number(inputs["Sigma"][0][0]).requires_grad_()
        basis = GaussianBasis(number(inputs["mu_j"][0]), number(inputs["Sigma_j"][0][0]).sqrt())
        for density in (Normal(mu, variance.sqrt()), BetaGaussian(mu, variance.sqrt(), 1.0)):
            r = contmax.expectation(density, basis)
            by_mu, by_variance = torch.autograd.grad(r.sum(), (mu, variance))
            assert r.item() == pytest.approx(float(outputs["r"]), rel=1e-12)
            assert by_mu.item() == pytest.approx(float(outputs["d_mu"][0]), rel=1e-11)
            assert by_variance.item() == pytest.approx(float(outputs["d_Sigma"][0]), rel=1e-10)


@pytest.mark.parametrize("alpha", [0.6, 0.9, 1.0, 1.0001, 1.05, 1.2, 1.3, 1.7, 2.0, 2.5, 4.0, 8.0, math.inf])
def test_every_index_against_quadrature(alpha):
    density = BetaGaussian(torch.tensor(0.3, dtype=F64), torch.tensor(0.15, dtype=F64), alpha)
    reach = density.half_width.item() if alpha > 1 else 30.0
    expected = oracle(density, GAUSSIANS, 0.3 - reach, 0.3 + reach)
    torch.testing.assert_close(contmax.expectation(density, GAUSSIANS), expected, rtol=1e-9, atol=1e-11)
    if alpha < math.inf:
        learned = BetaGaussian(density.loc, density.scale, torch.tensor(alpha, dtype=F64))
        torch.testing.assert_close(contmax.expectation(learned, GAUSSIANS), expected, rtol=1e-9, atol=1e-11)


@pytest.mark.parametrize("alpha", [2.0, 1.5, 4 / 3])
def test_float32_over_the_whole_range_of_parameters(alpha):
    generator = torch.Generator().manual_seed(0)
    n = 20_000
    mu, centre = torch.rand(2, n, generator=generator)
    variance = 10 ** (torch.rand(n, generator=generator) * 7 - 6)
    width = 10 ** (torch.rand(n, generator=generator) * 2 - 2)

    def evaluate(mu, scale, centre, width):
        from contmax.expectations._expectation import expectation_by

        half = BetaGaussian(mu, scale, alpha).half_width
        k = float(round(1 / (alpha - 1)))
        return expectation_by("window", k, mu, half, None, centre[:, None], width[:, None])[:, 0]

    scale = variance.sqrt()
    single = evaluate(mu, scale, centre, width)
    double = evaluate(mu.double(), scale.double(), centre.double(), width.double())
    top = evaluate(mu.double(), scale.double(), mu.double(), width.double())
    assert ((single - double).abs() / top).max() <= 1e-6
    assert (single >= 0).all()


DENSITIES = {
    "parabola": lambda: TruncatedParabola(torch.tensor(0.4, dtype=F64), torch.tensor(0.1, dtype=F64)),
    "biweight": lambda: BetaGaussian(torch.tensor(0.4, dtype=F64), torch.tensor(0.1, dtype=F64), 1.5),
    "triangular": lambda: Triangular(torch.tensor(0.4, dtype=F64), torch.tensor(0.1, dtype=F64)),
    "cosh": lambda: LocationScale(torch.tensor(0.4, dtype=F64), torch.tensor(0.2, dtype=F64), "cosh"),
    "laplace": lambda: Laplace(torch.tensor(0.4, dtype=F64), torch.tensor(0.1, dtype=F64)),
    "normal": lambda: Normal(torch.tensor(0.4, dtype=F64), torch.tensor(0.1, dtype=F64)),
    "uniform": lambda: Uniform(torch.tensor(0.1, dtype=F64), torch.tensor(0.8, dtype=F64)),
    "mixture": lambda: MixtureSameFamily(
        Categorical(torch.tensor([0.3, 0.7], dtype=F64)),
        Normal(torch.tensor([0.2, 0.7], dtype=F64), torch.tensor([0.05, 0.1], dtype=F64)),
    ),
}
BASES = {
    "gaussian": lambda: GAUSSIANS,
    "sine": lambda: SineBasis.harmonics(4).double(),
    "cosine": lambda: CosineBasis.harmonics(4).double(),
    "power": lambda: PowerBasis(4),
    "rectangular": lambda: RectangularBasis(torch.linspace(0, 1, 5, dtype=F64)),
    "spline": lambda: BSplineBasis.clamped(5).double(),
}


@pytest.mark.parametrize("make_basis", BASES.values(), ids=BASES)
@pytest.mark.parametrize("make_density", DENSITIES.values(), ids=DENSITIES)
def test_every_pair_against_quadrature(make_density, make_basis):
    density, basis = make_density(), make_basis()
    low, high = -2.5, 3.5
    if hasattr(density, "half_width") and density.half_width.isfinite():
        low, high = (density.loc - density.half_width).item(), (density.loc + density.half_width).item()
    elif isinstance(density, Uniform):
        low, high = 0.1, 0.8
    torch.testing.assert_close(
        contmax.expectation(density, basis), oracle(density, basis, low, high), rtol=1e-7, atol=1e-9
    )


@pytest.mark.parametrize("alpha", [0.8, 1.0, 1.3, 1.5, 2.0, 3.0])
@pytest.mark.parametrize("scale", [1e-8, 1e-3, 1.0, 1e4])
@pytest.mark.parametrize("mu", [0.5, -30.0, 1e4])
def test_hostile_parameters_stay_finite(alpha, scale, mu):
    basis = GaussianBasis(torch.tensor([0.5, 0.5, 0.0]), torch.tensor([0.1, 0.1, 1.0]))
    loc = torch.tensor([mu], requires_grad=True)
    width = torch.tensor([scale], requires_grad=True)
    r = contmax.expectation(BetaGaussian(loc, width, alpha), basis)
    assert (r >= 0).all()
    assert (r <= 4).all()
    assert all(g.isfinite().all() for g in torch.autograd.grad(r.sum(), (loc, width)))


def test_narrow_density_reads_the_basis():
    density = TruncatedParabola(torch.tensor(0.31, dtype=F64), torch.tensor(1e-9, dtype=F64))
    torch.testing.assert_close(contmax.expectation(density, GAUSSIANS), GAUSSIANS(density.loc), rtol=1e-4, atol=1e-9)


def test_errors_say_what_is_wrong():
    with pytest.raises(ValueError, match="same space"):
        contmax.expectation(contmax.densities.TruncatedParaboloid(torch.zeros(2), torch.eye(2)), GAUSSIANS)
    with pytest.raises(TypeError, match="subclass of Basis"):
        contmax.expectations.register_expectation(Normal, torch.nn.Module)
    with pytest.raises(NotImplementedError, match="discrete"):
        contmax.expectation(Poisson(3.0), PowerBasis(1))
