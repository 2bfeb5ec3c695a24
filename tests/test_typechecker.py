"""The run-time type checker checks once per kind of call, and every kind of call."""

import pytest
import torch
from jaxtyping import Float, TypeCheckError
from jaxtyping import _decorator as unchanged
from torch import Tensor

from typechecker import checked, once_per_kind


class Draws:
    def __init__(self, missing=0):
        self.missing = missing

    def draw(self, x: Float[Tensor, "*batch n"], *, scale: "float | int" = 1) -> Float[Tensor, "*batch"]:
        return scale * torch.rand(x.shape[: -1 - self.missing])


@pytest.fixture
def draw():
    function = once_per_kind(unchanged.jaxtyped, typechecker=checked)(Draws.draw)
    function(Draws(), torch.ones(2, 3), scale=2)
    return function


def test_a_kind_that_has_passed_passes_again_and_gives_its_own_result(draw):
    first, second = draw(Draws(), torch.ones(2, 3), scale=2), draw(Draws(), torch.zeros(2, 3), scale=2)
    assert not torch.equal(first, second)


@pytest.mark.parametrize("x", [torch.ones(2, 3, dtype=torch.long), torch.tensor(1.0), [1.0], None])
def test_arguments_of_another_kind_are_checked(draw, x):
    with pytest.raises(TypeCheckError, match="parameter 'x'"):
        draw(Draws(), x, scale=2)


def test_options_of_another_kind_are_checked(draw):
    with pytest.raises(TypeCheckError, match="parameter 'scale'"):
        draw(Draws(), torch.ones(2, 3), scale="2")


def test_results_of_another_kind_are_checked_without_a_second_call(draw):
    torch.manual_seed(0)
    with pytest.raises(TypeCheckError, match="return value"):
        draw(Draws(missing=1), torch.ones(2, 3), scale=2)
    after = torch.get_rng_state()
    torch.manual_seed(0)
    Draws(missing=1).draw(torch.ones(2, 3))
    assert torch.equal(after, torch.get_rng_state())


def product(x: Float[Tensor, "n m"], y: Float[Tensor, "m"], cut: int = 0) -> Float[Tensor, "n"]:
    return (x * y.mean()).sum(-1)[cut:]


def middles(values: Float[Tensor, "n"], edges: Float[Tensor, "n+1"]) -> Float[Tensor, "n"]:
    return values


def test_sizes_that_were_not_seen_before_are_told_apart_by_which_are_equal():
    multiply = once_per_kind(unchanged.jaxtyped, typechecker=checked)(product)
    multiply(torch.ones(10, 20), torch.ones(20))
    multiply(torch.ones(11, 21), torch.ones(21))
    for x, y in (((10, 20), 10), ((11, 21), 22), ((20, 20), 10), ((10, 20), 1), ((2, 3), 2)):
        with pytest.raises(TypeCheckError, match="parameter 'y'"):
            multiply(torch.ones(x), torch.ones(y))
    with pytest.raises(TypeCheckError, match="return value"):
        multiply(torch.ones(12, 20), torch.ones(20), cut=1)


def test_results_are_told_apart_by_which_sizes_are_equal():
    take = once_per_kind(unchanged.jaxtyped, typechecker=checked)(Draws.draw)
    take(Draws(), torch.ones(10, 20))
    take(Draws(), torch.ones(11, 20))
    with pytest.raises(TypeCheckError, match="return value"):
        take(Draws(missing=1), torch.ones(12, 20))


def test_sizes_that_are_computed_are_always_checked():
    average = once_per_kind(unchanged.jaxtyped, typechecker=checked)(middles)
    average(torch.ones(20), torch.ones(21))
    with pytest.raises(TypeCheckError, match="parameter 'edges'"):
        average(torch.ones(20), torch.ones(31))
