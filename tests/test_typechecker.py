"""The run-time type checker checks once per kind of call, and every kind of call."""

from dataclasses import dataclass
from typing import Literal, Self

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
    assert draw(Draws(), torch.ones(3, 4), scale=2).shape == (3,)


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


def refuse(x: Float[Tensor, "n"]) -> Tensor:
    raise ValueError("too small")


def test_errors_of_a_function_are_as_users_see_them():
    with pytest.raises(ValueError, match=r"^too small$") as error:
        once_per_kind(unchanged.jaxtyped, typechecker=checked)(refuse)(torch.ones(3))
    assert not hasattr(error.value, "__notes__")


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


def test_words_are_told_apart_where_only_some_may_be_passed():
    def take(word: Literal["exact", "paper"], x: Tensor) -> Tensor:
        return x

    choose = once_per_kind(unchanged.jaxtyped, typechecker=checked)(take)
    choose("exact", torch.ones(2))
    with pytest.raises(TypeCheckError, match="parameter 'word'"):
        choose("wrong", torch.ones(2))


@pytest.mark.parametrize("given", [1, None, [1], (torch.ones(2),)])
def test_types_and_types_of_members_are_told_apart_where_no_shape_matters(given):
    def first(parts: list[Tensor], twice: bool) -> Tensor:
        return parts if twice else torch.ones(2)

    choose = once_per_kind(unchanged.jaxtyped, typechecker=checked)(first)
    choose([torch.ones(2)], False)
    with pytest.raises(TypeCheckError, match="parameter 'parts'"):
        choose(given, False)
    with pytest.raises(TypeCheckError, match="return value"):
        choose([torch.ones(2)], True)


def test_arguments_are_checked_where_a_method_returns_its_own_class():
    class Moved:
        def by(self, x: Tensor, other: "Moved | Later | None" = None) -> Self:
            return self

    move = once_per_kind(unchanged.jaxtyped, typechecker=checked)(Moved.by)
    move(Moved(), torch.ones(2))
    with pytest.raises(TypeCheckError, match="parameter 'x'"):
        move(Moved(), 1.0)


@dataclass
class Pair:
    x: Float[Tensor, "n"]
    y: Float[Tensor, "n"]


def test_fields_are_checked():
    made = once_per_kind(unchanged.jaxtyped, typechecker=checked)(Pair)
    assert made is Pair
    Pair(torch.ones(20), torch.ones(20))
    Pair(torch.ones(21), torch.ones(21))
    with pytest.raises(TypeCheckError, match="parameter 'y'"):
        Pair(torch.ones(20), torch.ones(21))


def test_functions_inside_another_share_what_is_known_and_nothing_else():
    def outer(step, wrong=False):
        def inner(x: Tensor) -> Tensor:
            return float(x) if wrong else x + step

        return once_per_kind(unchanged.jaxtyped, typechecker=checked)(inner)

    assert outer(1)(torch.tensor(1)) == 2
    assert outer(2)(torch.tensor(1)) == 3
    with pytest.raises(TypeCheckError, match="return value"):
        outer(1, wrong=True)(torch.tensor(1))
    with pytest.raises(TypeCheckError, match="parameter 'x'"):
        outer(1)(1.0)
