"""Gradients of what torch.utils.checkpoint computes again: it hands tensors that were saved out only once."""

import pytest
import torch
from torch.utils.checkpoint import checkpoint

import contmax
from contmax.basis import GaussianBasis, MultivariateGaussianBasis
from contmax.densities import BetaGaussian, MultivariateBetaGaussian
from contmax.losses import entmax_loss, linear_entmax_loss

F64 = torch.float64


def attended(alpha):
    return lambda x: contmax.entmax_attention(x, x.sin(), x.cos(), alpha=alpha)


def on_the_line(alpha):
    basis = GaussianBasis.covering(5).double()
    return lambda x: contmax.expectation(BetaGaussian(x[0, 0, :, 0], 0.1 + x[0, 0, :, 1].square(), alpha), basis)


def on_the_plane(alpha):
    basis = MultivariateGaussianBasis(torch.rand(3, 2, dtype=F64), 0.1 * torch.eye(2, dtype=F64))
    spread = 0.1 * torch.eye(2, dtype=F64)
    return lambda x: contmax.expectation(MultivariateBetaGaussian(x[0, 0, :, :2], spread, alpha), basis)


FUNCTIONS = {
    "entmax": lambda x: contmax.entmax(x, 1.5),
    "entmax beyond two": lambda x: contmax.entmax(x, 3.0),
    "softmax attention": attended(1.0),
    "attention": attended(1.5),
    "attention beyond two": attended(2.5),
    "attention by head": attended(torch.tensor([1.2, 2.0], dtype=F64)),
    "line": on_the_line(1.5),
    "line of parabolas": on_the_line(2.0),
    "plane": on_the_plane(1.5),
    "plane of paraboloids": on_the_plane(2.0),
    "loss": lambda x: entmax_loss(x[0, 0], torch.ones(20, dtype=torch.long)),
    "linear loss": lambda x: linear_entmax_loss(x[0, 0], x[0, 1], torch.ones(20, dtype=torch.long)),
}


def gradients(function, x):
    """Of first and of second order."""
    (first,) = torch.autograd.grad(function(x).square().sum(), x, create_graph=True)
    return first, *torch.autograd.grad(first.square().sum(), x)


@pytest.mark.parametrize("name", FUNCTIONS)
def test_checkpoints_change_no_gradient(name):
    function = FUNCTIONS[name]
    x = torch.randn(1, 2, 20, 8, dtype=F64, requires_grad=True)
    (plain,) = torch.autograd.grad(function(x).square().sum(), x)
    again = lambda x: checkpoint(function, x, use_reentrant=False)  # noqa: E731
    torch.testing.assert_close(torch.autograd.grad(again(x).square().sum(), x)[0], plain)
    torch.testing.assert_close(gradients(again, x), gradients(function, x))
