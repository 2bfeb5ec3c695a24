"""Launches that keep what Triton compiled: which arguments share a compiled kernel, and when nothing is kept.

No device is needed: Triton's own part is played by a kernel that only writes down how it was called.
"""

import contextlib

import pytest
import torch
from triton import knobs
from triton._C.libtriton import native_specialize_impl
from triton.backends.compiler import GPUTarget
from triton.compiler import make_backend
from triton.runtime.jit import JITFunction

import contmax
from contmax.kernels.gpu import _cached_launch
from contmax.kernels.gpu._cached_launch import Launch, known_of_number
from launch_checks import launch, noted_kernel  # noqa: F401 a fixture


def test_the_second_launch_is_that_of_the_compiled_kernel(kernel):
    x, y = torch.zeros(64), torch.zeros(64, dtype=torch.float16)
    Launch(kernel, (3, 2), (48, 0.5), {"K": 2, "B": 64}, 8)(x, None)
    Launch(kernel, (5,), (80, 0.25), {"K": 2, "B": 64}, 8)(z := x + 1, None)
    Launch(kernel, (5,), (80, 0.25), {"K": 2, "B": 64}, 8)(x, y)
    first, second = kernel.plain
    assert first.grid == (3, 2, 1)
    assert first.arguments[0] is x
    assert first.arguments[1:] == (None, 48, 0.5)
    assert first.options == {"K": 2, "B": 64, "num_warps": 8, "enable_fp_fusion": False}
    (grid, arguments), *rest = first.compiled.calls
    assert grid == (5, 1, 1)
    assert arguments == (z.data_ptr(), None, 80, 0.25, 2, 64)
    assert not rest
    assert second.arguments[1] is y


@pytest.mark.parametrize(
    "other",
    [
        {"x": torch.zeros(64, dtype=torch.float16)},
        {"x": torch.zeros(65)[1:]},
        {"x": torch.zeros(66)[2:]},
        {"y": torch.zeros(64)},
        {"n": 1},
        {"n": 47},
        {"n": 56},
        {"n": 2**31},
        {"n": 48.0},
        {"epsilon": 0},
        {"kind": 1},
        {"warps": 8},
    ],
)
def test_other_kinds_of_arguments_are_asked_for_again(kernel, other):
    launch(kernel)
    launch(kernel, **other)
    assert len(kernel.plain) == 2
    launch(kernel)
    launch(kernel, **other)
    assert len(kernel.plain) == 2


def test_registers_and_stages_are_told_and_told_apart(kernel):
    x = torch.zeros(64)
    for registers, stages in ((None, None), (64, None), (None, 3), (64, 2)):
        for _ in range(2):
            Launch(kernel, (3,), (48, 0.5), {"K": 2, "B": 64}, 4, registers, stages)(x, None)
    told = [{name: plain.options.get(name) for name in ("maxnreg", "num_stages")} for plain in kernel.plain]
    assert [tuple(each.values()) for each in told] == [(None, None), (64, None), (None, 3), (64, 2)]
    assert all("maxnreg" not in plain.options for plain in kernel.plain if plain.options.get("maxnreg") is None)


@pytest.mark.parametrize("other", [{"n": 64}, {"n": 0}, {"epsilon": 0.1}, {"grid": (7,)}, {"x": torch.ones(3, 5)}])
def test_the_same_kinds_share_a_compiled_kernel(kernel, other):
    launch(kernel)
    launch(kernel, **other)
    assert len(kernel.plain) == 1


def test_another_kernel_with_the_same_arguments_is_another(kernel):
    def function(X, Y, n, epsilon, K, B):
        """Not run."""

    other = JITFunction(function)
    other.plain = []
    launch(kernel)
    launch(other)
    assert len(kernel.plain) == len(other.plain) == 1


_NUMBERS = [-(2**31) - 1, -(2**31), -17, -16, -1, 0, 1, 2, 8, 15, 16, 17, 2**31 - 16, 2**31 - 1, 2**31, 2**31 + 16]
_NUMBERS += [2**40, 2**62, 2**63 - 16, 2**63, 0.0, 1.0, 16.0, True, False]


def test_what_triton_tells_apart_is_told_apart():
    backend = make_backend(GPUTarget("cuda", 90, 32))
    for a in _NUMBERS:
        for b in _NUMBERS:
            if native_specialize_impl(backend, a, False, True, True) != native_specialize_impl(
                backend, b, False, True, True
            ):
                assert known_of_number(a) != known_of_number(b), (a, b)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.int16])
def test_triton_tells_tensors_apart_by_dtype_and_alignment_alone(dtype):
    """If it did by more, kept launches would have to as well."""
    backend = make_backend(GPUTarget("cuda", 90, 32))
    x = torch.zeros(4, 64, dtype=dtype)
    known = native_specialize_impl(backend, x, False, True, True)
    for same in (x.mT, x[0], x[1:], torch.zeros(0, dtype=dtype), torch.nn.Parameter(x, requires_grad=False)):
        assert native_specialize_impl(backend, same, False, True, True) == known
    assert native_specialize_impl(backend, x[:, 1:], False, True, True) != known


def test_nothing_is_kept_under_tools_that_change_kernels(kernel, monkeypatch):
    launch(kernel)
    with monkeypatch.context() as patch:
        patch.setattr(knobs.runtime, "debug", True)
        launch(kernel)
    with monkeypatch.context() as patch:
        patch.setattr(knobs.compilation, "instrumentation_mode", "consan")
        launch(kernel)
    with monkeypatch.context() as patch:
        patch.setattr(knobs.runtime, "add_stages_inspection_hook", lambda: ("key", "hash"))
        launch(kernel)
    kernel.add_pre_run_hook(lambda *arguments, **options: None)
    launch(kernel)
    assert len(kernel.plain) == 5
    assert not kernel.plain[0].compiled.calls


def test_clear_caches_forgets_what_was_compiled(kernel):
    launch(kernel)
    contmax.clear_caches()
    launch(kernel)
    assert len(kernel.plain) == 2


def test_under_tools_too_the_device_is_that_of_the_first_tensor(kernel, monkeypatch):
    entered = []

    def noted(x):
        entered.append((x, len(kernel.plain)))
        return contextlib.nullcontext()

    monkeypatch.setattr(_cached_launch, "device_of", noted)
    monkeypatch.setattr(knobs.runtime, "debug", True)
    x = torch.zeros(64)
    launch(kernel, x)
    assert len(kernel.plain) == 1
    assert [(y is x, before) for y, before in entered] == [(True, 0)]


@pytest.mark.parametrize("chain", ["launch_enter_hook", "launch_exit_hook"])
def test_launches_with_hooks_are_left_to_triton(kernel, chain):
    def hook(metadata):
        """Called by Triton."""

    hooks = getattr(knobs.runtime, chain)
    launch(kernel)
    hooks.add(hook)
    try:
        launch(kernel)
    finally:
        hooks.remove(hook)
    assert len(kernel.plain) == 2
    launch(kernel)
    assert len(kernel.plain) == 2
    assert len(kernel.plain[0].compiled.calls) == 1


@pytest.mark.parametrize("chain", ["launch_enter_hook", "launch_exit_hook"])
def test_a_hook_may_be_any_function_or_none(kernel, monkeypatch, chain):
    launch(kernel)
    monkeypatch.setattr(knobs.runtime, chain, lambda metadata: None)
    launch(kernel)
    assert len(kernel.plain) == 2
    monkeypatch.setattr(knobs.runtime, chain, None)
    launch(kernel)
    assert len(kernel.plain) == 2


def test_what_is_not_compiled_yet_is_not_kept(kernel, monkeypatch):
    monkeypatch.setattr(JITFunction, "run", lambda self, *a, grid, warmup, **o: self.plain.append(a))
    launch(kernel)
    launch(kernel)
    assert len(kernel.plain) == 2


def test_another_device_becomes_the_current_one(kernel, monkeypatch):
    current = [3]

    class Device:
        def __init__(self, index):
            self.index = index

        def __enter__(self):
            self.before, current[0] = current[0], self.index

        def __exit__(self, *_):
            current[0] = self.before

    monkeypatch.setattr(torch._C, "_cuda_getDevice", lambda: current[0])
    monkeypatch.setattr(torch.cuda, "device", Device)
    seen = []
    run = JITFunction.run
    monkeypatch.setattr(JITFunction, "run", lambda *a, **o: (seen.append(current[0]), run(*a, **o))[1])
    launch(kernel)
    assert seen == [-1]
    assert current == [3]


def test_a_tensor_that_is_elsewhere_is_left_to_triton_which_refuses_it(kernel):
    class Elsewhere(torch.Tensor):
        def get_device(self):
            return 1

    elsewhere = torch.zeros(64).as_subclass(Elsewhere)
    launch(kernel, y=torch.zeros(64))
    for times in (2, 3):  # what Triton accepts once it is asked again: memory of the host may be pinned or not
        launch(kernel, y=elsewhere)
        assert len(kernel.plain) == times
    assert not any(plain.compiled.calls for plain in kernel.plain)


def test_one_tensor_in_two_places_has_its_address_in_both(kernel):
    x, y = torch.zeros(64), torch.zeros(64)
    launch(kernel, x, y)
    launch(kernel, x, x)
    launch(kernel, y, x)
    (plain,) = kernel.plain
    addresses = [arguments[:2] for _, arguments in plain.compiled.calls]
    assert addresses == [(x.data_ptr(), x.data_ptr()), (y.data_ptr(), x.data_ptr())]


@pytest.mark.parametrize("places", [1, 2])
def test_which_of_the_tensors_is_not_aligned_matters(kernel, places):
    x, y = torch.zeros(64), torch.zeros(64 + places)[places:]
    for _ in range(2):
        for pair in ((x, x), (x, y), (y, x), (y, y), (y, None)):
            launch(kernel, *pair)
    assert len(kernel.plain) == 5
    assert all(len(plain.compiled.calls) == 1 for plain in kernel.plain)


def test_the_interpreter_is_called_as_it_is():
    calls = []

    class Interpreted:
        def fn(self):
            """Not run."""

        def __getitem__(self, grid):
            return lambda *arguments, **options: calls.append((grid, options))

    kernel = Interpreted()
    kernel.fn = kernel.fn
    launch(kernel)
    launch(kernel)
    assert calls == [((3, 1, 1), {"K": 2, "B": 64, "num_warps": 4, "enable_fp_fusion": False})] * 2
