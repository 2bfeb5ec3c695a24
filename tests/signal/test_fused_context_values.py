"""The way of the commonest calls, a density for each sequence: values and derivatives are those of the ordinary way."""

import importlib
import math

import pytest
import torch
from torch.autograd import forward_ad

import contmax
from contmax import nn
from contmax.densities import BetaGaussian, MultivariateBetaGaussian
from fused_context_checks import (
    PLACES,
    assert_the_same,
    attention,
    basis_of,
    both_ways,
    called,
    inputs,
    learned,
    value_and_gradients,
)

pytestmark = pytest.mark.usefixtures("triton_takes_cpu_tensors")

ALPHAS = pytest.mark.parametrize("alpha", [1.0, 5 / 4, 4 / 3, 1.5, 2.0, 3.0, math.inf, 1.1, 0.9])


def _gpu_contexts():
    """The module, which imports Triton."""
    return importlib.import_module("contmax.kernels.means._gpu_contexts")


def strided(place):
    values, loc, scale = inputs(place)
    wide = [torch.stack([x, torch.full_like(x, torch.nan)], -1) for x in (values, loc, scale)]
    return [x[..., 0] for x in wide]


def turned(place):
    values, loc, scale = inputs(place)
    return values.mT.contiguous().mT, loc, scale.mT.contiguous().mT if place == "plane" else scale


def expanded(place):
    values, loc, scale = inputs(place, batch=1)
    return values.expand(4, -1, -1), loc.expand(4, *loc.shape[1:]), scale.expand(4, *scale.shape[1:])


def put_off(place):
    """Values that torch has yet to negate, among others."""
    values, loc, scale = inputs(place)
    return torch.complex(torch.randn_like(values), values).conj().imag, loc, scale


KINDS = {"contiguous": inputs, "strided": strided, "turned": turned, "expanded": expanded, "put off": put_off}
# Which of values, location and scale need a gradient.
CHOICES = [(kind, "vls") for kind in KINDS] + [("contiguous", needed) for needed in ("v", "l", "s", "ls", "vs")]


@PLACES
@ALPHAS
def test_every_index(place, alpha):
    tensors, function = learned(place), called(attention(place, alpha))
    assert_the_same(*both_ways(lambda: value_and_gradients(function, tensors)))


@PLACES
@pytest.mark.parametrize(("kind", "needed"), CHOICES)
def test_every_layout_and_every_choice_of_gradients(taken, place, kind, needed):
    tensors = [x.detach().requires_grad_(name in needed) for x, name in zip(KINDS[kind](place), "vls", strict=True)]
    function = called(attention(place))
    assert_the_same(*both_ways(lambda: value_and_gradients(function, tensors)))
    assert len(taken) == 1


@PLACES
@pytest.mark.parametrize("cotangent", [torch.ones(()).expand(3, 7), torch.randn(7, 3).mT], ids=["expanded", "turned"])
def test_every_layout_of_cotangents(taken, place, cotangent):
    tensors, function = learned(place), called(attention(place))
    assert_the_same(*both_ways(lambda: value_and_gradients(function, tensors, cotangent)))
    assert len(taken) == 1


@PLACES
@pytest.mark.parametrize(("batch", "channels"), [(1, 2), (20, 3), (5, 33)])
def test_odd_sizes(taken, place, batch, channels):
    tensors, function = learned(place, batch=batch, channels=channels), called(attention(place, 1.5))
    assert_the_same(*both_ways(lambda: value_and_gradients(function, tensors)))
    assert taken


@pytest.mark.parametrize(("place", "alpha"), [("line", 1.0), ("line", 1.5), ("plane", 1.5)])
@pytest.mark.parametrize("bad", [math.nan, math.inf, 0.0, -1.0, 1e-30, 1e30])
def test_numbers_that_are_none(taken, place, alpha, bad):
    function = called(attention(place, alpha))
    for which in range(3):
        tensors = inputs(place)
        # A matrix of equal entries is singular: rounding alone would decide on its factor.
        is_matrix = place == "plane" and which == 2
        tensors[which][1] = torch.diag(torch.full((2,), bad)) if is_matrix else bad
        tensors = [x.requires_grad_() for x in tensors]
        assert_the_same(*both_ways(lambda t=tensors: value_and_gradients(function, t)))
    assert len(taken) == 3


@PLACES
@pytest.mark.parametrize("needed", ["vls", "v", "s"])
def test_derivatives_of_every_kind(taken, place, needed):
    tensors = [x.requires_grad_(name in needed) for x, name in zip(inputs(place), "vls", strict=True)]
    wanted = [x for x in tensors if x.requires_grad]
    function = called(attention(place, 1.5))
    many = torch.randn(4, 3, 7)
    g = torch.randn(3, 7, requires_grad=True)

    def derivatives():
        context = function(*tensors)
        first = torch.autograd.grad(context, wanted, g, create_graph=True)
        size = sum(x.square().sum() for x in first)
        second = torch.autograd.grad(size, (*wanted, g), create_graph=True, allow_unused=True)
        third = torch.autograd.grad(sum(x.sum() for x in second if x is not None), (*wanted, g), allow_unused=True)
        context = function(*tensors)
        batched = torch.autograd.grad(context, wanted, many, is_grads_batched=True, retain_graph=True)
        vmapped = torch.vmap(lambda c: torch.autograd.grad(context, wanted, c, retain_graph=True))(many)
        return [context, *first, *second, *third, *batched, *vmapped]

    ours, theirs = both_ways(derivatives)
    assert len(taken) == 2
    assert len(ours) == len(theirs)
    for mine, other in zip(ours, theirs, strict=True):
        assert (mine is None) == (other is None)
        if mine is not None:
            torch.testing.assert_close(mine, other, rtol=1e-4, atol=1e-5 * (1 + other.detach().abs().max().item()))


@PLACES
def test_a_factor_has_derivatives_of_its_own(taken, place):
    values, loc, scale = inputs(place)
    tril = (scale if place == "line" else torch.linalg.cholesky(scale)).requires_grad_()
    basis = basis_of(place)

    def derivatives():
        if place == "line":
            context = contmax.continuous_attention(values, BetaGaussian(loc, tril, 1.5), basis)
        else:
            density = MultivariateBetaGaussian(loc, scale_tril=tril, alpha=1.5)
            context = contmax.continuous_attention(values, density, basis, grid=(3, 5))
        (first,) = torch.autograd.grad(context.square().sum(), tril, create_graph=True)
        return context, first, *torch.autograd.grad(first.square().sum(), tril)

    ours, theirs = both_ways(derivatives)
    assert len(taken) == 1
    for mine, other in zip(ours, theirs, strict=True):
        torch.testing.assert_close(mine, other, rtol=1e-4, atol=1e-4)


@PLACES
def test_tangents_and_transforms_are_those_of_the_ordinary_way(taken, place):
    tensors, moves = inputs(place), inputs(place)
    function = called(attention(place))

    def total(*arguments):
        return function(*arguments).sin().sum()

    def derivatives():
        with forward_ad.dual_level():
            dual = [forward_ad.make_dual(x, move) for x, move in zip(tensors, moves, strict=True)]
            along = forward_ad.unpack_dual(function(*dual)).tangent
        gradients = torch.func.grad(total, (0, 1, 2))(*tensors)
        several = [torch.stack([x, move]) for x, move in zip(tensors, moves, strict=True)]
        return along, *gradients, torch.vmap(function)(*several), torch.func.jvp(function, tensors, moves)[1]

    ours, theirs = both_ways(derivatives)
    assert not taken
    assert_the_same(ours, theirs)
    # Tensors that no transform sees, inside of one.
    torch.vmap(lambda y: y * function(*tensors).sum())(torch.ones(2))
    assert not taken


@PLACES
def test_the_context_can_be_written_to(taken, place):
    """A view that a function of autograd returns could not be."""
    values, loc, scale = learned(place)
    context = called(attention(place))(values, loc, scale)
    context.mul_(2).square().sum().backward()
    assert taken
    assert values.grad is not None


@PLACES
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_autocast_rounds_nothing(taken, place, dtype):
    tensors, function = learned(place), called(attention(place))
    expected = value_and_gradients(function, tensors)
    with torch.autocast("cpu", dtype):
        assert_the_same(value_and_gradients(function, tensors), expected)
    assert len(taken) == 2


@PLACES
def test_autocast_does_not_round_what_torch_does_here_either(place):
    tensors, function = learned(place), called(attention(place))
    expected = value_and_gradients(function, tensors)
    hooks = torch.autograd.graph.saved_tensors_hooks(lambda x: x, lambda x: x.double())
    with hooks, torch.autocast("cpu", torch.bfloat16):
        assert_the_same(value_and_gradients(function, tensors), expected)


@PLACES
def test_no_slopes_without_gradients(monkeypatch, place):
    asked, kind = [], _gpu_contexts().Contexts
    contexts = kind.contexts
    monkeypatch.setattr(
        kind,
        "contexts",
        lambda *given, needs_slopes: asked.append(needs_slopes) or contexts(*given, needs_slopes=needs_slopes),
    )
    tensors, function = learned(place), called(attention(place))
    with torch.no_grad():
        function(*tensors)
    function(*tensors)
    function(tensors[0], *[x.detach() for x in tensors[1:]])
    assert asked == [False, True, False]


@PLACES
def test_only_what_gradients_need_is_kept(taken, place):
    values, loc, scale = inputs(place)
    saved = []

    def shapes(*needed):
        saved.clear()
        tensors = [x.detach().requires_grad_(x is y) for x, y in zip((values, loc, scale), needed, strict=True)]
        with torch.autograd.graph.saved_tensors_hooks(lambda x: saved.append(tuple(x.shape)) or x, lambda x: x):
            called(attention(place))(*tensors)
        return saved

    slopes = 2 if place == "line" else 6
    assert tuple(values.shape) not in shapes(values, None, None)
    assert (3, slopes, 7) not in shapes(values, None, None)
    assert not {(3, 15), (3 * (1 + slopes), 15)} & set(shapes(None, loc, None))
    assert {tuple(values.shape), (3 * (1 + slopes), 15), (3, slopes, 7)} <= set(shapes(values, loc, None))
    assert shapes(None, None, None) == []


@pytest.mark.graph
@PLACES
def test_a_compiled_program_takes_the_ordinary_way(taken, place):
    torch._dynamo.reset()
    tensors, function = learned(place), called(attention(place))
    traced = torch.compile(function, fullgraph=True, backend="aot_eager_default_partitioner")
    found = value_and_gradients(traced, tensors)
    assert not taken
    assert_the_same(found, value_and_gradients(function, tensors))


@PLACES
def test_hooks_may_bring_saved_tensors_back_in_another_dtype(taken, place):
    """A launch that is ready takes addresses for those of float32 on its device."""
    tensors, function = learned(place), called(attention(place))
    expected = value_and_gradients(function, tensors)
    with torch.autograd.graph.saved_tensors_hooks(lambda x: x, lambda x: x.double()):
        got = value_and_gradients(function, tensors)
    assert len(taken) == 2
    assert_the_same(got, expected)


@PLACES
@pytest.mark.parametrize("channels", [2, 70])
def test_programs_of_large_batches(taken, monkeypatch, place, channels):
    module = _gpu_contexts()
    monkeypatch.setattr(module, "_MANY", 1)
    module.contexts_of.cache_clear()
    tensors, function = learned(place, channels=channels), called(attention(place, 1.5))
    assert_the_same(*both_ways(lambda: value_and_gradients(function, tensors)))
    module.contexts_of.cache_clear()
    assert taken


@PLACES
@pytest.mark.parametrize("needs_gradients", [True, False])
def test_long_sequences_of_few_channels_are_divided(taken, place, needs_gradients):
    length = 4097
    module = _gpu_contexts()
    assert module._launches_of_contexts((3, length, 2), (2 * length, 2, 1), 2)[0] > 1
    grid = None if place == "line" else (17, 241)
    attend = nn.ContinuousAttention(basis_of(place), grid=grid)
    _, loc, scale = inputs(place)
    tensors = [x.requires_grad_(needs_gradients) for x in (torch.randn(3, length, 2), loc, scale)]

    def results():
        if needs_gradients:
            return value_and_gradients(called(attend), tensors)
        return [called(attend)(*tensors)]

    assert_the_same(*both_ways(results))
    assert taken
