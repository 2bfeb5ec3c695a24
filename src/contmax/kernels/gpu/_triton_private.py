"""All private names of Triton that launches use, in one file: any release of Triton may change them.

`tests/kernels/test_triton_direct_launches.py` compares this file with the source of the installed Triton.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
import triton
from triton import knobs
from triton.compiler import CompiledKernel as CompiledKernel
from triton.runtime.jit import JITFunction

_VERSION = triton.__version__.split(".")[:2]
# Whether compiled kernels of this version take the arguments that `direct_call` prepares.
LAUNCHES_DIRECTLY = _VERSION in (["3", "6"], ["3", "7"])
# Whether this version's launcher in Python only allocates scratch memory and calls a launcher in C.
HAS_C_LAUNCHER = _VERSION == ["3", "6"]
_RUNTIME, _COMPILATION = knobs.runtime, knobs.compilation
# On AMD's chips Triton specialises kernels by more properties of the arguments than `Launch` compares.
_ON_AMD = torch.version.hip is not None


class DirectCall(NamedTuple):
    """A compiled kernel, launched by ``start(*grid, stream, *before, *arguments)``."""

    compiled: CompiledKernel
    start: Callable[..., None]
    before: tuple[Any, ...]


def direct_call(compiled: CompiledKernel) -> DirectCall:
    """The call that launches a kernel without hooks, and without the metadata that hooks receive."""
    launcher, function, metadata = compiled.run, compiled.function, compiled.packed_metadata
    if HAS_C_LAUNCHER and not launcher.global_scratch_size and not launcher.profile_scratch_size:
        settings = (launcher.launch_cooperative_grid, launcher.launch_pdl)
        return DirectCall(compiled, launcher.launch, (function, *settings, None, None, metadata, None, None, None))
    return DirectCall(compiled, launcher, (function, metadata, None, None, None))


def may_be_cached(kernel: Any) -> bool:
    """Whether the kinds of arguments alone determine the compiled kernel, and launches call no hooks.

    False in the interpreter and under profilers: every launch must then go through Triton.
    """
    if type(kernel) is not JITFunction or kernel.pre_run_hooks:
        return False
    return not (_SETTINGS or _COMPILER_SETTINGS or _ENTER_HOOKS or _EXIT_HOOKS) or _has_defaults()


def _has_defaults() -> bool:
    """Whether Triton has no hooks and no settings that change kernels, on an NVIDIA GPU."""
    enter, leave = _RUNTIME.launch_enter_hook, _RUNTIME.launch_exit_hook
    return (
        not _RUNTIME.debug
        and not _COMPILATION.instrumentation_mode
        and _RUNTIME.add_stages_inspection_hook is None
        and not getattr(enter, "calls", enter is not None)
        and not getattr(leave, "calls", leave is not None)
        and not _ON_AMD
    )


# The settings assigned in this process, and the callbacks of hooks. While all four are empty, Triton has its defaults,
# and testing for this is faster than `_has_defaults`. If Triton has other settings at import, _SETTINGS is never empty.
_SETTINGS = vars(_RUNTIME) if _has_defaults() else {"changed": True}
_COMPILER_SETTINGS = vars(_COMPILATION)
_ENTER_HOOKS, _EXIT_HOOKS = (
    getattr(hook, "calls", ("unknown",)) for hook in (_RUNTIME.launch_enter_hook, _RUNTIME.launch_exit_hook)
)
