"""On a GPU expectations wait for nothing, and agree with float64 on the CPU, gradients included."""

import copy
import math

import pytest
import torch
from density_families import LINE, SEVERAL, Family

import contmax
from contmax.basis import (
    Basis,
    BSplineBasis,
    CosineBasis,
    GaussianBasis,
    MultivariateGaussianBasis,
    PowerBasis,
    RectangularBasis,
)
from contmax.densities import BetaGaussian, MultivariateBetaGaussian
from cuda_checks import BF16, DEVICE, F32, F64, Captured, assert_accurate, assert_module_accurate

pytestmark = pytest.mark.gpu


def on_each_device(basis: Basis):
    """The basis for tensors of a device and dtype: copied once, because copying waits."""
    copies = {
        (kind, dtype): copy.deepcopy(basis).to(kind, dtype)
        for kind, dtype in (("cpu", F64), (DEVICE, F64), (DEVICE, F32))
    }
    return lambda like: copies[like.device.type, F64 if like.dtype == F64 else F32]


def line(batch=50):
    generator = torch.Generator().manual_seed(0)
    loc, scale = (torch.rand(batch, generator=generator) for _ in range(2))
    return [loc, 0.02 + 0.3 * scale]


def plane(batch=50):
    generator = torch.Generator().manual_seed(0)
    loc, factor = torch.rand(batch, 2, generator=generator), 0.15 * torch.randn(batch, 2, 2, generator=generator)
    return [loc, factor @ factor.mT + 0.01 * torch.eye(2)]


ALPHAS = pytest.mark.parametrize("alpha", [0.9, 1.0, 1.05, 4 / 3, 1.5, 1.7, 2.0, 3.0, math.inf])


@ALPHAS
def test_on_the_line(alpha):
    basis = on_each_device(GaussianBasis.linspace(32, scale=(0.1, 0.5)))

    def asked(loc, scale):
        return contmax.expectation(BetaGaussian(loc, scale, alpha, validate_args=False), basis(loc))

    assert_accurate(asked, line(), tolerance=2e-5)


@ALPHAS
def test_on_the_plane(alpha):
    basis = on_each_device(MultivariateGaussianBasis.grid(10, scale=0.001**0.5))

    def asked(loc, matrix):
        return contmax.expectation(MultivariateBetaGaussian(loc, matrix, alpha, validate_args=False), basis(loc))

    # At α = ∞ the size of Σ does nothing on the line, and its gradient is rounding.
    assert_accurate(asked, plane(), tolerance=2e-5)


@pytest.mark.parametrize("functions", [1, 31, 32, 33, 512])
@pytest.mark.parametrize("alpha", [1.0, 1.5, 2.0])
def test_any_number_of_functions_and_densities(functions, alpha):
    basis = on_each_device(GaussianBasis.linspace(functions, scale=0.1))

    def asked(loc, scale):
        return contmax.expectation(BetaGaussian(loc, scale, alpha, validate_args=False), basis(loc))

    for batch in (1, 67):
        assert_accurate(asked, line(batch), tolerance=2e-5)


def test_a_learned_alpha():
    basis = on_each_device(GaussianBasis.linspace(32, scale=(0.1, 0.5)))

    def asked(loc, scale, alpha):
        return contmax.expectation(BetaGaussian(loc, scale, alpha, validate_args=False), basis(loc))

    assert_accurate(asked, [*line(), torch.tensor(1.6)], tolerance=5e-5)
    assert_accurate(asked, [*line(), torch.linspace(1.02, 2.0, 50)], tolerance=5e-5)


@pytest.mark.parametrize("alpha", [1.0, 1.5, 2.0])
def test_a_learned_basis(alpha):
    def asked(basis, loc, scale):
        return contmax.expectation(BetaGaussian(loc, scale, alpha, validate_args=False), basis)

    assert_module_accurate(GaussianBasis.linspace(9, 0.1, learnable=True), asked, line(), tolerance=5e-5)


@pytest.mark.parametrize("family", LINE + [f for f in SEVERAL if "2d" in f.name or f.name == "paraboloid"], ids=str)
def test_every_family(family: Family):
    host = family.make(F32)
    wide = GaussianBasis.linspace(12, 0.4, low=-2.0, high=2.0)
    basis = on_each_device(MultivariateGaussianBasis.grid(4, scale=0.4) if host.event_shape else wide)

    def asked(*parameters):
        density = family.build(**dict(zip(family.parameters, parameters, strict=True)))
        return contmax.expectation(density, basis(parameters[0]))

    assert_accurate(asked, list(family.tensors(F32).values()), tolerance=1e-4)


OTHER_BASES = {
    "splines": lambda: BSplineBasis(torch.linspace(0, 1, 12)),
    "cosines": lambda: CosineBasis(torch.linspace(0, 20, 8)),
    "powers": lambda: PowerBasis(4),
    "rectangles": lambda: RectangularBasis(torch.linspace(0, 1, 9)),
}


@pytest.mark.parametrize("alpha", [1.0, 2.0])
@pytest.mark.parametrize("name", list(OTHER_BASES))
def test_other_bases(name, alpha):
    basis = on_each_device(OTHER_BASES[name]())

    def asked(loc, scale):
        return contmax.expectation(BetaGaussian(loc, scale, alpha, validate_args=False), basis(loc))

    assert_accurate(asked, line(), tolerance=1e-4)


def test_half_precision_is_rounded_once():
    basis = on_each_device(GaussianBasis.linspace(32, scale=(0.1, 0.5)))

    def asked(loc, scale):
        return contmax.expectation(BetaGaussian(loc, scale, 2.0, validate_args=False), basis(loc))

    assert_accurate(asked, line(), BF16, ulps=16)


@pytest.mark.parametrize("alpha", [1.0, 1.5, 2.0])
def test_captured_in_a_graph(alpha):
    basis = on_each_device(GaussianBasis.linspace(32, scale=(0.1, 0.5)))
    loc, scale = (x.to(DEVICE).requires_grad_() for x in line())

    def step():
        r = contmax.expectation(BetaGaussian(loc, scale, alpha, validate_args=False), basis(loc))
        return r.detach(), *torch.autograd.grad(r.square().sum(), (loc, scale))

    graph = Captured(step)
    with torch.no_grad():
        loc.add_(0.1)
    for got, expected in zip(graph.replay(), step(), strict=True):
        torch.testing.assert_close(got, expected)
