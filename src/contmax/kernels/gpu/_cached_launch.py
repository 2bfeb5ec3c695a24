"""Launches of Triton's kernels. Compiled kernels are cached by the kinds (dtypes, alignment) of their arguments.

``kernel[grid](…)`` examines every argument to find the compiled kernel that fits, which takes longer than most of our
kernels run. `Launch` lets Triton do so once for each kind of arguments, and from then on calls the launcher of the
compiled kernel directly.
"""

import contextlib
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from contmax._caches import cached
from contmax._torch_private import current_device, current_stream_of
from contmax.kernels.gpu import _triton_private
from contmax.kernels.gpu._triton_private import CompiledKernel, DirectCall


def device_of(x: Tensor) -> contextlib.AbstractContextManager[object]:
    """A context that makes the device of x the current device, on which Triton launches."""
    if not x.is_cuda or x.device.index == torch.cuda.current_device():
        return contextlib.nullcontext()
    return torch.cuda.device(x.device)


class Launch:
    """The launch ``kernel[grid](*tensors, *numbers, **kinds, num_warps=warps)``; each call passes only the tensors.

    Every kernel is launched by this class.

    Args:
        kernel: a function under ``triton.jit`` that takes tensors, then numbers, then ``tl.constexpr`` constants.
        grid: the number of programs along one to three axes.
        numbers: integers and floats.
        kinds: the constants, by name.
        warps: warps per program.
        registers: the most registers per thread; None leaves the number to the compiler.
        stages: pipeline stages of loops, as ``num_stages``; None leaves the number to the compiler.
        contracts: whether the compiler may fuse products and sums (FMA). Use it only where no reduction decides a
            branch or a loop: fused sums differ between threads, which may diverge at a branch and wait for ever
            (`README.md` of this folder).
    """

    def __init__(
        self,
        kernel: Any,
        grid: tuple[int, ...],
        numbers: Sequence[int | float],
        kinds: dict[str, Any],
        warps: int = 4,
        registers: int | None = None,
        stages: int | None = None,
        contracts: bool = False,
    ) -> None:
        self.kernel, self.grid, self._numbers, self._kinds = kernel, (*grid, 1, 1)[:3], numbers, kinds
        chosen = {"num_warps": warps, "maxnreg": registers, "num_stages": stages}
        self._options: dict[str, Any] = {name: value for name, value in chosen.items() if value is not None}
        self._options["enable_fp_fusion"] = contracts
        # Compiled kernels ignore constants, but expect them among the arguments.
        self.after_tensors = (*numbers, *kinds.values())
        options = (warps, registers, stages, contracts, *kinds.items())
        self._compiled = _compiled_kernels(kernel.fn, *options, *map(known_of_number, numbers))

    def __call__(self, *tensors: Tensor | None) -> None:
        """Launch on the device of the first tensor, and on its current stream; other tensors may be None."""
        if not _triton_private.may_be_cached(self.kernel):
            with device_of(tensors[0]):  # type: ignore[arg-type]
                self._by_triton(tensors)
            return
        device = tensors[0].get_device()  # type: ignore[union-attr]
        if device != current_device():
            with torch.cuda.device(device):
                self(*tensors)
            return
        key, addresses = _kinds_and_addresses(tensors)
        call = self._compiled.get(key)
        if call is None:
            compiled = self._by_triton(tensors)
            # Calls with tensors on several devices are not cached: Triton must check the addresses each time.
            here = all(x is None or x.get_device() == device for x in tensors)
            if here and isinstance(compiled, CompiledKernel):
                self._compiled[key] = _triton_private.direct_call(compiled)
        elif not _triton_private.LAUNCHES_DIRECTLY:
            call.compiled[self.grid](*tensors, *self.after_tensors)
        else:
            # Pass addresses: for a tensor the launcher would call `data_ptr` and have the driver check the result.
            _, start, before = call
            start(*self.grid, current_stream_of(device), *before, *addresses, *self.after_tensors)

    def direct_call(self, tensors: Sequence[Tensor | None]) -> DirectCall | None:
        """The cached call for tensors of these kinds; None if none is cached, or if this Triton takes no addresses."""
        return self._compiled.get(_kinds_and_addresses(tensors)[0]) if _triton_private.LAUNCHES_DIRECTLY else None

    def _by_triton(self, tensors: tuple[Tensor | None, ...]) -> Any:
        """Triton's own launch, which returns the compiled kernel."""
        return self.kernel[self.grid](*tensors, *self._numbers, **self._kinds, **self._options)


class ReadyLaunch:
    """A launch for tensors whose dtypes and device never change: calls read only the addresses of tensors.

    Args:
        launch: the launch to call.
        device: the index of the tensors' device.
    """

    def __init__(self, launch: Launch, device: int) -> None:
        self._launch, self._kernel, self._device = launch, launch.kernel, device
        self._call: tuple[Any, ...] | None = None

    def __call__(self, *tensors: Tensor) -> None:
        """Launch with `tensors` as the kernel's first arguments, and None for its remaining tensor arguments."""
        call = self._call
        addresses = [x.data_ptr() for x in tensors]
        joined = 0
        for address in addresses:
            joined |= address
        is_aligned = joined % 16 == 0
        if (
            call is None
            or not is_aligned
            or current_device() != self._device
            or not _triton_private.may_be_cached(self._kernel)
        ):
            # Call the launch; if all tensors are aligned to 16 bytes, store its compiled kernel for later calls.
            launch = self._launch
            none = (None,) * (len(launch.kernel.arg_names) - len(launch.after_tensors) - len(tensors))
            launch(*tensors, *none)
            found = launch.direct_call((*tensors, *none)) if is_aligned else None
            if found is not None:
                self._call = found.start, launch.grid, found.before, (*none, *launch.after_tensors)
        else:
            start, grid, before, after = call
            start(*grid, current_stream_of(self._device), *before, *addresses, *after)


@cached
def _compiled_kernels(*known: Any) -> dict[tuple[Any, ...], DirectCall]:
    """A dictionary from kinds of tensors to compiled kernels, empty at first; `Launch` fills it.

    Each combination `known` of function, launch options and kinds of numbers has its own dictionary.
    """
    return {}


def _kinds_and_addresses(tensors: Sequence[Tensor | None]) -> tuple[tuple[Any, ...], list[int | None]]:
    """A key of all properties of tensors that Triton specialises kernels for; and the tensors' addresses."""
    addresses = [None if x is None else x.data_ptr() for x in tensors]
    key: list[Any] = [None if x is None else (x.dtype, x.get_device()) for x in tensors]
    joined = 0
    for address in addresses:
        joined |= address or 0
    if joined % 16:  # rare: some tensor is not aligned to 16 bytes
        key += [not a or a % 16 == 0 for a in addresses]
    return tuple(key), addresses


def known_of_number(n: float) -> Any:
    """A key of all properties of a number that Triton specialises kernels for.

    For an integer: whether it is 1, whether it is a multiple of 16, and its width in bits. For a float: its type.
    """
    if type(n) is not int:
        return type(n)
    return "one" if n == 1 else (n >> 31, n % 16 == 0)  # n >> 31 is 0 or −1 if n has 32 bits
