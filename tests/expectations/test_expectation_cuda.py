"""On a GPU expectations and attention modules wait for nothing, and agree with float64 on the CPU."""

import copy
import math

import pytest
import torch

import contmax
from contmax.basis import GaussianBasis, MultivariateGaussianBasis
from contmax.densities import BetaGaussian, MultivariateBetaGaussian

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")


def line(alpha):
    generator = torch.Generator().manual_seed(0)
    loc, scale = (torch.rand(50, generator=generator) for _ in range(2))
    basis = GaussianBasis.linspace(32, scale=(0.1, 0.5))
    return basis, (loc, 0.02 + 0.3 * scale), lambda m, s: BetaGaussian(m, s, alpha, validate_args=False)


def plane(alpha):
    generator = torch.Generator().manual_seed(0)
    loc, factor = torch.rand(50, 2, generator=generator), 0.15 * torch.randn(50, 2, 2, generator=generator)
    basis = MultivariateGaussianBasis.grid(10, scale=0.001**0.5)
    matrix = factor @ factor.mT + 0.01 * torch.eye(2)
    return basis, (loc, matrix), lambda m, s: MultivariateBetaGaussian(m, s, alpha, validate_args=False)


def without_waiting(call):
    """Once to load libraries and constants, then once more with waiting forbidden."""
    for mode in ("default", "error"):
        torch.cuda.set_sync_debug_mode(mode)
        try:
            result = call()
        finally:
            torch.cuda.set_sync_debug_mode("default")
    return result


def value_and_gradients(case, device, dtype):
    basis, parameters, build = case
    basis = copy.deepcopy(basis).to(device, dtype)
    moved = [x.to(device, dtype).requires_grad_() for x in parameters]
    cotangent = torch.linspace(0.5, 1.5, basis.num_functions, device=device, dtype=dtype)

    def call():
        r = contmax.expectation(build(*moved), basis)
        return r.detach(), *torch.autograd.grad((r * cotangent).sum(), moved)

    return without_waiting(call) if device == "cuda" else call()


@pytest.mark.parametrize("alpha", [0.9, 1.0, 1.05, 4 / 3, 1.5, 1.7, 2.0, 3.0, math.inf])
@pytest.mark.parametrize("make", [line, plane], ids=["line", "plane"])
def test_expectations(make, alpha):
    single, double = (
        value_and_gradients(make(alpha), "cuda", torch.float32),
        value_and_gradients(make(alpha), "cpu", torch.float64),
    )
    for ours, true in zip(single, double, strict=True):
        # At α = ∞ the size of Σ does nothing on the line, and its gradient is rounding.
        assert (ours.double().cpu() - true).abs().max() <= 2e-5 * true.abs().max().clamp(min=1.0)


@pytest.mark.parametrize(
    "make",
    [
        lambda: contmax.nn.DiscreteAttention(32, alpha=1.5),
        lambda: contmax.nn.ContinuousAttention(GaussianBasis.linspace(16, scale=0.1), head=contmax.nn.PooledHead(32)),
        lambda: contmax.nn.CombinedAttention(contmax.nn.DiscreteAttention(32), GaussianBasis.linspace(16, scale=0.1)),
    ],
    ids=["discrete", "continuous", "combined"],
)
def test_modules_with_masks(make):
    attend = make().cuda()
    values = torch.randn(8, 50, 32, device="cuda", requires_grad=True)
    mask = torch.rand(8, 50, device="cuda") > 0.3
    mask[0] = False

    def call():
        context = attend(values, mask=mask)[0]
        return context, *torch.autograd.grad(context.sum(), values)

    context, gradient = without_waiting(call)
    assert not context[0].any()
    assert gradient.isfinite().all()
