"""α-entmax over the rows of a tensor, its losses and their gradients; README.md has the algorithms."""

import functools
import importlib
from types import ModuleType


@functools.cache
def on_cpu() -> ModuleType:
    """The module that computes α-entmax of rows by numba. It is loaded at first use: numba's import takes 0.5 s."""
    return importlib.import_module("contmax.kernels.rows._cpu_rows")


@functools.cache
def on_gpu() -> ModuleType:
    """The module that computes α-entmax of rows by Triton. It is loaded at first use: Triton's import takes seconds."""
    return importlib.import_module("contmax.kernels.rows._gpu_maps")
