"""Which compilers are there: numba for CPU tensors, triton for CUDA tensors.

``CONTMAX_BACKEND=torch`` in the environment when contmax is imported switches both off, for debugging: every operation
is then made of torch's own.
"""

import importlib
import importlib.util
import os
import warnings

import torch
from torch import Tensor

from contmax._eager import constant_to_tracers

_WANTED = os.environ.get("CONTMAX_BACKEND", "")
if _WANTED not in ("", "torch"):
    raise ImportError(
        f"CONTMAX_BACKEND={_WANTED!r} is not known: set it to 'torch' to switch compiled kernels off, or leave it out."
    )


class _Compiler:
    """A package that compiles kernels: whether it can be imported is found out at the first use, and remembered."""

    def __init__(self, package: str, kernels: str, tensors: str, extra: str) -> None:
        self._package, self._kernels, self._tensors, self._extra = package, kernels, tensors, extra
        self.works = _WANTED != "torch" and importlib.util.find_spec(package) is not None
        self._tried = False

    def can_run(self) -> bool:
        """True if the kernels can be imported; the first call that finds they cannot says why."""
        if self.works and not self._tried:
            self.works, self._tried = self._imports(), True
        return self.works

    def _imports(self) -> bool:
        try:
            importlib.import_module(self._kernels)
        except Exception as error:  # a numba that does not fit its NumPy or llvmlite raises whatever it meets first
            warnings.warn(
                f"{self._package} is installed but cannot be imported ({type(error).__name__}: {error}), so "
                f"{self._tensors} tensors take the slower torch path. Install versions that fit each other: "
                f"pip install --upgrade 'contmax[{self._extra}]', or remove {self._package}.",
                RuntimeWarning,
                stacklevel=2,
            )
            return False
        return True


NUMBA = _Compiler("numba", "contmax.kernels.cpu", "CPU", "cpu")
TRITON = _Compiler("triton", "contmax.kernels.triton", "CUDA", "gpu")
# Where triton's kernels run. Tests in triton's interpreter add the CPU.
TRITON_DEVICES = {"cuda"}
_TRITON_DTYPES = (torch.float32, torch.float16, torch.bfloat16)


@constant_to_tracers  # they cannot follow the import
def numba_works() -> bool:
    """Whether kernels for CPU tensors can be imported."""
    return NUMBA.can_run()


@constant_to_tracers
def triton_works() -> bool:
    """Whether kernels for CUDA tensors can be imported."""
    return TRITON.can_run()


def numba_takes(x: Tensor) -> bool:
    """Whether kernels compiled by numba exist for tensors on the device and of the dtype of x."""
    return (
        x.device.type == "cpu" and x.dtype in (torch.float32, torch.float64) and not triton_takes(x) and numba_works()
    )


def triton_takes(x: Tensor) -> bool:
    """Whether kernels compiled by triton exist for tensors on the device and of the dtype of x."""
    return x.device.type in TRITON_DEVICES and x.dtype in _TRITON_DTYPES and triton_works()
