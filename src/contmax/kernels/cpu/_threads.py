"""Kernels over rows on several Python threads, which run in parallel because numba kernels release the GIL.

numba's parallel loops are not used: their thread pools abort a process that forks after using them and, with the
default threading layer, a process that calls them from two threads.
"""

import functools
import itertools
import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import torch
from torch import Tensor

# The fewest elements per thread: to hand fewer to another thread takes longer than to compute them.
_SMALLEST_SHARE = 32768


@functools.cache
def _workers(count: int) -> ThreadPoolExecutor:
    return ThreadPoolExecutor(count, thread_name_prefix="contmax")


# A forked child inherits the pools but not their threads. Windows has no fork.
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_workers.cache_clear)


def array_of(tensor: Tensor) -> Any:
    """The tensor's numbers in a contiguous NumPy array."""
    # `force` also takes lazy negations (`x.is_neg()`) and ZeroTensors, which have no memory.
    return tensor.contiguous().numpy(force=True)


def matrix_of(tensor: Tensor) -> Any:
    """The tensor's numbers as a NumPy matrix, whose rows run along the tensor's last axis."""
    return array_of(tensor).reshape(-1, tensor.shape[-1])


def over_rows(kernel: Callable[..., None], matrix: Any, *arrays: Any, work: int = 1) -> None:
    """Call kernel(matrix, *arrays, start, stop) on ranges of the rows, on as many threads as torch uses.

    `work` is the time of an element relative to that of a score of α-entmax: the larger it is, the fewer elements
    per thread are enough.
    """
    rows, columns = matrix.shape
    arrays = (matrix, *arrays)
    threads = max(1, min(torch.get_num_threads(), rows, rows * columns * work // _SMALLEST_SHARE))
    if threads == 1:
        kernel(*arrays, 0, rows)
        return
    bounds = [rows * i // threads for i in range(threads + 1)]
    pool = _workers(torch.get_num_threads() - 1)
    others = [pool.submit(kernel, *arrays, a, b) for a, b in itertools.pairwise(bounds[1:])]
    kernel(*arrays, bounds[0], bounds[1])
    for other in others:
        other.result()
