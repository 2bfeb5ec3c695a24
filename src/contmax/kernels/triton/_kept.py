"""One way to launch a kernel, which keeps what Triton has compiled.

``kernel[grid](…)`` binds and examines every argument to find the compiled kernel that fits, which takes longer than
most of our kernels run. Here it is asked once for each kind of arguments, and what it has compiled is launched after.
"""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from triton import knobs
from triton.compiler import CompiledKernel
from triton.runtime.jit import JITFunction

_COMPILED: dict[tuple[Any, ...], CompiledKernel] = {}


def launch(
    kernel: Any,
    grid: tuple[int, ...],
    tensors: Sequence[Tensor | None],
    numbers: Sequence[int | float],
    kinds: dict[str, Any],
    warps: int = 4,
) -> None:
    """``kernel[grid](*tensors, *numbers, **kinds, num_warps=warps)`` on the device of the first tensor.

    Args:
        kernel: a function under ``triton.jit`` that takes tensors, then numbers, then constants of compilation.
        grid: how many programs, along one to three axes.
        tensors: the first is one; others may be None.
        numbers: integers and floats.
        kinds: the constants, by name.
        warps: of a program.
    """
    if not _may_be_kept(kernel):
        kernel[grid](*tensors, *numbers, **kinds, num_warps=warps)
        return
    device = tensors[0].get_device()  # type: ignore[union-attr]
    if device != torch.cuda.current_device():
        with torch.cuda.device(device):  # where Triton launches
            launch(kernel, grid, tensors, numbers, kinds, warps)
        return
    key = (kernel.fn, device, warps, *kinds.items(), *what_triton_compiles_for(tensors, numbers))
    compiled = _COMPILED.get(key)
    if compiled is not None:
        # Constants are compiled in, but have their places in the list of arguments.
        compiled[(*grid, 1, 1)](*tensors, *numbers, *kinds.values())
        return
    compiled = kernel[grid](*tensors, *numbers, **kinds, num_warps=warps)
    if isinstance(compiled, CompiledKernel):
        _COMPILED[key] = compiled


def what_triton_compiles_for(tensors: Sequence[Tensor | None], numbers: Sequence[int | float]) -> list[Any]:
    """What a compiled kernel knows of its arguments, or more.

    Of a tensor: the dtype, and whether it begins at a multiple of 16 bytes. Of an integer: whether it is 1 or a
    multiple of 16, and its width. Of other numbers: the type.
    """
    known: list[Any] = [None if x is None else (x.dtype, x.data_ptr() % 16 == 0) for x in tensors]
    known += [
        type(n) if type(n) is not int else "one" if n == 1 else (n >> 31, n % 16 == 0)  # n >> 31 is 0 or −1 in 32 bits
        for n in numbers
    ]
    return known


def _may_be_kept(kernel: Any) -> bool:
    """Whether the same arguments always mean the same compiled kernel: not in the interpreter, nor under tools.

    On AMD's devices Triton looks at more than we do here.
    """
    return (
        type(kernel) is JITFunction
        and not kernel.pre_run_hooks
        and not knobs.runtime.debug
        and not knobs.compilation.instrumentation_mode
        and knobs.runtime.add_stages_inspection_hook is None
        and torch.version.hip is None
    )
