"""Peak memory of a piece of work: the resident high-water mark of a fresh process, whoever allocates."""

import multiprocessing
import os
import sys
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any
from unittest import mock

import torch

_BALLAST_BLOCK = 256 * 1024
# On ARM torch allocates with mimalloc, which keeps freed pages for later and takes pages of 2 MB. What lives in kept
# pages would not raise the mark, and 2 MB is too coarse. Other allocators do not read these variables.
_PAGES_GO_BACK = {"MIMALLOC_PURGE_DELAY": "0", "MIMALLOC_ALLOW_THP": "0"}
METHOD = (
    "peak extra memory: rise of the resident high-water mark (VmHWM, elsewhere ru_maxrss) of a fresh process over one "
    "forward and backward pass, inputs and cotangent already there, code already compiled"
)

Prepare = Callable[..., Callable[[], object]]


def peak_extra_memory(prepare: Prepare, arguments: tuple[Any, ...], rehearsal: tuple[Any, ...]) -> int | None:
    """Bytes by which one call of ``prepare(*arguments)`` raises the high-water mark of resident memory.

    Allocations of torch, numpy and compiled code count alike, also those that are returned before the call ends.
    Resolution: a few hundred kilobytes.

    Args:
        prepare: a function of a module (the process imports it) that makes the inputs and returns the call to measure.
        arguments: its arguments in the measured call.
        rehearsal: its arguments in a small call before that, which imports and compiles what the measured one needs.

    Returns:
        Bytes; None on a system that does not tell its high-water mark.
    """
    if _high_water_mark() is None:
        return None
    # Spawned, not forked: a fork would start with the parent's pages.
    spawn = multiprocessing.get_context("spawn")
    # The allocator reads its environment when torch is imported, so the process has to start with it.
    with mock.patch.dict(os.environ, _PAGES_GO_BACK), ProcessPoolExecutor(1, mp_context=spawn) as process:
        return process.submit(_measured, prepare, arguments, rehearsal).result()


def _measured(prepare: Prepare, arguments: tuple[Any, ...], rehearsal: tuple[Any, ...]) -> int:
    torch.set_num_threads(1)
    prepare(*rehearsal)()
    call = prepare(*arguments)
    # Imports and compilation have left the mark above what is in use now, and whatever fits below it would not show.
    # Ballast closes the gap: from then on every page counts.
    start = _mark()
    ballast = []
    while _mark() == start:
        ballast.append(b"\1" * _BALLAST_BLOCK)
    before = _mark()
    call()
    return _mark() - before


def _mark() -> int:
    mark = _high_water_mark()
    if mark is None:
        raise RuntimeError("the system stopped reporting the high-water mark of resident memory; run without memory")
    return mark


def _high_water_mark() -> int | None:
    """Largest resident memory of this process so far, in bytes."""
    # ru_maxrss of a child starts at its parent's on Linux; the line in /proc does not.
    status = Path("/proc/self/status")
    if status.exists():
        for line in status.read_text().splitlines():
            if line.startswith("VmHWM:"):
                return int(line.split()[1]) * 1024
    try:
        import resource
    except ModuleNotFoundError:
        return None
    unit = 1 if sys.platform == "darwin" else 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit
