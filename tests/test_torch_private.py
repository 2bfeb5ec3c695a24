"""Each private name of torch that contmax uses means what `contmax._torch_private` says; no other file has one."""

import re
from pathlib import Path

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.autograd import forward_ad

import contmax
from contmax import _torch_private as private

SOURCE = Path(contmax.__file__).parent
# `import torch._x`, `torch._x`, `torch.a._x`, `forward_ad._x`; not attributes that torch's Python API documents.
PRIVATE = re.compile(
    r"\bfrom torch((\.\w+)*\.| import )_\w+|\btorch(\.[a-z]\w*)*\._\w+|\bforward_ad\._\w+|_dynamo_marked\w*"
)


def test_no_other_file_names_one():
    found = {}
    for path in SOURCE.rglob("*.py"):
        name = path.relative_to(SOURCE).as_posix()
        if name == "_torch_private.py":
            continue
        lines = [line for line in path.read_text().splitlines() if PRIVATE.search(line) and "torch.nn._" not in line]
        if lines:
            found[name] = lines
    assert not found


def test_transforms_are_active():
    seen = []
    torch.vmap(lambda x: seen.append(private.transforms_are_active()) or x)(torch.ones(2))
    assert seen == [True]
    assert not private.transforms_are_active()


def test_autocast_is_on_anywhere():
    assert not private.autocast_is_on_anywhere()
    with torch.autocast("cpu", torch.bfloat16):
        assert private.autocast_is_on_anywhere()


@pytest.mark.filterwarnings("ignore")
def test_torchscript_is_tracing():
    seen = []
    torch.jit.trace(lambda x: seen.append(private.torchscript_is_tracing()) or x + 1, torch.ones(2), check_trace=False)
    assert seen == [True]
    assert not private.torchscript_is_tracing()


def test_number_of_modes_and_active_fake_mode():
    assert private.number_of_modes() == 0
    assert private.active_fake_mode() is None
    with FakeTensorMode() as mode:
        assert private.number_of_modes() == 1
        assert private.active_fake_mode() is mode


def test_is_wrapped_by_transform_and_levels_of():
    seen = []

    def look(x):
        seen.append((private.is_wrapped_by_transform(x), len(private.levels_of(x))))
        return x

    torch.vmap(torch.vmap(look))(torch.ones(2, 3))
    assert seen == [(True, 2)]
    assert not private.is_wrapped_by_transform(torch.ones(2))
    assert private.levels_of(torch.ones(2)) == set()


def test_is_batch_of_cotangents():
    seen = []

    class Look(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            return x * 2

        @staticmethod
        def backward(ctx, cotangent):
            seen.append(private.is_batch_of_cotangents(cotangent))
            return cotangent * 2

    x = torch.ones(3, requires_grad=True)
    torch.autograd.grad(Look.apply(x), x, torch.eye(3), is_grads_batched=True)
    assert seen == [True]


def test_unwrap_if_dead():
    left = []
    torch.func.grad(lambda x: left.append(x) or x.sum())(torch.arange(3.0))
    assert private.is_wrapped_by_transform(left[0])
    torch.testing.assert_close(private.unwrap_if_dead(left[0]), torch.arange(3.0))


def test_forward_mode_is_on():
    assert not private.forward_mode_is_on()
    with forward_ad.dual_level():
        assert private.forward_mode_is_on()


def test_levels_of_forward_mode():
    seen = []

    def look(x):
        seen.append((len(private.forward_mode_levels()), private.innermost_transform_is_forward_mode()))
        return x

    torch.func.jvp(look, (torch.ones(2),), (torch.ones(2),))
    torch.func.jvp(torch.vmap(look), (torch.ones(2),), (torch.ones(2),))
    assert seen == [(1, True), (1, False)]
    assert private.forward_mode_levels() == set()


def test_outside_of_transforms_and_modes():
    made = []

    def make(x):
        with private.outside_of_transforms_and_modes():
            made.append(torch.ones(2) * 2)
        return x

    torch.vmap(make)(torch.ones(3))
    with FakeTensorMode():
        make(None)
    assert all(type(x) is torch.Tensor and x.tolist() == [2, 2] for x in made)
    assert not any(map(private.is_wrapped_by_transform, made))


def test_standard_gamma_has_a_derivative():
    concentration = torch.full((1000,), 3.0, requires_grad=True)
    private.standard_gamma(concentration).sum().backward()
    assert abs(concentration.grad.mean() - 1) < 0.1


@pytest.mark.graph
def test_constant_to_tracers():
    calls = []

    @private.constant_to_tracers
    def answer():
        calls.append(1)
        return 3

    program = torch.compile(lambda x: x * answer(), backend="eager", fullgraph=True)
    assert program(torch.ones(1)).item() == 3
    assert program(torch.ones(1)).item() == 3
    assert len(calls) == 1


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_current_stream_of_and_current_device():
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        assert private.current_device() == torch.cuda.current_device()
        assert private.current_stream_of(stream.device_index) == stream.cuda_stream
