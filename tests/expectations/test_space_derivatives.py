"""Expectations on the plane and in space: derivatives of every order and kind, transforms, graphs, hostile input."""

import math

import numpy as np
import pytest
import torch
from torch.autograd import gradcheck, gradgradcheck
from torch.distributions import Independent, Uniform

import contmax
from contmax.basis import MultivariateGaussianBasis
from contmax.densities import MultivariateBetaGaussian, TruncatedParaboloid
from contmax.expectations import canonical_jacobian

F64 = torch.float64


def some_basis(dim, count=3, *, learnable=False):
    spread = 0.3 * torch.randn(count, dim, dim, dtype=F64)
    covariance = spread @ spread.mT + 0.05 * torch.eye(dim, dtype=F64)
    return MultivariateGaussianBasis(torch.rand(count, dim, dtype=F64), covariance, learnable=learnable)


def some_density(dim, batch=2):
    spread = 0.3 * torch.randn(batch, dim, dim, dtype=F64)
    matrix = spread @ spread.mT + 0.05 * torch.eye(dim, dtype=F64)
    return torch.rand(batch, dim, dtype=F64, requires_grad=True), matrix.requires_grad_()


def symmetric(matrix):
    return (matrix + matrix.mT) / 2


class Shell(torch.nn.Module):
    """Calls a function of a basis, so that the constants of the basis can be arguments."""

    def __init__(self, basis, function):
        super().__init__()
        self.basis, self.function = basis, function

    def forward(self, *arguments):
        return self.function(self.basis, *arguments)


@pytest.mark.parametrize("dim", [2, 3])
@pytest.mark.parametrize("alpha", [0.8, 1.0, 1.7, 2.0, math.inf])
def test_gradients_of_first_and_second_order(alpha, dim):
    basis = some_basis(dim)
    arguments = some_density(dim)

    def r(loc, matrix):
        return contmax.expectation(MultivariateBetaGaussian(loc, symmetric(matrix), alpha), basis)

    assert gradcheck(r, arguments, check_forward_ad=True, fast_mode=True)
    if dim == 2:
        assert gradgradcheck(r, arguments, fast_mode=True)


@pytest.mark.parametrize("dim", [2, 3])
def test_gradients_in_the_index_and_in_the_basis(dim):
    learned = some_basis(dim, 2, learnable=True)
    names = [name for name, _ in learned.named_parameters()]
    loc, matrix = some_density(dim)
    alpha = torch.tensor([1.6, 0.9], dtype=F64, requires_grad=True)

    def r(loc, alpha, *constants):
        def expect(basis):
            return contmax.expectation(MultivariateBetaGaussian(loc, matrix.detach(), alpha), basis)

        shell = Shell(learned, expect)
        return torch.func.functional_call(shell, {f"basis.{n}": c for n, c in zip(names, constants, strict=True)}, ())

    arguments = (loc, alpha, *learned.parameters())
    assert gradcheck(r, arguments, fast_mode=True)
    if dim == 2:
        assert gradgradcheck(r, arguments, fast_mode=True)


@pytest.mark.parametrize("alpha", [1 - 1e-3, 1 - 1e-6, 1.0, 1 + 1e-6, 1 + 1e-3])
def test_the_slope_in_the_index_is_smooth_through_one(alpha):
    loc, matrix = (x.detach() for x in some_density(2))
    basis = some_basis(2)

    def r(index):
        return contmax.expectation(MultivariateBetaGaussian(loc, matrix, index), basis)

    index = torch.full((2,), alpha, dtype=F64, requires_grad=True)
    (slope,) = torch.autograd.grad(r(index).sum(), index)
    step = 2e-2
    wide = sum(c * r(torch.full((2,), 1 + s * step, dtype=F64)).sum(-1) for s, c in ((1, 2 / 3), (-1, -2 / 3)))
    wide += sum(c * r(torch.full((2,), 1 + s * step, dtype=F64)).sum(-1) for s, c in ((2, -1 / 12), (-2, 1 / 12)))
    torch.testing.assert_close(slope, wide / step, rtol=2e-2, atol=1e-3)


@pytest.mark.parametrize("alpha", [1.5, 2.0])
def test_gradients_are_the_escort_integrals(alpha):
    """Price's theorem for β-Gaussians: ∂r/∂μ = E[∇ψ], and ∂r/∂Σ from W = E[∇ψ (t−μ)ᵀ]."""
    loc, matrix = some_density(2, 1)
    basis = some_basis(2, 1)
    density = MultivariateBetaGaussian(loc, matrix, alpha)
    r = contmax.expectation(density, basis)
    by_loc, by_matrix = torch.autograd.grad(r.sum(), (loc, matrix))
    k = 1 / (alpha - 1)
    nodes, weights = (torch.from_numpy(x) for x in np.polynomial.legendre.leggauss(80))
    angle = 2 * math.pi * torch.arange(160, dtype=F64) / 160
    radius = (nodes + 1) / 2
    u = radius[:, None, None] * torch.stack([angle.cos(), angle.sin()], -1)
    mass = (weights * radius * (1 - radius**2) ** k)[:, None].expand(80, 160).reshape(-1)
    mass = mass / mass.sum()
    offset = (density.radius.detach() * (u.reshape(-1, 2) @ density.scale_tril[0].detach().mT)).requires_grad_()
    psi = basis(offset + loc.detach())[:, 0]
    (slope,) = torch.autograd.grad(psi.sum(), offset)
    torch.testing.assert_close(by_loc[0], mass @ slope, rtol=1e-9, atol=1e-11)
    w = torch.einsum("n,ni,nj->ij", mass, slope, offset.detach())
    inverse = torch.linalg.inv(matrix[0].detach())
    expected = 0.5 * w @ inverse - w.trace() / (2 * (2 + 2 * k)) * inverse
    torch.testing.assert_close(by_matrix[0], expected, rtol=1e-9, atol=1e-10)
    torch.testing.assert_close(by_matrix, by_matrix.mT)


def test_every_way_to_give_the_scale():
    basis = some_basis(2)
    loc, diagonal = torch.rand(2, dtype=F64), torch.tensor([0.2, 0.4], dtype=F64, requires_grad=True)
    ways = (
        {"scale_diag": diagonal},
        {"scale_tril": torch.diag(diagonal)},
        {"scale_matrix": torch.diag(diagonal**2)},
        {"precision_matrix": torch.diag(diagonal**-2)},
    )
    results = [contmax.expectation(MultivariateBetaGaussian(loc, **way), basis) for way in ways]
    grads = [torch.autograd.grad(r.sum(), diagonal)[0] for r in results]
    for r, grad in zip(results[1:], grads[1:], strict=True):
        torch.testing.assert_close(r, results[0], rtol=1e-12, atol=0)
        torch.testing.assert_close(grad, grads[0], rtol=1e-11, atol=0)


def test_golden_canonical_gradients(golden):
    for name in ("cont_softmax", "cont_entmax_2d"):
        for case in golden[name]:
            inputs, outputs = case["inputs"], case["outputs"]
            if len(inputs["mu"]) == 1:
                continue
            arrays = {
                key: torch.tensor([[float(x) for x in row] for row in inputs[key]], dtype=F64)
                for key in ("Sigma", "Sigma_j")
            }
            loc, centre = (torch.tensor([float(x) for x in inputs[key]], dtype=F64) for key in ("mu", "mu_j"))
            density = MultivariateBetaGaussian(loc, arrays["Sigma"], float(inputs.get("alpha", "1")))
            first, second = canonical_jacobian(density, MultivariateGaussianBasis(centre[None], arrays["Sigma_j"]))
            expected = torch.tensor([float(x) for x in outputs["d_theta1"]], dtype=F64)
            torch.testing.assert_close(first[0], expected, rtol=1e-9, atol=1e-12 * expected.abs().max().item())
            expected = torch.tensor([[float(x) for x in row] for row in outputs["d_theta2"]], dtype=F64)
            torch.testing.assert_close(second[0], expected, rtol=1e-8, atol=1e-10 * expected.abs().max().item())


def test_canonical_gradients_are_those_of_the_canonical_parameters():
    loc, matrix = (x.detach() for x in some_density(3))
    alpha = torch.tensor([1.5, 2.0], dtype=F64)
    basis = some_basis(3)
    density = MultivariateBetaGaussian(loc, matrix, alpha)
    linear, quadratic = (x.clone().requires_grad_() for x in density.canonical)
    r = contmax.expectation(MultivariateBetaGaussian.from_canonical(linear, quadratic, alpha), basis)
    weights = torch.rand(2, 3, dtype=F64)
    by_linear, by_quadratic = torch.autograd.grad((weights * r).sum(), (linear, quadratic))
    first, second = canonical_jacobian(density, basis)
    torch.testing.assert_close(torch.einsum("bk,bki->bi", weights, first), by_linear, rtol=1e-8, atol=1e-10)
    torch.testing.assert_close(
        torch.einsum("bk,bkij->bij", weights, second), symmetric(by_quadratic), rtol=1e-8, atol=1e-10
    )


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
@pytest.mark.parametrize("dim", [2, 3])
def test_functional_transforms(dim, dtype):
    basis = some_basis(dim).to(dtype)
    loc, matrix = (x.detach().to(dtype) for x in some_density(dim))

    def r(loc, matrix):
        return contmax.expectation(MultivariateBetaGaussian(loc, matrix, 1.5, validate_args=False), basis)

    torch.testing.assert_close(torch.func.vmap(r)(loc, matrix), r(loc, matrix))
    reverse = torch.func.vmap(torch.func.jacrev(r))(loc, matrix)
    torch.testing.assert_close(reverse, torch.func.vmap(torch.func.jacfwd(r))(loc, matrix), rtol=1e-4, atol=1e-4)
    if dim == 2 and dtype == F64:
        hessian = torch.func.vmap(torch.func.hessian(lambda m, s: r(m, s)[0]))(loc, matrix)
        again = torch.func.vmap(torch.func.jacrev(torch.func.jacrev(lambda m, s: r(m, s)[0])))(loc, matrix)
        torch.testing.assert_close(hessian, again)


def test_two_forwards_before_a_backward():
    basis = some_basis(2)
    loc, matrix = some_density(2)
    both = [contmax.expectation(TruncatedParaboloid(loc[i], matrix[i]), basis).sum() for i in range(2)]
    (together,) = torch.autograd.grad(both[0] + both[1], loc)
    alone = torch.autograd.grad(contmax.expectation(TruncatedParaboloid(loc, matrix), basis).sum(), loc)[0]
    torch.testing.assert_close(together, alone)


def test_the_ends_of_a_box_have_gradients():
    full = MultivariateGaussianBasis(torch.rand(3, 2, dtype=F64), torch.tensor([[0.05, 0.02], [0.02, 0.04]], dtype=F64))
    low = torch.tensor([0.1, 0.2], dtype=F64, requires_grad=True)
    high = torch.tensor([0.7, 0.9], dtype=F64, requires_grad=True)
    assert gradcheck(lambda a, b: contmax.expectation(Independent(Uniform(a, b), 1), full), (low, high), fast_mode=True)
