"""Expectations on the line for every α by Triton's kernels: their accuracy, their gradients, α's among them."""

import math

import pytest
import torch

import contmax
from contmax import _backend
from contmax.basis import GaussianBasis
from contmax.densities import BetaGaussian
from contmax.kernels import means
from line_checks import drawn, value_and_gradients

pytestmark = pytest.mark.usefixtures("triton_takes_cpu_tensors")

ON_TORCH = {"cuda"}
# Heavy tails, the seams between rules, one itself, ends that show, nearly uniform.
ALPHAS = [0.45, 0.7, 0.979, 0.981, 0.9999, 1.0, 1.0001, 1.07, 1.249, 1.251, 1.6, 2.0, 2.7, 30.0]


def is_a_kernel(r):
    return r.grad_fn.formula == means.ANY_ALPHA


def test_a_tensor_alpha():
    inputs, alpha = drawn(len(ALPHAS), 33, seed=5), torch.tensor(ALPHAS)
    r, *gradients = value_and_gradients(alpha, *inputs)
    assert is_a_kernel(r)
    exact, *true = value_and_gradients(alpha.double(), *(x.double() for x in inputs))
    assert ((r - exact).abs() / exact.amax(-1, keepdim=True)).max() < 1e-6
    for ours, theirs in zip(gradients, true, strict=True):
        assert ((ours - theirs).abs() / theirs.abs().clamp(min=1.0)).max() < 5e-5
        assert (ours - theirs).abs().max() < 1e-5 * theirs.abs().max()


@pytest.mark.parametrize("alpha", [0.8, 1.1, 1.7])
def test_a_number(alpha):
    inputs = drawn(2, 7, seed=5)
    r, *gradients = value_and_gradients(alpha, *inputs)
    assert is_a_kernel(r)
    exact, *true = value_and_gradients(alpha, *(x.double() for x in inputs))
    assert ((r - exact).abs() / exact.amax(-1, keepdim=True)).max() < 1e-6
    for ours, theirs in zip(gradients, true, strict=True):
        assert (ours - theirs).abs().max() < 1e-5 * theirs.abs().max().clamp(min=1.0)


@pytest.mark.filterwarnings("ignore:.*encountered in:RuntimeWarning")  # of the interpreter
@pytest.mark.parametrize("alpha", [0.5, 1.0, 1.7])
def test_hostile_sizes(alpha):
    nan, inf = math.nan, math.inf
    basis = GaussianBasis([0.5, 0.4, 1e10, 0.3], [1e-25, 1e25, 1e-3, 0.2], learnable=True)
    loc = torch.tensor([-1e6, 1e30, 0.3, 0.3, inf, nan, 0.5, 0.5]).requires_grad_()
    scale = torch.tensor([0.1, 0.1, 1e-35, 1e36, 0.1, 0.1, nan, 0.1]).requires_grad_()
    index = torch.full((8,), alpha)
    index[7] = nan
    index.requires_grad_()
    r = contmax.expectation(BetaGaussian(loc, scale, index, validate_args=False), basis)
    gradients = torch.autograd.grad(r[:5].sum(), (loc, scale, index, *basis.parameters()))
    assert not r[:5].isnan().any()
    assert (r[:5] >= 0).all()
    assert r[5:].isnan().all()
    assert all(g[:5].isfinite().all() and g[5:].isnan().all() for g in gradients[:3])


def test_alpha_beyond_all_bounds_is_uniform():
    basis = GaussianBasis.linspace(5, scale=0.2)
    index = torch.tensor([math.inf, 1e9], requires_grad=True)
    r = contmax.expectation(BetaGaussian(torch.tensor(0.4), 0.3, index, validate_args=False), basis)
    uniform = contmax.expectation(BetaGaussian(torch.tensor(0.4), 0.3, math.inf), basis)
    torch.testing.assert_close(r, uniform.expand(2, 5), rtol=1e-5, atol=1e-5)
    assert torch.autograd.grad(r.sum(), index)[0].isfinite().all()


@pytest.mark.parametrize(("count", "functions"), [(0, 3), (1, 1), (2, 520)])
def test_odd_sizes_and_strides(count, functions, monkeypatch):
    loc, _, centre, width = drawn(max(count, 1), functions, seed=5)
    loc = loc[:count].expand(2, count).mT.clone().requires_grad_()
    alpha = torch.tensor(1.4, requires_grad=True)  # one for all
    basis = GaussianBasis(centre, width.clamp(min=0.1))
    r = contmax.expectation(BetaGaussian(loc, 0.2, alpha), basis)
    assert r.shape == (count, 2, functions)
    gradients = torch.autograd.grad(r.sum(), (loc, alpha))  # the cotangent has no strides
    monkeypatch.setattr(_backend, "TRITON_DEVICES", ON_TORCH)
    expected = contmax.expectation(BetaGaussian(loc, 0.2, alpha), basis)
    torch.testing.assert_close(r, expected, rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(gradients, torch.autograd.grad(expected.sum(), (loc, alpha)), rtol=1e-4, atol=1e-3)


def test_many_densities_share_the_gradients_of_the_basis(monkeypatch):
    from contmax.kernels.means import _gpu_any_alpha

    inputs, alpha = drawn(5, 5, seed=5), torch.linspace(0.9, 1.6, 5)
    expected = value_and_gradients(alpha, *inputs)
    monkeypatch.setattr(_gpu_any_alpha, "_FEW", 2)
    torch.testing.assert_close(value_and_gradients(alpha, *inputs), expected, rtol=1e-5, atol=1e-4)


def test_transforms_and_higher_derivatives(monkeypatch):
    basis = GaussianBasis.linspace(3, scale=0.2)

    def r(mu, scale, alpha):
        return contmax.expectation(BetaGaussian(mu, scale, alpha, validate_args=False), basis)

    def answers():
        arguments = torch.tensor([0.2, 0.7]), torch.tensor([0.1, 0.3]), torch.tensor([0.9, 1.4])
        by_row = torch.func.vmap(torch.func.jacrev(r, argnums=(0, 1, 2)))(*arguments)
        forward = torch.func.jvp(r, arguments, tuple(torch.ones(2) for _ in arguments))[1]
        mu, scale, alpha = (x.requires_grad_() for x in arguments)
        first = torch.autograd.grad(r(mu, scale, alpha).square().sum(), (mu, alpha), create_graph=True)
        second = torch.autograd.grad(first[0].sum() + first[1].sum(), alpha)
        cotangents = torch.eye(6).reshape(6, 2, 3)
        batch = torch.autograd.grad(r(mu, scale, 1.7), mu, cotangents, is_grads_batched=True)
        return by_row, forward, [x.detach() for x in first], second, batch

    compiled = answers()
    monkeypatch.setattr(_backend, "TRITON_DEVICES", ON_TORCH)
    torch.testing.assert_close(compiled, answers(), rtol=1e-4, atol=1e-3)


@pytest.mark.graph
def test_one_graph():
    torch._dynamo.reset()
    basis = GaussianBasis.linspace(3, scale=0.2, learnable=True)

    def total(mu, scale, alpha):
        return contmax.expectation(BetaGaussian(mu, scale, alpha, validate_args=False), basis).sin().sum()

    arguments = [torch.tensor(x, requires_grad=True) for x in ([0.2, 0.7], [0.1, 0.3], [0.9, 1.4])]
    traced = torch.compile(total, fullgraph=True, backend="aot_eager_default_partitioner")
    wanted = (*arguments, *basis.parameters())
    torch.testing.assert_close(
        torch.autograd.grad(traced(*arguments), wanted), torch.autograd.grad(total(*arguments), wanted)
    )
