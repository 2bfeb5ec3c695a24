"""Expectations on the plane and in space: hostile input, narrow limits, the compiled kernel, one graph, errors."""

import math

import pytest
import torch
from torch.distributions import Independent, MultivariateNormal, Uniform

import contmax
from contmax import _backend
from contmax.basis import MultivariateGaussianBasis
from contmax.densities import MultivariateBetaGaussian, TruncatedParaboloid
from contmax.expectations._scale_mean import _in_blocks

F64 = torch.float64


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("alpha", [0.8, 1.0, 1.01, 1.5, 2.0, math.inf, "tensor"])
@pytest.mark.parametrize("size", [1e-8, 1e-3, 1.0, 1e4])
@pytest.mark.parametrize("place", [0.5, -30.0, 1e4])
def test_hostile_parameters_stay_finite(alpha, size, place, dtype):
    basis = MultivariateGaussianBasis(
        torch.tensor([[0.5, 0.5], [0.5, 0.5], [0.0, 1.0]], dtype=dtype),
        torch.tensor([1e-3, 1e-3, 1.0], dtype=dtype)[:, None, None] * torch.eye(2, dtype=dtype),
    )
    index = torch.tensor(1.5, requires_grad=True) if alpha == "tensor" else alpha
    loc = torch.tensor([place, 0.5], dtype=dtype, requires_grad=True)
    matrix = (size * torch.eye(2, dtype=dtype)).requires_grad_()
    r = contmax.expectation(MultivariateBetaGaussian(loc, matrix, index), basis)
    assert (r >= -1e-5 * 160).all()
    assert (r <= 160).all()
    wanted = (loc, matrix, index) if alpha == "tensor" else (loc, matrix)
    assert all(g.isfinite().all() for g in torch.autograd.grad(r.sum(), wanted))


@pytest.mark.parametrize("size", [1e-8, 1e-4, 1.0, 1e4])
@pytest.mark.parametrize("dim", [2, 3, 5])
def test_hostile_bases_stay_finite(size, dim):
    basis = MultivariateGaussianBasis(torch.tensor([[0.5] * dim]), size * torch.eye(dim))
    loc = torch.full((4, dim), 0.4, requires_grad=True)
    matrix = (torch.tensor([1e-8, 1e-3, 1.0, 1e4])[:, None, None] * torch.eye(dim)).requires_grad_()
    r = contmax.expectation(TruncatedParaboloid(loc, matrix), basis)
    assert r.shape == (4, 1)
    assert r.isfinite().all()
    assert all(g.isfinite().all() for g in torch.autograd.grad(r.sum(), (loc, matrix)))


def test_a_narrow_density_reads_the_basis_and_a_narrow_basis_the_density():
    spread = 0.3 * torch.randn(3, 2, 2, dtype=F64)
    basis = MultivariateGaussianBasis(torch.rand(3, 2, dtype=F64), spread @ spread.mT + 0.05 * torch.eye(2))
    point = torch.tensor([0.3, 0.4], dtype=F64)
    narrow = TruncatedParaboloid.from_support(point, 1e-8 * torch.eye(2, dtype=F64))
    torch.testing.assert_close(contmax.expectation(narrow, basis), basis(point), rtol=1e-6, atol=1e-9)
    density = TruncatedParaboloid(point, 0.05 * torch.eye(2, dtype=F64))
    needles = MultivariateGaussianBasis(point + torch.tensor([[0.0, 0.0], [0.1, 0.2]]), 1e-10 * torch.eye(2))
    torch.testing.assert_close(contmax.expectation(density, needles), density.density(needles.loc), rtol=1e-7, atol=0)


def test_half_precision_is_rounded_once():
    loc, matrix = torch.rand(3, 2), 0.05 * torch.eye(2)
    basis = MultivariateGaussianBasis.grid(3, 0.25)
    exact = contmax.expectation(TruncatedParaboloid(loc.half(), matrix.half()).expand((3,)), basis)
    assert exact.dtype == torch.float32
    half = MultivariateGaussianBasis.grid(3, 0.25).half()
    assert contmax.expectation(TruncatedParaboloid(loc.half(), matrix.half()), half).dtype == torch.float16
    torch.testing.assert_close(
        contmax.expectation(TruncatedParaboloid(loc.half(), matrix.half()), half).float(), exact, rtol=2e-3, atol=1e-3
    )


@pytest.mark.parametrize("alpha", [1.04, 4 / 3, 1.5, 2.0, 3.0, math.inf])
@pytest.mark.parametrize("count", [1, 127, 128, 300])
def test_the_compiled_kernel_is_as_accurate_as_torch(alpha, count, monkeypatch):
    pytest.importorskip("numba", reason="numba is not installed: pip install 'contmax[cpu]'")
    spread = 0.3 * torch.randn(5, 2, 2)
    loc, matrix = torch.rand(5, 2), spread @ spread.mT + 0.05 * torch.eye(2)
    width = 0.02 + torch.rand(count, 1, 1)
    basis = MultivariateGaussianBasis(3 * torch.rand(count, 2) - 1, width**2 * torch.eye(2))
    double = MultivariateGaussianBasis(basis.loc.double(), basis.covariance_matrix.double())
    weights = torch.rand(5, count)

    def run(loc, matrix, basis):
        loc, matrix = loc.clone().requires_grad_(), matrix.clone().requires_grad_()
        r = contmax.expectation(MultivariateBetaGaussian(loc, matrix, alpha), basis)
        return r.detach().double(), *(
            g.double() for g in torch.autograd.grad((r * weights.to(r.dtype)).sum(), (loc, matrix))
        )

    exact = run(loc.double(), matrix.double(), double)
    compiled = run(loc, matrix, basis)
    monkeypatch.setattr(_backend.NUMBA, "works", False)
    plain = run(loc, matrix, basis)
    for mine, torchs, truth in zip(compiled, plain, exact, strict=True):
        allowed = 2 * (torchs - truth).abs().max() + 2e-6 * truth.abs().max()
        assert (mine - truth).abs().max() <= allowed


@pytest.mark.graph
@pytest.mark.parametrize(("dim", "alpha"), [(2, 2.0), (2, "tensor"), (3, 1.5), (2, 1.0)])
def test_one_graph(dim, alpha):
    basis = MultivariateGaussianBasis.grid(2, 0.3, dim=dim)
    loc = torch.rand(2, dim, requires_grad=True)
    tril = (0.2 * torch.eye(dim)).repeat(2, 1, 1).requires_grad_()
    index = torch.tensor([0.9, 1.5], requires_grad=True) if alpha == "tensor" else alpha

    def total(loc, tril, index):
        density = MultivariateBetaGaussian(loc, scale_tril=tril, alpha=index, validate_args=False)
        return contmax.expectation(density, basis).sin().sum()

    wanted = (loc, tril, index) if alpha == "tensor" else (loc, tril)
    # The derivatives written by hand are the same whether the index is a number or not.
    traced = torch.compile(
        total, fullgraph=True, backend="aot_eager_default_partitioner" if dim == 2 and index is alpha else "eager"
    )
    torch.testing.assert_close(traced(loc, tril, index), total(loc, tril, index), rtol=1e-5, atol=1e-6)
    torch.testing.assert_close(
        torch.autograd.grad(traced(loc, tril, index), wanted),
        torch.autograd.grad(total(loc, tril, index), wanted),
        rtol=1e-4,
        atol=1e-5,
    )


@pytest.mark.graph
def test_one_graph_on_accelerators():
    """There the mean over scales is traced through. In one dimension that is of the same operations as in more."""
    matrix, offset, order = torch.rand(2, 1, 1, 1), torch.randn(2, 1, 1), torch.tensor([[3.5], [-4.5]])

    def means(*inputs):
        return _in_blocks(inputs, False, None, True, True)

    inputs = (matrix.double(), offset.double(), order.double())
    torch.testing.assert_close(torch.compile(means, fullgraph=True, backend="eager")(*inputs), means(*inputs))


@pytest.mark.graph
@pytest.mark.filterwarnings("ignore:.*_prims_common.check:FutureWarning")
def test_inductor_and_export():
    basis = MultivariateGaussianBasis.grid(3, 0.2)
    loc, tril = torch.rand(4, 2), (0.2 * torch.eye(2)).repeat(4, 1, 1)

    class Attend(torch.nn.Module):
        def forward(self, loc, tril):
            return contmax.expectation(MultivariateBetaGaussian(loc, scale_tril=tril, validate_args=False), basis)

    expected = Attend()(loc, tril)
    torch.testing.assert_close(torch.compile(Attend(), fullgraph=True)(loc, tril), expected, rtol=1e-5, atol=1e-6)
    exported = torch.export.export(Attend(), (loc, tril))
    assert "contmax" not in str(exported.graph)
    torch.testing.assert_close(exported.module()(loc, tril), expected, rtol=1e-5, atol=1e-6)


def test_errors_say_what_is_wrong():
    with pytest.raises(ValueError, match="same space"):
        contmax.expectation(TruncatedParaboloid(torch.zeros(3), torch.eye(3)), MultivariateGaussianBasis.grid(2, 0.2))
    box = Independent(Uniform(torch.zeros(4), torch.ones(4)), 1)
    full = MultivariateGaussianBasis(torch.rand(1, 4), 0.1 * torch.eye(4) + 0.01)
    with pytest.raises(NotImplementedError, match="register_expectation"):
        contmax.expectation(box, full)
    assert contmax.expectation(MultivariateNormal(torch.zeros(4), torch.eye(4)), full).shape == (1,)


@pytest.mark.parametrize("dim", [2, 3])
@pytest.mark.parametrize("alpha", [0.9, 1.5])
def test_values_do_not_depend_on_whether_gradients_are_wanted(alpha, dim):
    basis = MultivariateGaussianBasis.grid(3, 0.2, dim=dim).double()
    loc, tril = torch.rand(2, dim, dtype=F64), 0.3 * torch.eye(dim, dtype=F64)
    plain = contmax.expectation(MultivariateBetaGaussian(loc, scale_tril=tril, alpha=alpha), basis)
    tracked = MultivariateBetaGaussian(loc.requires_grad_(), scale_tril=tril, alpha=alpha)
    torch.testing.assert_close(contmax.expectation(tracked, basis).detach(), plain, rtol=1e-13, atol=0)
