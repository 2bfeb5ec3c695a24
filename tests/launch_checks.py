"""What tests of launches by triton share: a kernel that only writes down how it was called."""

from types import SimpleNamespace

import pytest
import torch
from triton.compiler import CompiledKernel
from triton.runtime.jit import JITFunction

import contmax
from contmax.kernels.gpu import _triton_private
from contmax.kernels.gpu._cached_launch import Launch


class Compiled(CompiledKernel):
    """Remembers what it was launched with, and in which way."""

    function, packed_metadata, name = 7, (4, 1), "fake"

    def __init__(self):
        self.calls, self.hooked = [], []

    def __getitem__(self, grid):
        return lambda *arguments: self.hooked.append((grid, arguments))

    def run(self, x, y, z, stream, function, metadata, launch_metadata, enter, leave, *arguments):
        assert (stream, function, metadata) == (99, self.function, self.packed_metadata)
        assert launch_metadata is enter is leave is None
        self.calls.append(((x, y, z), arguments))


@pytest.fixture(name="kernel")
def noted_kernel(monkeypatch):
    """A kernel that Triton would compile, on a device that is the current one; `plain` are the calls to Triton."""

    def function(X, Y, n, epsilon, K, B):
        """Not run."""

    kernel = JITFunction(function)
    kernel.plain = []

    def run(self, *arguments, grid, warmup, **options):
        compiled = Compiled()
        self.plain.append(SimpleNamespace(grid=grid, arguments=arguments, options=options, compiled=compiled))
        return compiled

    monkeypatch.setattr(JITFunction, "run", run)
    monkeypatch.setattr(torch._C, "_cuda_getDevice", lambda: -1, raising=False)  # that of a CPU tensor
    monkeypatch.setattr(torch._C, "_cuda_getCurrentRawStream", lambda device: 99, raising=False)
    monkeypatch.setattr(_triton_private, "HAS_C_LAUNCHER", False)
    contmax.clear_caches()
    return kernel


def launch(kernel, x=None, y=None, n=48, epsilon=0.5, kind=2, warps=4, grid=(3,)):
    x = torch.zeros(64) if x is None else x
    Launch(kernel, grid, (n, epsilon), {"K": kind, "B": 64}, warps)(x, y)
