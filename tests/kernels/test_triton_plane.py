"""Expectations on the plane by Triton's kernels, and Cholesky factors of 2 × 2 matrices."""

import pytest
import torch
from torch.distributions import MultivariateNormal

import contmax
from contmax import _backend
from contmax.basis import MultivariateGaussianBasis
from contmax.densities import MultivariateBetaGaussian

pytestmark = pytest.mark.usefixtures("triton_takes_cpu_tensors")

ON_TORCH = {"cuda"}


def drawn(count, functions):
    spread, width = 0.3 * torch.randn(count, 2, 2), 0.2 * torch.randn(functions, 2, 2)
    covariance = width @ width.mT + (0.02 + torch.rand(functions, 1, 1)) ** 2 * torch.eye(2)
    return (
        torch.rand(count, 2),
        spread @ spread.mT + 0.02 * torch.eye(2),
        2 * torch.rand(functions, 2) - 0.5,
        covariance,
    )


def value_and_gradients(alpha, loc, matrix, centre, covariance, cotangent):
    basis = MultivariateGaussianBasis(centre, covariance, learnable=True)
    loc, matrix = loc.clone().requires_grad_(), matrix.clone().requires_grad_()
    r = contmax.expectation(MultivariateBetaGaussian(loc, matrix, alpha, validate_args=False), basis)
    return r.detach(), *torch.autograd.grad(r, (loc, matrix, *basis.parameters()), cotangent.to(r.dtype))


@pytest.mark.parametrize("alpha", [1.0, 2.0, 1.5, 1.3, 1.04])
def test_errs_at_most_twice_as_much_as_torch(alpha, monkeypatch):
    inputs, cotangent = drawn(5, 13), torch.rand(5, 13)
    compiled = value_and_gradients(alpha, *inputs, cotangent)
    monkeypatch.setattr(_backend, "TRITON_DEVICES", ON_TORCH)
    monkeypatch.setattr(_backend.NUMBA, "works", False)
    plain = value_and_gradients(alpha, *inputs, cotangent)
    exact = value_and_gradients(alpha, *(x.double() for x in inputs), cotangent)
    for mine, torchs, truth in zip(compiled, plain, exact, strict=True):
        allowed = 2 * (torchs - truth).abs().max() + 1e-6 * truth.abs().max()
        assert (mine - truth).abs().max() <= allowed


@pytest.mark.filterwarnings("ignore:.*encountered in:RuntimeWarning")  # of the interpreter
@pytest.mark.parametrize("alpha", [1.0, 1.5])
def test_slopes_that_float32_cannot_hold(alpha):
    """They are bounded: where the cotangent is 0 so is the gradient."""
    tiny = 1e-30 * torch.eye(2)[None]
    r, by_loc, *_ = value_and_gradients(
        alpha, torch.tensor([[1e-15, 1e-15]]), tiny, torch.zeros(1, 2), tiny, torch.zeros(1, 1)
    )
    assert r.isfinite().all()
    assert not by_loc.any()


@pytest.mark.filterwarnings("ignore:.*encountered in:RuntimeWarning")
@pytest.mark.parametrize("alpha", [1.0, 1.5])
def test_functions_that_are_far_away(alpha):
    loc, small = torch.tensor([[1e8, 0.0], [0.0, 1e10]]), 1e-6 * torch.eye(2)  # 1e13 widths
    results = value_and_gradients(alpha, loc, small.expand(2, 2, 2), torch.zeros(1, 2), small[None], torch.ones(2, 1))
    assert not any(x.any() for x in results)


@pytest.mark.filterwarnings("ignore:.*encountered in:RuntimeWarning")
@pytest.mark.parametrize("alpha", [1.0, 1.5])
def test_hostile_parameters(alpha):
    centre = torch.tensor([[0.5, 0.5], [0.5, 0.5], [0.0, 1.0]])
    basis = MultivariateGaussianBasis(centre, torch.tensor([1e-3, 1e-6, 1.0])[:, None, None] * torch.eye(2))
    places, sizes = torch.meshgrid(torch.tensor([0.5, -30.0, 1e4]), torch.tensor([1e-8, 1e-3, 1.0, 1e4]), indexing="ij")
    loc = torch.stack([places.flatten(), torch.full((12,), 0.5)], -1)
    loc = torch.cat([loc, torch.tensor([[float("nan"), 0.5]])]).requires_grad_()
    sizes = torch.cat([sizes.flatten(), torch.ones(1)])
    matrix = (sizes[:, None, None] * torch.eye(2)).requires_grad_()
    r = contmax.expectation(MultivariateBetaGaussian(loc, matrix, alpha, validate_args=False), basis)
    assert (r[:12] >= -1e-5 * 1.6e5).all()
    assert (r[:12] <= 1.6e5).all()
    assert r[12].isnan().all()
    assert all(g[:12].isfinite().all() for g in torch.autograd.grad(r.sum(), (loc, matrix)))


@pytest.mark.parametrize(("count", "functions"), [(0, 3), (1, 1), (3, 130), (130, 1)])
def test_odd_sizes(count, functions, monkeypatch):
    loc, matrix, centre, covariance = drawn(max(count, 1), functions)
    loc, matrix = loc[:count].requires_grad_(), matrix[:count]
    basis = MultivariateGaussianBasis(centre, covariance)
    density = MultivariateNormal(loc, matrix, validate_args=False)
    r = contmax.expectation(density, basis)
    assert r.shape == (count, functions)
    (gradient,) = torch.autograd.grad(r.sum(), loc)
    monkeypatch.setattr(_backend, "TRITON_DEVICES", ON_TORCH)
    expected = contmax.expectation(density, basis)
    torch.testing.assert_close(r, expected, rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(gradient, torch.autograd.grad(expected.sum(), loc)[0], rtol=1e-4, atol=1e-3)


@pytest.mark.parametrize("alpha", [1.0, 2.0])
def test_transforms_and_higher_derivatives(alpha, monkeypatch):
    loc, matrix, centre, covariance = drawn(2, 3)
    basis = MultivariateGaussianBasis(centre, covariance)

    def r(loc, matrix):
        return contmax.expectation(MultivariateBetaGaussian(loc, matrix, alpha, validate_args=False), basis)

    def answers():
        by_row = torch.func.vmap(torch.func.jacrev(r, argnums=(0, 1)))(loc, matrix)
        forward = torch.func.jvp(r, (loc, matrix), (torch.ones(2, 2), torch.eye(2).expand(2, 2, 2)))[1]
        leaf = matrix.clone().requires_grad_()
        (first,) = torch.autograd.grad(r(loc, leaf).square().sum(), leaf, create_graph=True)
        (second,) = torch.autograd.grad(first.sum(), leaf)
        return torch.func.vmap(r)(loc, matrix), by_row, forward, first.detach(), second

    compiled = answers()
    monkeypatch.setattr(_backend, "TRITON_DEVICES", ON_TORCH)
    torch.testing.assert_close(compiled, answers(), rtol=1e-3, atol=1e-3)


def test_factors_of_matrices_that_are_nearly_singular():
    matrix = torch.eye(2).expand(3, 2, 2).clone()
    matrix[:, 0, 1] = matrix[:, 1, 0] = 1 - torch.tensor([1e-3, 1e-5, 1e-6])
    found = MultivariateBetaGaussian(torch.zeros(2), matrix.requires_grad_(), validate_args=False).scale_tril
    torch.testing.assert_close(found, torch.linalg.cholesky(matrix.double()).float(), rtol=1e-6, atol=0)


def test_cholesky_factors_and_their_gradients():
    spread = torch.randn(7, 1, 2, 2)
    matrix = (spread @ spread.mT + 0.1 * torch.eye(2)).requires_grad_()
    density = MultivariateBetaGaussian(torch.zeros(2), matrix, validate_args=False)
    cotangent = torch.randn(7, 1, 2, 2)
    exact = torch.linalg.cholesky(matrix.double())
    torch.testing.assert_close(density.scale_tril, exact.float())
    (gradient,) = torch.autograd.grad(density.scale_tril, matrix, cotangent)
    torch.testing.assert_close(
        gradient, torch.autograd.grad(exact, matrix, cotangent.double())[0], rtol=1e-5, atol=1e-5
    )

    def factor(matrix):
        return MultivariateBetaGaussian(torch.zeros(2), matrix, validate_args=False).scale_tril

    mapped = torch.func.vmap(factor)(matrix)
    torch.testing.assert_close(torch.autograd.grad(mapped, matrix, cotangent)[0], gradient)


@pytest.mark.filterwarnings("ignore:.*encountered in:RuntimeWarning")
def test_an_indefinite_matrix_has_no_factor():
    matrix = torch.tensor([[[1.0, 2.0], [2.0, 1.0]], [[4.0, 2.0], [2.0, 2.0]]])
    tril = MultivariateBetaGaussian(torch.zeros(2), matrix, validate_args=False).scale_tril
    assert tril[0].isnan().any()
    torch.testing.assert_close(tril[1], torch.tensor([[2.0, 0.0], [1.0, 1.0]]))


@pytest.mark.graph
@pytest.mark.parametrize("alpha", [1.0, 2.0])
def test_one_graph(alpha):
    torch._dynamo.reset()
    loc, matrix, centre, covariance = drawn(2, 3)
    basis = MultivariateGaussianBasis(centre, covariance, learnable=True)

    def total(loc, matrix):
        return contmax.expectation(MultivariateBetaGaussian(loc, matrix, alpha, validate_args=False), basis).sin().sum()

    wanted = (loc.requires_grad_(), matrix.requires_grad_(), *basis.parameters())
    traced = torch.compile(total, fullgraph=True, backend="aot_eager_default_partitioner")
    torch.testing.assert_close(
        torch.autograd.grad(traced(loc, matrix), wanted), torch.autograd.grad(total(loc, matrix), wanted)
    )
