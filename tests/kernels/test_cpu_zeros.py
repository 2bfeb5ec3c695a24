"""Zeros that torch keeps no memory for, as in forward mode, have no array that compiled kernels could read."""

import pytest
import torch

import contmax
from contmax.basis import GaussianBasis
from contmax.densities import BetaGaussian
from contmax.losses import entmax_loss


def zeros(*shape):
    return torch._efficientzerotensor(shape)


def assert_no_slope(value, *inputs):
    for gradient in torch.autograd.grad(value, inputs, zeros(*value.shape)):
        assert not gradient.any()


@pytest.mark.parametrize("alpha", [1.5, 3.0, torch.tensor([[1.2], [1.5], [2.0]])])
def test_maps(alpha):
    x = torch.randn(3, 9, requires_grad=True)
    torch.testing.assert_close(contmax.entmax(zeros(3, 9), alpha), torch.full((3, 9), 1 / 9))
    assert_no_slope(contmax.entmax(x, alpha), x)


def test_losses():
    z, target = torch.randn(3, 9, requires_grad=True), torch.tensor([3, 0, 8])
    expected = entmax_loss(torch.zeros(3, 9), target)
    torch.testing.assert_close(entmax_loss(zeros(3, 9), target), expected)
    assert_no_slope(entmax_loss(z, target, reduction="none"), z)


@pytest.mark.parametrize("alpha", [1.3, 2.0])
def test_expectations(alpha):
    basis, scale = GaussianBasis.linspace(5, scale=0.2), torch.full((3,), 0.2, requires_grad=True)
    found = contmax.expectation(BetaGaussian(zeros(3), scale, alpha), basis)
    torch.testing.assert_close(found, contmax.expectation(BetaGaussian(torch.zeros(3), scale, alpha), basis))
    assert_no_slope(found, scale)


@pytest.mark.parametrize("sharp", [0.1, 4.0])  # whole products, and lists
def test_attention(sharp):
    shapes = (1, 2, 5, 16), (1, 2, 300, 16), (1, 2, 300, 8)
    query, key, value = inputs = [torch.randn(shape, requires_grad=True) for shape in shapes]
    assert_no_slope(contmax.entmax_attention(sharp * query, key, value), *inputs)
    assert not contmax.entmax_attention(sharp * query, key, zeros(1, 2, 300, 8)).any()
