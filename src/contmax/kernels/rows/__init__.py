"""α-entmax over the rows of a tensor, its losses and their gradients; README.md has the algorithms."""

import functools
import importlib
from types import ModuleType


@functools.cache
def on_cpu() -> ModuleType:
    """The maps of rows by numba, which takes half a second to import."""
    return importlib.import_module("contmax.kernels.rows._cpu_maps")


@functools.cache
def on_gpu() -> ModuleType:
    """The maps of rows by Triton, which takes seconds to import."""
    return importlib.import_module("contmax.kernels.rows._gpu_maps")
