"""The choice of a backend: kernels compiled by numba for CPU tensors, by Triton for CUDA tensors, or torch operations.

A public function calls `backend_of` once and passes the result on. The environment variable ``CONTMAX_BACKEND=torch``,
read when contmax is imported, switches both compilers off, for debugging.
"""

import enum
import importlib
import importlib.metadata
import importlib.util
import os
import warnings

import torch
from torch import Tensor

from contmax._eager import is_exporting
from contmax._torch_private import constant_to_tracers

# Dtypes that the kernels support.
NUMBA_DTYPES = (torch.float32, torch.float64)
TRITON_DTYPES = (torch.float32, torch.float16, torch.bfloat16)

_WANTED = os.environ.get("CONTMAX_BACKEND", "")
if _WANTED not in ("", "torch"):
    raise ImportError(
        f"CONTMAX_BACKEND={_WANTED!r} is not known: set it to 'torch' to switch compiled kernels off, or leave it out."
    )


class Backend(enum.Enum):
    """Which code computes a function: torch operations, numba kernels or Triton kernels."""

    TORCH = "torch"
    NUMBA = "numba"
    TRITON = "triton"


@constant_to_tracers  # a compiled program would check the attributes of the enumeration before each call
def name_of(backend: Backend) -> str:
    """``backend.value``, the name by which operators take a backend."""
    name: str = backend.value
    return name


class _Compiler:
    """A package that compiles kernels; the first call of `can_run` tests whether it works.

    Args:
        package: name of the package.
        kernels: the subpackage of contmax that holds the kernels and imports the package.
        tensors: the device of the tensors that the kernels take, "CPU" or "CUDA", for the warning.
        extra: the extra of contmax that installs the package.
        oldest: the first version, (major, minor), that compiles the kernels; an older one may abort the process.
    """

    def __init__(self, package: str, kernels: str, tensors: str, extra: str, oldest: tuple[int, int]) -> None:
        self._package, self._kernels, self._tensors, self._extra = package, kernels, tensors, extra
        self._oldest = oldest
        # None until `can_run` has tried the package.
        self.works = None if _WANTED != "torch" and importlib.util.find_spec(package) is not None else False

    def can_run(self) -> bool:
        """Whether the kernels work. The first call warns if the package is installed but cannot be used."""
        # Do not import in torch.export, which replaces functions that the import needs; exports hold no kernels anyway.
        if self.works is None and not is_exporting():
            obstacle = self.obstacle()
            self.works = obstacle is None
            if obstacle is not None:
                warnings.warn(
                    f"{self._package} is installed but cannot be used ({obstacle}), so {self._tensors} tensors take "
                    f"the slower torch path. Install versions that fit each other: "
                    f"pip install --upgrade 'contmax[{self._extra}]', or remove {self._package}.",
                    RuntimeWarning,
                    stacklevel=2,
                )
        return bool(self.works)

    def obstacle(self) -> str | None:
        """Why the installed package cannot compile the kernels, in one line; None if it can."""
        try:  # importing numba for its version would take half a second
            version = importlib.metadata.version(self._package)
        except importlib.metadata.PackageNotFoundError:
            version = ""
        numbers = tuple(int(part) for part in version.split(".")[:2] if part.isdecimal())
        if numbers and numbers < self._oldest:
            return f"{self._package} {version} is older than {'.'.join(map(str, self._oldest))}, which the kernels need"
        try:
            importlib.import_module(self._kernels)
        except Exception as error:  # numba beside a wrong NumPy or llvmlite raises errors of many types
            return " ".join(f"{type(error).__name__}: {error}".split())
        return None


# The oldest versions equal the lower bounds of the extras in pyproject.toml.
NUMBA = _Compiler("numba", "contmax.kernels.cpu", "CPU", "cpu", (0, 62))
TRITON = _Compiler("triton", "contmax.kernels.gpu", "CUDA", "gpu", (3, 6))
# Devices of Triton kernels. Tests in Triton's interpreter add "cpu".
TRITON_DEVICES = {"cuda"}


def compiler_obstacle(package: str) -> str | None:
    """Why the installed numba or triton cannot compile the kernels, in one line; None if it can."""
    return {"numba": NUMBA, "triton": TRITON}[package].obstacle()


@constant_to_tracers  # tracers cannot follow the import of kernels
def numba_works() -> bool:
    """Whether kernels for CPU tensors can be imported."""
    return NUMBA.can_run()


@constant_to_tracers
def triton_works() -> bool:
    """Whether kernels for CUDA tensors can be imported."""
    return TRITON.works or TRITON.can_run()  # an attribute is quicker than a call


def backend_of(*tensors: Tensor) -> Backend:
    """The backend with kernels for the devices and dtypes of all tensors; torch inside torch.export.

    An exported program must run where contmax is not installed, so it holds torch's operations only.
    """
    if is_exporting():
        return Backend.TORCH
    if triton_takes(*tensors):
        return Backend.TRITON
    for x in tensors:
        if not x.is_cpu or x.dtype not in NUMBA_DTYPES:
            return Backend.TORCH
    return Backend.NUMBA if numba_works() else Backend.TORCH


def triton_runs_on(x: Tensor) -> bool:
    """Whether Triton kernels run on the device of x."""
    return (x.is_cuda or (x.is_cpu and "cpu" in TRITON_DEVICES)) and triton_works()


def triton_takes(*tensors: Tensor) -> bool:
    """Whether Triton kernels exist for the devices and dtypes of all tensors."""
    for x in tensors:  # noqa: SIM110, `all` takes twice as long
        if x.dtype not in TRITON_DTYPES or not triton_runs_on(x):
            return False
    return True
