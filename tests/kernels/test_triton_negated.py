"""Tensors that torch negates only when it reads them: kernels read the memory as it is."""

import pytest
import torch

import contmax
from contmax.basis import GaussianBasis, MultivariateGaussianBasis
from contmax.densities import BetaGaussian, MultivariateBetaGaussian
from contmax.kernels.means import _gpu_gates
from contmax.losses import entmax_loss
from negated_checks import assert_same, put_off

pytestmark = pytest.mark.usefixtures("triton_takes_cpu_tensors")


@pytest.mark.parametrize("alpha", [1.0, 1.3, 2.0, torch.tensor(1.6)])
def test_expectations_on_the_line(alpha):
    basis = GaussianBasis.linspace(5, scale=0.2)
    assert_same(
        lambda loc, scale: contmax.expectation(BetaGaussian(loc, scale, alpha, validate_args=False), basis),
        torch.rand(3),
        0.1 + torch.rand(3),
    )


@pytest.mark.parametrize("alpha", [1.0, 2.0])
def test_the_plane(alpha):
    basis = MultivariateGaussianBasis.grid(2, scale=0.3)
    attend = contmax.nn.ContinuousAttention(basis, alpha=alpha, grid=(2, 3))
    loc, matrix = torch.rand(4, 2), torch.eye(2).expand(4, 2, 2) * 0.1
    assert_same(
        lambda loc, matrix: contmax.expectation(
            MultivariateBetaGaussian(loc, matrix, alpha, validate_args=False), basis
        ),
        loc,
        matrix,
    )
    assert_same(lambda *given: attend(given[0], given[1:], need_density=False)[0], torch.randn(4, 6, 7), loc, matrix)


@pytest.mark.parametrize("mask", [None, torch.tensor([True, True, False, True, True, True])])
def test_attention_on_the_line(mask):
    attend = contmax.nn.ContinuousAttention(GaussianBasis.linspace(5, scale=0.2))
    values, loc, scale = torch.randn(4, 6, 7), torch.rand(4), 0.1 + torch.rand(4)
    assert_same(lambda *given: attend(given[0], given[1:], mask=mask, need_density=False)[0], values, loc, scale)


def test_losses():
    target = torch.tensor([3, 0, 8])
    assert_same(lambda z: entmax_loss(z, target, reduction="none"), torch.randn(3, 9))
    assert_same(lambda z, q: entmax_loss(z, q, reduction="none"), torch.randn(3, 9), torch.randn(3, 9).softmax(1))


@pytest.mark.parametrize("alpha", [1.5, 3.0, torch.tensor([[1.2], [1.5], [2.0]])])
def test_maps(alpha):
    assert_same(lambda x: contmax.entmax(x, alpha), torch.randn(3, 9))


def test_gates():
    head = contmax.nn.GateHead(7).eval()
    values = torch.randn(2, 6, 7)
    assert_same(lambda x: head(x, alpha=2.0).loc, values)
    logits = torch.randn(2, 6)
    one, other = (_gpu_gates.gate_moments(x, None, 0.0, 0.01, 2) for x in (logits, put_off(logits)))
    for a, b in zip(one, other, strict=True):
        assert torch.equal(a, b)
