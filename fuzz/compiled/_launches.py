"""Launches of Triton's kernels, written down instead of made, as Triton would compile them on a GPU."""

import dataclasses
from collections.abc import Callable
from typing import Any
from unittest.mock import patch

import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource, CompiledKernel
from triton.runtime import driver
from triton.runtime.jit import JITFunction

from contmax import _backend
from contmax.attention import _certified
from contmax.kernels.attention import _sizes as _attention_tuning
from contmax.kernels.gpu import _triton_private

# Chips from Hopper on have the shared memory for large blocks.
_HOPPER = 90


@dataclasses.dataclass(frozen=True)
class Launch:
    """What Triton compiles for a launch.

    Args:
        kernel: the function under ``triton.jit``.
        signature: the types of its arguments, by name.
        constants: arguments that are compiled in, by their place.
        attributes: what is known of the others, by their place: whether they are multiples of 16.
        options: number of warps, registers and so on, as a class of Triton's own.
    """

    kernel: JITFunction
    signature: dict[str, str]
    constants: dict[tuple[int, ...], Any]
    attributes: dict[tuple[int, ...], Any]
    options: Any

    @property
    def name(self) -> str:
        """That of the kernel."""
        return str(self.kernel.fn.__name__)

    @property
    def is_fused(self) -> bool:
        """Whether the compiler may contract products and sums."""
        return bool(self.options.enable_fp_fusion)

    def fused(self) -> "Launch":
        """The launch as it would be with contraction."""
        return dataclasses.replace(self, options=dataclasses.replace(self.options, enable_fp_fusion=True))

    def __str__(self) -> str:
        constants = {self.kernel.arg_names[place[0]]: value for place, value in self.constants.items()}
        types = [kind for kind in self.signature.values() if kind.startswith("*")]
        told = [f"{name}={value}" for name, value in constants.items() if value is not None]
        return f"{self.name}({', '.join([*types, *told])}, {self.options.num_warps} warps)"

    def compiled(self, arch: int) -> CompiledKernel:
        """PTX and cubin, by Triton's compiler."""
        source = ASTSource(self.kernel, self.signature, self.constants, self.attributes)
        return triton.compile(source, target=_target(arch), options=self.options.__dict__)


def recorded(calls: Callable[[], None], arch: int) -> list[Launch]:
    """Each kind of launch that some calls make on CPU tensors, once; none of them is made, so that results are noise.

    The process is good for nothing else then: Triton takes the device for its own, and the library remembers launches
    whose blocks fit this architecture.
    """
    launches: dict[tuple[JITFunction, str], Launch] = {}

    def note(
        kernel: JITFunction,
        key: str,
        signature: Any,
        device: int,
        constants: Any,
        options: Any,
        attributes: Any,
        _: bool,
    ) -> None:
        launches.setdefault((kernel, key), Launch(kernel, signature, constants, attributes, options))

    driver.set_active(_Device(arch))
    with (
        patch.object(_backend, "TRITON_DEVICES", {"cpu"}),
        patch.object(_triton_private, "may_be_cached", lambda kernel: False),
        patch.object(_attention_tuning, "_is_large", lambda device: arch >= _HOPPER),
        patch.object(_certified, "_FEWEST_BYTES", 0),
        patch.object(JITFunction, "_do_compile", note),
    ):
        calls()
    return list(launches.values())


class _Device:
    """The part of Triton's driver that is asked before a kernel is compiled."""

    def __init__(self, arch: int) -> None:
        self._arch = arch

    def get_current_target(self) -> GPUTarget:
        """The chip."""
        return _target(self._arch)

    def get_current_device(self) -> int:
        """Triton keeps what it knows of a kernel by this number."""
        return self._arch

    def get_current_stream(self, device: int) -> int:
        """The default one."""
        return 0


def _target(arch: int) -> GPUTarget:
    return GPUTarget("cuda", arch, 32)
