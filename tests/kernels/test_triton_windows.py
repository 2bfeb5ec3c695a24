"""Expectations on the line by Triton's kernels: at most twice the error of torch in the same dtype, and its reach."""

import math

import pytest
import torch
from torch.distributions import Normal, Uniform

import contmax
from contmax import _backend
from contmax.basis import GaussianBasis
from contmax.densities import BetaGaussian
from contmax.expectations._expectation import expectation_by
from contmax.kernels import means
from line_checks import drawn, require_a_millionth, require_errors_at_most_twice, value_and_gradients

pytestmark = pytest.mark.usefixtures("triton_takes_cpu_tensors")

ALPHAS = [1.0, 2.0, 1.5, 4 / 3, 1.25, math.inf]
ON_TRITON, ON_TORCH = {"cpu"}, {"cuda"}


def is_a_kernel(r):
    return r.grad_fn.formula in (means.LINE, means.INTERVAL)


# With seed 14 there is a density whose slope in σ is small beside the integrals that it can be made of.
@pytest.mark.parametrize(("alpha", "seed"), [*((alpha, 7) for alpha in ALPHAS), (1.5, 14), (4 / 3, 14)])
def test_errs_at_most_twice_as_much_as_torch(alpha, seed, monkeypatch):
    inputs = drawn(count=19, functions=13, seed=seed)
    compiled = value_and_gradients(alpha, *inputs)
    monkeypatch.setattr(_backend, "TRITON_DEVICES", ON_TORCH)
    monkeypatch.setattr(_backend.NUMBA, "works", False)
    plain = value_and_gradients(alpha, *inputs)
    exact = value_and_gradients(alpha, *(x.double() for x in inputs))
    require_errors_at_most_twice(compiled, plain, exact, floor=2e-7, gradient_floor=1e-6)


@pytest.mark.parametrize("alpha", [2.0, 1.25])
def test_errs_by_a_millionth_of_the_largest_expectation(alpha, monkeypatch):
    require_a_millionth(alpha, 32, 16)


@pytest.mark.parametrize(
    "density",
    [Normal(torch.tensor([0.2, 0.9]), 0.1), Uniform(torch.tensor([0.2, 0.9]), torch.tensor([0.4, 1.5]))],
    ids=["Normal", "Uniform"],
)
def test_densities_of_torch(density, monkeypatch):
    basis = GaussianBasis.linspace(5, scale=0.2, learnable=True)
    r = contmax.expectation(density, basis)
    assert is_a_kernel(r)
    monkeypatch.setattr(_backend, "TRITON_DEVICES", ON_TORCH)
    torch.testing.assert_close(r, contmax.expectation(density, basis), rtol=1e-5, atol=1e-6)


@pytest.mark.filterwarnings("ignore:.*encountered in:RuntimeWarning")  # of the interpreter
@pytest.mark.parametrize("alpha", ALPHAS)
def test_hostile_sizes(alpha):
    basis = GaussianBasis.linspace(8, scale=(0.01, 0.5))
    nan, inf = math.nan, math.inf
    loc = torch.tensor([0.5, -1e6, 1e6, 1e30, 0.3, 0.3, 0.3, 0.3, 0.3, inf, nan, 0.5]).requires_grad_()
    scale = torch.tensor([0.1, 0.1, 0.1, 0.1, 1e-8, 1e4, 1e-35, 1e36, 1e-20, 0.1, 0.1, nan]).requires_grad_()
    r = contmax.expectation(BetaGaussian(loc, scale, alpha, validate_args=False), basis)
    gradients = torch.autograd.grad(r.sum(), (loc, scale))
    assert r[:10].isfinite().all()
    assert r[10:].isnan().all()
    assert all(g[:10].isfinite().all() and g[10:].isnan().all() for g in gradients)
    assert not r[1:4].any()
    if alpha <= 2:
        torch.testing.assert_close(r[4], basis(loc[4]).detach(), rtol=2e-3, atol=1e-6)


@pytest.mark.filterwarnings("ignore:.*encountered in:RuntimeWarning")
def test_bases_of_every_size_give_finite_gradients():
    basis = GaussianBasis([0.5, 0.5, 0.5, 1e10, 0.4], [1e-25, 1e25, 1e-12, 1e-3, 0.1], learnable=True)
    density = BetaGaussian(torch.tensor([0.5, 0.4]), torch.tensor([1e-3, 0.2]), 2.0)
    gradients = torch.autograd.grad(contmax.expectation(density, basis).sum(), list(basis.parameters()))
    assert all(g.isfinite().all() for g in gradients)


@pytest.mark.parametrize(("count", "functions"), [(0, 3), (1, 1), (2, 520), (130, 1)])
def test_odd_sizes_and_strides(count, functions, monkeypatch):
    loc, _, centre, width = drawn(max(count, 1), functions)
    loc = loc[:count].expand(2, count).mT.clone().requires_grad_()
    density = BetaGaussian(loc, 0.2, 2.0)
    basis = GaussianBasis(centre, width.clamp(min=0.1))
    r = contmax.expectation(density, basis)
    assert r.shape == (count, 2, functions)
    (gradient,) = torch.autograd.grad(r.sum(), loc)  # the cotangent has no strides
    monkeypatch.setattr(_backend, "TRITON_DEVICES", ON_TORCH)
    expected = contmax.expectation(density, basis)
    torch.testing.assert_close(r, expected, rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(gradient, torch.autograd.grad(expected.sum(), loc)[0], rtol=1e-4, atol=1e-3)


def test_half_precision_is_rounded_once():
    loc = torch.tensor([0.3, 0.5])
    half = contmax.expectation(BetaGaussian(loc.half(), 0.1, 2.0), GaussianBasis.linspace(4, scale=0.1).half())
    assert half.dtype == torch.float16
    exact = contmax.expectation(BetaGaussian(loc.half().float(), 0.1, 2.0), GaussianBasis.linspace(4, scale=0.1))
    torch.testing.assert_close(half, exact.half(), rtol=2e-3, atol=1e-3)


@pytest.mark.parametrize("alpha", [1.0, 1.5])
def test_transforms_and_higher_derivatives(alpha, monkeypatch):
    basis = GaussianBasis.linspace(3, scale=0.2)

    def r(mu, scale):
        return contmax.expectation(BetaGaussian(mu, scale, alpha, validate_args=False), basis)

    def answers():
        mu, scale = torch.tensor([0.2, 0.7]), torch.tensor([0.1, 0.3])
        by_row = torch.func.vmap(torch.func.jacrev(r))(mu, scale)
        forward = torch.func.jvp(r, (mu, scale), (torch.ones(2), torch.ones(2)))[1]
        mu.requires_grad_()
        (first,) = torch.autograd.grad(r(mu, scale).square().sum(), mu, create_graph=True)
        (second,) = torch.autograd.grad(first.sum(), mu)
        cotangents = torch.eye(6).reshape(6, 2, 3)
        (batch,) = torch.autograd.grad(r(mu, scale), mu, cotangents, is_grads_batched=True)
        return torch.func.vmap(r)(mu.detach(), scale), by_row, forward, first.detach(), second, batch

    compiled = answers()
    monkeypatch.setattr(_backend, "TRITON_DEVICES", ON_TORCH)
    torch.testing.assert_close(compiled, answers(), rtol=1e-4, atol=1e-3)


def test_a_vmap_over_bases():
    loc, scale = torch.tensor([0.2, 0.7]), torch.tensor([0.1, 0.3])
    centres, widths = torch.rand(2, 3), 0.1 + torch.rand(2, 3)

    def total(centre, width):
        known = expectation_by(means.LINE, 1.0, loc, scale, None, centre, width)
        return known.sin().sum()

    together = torch.func.vmap(torch.func.grad(total, argnums=(0, 1)))(centres, widths)
    alone = [torch.func.grad(total, argnums=(0, 1))(c, w) for c, w in zip(centres, widths, strict=True)]
    torch.testing.assert_close(together, tuple(torch.stack(part) for part in zip(*alone, strict=True)))


@pytest.mark.graph
@pytest.mark.parametrize("learnable", [False, True])
def test_one_graph(learnable):
    torch._dynamo.reset()
    basis = GaussianBasis.linspace(3, scale=0.2, learnable=learnable)

    def total(mu, scale):
        return contmax.expectation(BetaGaussian(mu, scale, 2.0, validate_args=False), basis).sin().sum()

    mu = torch.tensor([0.2, 0.7], requires_grad=True)
    scale = torch.tensor([0.1, 0.3], requires_grad=True)
    traced = torch.compile(total, fullgraph=True, backend="aot_eager_default_partitioner")
    wanted = (mu, scale, *basis.parameters())
    torch.testing.assert_close(
        torch.autograd.grad(traced(mu, scale), wanted), torch.autograd.grad(total(mu, scale), wanted)
    )
