"""Compiled expectations on the line against the torch reference: a kernel may err at most twice as much."""

import math

import pytest
import torch

import contmax
from contmax import _backend
from contmax.basis import GaussianBasis
from contmax.densities import BetaGaussian
from line_checks import drawn, require_a_millionth, require_errors_at_most_twice, value_and_gradients

pytest.importorskip("numba", reason="numba is not installed: pip install 'contmax[cpu]'")

ALPHAS = [2.0, 1.5, 4 / 3, 1.25, 1.7, 3.0, math.inf]


@pytest.mark.parametrize("alpha", ALPHAS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_a_kernel_errs_at_most_twice_as_much_as_torch(alpha, dtype, monkeypatch):
    inputs = drawn(150, 37, dtype=dtype)
    compiled = value_and_gradients(alpha, *inputs)
    monkeypatch.setattr(_backend.NUMBA, "works", False)
    plain = value_and_gradients(alpha, *inputs)
    # In float64 the torch reference is its own measure, and both are known to golden values elsewhere.
    exact = plain if dtype == torch.float64 else value_and_gradients(alpha, *(x.double() for x in inputs))
    floor, gradient_floor = (5e-7, 2e-6) if dtype == torch.float32 else (1e-13, 1e-10)
    require_errors_at_most_twice(compiled, plain, exact, floor, gradient_floor)


def test_threads_do_not_change_a_bit():
    inputs = drawn(5000, 64)
    before = torch.get_num_threads()
    try:
        torch.set_num_threads(1)
        alone = value_and_gradients(2.0, *inputs)
        torch.set_num_threads(2)
        together = value_and_gradients(2.0, *inputs)
    finally:
        torch.set_num_threads(before)
    assert all(torch.equal(a, b) for a, b in zip(alone, together, strict=True))


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
    require_a_millionth(alpha, 2000, 48)
