"""The decorator that makes a function an opaque operator: what callers, tracers and vmap see of it."""

import os
import sys
from typing import NamedTuple

import pytest
import torch
from torch import Tensor
from torch.fx.experimental.proxy_tensor import make_fx

from contmax._operator import operator


class Options(NamedTuple):
    alpha: float | Tensor
    mask: Tensor | None
    scale: float


class Sums(NamedTuple):
    total: Tensor
    rest: Tensor


def _like(x, options, weight, needs_rest):
    return Sums(x.new_empty(x.shape[:-1]), x.new_empty(x.shape if needs_rest else 0))


@operator("test_sums", like=_like, shared=("weight",))
def sums(x: Tensor, options: Options, weight: Tensor, needs_rest: bool) -> Sums:
    """Reads numbers, which no tracer allows."""
    assert x.isfinite().all().item()
    masked = x if options.mask is None else torch.where(options.mask, x, 0)
    total = (masked * weight * options.alpha).sum(-1) * options.scale
    return Sums(total, masked * 2 if needs_rest else x.new_empty(0))


def plain(x, alpha, mask, weight):
    masked = x if mask is None else torch.where(mask, x, 0)
    return (masked * weight * alpha).sum(-1) * 3


X, WEIGHT = torch.randn(4, 5, 6), torch.randn(6)
MASK = torch.rand(4, 5, 6) > 0.5
ALPHAS = [1.5, torch.rand(4, 5, 1) + 1]


@pytest.mark.parametrize("mask", [None, MASK], ids=["", "mask"])
@pytest.mark.parametrize("alpha", ALPHAS, ids=["number", "tensor"])
@pytest.mark.parametrize("needs_rest", [False, True])
def test_a_call_on_numbers_and_in_a_trace(alpha, mask, needs_rest):
    options = Options(alpha, mask, 3.0)
    eager = sums(X, options, WEIGHT, needs_rest)
    assert isinstance(eager, Sums)
    torch.testing.assert_close(eager.total, plain(X, alpha, mask, WEIGHT))
    assert eager.rest.shape == (X.shape if needs_rest else (0,))
    graph = make_fx(
        lambda x: tuple(sums(x, options, WEIGHT, needs_rest)), tracing_mode="fake", _allow_non_fake_inputs=True
    )(X)
    nodes = [node for node in graph.graph.nodes if node.target is torch.ops.contmax.test_sums.default]
    assert len(nodes) == 1
    torch.testing.assert_close(graph(X), tuple(eager))


@pytest.mark.parametrize("alpha", ALPHAS, ids=["number", "tensor"])
def test_the_operator_is_a_sound_one(alpha):
    index = (alpha, 0.0) if isinstance(alpha, Tensor) else (None, alpha)
    arguments = (X, *index, MASK, 3.0, WEIGHT, True)
    tests = ("test_schema", "test_faketensor")
    torch.library.opcheck(torch.ops.contmax.test_sums.default, arguments, test_utils=tests)


@pytest.mark.parametrize("needs_rest", [False, True])
@pytest.mark.parametrize("axis", [0, 1])
def test_vmap_over_what_has_a_batch(axis, needs_rest):
    x, alpha = X.movedim(0, axis), ALPHAS[1]

    def call(x, alpha):
        return tuple(sums(x, Options(alpha, MASK[0], 3.0), WEIGHT, needs_rest))[: 1 + needs_rest]

    got = torch.vmap(call, in_dims=(axis, 0))(x, alpha)
    want = sums(X, Options(alpha, MASK[:1].expand(X.shape), 3.0), WEIGHT, needs_rest)
    torch.testing.assert_close(got, tuple(want)[: 1 + needs_rest])


def test_vmap_over_what_is_shared():
    weights = torch.randn(3, 6)
    got = torch.vmap(lambda w: sums(X, Options(1.5, None, 3.0), w, False).total)(weights)
    torch.testing.assert_close(got, torch.stack([plain(X, 1.5, None, w) for w in weights]))


def test_vmap_inside_of_vmap():
    weights = torch.randn(3, 6)
    inner = lambda x, w: sums(x, Options(1.5, None, 3.0), w, True).total  # noqa: E731
    got = torch.vmap(torch.vmap(inner, in_dims=(0, None)), in_dims=(None, 0))(X, weights)
    torch.testing.assert_close(got, torch.stack([plain(X, 1.5, None, w) for w in weights]))


def test_a_call_of_the_operator_runs_the_function_and_nothing_of_torch_in_python():
    ran = set()

    def listen(frame, event, _):
        if event == "call":
            ran.add(frame.f_code.co_filename)

    sys.setprofile(listen)
    try:
        torch.ops.contmax.test_sums.default(X, None, 1.5, MASK, 3.0, WEIGHT, True)
    finally:
        sys.setprofile(None)
    assert __file__ in ran
    assert not [name for name in ran if name.startswith(os.path.dirname(torch.__file__)) and "_library" in name]
    assert not [name for name in ran if "_dynamo" in name]


def test_an_operator_may_be_registered_again():
    def like(x):
        return x.new_empty(x.shape)

    def twice(x: Tensor) -> Tensor:
        return x * 2

    def thrice(x: Tensor) -> Tensor:
        return x * 3

    for function in (twice, thrice):
        again = operator("test_again", like=like)(function)
    torch.testing.assert_close(torch.vmap(again)(X), X * 3)


@pytest.mark.graph
def test_a_compiled_program_holds_one_node():
    def program(x):
        return sums(x + 1, Options(1.5, MASK, 3.0), WEIGHT, True).total * 2

    got = torch.compile(program, backend="aot_eager", fullgraph=True)(X)
    torch.testing.assert_close(got, program(X))
