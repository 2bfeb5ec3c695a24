"""Launches that call what Triton compiled without the parts of it that need not be asked every time."""

import inspect

import pytest
import torch
from triton import knobs
from triton.backends.nvidia.driver import CudaLauncher
from triton.compiler import CompiledKernel

from contmax.kernels.gpu import _triton_private
from contmax.kernels.gpu._cached_launch import Launch, ReadyLaunch
from launch_checks import Compiled, launch, noted_kernel  # noqa: F401 a fixture


def test_other_versions_of_triton_launch_what_they_compiled(kernel, monkeypatch):
    monkeypatch.setattr(_triton_private, "LAUNCHES_DIRECTLY", False)
    x = torch.zeros(64)
    launch(kernel, x)
    launch(kernel, x)
    ((grid, (first, *arguments)),) = kernel.plain[0].compiled.hooked
    assert grid == (3, 1, 1)
    assert first is x
    assert arguments == [None, 48, 0.5, 2, 64]
    assert not kernel.plain[0].compiled.calls


def test_compiled_kernels_are_launched_as_triton_does():
    """The order of arguments is Triton's own: this fails where a version has another."""
    source = inspect.getsource(CompiledKernel.__getitem__)
    order = "grid[0], grid[1], grid[2], stream, self.function, self.packed_metadata, launch_metadata,"
    assert order in " ".join(source.split()) or not _triton_private.LAUNCHES_DIRECTLY


class _Launcher:
    """Triton 3.6's: in Python, before one in C."""

    launch_cooperative_grid, launch_pdl, profile_scratch_size = False, True, 0

    def __init__(self, global_scratch_size):
        self.global_scratch_size, self.wrapped, self.bare = global_scratch_size, [], []

    def __call__(self, *arguments):
        self.wrapped.append(arguments)

    def launch(self, *arguments):
        self.bare.append(arguments)


@pytest.mark.parametrize("scratch", [0, 128])
def test_a_launcher_in_c_is_called_without_the_one_before_it(kernel, monkeypatch, scratch):
    launcher = _Launcher(scratch)
    monkeypatch.setattr(_triton_private, "HAS_C_LAUNCHER", True)
    monkeypatch.setattr(Compiled, "run", launcher)
    x = torch.zeros(64)
    launch(kernel, x)
    launch(kernel, x)
    arguments = (x.data_ptr(), None, 48, 0.5, 2, 64)
    if scratch:
        assert launcher.wrapped == [(3, 1, 1, 99, 7, (4, 1), None, None, None, *arguments)]
        assert not launcher.bare
    else:
        assert launcher.bare == [(3, 1, 1, 99, 7, False, True, None, None, (4, 1), None, None, None, *arguments)]
        assert not launcher.wrapped


def test_a_launcher_in_c_is_called_as_triton_does():
    source = " ".join(inspect.getsource(CudaLauncher.__call__).split())
    settings = (
        "stream, function, self.launch_cooperative_grid, self.launch_pdl, global_scratch, profile_scratch, *args)"
    )
    assert settings in source or not _triton_private.HAS_C_LAUNCHER


def _ready(kernel):
    return ReadyLaunch(Launch(kernel, (3,), (48, 0.5), {"K": 2, "B": 64}), -1)


def test_what_is_ready_is_launched_with_addresses(kernel):
    ready, x = _ready(kernel), torch.zeros(64)
    ready(x)
    ready(y := x + 1)
    (first,) = kernel.plain
    assert first.arguments[0] is x
    assert first.arguments[1:] == (None, 48, 0.5)
    assert first.compiled.calls == [((3, 1, 1), (y.data_ptr(), None, 48, 0.5, 2, 64))]


@pytest.mark.parametrize("places", [1, 2])
def test_what_is_ready_leaves_other_addresses_to_the_launch(kernel, places):
    ready, x, odd = _ready(kernel), torch.zeros(64), torch.zeros(64 + places)[places:]
    for _ in range(2):
        ready(odd)
        ready(x)
    aligned = [call.arguments[0].data_ptr() % 16 == 0 for call in kernel.plain]
    assert aligned == [False, True]
    for call, given in zip(kernel.plain, (odd, x), strict=True):
        assert [arguments[0] for _, arguments in call.compiled.calls] == [given.data_ptr()]


def test_what_is_ready_is_left_to_triton_under_tools_and_elsewhere(kernel, monkeypatch):
    ready, x = _ready(kernel), torch.zeros(64)
    ready(x)
    with monkeypatch.context() as patch:
        patch.setattr(knobs.runtime, "debug", True)
        ready(x)
    assert len(kernel.plain) == 2
    with monkeypatch.context() as patch:
        patch.setattr(torch._C, "_cuda_getDevice", lambda: 3)
        patch.setattr(Launch, "__call__", lambda *tensors: kernel.plain.append(tensors))
        ready(x)
    assert len(kernel.plain) == 3
    with monkeypatch.context() as patch:
        patch.setattr(_triton_private, "LAUNCHES_DIRECTLY", False)
        (other := _ready(kernel))(x)
        other(x)
    assert len(kernel.plain[0].compiled.hooked) == 2
    assert not kernel.plain[0].compiled.calls
