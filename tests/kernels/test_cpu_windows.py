"""Compiled expectations on the line against the torch reference: a kernel may err at most twice as much."""

import math

import pytest
import torch

import contmax
from contmax import _backend
from contmax.basis import GaussianBasis
from contmax.densities import BetaGaussian

pytest.importorskip("numba", reason="numba is not installed: pip install 'contmax[cpu]'")

ALPHAS = [2.0, 1.5, 4 / 3, 1.25, 1.7, 3.0, math.inf]


def drawn(dtype, count=150, functions=37):
    generator = torch.Generator().manual_seed(7)

    def uniform(*shape, low, high):
        return low + (high - low) * torch.rand(*shape, dtype=torch.float64, generator=generator)

    loc = uniform(count, low=-0.3, high=1.3)
    scale = 10 ** uniform(count, low=-3, high=0.5)
    centre, width = uniform(functions, low=0, high=1), 10 ** uniform(functions, low=-2, high=0)
    return tuple(x.to(dtype) for x in (loc, scale, centre, width))


def value_and_gradients(alpha, loc, scale, centre, width):
    """r, and the gradients of a fixed mixture of its entries."""
    basis = GaussianBasis(centre, width, learnable=True)
    loc, scale = loc.clone().requires_grad_(), scale.clone().requires_grad_()
    r = contmax.expectation(BetaGaussian(loc, scale, alpha), basis)
    cotangent = torch.linspace(0.5, 1.5, r.shape[-1], dtype=r.dtype) / r.detach().amax(-1, keepdim=True).clamp(
        min=1e-30
    )
    gradients = torch.autograd.grad(r, (loc, scale, *basis.parameters()), cotangent)
    return r.detach(), gradients


@pytest.mark.parametrize("alpha", ALPHAS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_a_kernel_errs_at_most_twice_as_much_as_torch(alpha, dtype, monkeypatch):
    inputs = drawn(dtype)
    compiled = value_and_gradients(alpha, *inputs)
    monkeypatch.setattr(_backend.NUMBA, "works", False)
    plain = value_and_gradients(alpha, *inputs)
    # In float64 the torch reference is its own measure, and both are known to golden values elsewhere.
    exact = plain if dtype == torch.float64 else value_and_gradients(alpha, *(x.double() for x in inputs))
    peak = exact[0].amax(-1, keepdim=True)
    floor, gradient_floor = (5e-7, 2e-6) if dtype == torch.float32 else (1e-13, 1e-10)
    error, reference = (((r - exact[0]).abs() / peak).max() for r in (compiled[0], plain[0]))
    assert error <= 2 * reference + floor
    for ours, theirs, true in zip(compiled[1], plain[1], exact[1], strict=True):
        unit = true.abs().max().clamp(min=1.0)  # at α = ∞ the scale does nothing
        error, reference = ((g - true).abs().max() / unit for g in (ours, theirs))
        assert error <= 2 * reference + gradient_floor


def test_threads_do_not_change_a_bit():
    inputs = drawn(torch.float32, count=5000, functions=64)
    before = torch.get_num_threads()
    try:
        torch.set_num_threads(1)
        alone = value_and_gradients(2.0, *inputs)
        torch.set_num_threads(2)
        together = value_and_gradients(2.0, *inputs)
    finally:
        torch.set_num_threads(before)
    assert torch.equal(alone[0], together[0])
    assert all(torch.equal(a, b) for a, b in zip(alone[1], together[1], strict=True))


@pytest.mark.parametrize("alpha", [2.0, 1.7])
def test_hostile_sizes(alpha):
    basis = GaussianBasis.linspace(8, scale=(0.01, 0.5))
    loc = torch.tensor([0.5, -1e6, 1e6, 0.3, 0.3, float("nan")]).requires_grad_()
    scale = torch.tensor([0.1, 0.1, 0.1, 1e-8, 1e4, 0.1]).requires_grad_()
    r = contmax.expectation(BetaGaussian(loc, scale, alpha, validate_args=False), basis)
    gradients = torch.autograd.grad(r.sum(), (loc, scale))
    assert r[:5].isfinite().all()
    assert r[5].isnan().all()
    assert all(g[:5].isfinite().all() for g in gradients)
    torch.testing.assert_close(r[3], basis(loc[3]).detach(), rtol=1e-3, atol=1e-6)
    assert not r[1:3].any()


def test_one_function_no_density_and_strides():
    one = GaussianBasis.linspace(1, scale=0.1)
    assert contmax.expectation(BetaGaussian(torch.empty(0), torch.empty(0)), one).shape == (0, 1)
    loc = torch.rand(3, 8, generator=torch.Generator().manual_seed(0))
    strided = contmax.expectation(BetaGaussian(loc.mT[::2], 0.1), one)
    torch.testing.assert_close(strided, contmax.expectation(BetaGaussian(loc.mT[::2].clone(), 0.1), one))


@pytest.mark.parametrize("alpha", [2.0, 1.5, 4 / 3])
def test_float32_errs_by_a_millionth_of_the_largest_expectation(alpha):
    """Over μ, μ_j ∈ [0, 1], σ² ∈ [1e-6, 10], σ_j ∈ [.01, 1], in units of the largest r for the same σ and σ_j."""
    generator = torch.Generator().manual_seed(3)
    loc, scale = torch.rand(2000, generator=generator), 10 ** (3.5 * torch.rand(2000, generator=generator) - 3)
    centre, width = torch.rand(48, generator=generator), 10 ** (2 * torch.rand(48, generator=generator) - 2)
    single = contmax.expectation(BetaGaussian(loc, scale, alpha), GaussianBasis(centre, width))
    density = BetaGaussian(loc.double(), scale.double(), alpha)
    double = contmax.expectation(density, GaussianBasis(centre.double(), width.double()))
    centred = BetaGaussian(torch.zeros_like(loc).double(), scale.double(), alpha)
    largest = contmax.expectation(centred, GaussianBasis(torch.zeros(48).double(), width.double()))
    assert ((single.double() - double).abs() / largest).max() <= 1e-6
