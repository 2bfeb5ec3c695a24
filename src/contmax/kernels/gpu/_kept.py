"""Launches of kernels, which keep what Triton has compiled.

``kernel[grid](…)`` binds and examines every argument to find the compiled kernel that fits, which takes longer than
most of our kernels run. Here it is asked once for each kind of arguments, and what it has compiled is launched after:
as ``compiled[grid](…)`` does, but without preparing for hooks, of which there are none then.
"""

import contextlib
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch
import triton
from torch import _C, Tensor
from triton import knobs
from triton.compiler import CompiledKernel
from triton.runtime.jit import JITFunction

# How many launches a function that makes them remembers: one for each shape that is met.
LAUNCHES = 1024
# Versions whose compiled kernels are known to be launched this way.
_LAUNCHES_DIRECTLY = triton.__version__.split(".")[:2] in (["3", "6"], ["3", "7"])
# Those whose launcher in Python only asks what memory a kernel needs beside its arguments, then calls one in C.
_HAS_BARE_LAUNCHER = triton.__version__.split(".")[:2] == ["3", "6"]
# Triton's settings, at hand.
_RUNTIME, _COMPILATION = knobs.runtime, knobs.compilation
# There Triton looks at more of the arguments than we do here.
_ON_AMD = torch.version.hip is not None


def device_of(x: Tensor) -> contextlib.AbstractContextManager[object]:
    """Triton launches on the current device: in this context it is that of x."""
    if not x.is_cuda or x.device.index == torch.cuda.current_device():
        return contextlib.nullcontext()
    return torch.cuda.device(x.device)


class _Kept(NamedTuple):
    """A compiled kernel, and how it is launched: ``start(*grid, stream, *before, *arguments)``."""

    compiled: CompiledKernel
    start: Callable[..., None]
    before: tuple[Any, ...]


# By all that Triton compiles for: first what does not depend on tensors, then what does.
_COMPILED: dict[tuple[Any, ...], dict[tuple[Any, ...], _Kept]] = {}


class Launch:
    """``kernel[grid](*tensors, *numbers, **kinds, num_warps=warps)``, but for the tensors.

    Every kernel is launched by this class.

    Args:
        kernel: a function under ``triton.jit`` that takes tensors, then numbers, then constants of compilation.
        grid: how many programs, along one to three axes.
        numbers: integers and floats.
        kinds: the constants, by name.
        warps: of a program.
        registers: of a thread, at most; None leaves the number to the compiler.
        stages: blocks on their way to a loop; None leaves the number to the compiler.
        contracts: whether the compiler may contract products and sums. Only for a kernel in which no reduction
            decides a branch or a loop: a contracted sum differs between threads, which then part at the branch, and
            wait for each other for ever (`README.md` of this folder).
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
        # Constants are compiled in, but have their places in the list of arguments.
        self.after_tensors = (*numbers, *kinds.values())
        known = (kernel.fn, warps, registers, stages, contracts, *kinds.items(), *map(known_of_number, numbers))
        self._compiled = _COMPILED.setdefault(known, {})

    def __call__(self, *tensors: Tensor | None) -> None:
        """Launch on the device of the first tensor, and on its current stream; other tensors may be None."""
        if not _may_be_kept(self.kernel):
            with device_of(tensors[0]):  # type: ignore[arg-type]
                self._plain(tensors)
            return
        device = tensors[0].get_device()  # type: ignore[union-attr]
        if device != _C._cuda_getDevice():
            with torch.cuda.device(device):  # where Triton launches
                self(*tensors)
            return
        key, addresses = _known_of(tensors)
        kept = self._compiled.get(key)
        if kept is None:
            compiled = self._plain(tensors)
            # A tensor on another device is left to Triton, which refuses it when it is given the tensor.
            here = all(x is None or x.get_device() == device for x in tensors)
            if here and isinstance(compiled, CompiledKernel):
                self._compiled[key] = _kept_of(compiled)
        elif not _LAUNCHES_DIRECTLY:
            kept.compiled[self.grid](*tensors, *self.after_tensors)
        else:
            # An address is taken as it is. Of a tensor the launcher would ask for it, and the driver whether it is one.
            _, start, before = kept
            start(*self.grid, _C._cuda_getCurrentRawStream(device), *before, *addresses, *self.after_tensors)

    def kept(self, tensors: Sequence[Tensor | None]) -> _Kept | None:
        """What will be launched for such tensors, if that is known and can be launched directly."""
        return self._compiled.get(_known_of(tensors)[0]) if _LAUNCHES_DIRECTLY else None

    def _plain(self, tensors: tuple[Tensor | None, ...]) -> Any:
        return self.kernel[self.grid](*tensors, *self._numbers, **self._kinds, **self._options)


class ReadyLaunch:
    """A launch of tensors whose dtypes and device never change: they are asked for their addresses, and no more.

    Args:
        launch: the launch.
        device: the number of the device.
    """

    def __init__(self, launch: Launch, device: int) -> None:
        self._launch, self._kernel, self._device = launch, launch.kernel, device
        self._call: tuple[Any, ...] | None = None

    def __call__(self, *tensors: Tensor) -> None:
        """Launch with the first tensors of the kernel; all others are None."""
        call = self._call
        addresses = [x.data_ptr() for x in tensors]
        joined = 0
        for address in addresses:
            joined |= address
        if call is None or joined % 16 or _C._cuda_getDevice() != self._device or not _may_be_kept(self._kernel):
            self._first(tensors, joined % 16 == 0)
        else:
            start, grid, before, after = call
            start(*grid, _C._cuda_getCurrentRawStream(self._device), *before, *addresses, *after)

    def _first(self, tensors: tuple[Tensor, ...], is_aligned: bool) -> None:
        """Launch in the ordinary way, and keep what was found."""
        launch = self._launch
        none = (None,) * (len(launch.kernel.arg_names) - len(launch.after_tensors) - len(tensors))
        launch(*tensors, *none)
        kept = launch.kept((*tensors, *none)) if is_aligned else None
        if kept is not None:
            self._call = kept.start, launch.grid, kept.before, (*none, *launch.after_tensors)


def _kept_of(compiled: CompiledKernel) -> _Kept:
    """What is launched, without metadata for hooks and without hooks."""
    launcher, function, metadata = compiled.run, compiled.function, compiled.packed_metadata
    if _HAS_BARE_LAUNCHER and not launcher.global_scratch_size and not launcher.profile_scratch_size:
        settings = (launcher.launch_cooperative_grid, launcher.launch_pdl)
        return _Kept(compiled, launcher.launch, (function, *settings, None, None, metadata, None, None, None))
    return _Kept(compiled, launcher, (function, metadata, None, None, None))


def _known_of(tensors: Sequence[Tensor | None]) -> tuple[tuple[Any, ...], list[int | None]]:
    """What a compiled kernel knows of tensors, or more; and their addresses."""
    addresses = [None if x is None else x.data_ptr() for x in tensors]
    key: list[Any] = [None if x is None else (x.dtype, x.get_device()) for x in tensors]
    joined = 0
    for address in addresses:
        joined |= address or 0
    if joined % 16:  # which of them are aligned to 16 bytes is asked only where not all are
        key += [not a or a % 16 == 0 for a in addresses]
    return tuple(key), addresses


def known_of_number(n: float) -> Any:
    """What a compiled kernel knows of a number, or more.

    Of an integer: whether it is 1 or a multiple of 16, and its width. Of others: the type.
    """
    if type(n) is not int:
        return type(n)
    return "one" if n == 1 else (n >> 31, n % 16 == 0)  # the first is 0 or −1 for all that have 32 bits


def _may_be_kept(kernel: Any) -> bool:
    """Whether the same arguments always mean the same compiled kernel, and nobody is to be told of its launches.

    Not so in the interpreter and under tools: for them Triton does all of its own work.
    """
    if type(kernel) is not JITFunction or kernel.pre_run_hooks:
        return False
    return not (_MADE_SETTINGS or _MADE_COMPILER_SETTINGS or _ENTERING or _LEAVING) or _nobody_watches()


def _nobody_watches() -> bool:
    """The same but for the kernel: by Triton's settings and hooks, one by one, and the kind of chip."""
    enter, leave = _RUNTIME.launch_enter_hook, _RUNTIME.launch_exit_hook
    return (
        not _RUNTIME.debug
        and not _COMPILATION.instrumentation_mode
        and _RUNTIME.add_stages_inspection_hook is None
        and not getattr(enter, "calls", enter is not None)
        and not getattr(leave, "calls", leave is not None)
        and not _ON_AMD
    )


# Settings that were made in this process, and the calls of hooks: where all are empty, Triton's defaults hold, which
# is quicker to see than what each of them is. If something watches already now, the first is never empty, so that
# every launch asks.
_MADE_SETTINGS = vars(_RUNTIME) if _nobody_watches() else {"watched": True}
_MADE_COMPILER_SETTINGS = vars(_COMPILATION)
_ENTERING, _LEAVING = (
    getattr(hook, "calls", ("unknown",)) for hook in (_RUNTIME.launch_enter_hook, _RUNTIME.launch_exit_hook)
)
