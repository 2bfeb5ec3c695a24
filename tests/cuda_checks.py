"""What the tests on a GPU share: the device, calls that must not wait, captured graphs, and float64 as the judge.

Without a CUDA device every module that imports this one is skipped. ``CONTMAX_TEST_DEVICE=cpu`` runs the same tests on
the CPU, to try the tests themselves: nothing is captured there, and waiting is not noticed.
"""

import contextlib
import copy
import dataclasses
import functools
import os
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import pytest
import torch
from fuzz.gpu.launches import captured
from torch import Tensor

from contmax import _backend

DEVICE = os.environ.get("CONTMAX_TEST_DEVICE", "cuda")
ON_GPU = DEVICE == "cuda"
if ON_GPU and not torch.cuda.is_available():
    pytest.skip("needs a CUDA device", allow_module_level=True)

F64, F32, F16, BF16 = torch.float64, torch.float32, torch.float16, torch.bfloat16
HALVES = pytest.mark.parametrize("dtype", [F16, BF16], ids=["float16", "bfloat16"])
DTYPES = pytest.mark.parametrize("dtype", [F32, F16, BF16], ids=["float32", "float16", "bfloat16"])

Call = Callable[[], Any]
Function = Callable[..., Any]


@contextlib.contextmanager
def no_waiting() -> Iterator[None]:
    """A context in which a host that waits for the device is an error."""
    if not ON_GPU:
        yield
        return
    torch.cuda.set_sync_debug_mode("error")
    try:
        yield
    finally:
        torch.cuda.set_sync_debug_mode("default")


def without_waiting(call: Call) -> Any:
    """The result of a call: once to load libraries, kernels and constants, then once more with waiting forbidden."""
    call()
    with no_waiting():
        return call()


@contextlib.contextmanager
def torch_path() -> Iterator[None]:
    """A context in which no compiled kernel runs: every operation is made of torch's own."""
    compilers = (_backend.TRITON, _backend.NUMBA)
    before = [compiler.works for compiler in compilers]
    for compiler in compilers:
        compiler.works = False
    try:
        yield
    finally:
        for compiler, works in zip(compilers, before, strict=True):
            compiler.works = works


class Captured:
    """A call captured in a CUDA graph; `replay` returns its results for what its inputs hold by then."""

    def __init__(self, call: Call) -> None:
        self.replay = captured(call) if ON_GPU else call


@dataclasses.dataclass(frozen=True)
class Fixed:
    """An input of `assert_accurate` that is not differentiated."""

    tensor: Tensor


def drawn(*shape: int, scale: float = 1.0, seed: int = 0) -> Tensor:
    """Normal numbers in float32 on the CPU, the same in every run."""
    return scale * torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def value_and_gradients(
    function: Function, inputs: Sequence[Any], device: str, dtype: torch.dtype, parameters: Sequence[Tensor] = ()
) -> list[Tensor]:
    """What a function of tensors returns, and the gradients of its floating-point arguments, all on the CPU in float64.

    Floating-point tensors go to the device and the dtype, other tensors to the device; the rest is passed as it is.
    Cotangents are the same everywhere. A gradient that is None is left out. `parameters` are further tensors to
    differentiate by, already on the device.
    """
    moved = [_moved(x, device, dtype) for x in inputs]
    live = [x for x in moved if isinstance(x, Tensor) and x.requires_grad] + list(parameters)
    # Made by the first call, because copying them to the device waits for it.
    cotangents: list[Tensor] = []

    def call() -> list[Tensor]:
        outputs = _listed(function(*moved))
        differentiable = [y for y in outputs if y.requires_grad]
        if not differentiable or not live:
            return outputs
        if not cotangents:
            cotangents.extend(_cotangent(y) for y in differentiable)
        gradients = torch.autograd.grad(differentiable, live, cotangents, allow_unused=True)
        return [*outputs, *(g for g in gradients if g is not None)]

    results = without_waiting(call) if device != "cpu" else call()
    return [y.detach().double().cpu() for y in results]


def assert_accurate(
    function: Function,
    inputs: Sequence[Any],
    dtype: torch.dtype = F32,
    *,
    ulps: float = 8.0,
    tolerance: float | None = None,
) -> None:
    """A function on the device, with all its gradients, against float64 on the CPU at the same rounded inputs.

    Args:
        function: of the inputs; returns a tensor or several.
        inputs: as in `value_and_gradients`.
        dtype: of the numbers on the device.
        ulps: what is allowed beyond twice the error of torch's own operations in this dtype on this device and one
            rounding to it, in units of float32's rounding at the size of the largest number.
        tolerance: instead of all that, the error relative to the largest number, which is at least 1.
    """
    rounded = [_rounded(x, dtype) for x in inputs]
    with torch_path():
        exact = value_and_gradients(function, rounded, "cpu", F64)
        plain = None if tolerance else value_and_gradients(function, rounded, DEVICE, dtype)
    ours = value_and_gradients(function, rounded, DEVICE, dtype)
    for place, (got, expected) in enumerate(zip(ours, exact, strict=True)):
        if plain is None:
            allowed = (tolerance or 0.0) * max(1.0, _largest(expected))
        else:
            rounding = torch.finfo(dtype).eps + ulps * torch.finfo(F32).eps
            allowed = rounding * _largest(expected) + 2 * _error(plain[place], expected)
        _assert_error(got, expected, allowed, place)


def assert_module_accurate(
    module: torch.nn.Module, call: Function, inputs: Sequence[Any], dtype: torch.dtype = F32, *, tolerance: float
) -> None:
    """A module on the device, with gradients of inputs and parameters, against its copy in float64 on the CPU.

    Args:
        module: in float32 on the CPU; it is copied.
        call: of a copy and the inputs; returns a tensor or several.
        inputs: as in `value_and_gradients`.
        dtype: of the numbers on the device.
        tolerance: the error relative to the largest number of each result, which is at least 1.
    """
    exact_copy, copied = copy.deepcopy(module).double(), copy.deepcopy(module).to(DEVICE, dtype)
    rounded = [_rounded(x, dtype) for x in inputs]
    results = []
    for attend, place in ((exact_copy, ("cpu", F64)), (copied, (DEVICE, dtype))):
        function = functools.partial(call, attend)
        results.append(value_and_gradients(function, rounded, *place, list(attend.parameters())))
    for index, (expected, got) in enumerate(zip(*results, strict=True)):
        _assert_error(got, expected, tolerance * max(1.0, _largest(expected)), index)


def _assert_error(got: Tensor, expected: Tensor, allowed: float, place: int) -> None:
    error = _error(got, expected)
    assert error <= allowed, f"result {place} of shape {tuple(got.shape)}: error {error:.3g} > {allowed:.3g}"


def _rounded(x: Any, dtype: torch.dtype) -> Any:
    if isinstance(x, Fixed):
        return Fixed(_rounded(x.tensor, dtype))
    return x.to(dtype) if isinstance(x, Tensor) and x.is_floating_point() else x


def _moved(x: Any, device: str, dtype: torch.dtype) -> Any:
    if isinstance(x, Fixed):
        return _moved(x.tensor, device, dtype).detach()
    if not isinstance(x, Tensor):
        return x
    return x.detach().to(device, dtype).requires_grad_() if x.is_floating_point() else x.to(device)


def _listed(result: Any) -> list[Tensor]:
    return [result] if isinstance(result, Tensor) else list(result)


def _cotangent(y: Tensor) -> Tensor:
    """Numbers of both signs that every dtype can hold."""
    size = torch.rand(y.shape, generator=torch.Generator().manual_seed(5)) + 0.5
    sign = torch.where(torch.arange(y.numel()).reshape(y.shape) % 3 == 0, -1.0, 1.0)
    return (size * sign).bfloat16().to(y.device, y.dtype)


def _largest(expected: Tensor) -> float:
    finite = expected[expected.isfinite()]
    return float(finite.abs().max()) if finite.numel() else 0.0


def _error(got: Tensor, expected: Tensor) -> float:
    """The largest difference; NaN and infinities must be where they belong."""
    assert got.shape == expected.shape
    special = ~expected.isfinite()
    if not torch.equal(got[special].nan_to_num(0.5), expected[special].nan_to_num(0.5)) or got[~special].isnan().any():
        return torch.inf
    difference = torch.where(special, 0, got - expected).abs()
    return float(difference.max()) if difference.numel() else 0.0
