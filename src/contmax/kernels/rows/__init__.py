"""α-entmax over the rows of a tensor, its losses and their gradients; README.md has the algorithms."""

import functools
import importlib
from types import ModuleType


@functools.cache
def on_cpu() -> ModuleType:
    """The module of row maps by numba, loaded when first needed: importing numba takes half a second."""
    return importlib.import_module("contmax.kernels.rows._cpu_rows")


@functools.cache
def on_gpu() -> ModuleType:
    """The module of row maps by Triton, loaded when first needed: importing Triton takes seconds."""
    return importlib.import_module("contmax.kernels.rows._gpu_maps")
