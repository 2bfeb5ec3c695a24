"""Forward mode inside forward mode: torch would return zeros, so we say what to use instead."""

import pytest
import torch
from torch.func import hessian, jacfwd, jacrev, jvp, vmap

import contmax
from contmax.basis import GaussianBasis
from contmax.densities import BetaGaussian

F64 = torch.float64
BASIS = GaussianBasis.covering(5).double()
FUNCTIONS = {
    "map": lambda x: contmax.entmax(x, 1.5)[0],
    "loss": lambda x: contmax.losses.entmax_loss(x, torch.tensor(1)),
    "linear loss": lambda x: contmax.losses.linear_entmax_loss(x[None, :2], x[2:].view(2, 2), torch.tensor([1])),
    "expectation": lambda x: contmax.expectation(BetaGaussian(x[0], 1 + x[1] ** 2, 1.5), BASIS).sum(),
    "any α": lambda x: contmax.expectation(BetaGaussian(x[0], 1 + x[1] ** 2, 1.3 + 0.1 * x[2].cos()), BASIS).sum(),
    "distribution function": lambda x: BetaGaussian(x[0], 1 + x[1] ** 2, 1.3).cdf(x[2]),
    "attention": lambda x: contmax.entmax_attention(x.view(3, 2), x.view(3, 2).sin(), x.view(3, 2).cos()).sum(),
}


@pytest.fixture
def x():
    return 0.3 * torch.randn(6, dtype=F64)


@pytest.mark.parametrize("name", FUNCTIONS)
def test_is_refused_and_the_hessian_is_right(name, x):
    function = FUNCTIONS[name]
    with pytest.raises(NotImplementedError, match=r"torch\.func\.hessian"):
        jacfwd(jacfwd(function))(x)
    torch.testing.assert_close(hessian(function)(x), jacrev(jacrev(function))(x))


def test_one_forward_mode_is_enough_for_many_transforms(x):
    many = torch.stack([x, 2 * x])
    rows = vmap(jacfwd(FUNCTIONS["map"]))(many)
    torch.testing.assert_close(rows, vmap(jacrev(FUNCTIONS["map"]))(many))


@pytest.mark.parametrize("name", ["map", "expectation"])
def test_is_refused_inside_vmap_too(name, x):
    with pytest.raises(NotImplementedError, match="forward mode inside"):
        jacfwd(lambda x: jvp(lambda many: vmap(FUNCTIONS[name])(many), (x.expand(2, 6),), (x.expand(2, 6),))[1])(x)


def test_what_does_not_depend_on_the_inner_one_is_left_alone(x):
    def outer(scale):
        first = FUNCTIONS["map"](scale * x)  # before, and inside, where the inner one has no part in it
        return first + jvp(lambda s: s * FUNCTIONS["map"](scale * x), (scale.detach(),), (scale.detach(),))[1]

    scale = torch.tensor(2.0, dtype=F64)
    torch.testing.assert_close(jacfwd(outer)(scale), jacrev(outer)(scale))
