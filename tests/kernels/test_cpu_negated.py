"""Tensors that torch negates only when it reads them have no array that compiled kernels could read."""

import pytest
import torch

import contmax
from contmax.basis import GaussianBasis, MultivariateGaussianBasis
from contmax.densities import BetaGaussian, MultivariateBetaGaussian
from contmax.losses import entmax_loss
from negated_checks import assert_same


@pytest.mark.parametrize("alpha", [1.5, 2.0, 3.0, torch.tensor([[1.2], [1.5], [2.0]])])
def test_maps(alpha):
    assert_same(lambda x: contmax.entmax(x, alpha), torch.randn(3, 9))


def test_losses():
    target = torch.tensor([3, 0, 8])
    assert_same(lambda z: entmax_loss(z, target, reduction="none"), torch.randn(3, 9))


@pytest.mark.parametrize("alpha", [1.0, 1.3, 2.0, torch.tensor(1.6)])
def test_expectations(alpha):
    line, plane = GaussianBasis.linspace(5, scale=0.2), MultivariateGaussianBasis.grid(2, scale=0.3)
    assert_same(
        lambda loc, scale: contmax.expectation(BetaGaussian(loc, scale, alpha, validate_args=False), line),
        torch.rand(3),
        0.1 + torch.rand(3),
    )
    assert_same(
        lambda loc, matrix: contmax.expectation(
            MultivariateBetaGaussian(loc, matrix, alpha, validate_args=False), plane
        ),
        torch.rand(4, 2),
        torch.eye(2).expand(4, 2, 2) * 0.1,
    )


@pytest.mark.parametrize("sharp", [0.1, 4.0])  # whole products, and lists
def test_attention(sharp):
    query, key, value = sharp * torch.randn(1, 2, 5, 16), torch.randn(1, 2, 300, 16), torch.randn(1, 2, 300, 8)
    assert_same(lambda *given: contmax.entmax_attention(*given), query, key, value)
