"""Time and memory of calls, on one thread of a CPU and on a GPU."""

import contextlib
import dataclasses
import gc
import math
import multiprocessing
import os
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any
from unittest import mock

import torch

from contmax_lab.recorded import REHEARSALS, RecordedStep

METHOD = (
    "times: processor time on one thread, in one process; contenders take turns in every round; a figure is the median "
    "of the rounds' ratios, `minimum` the smallest of them; a pass computes fresh gradients, cotangents are given"
)
MEMORY_METHOD = (
    "peak extra memory: rise of the resident high-water mark (VmHWM, elsewhere ru_maxrss) of a fresh process over one "
    "forward and backward pass, inputs and cotangent already there, code already compiled"
)
GPU_METHOD = (
    "device: a pass captured in a CUDA graph and replayed, the L2 cache overwritten before each, timed by events; "
    "contenders take turns in every round; eager: wall clock of passes launched from Python one after the other; "
    "a figure is the median of the rounds' ratios, with percentiles of the seconds in its details; a pass whose "
    "result or gradient is farther from float64 than twice torch's own error plus rounding has no time"
)

Call = Callable[[], object]
Prepare = Callable[..., Call]

# Larger than any L2 cache: 50 MB on an H200.
_FLUSHED_BYTES = 2**28
_BALLAST_BLOCK = 256 * 1024
# On ARM torch allocates with mimalloc, which caches freed pages and takes pages of 2 MB. Memory in cached pages would
# not raise the mark, and 2 MB is too coarse. Other allocators do not read these variables.
_PAGES_GO_BACK = {"MIMALLOC_PURGE_DELAY": "0", "MIMALLOC_ALLOW_THP": "0"}


@dataclasses.dataclass(frozen=True)
class Effort:
    """How long to measure.

    Args:
        small: whether suites should take small inputs, to try the harness or a change of code.
        block: seconds of processor time that one timed block of calls lasts at least.
        fewest_rounds: rounds that are always run.
        most_rounds: rounds after which nothing is gained.
        budget: seconds for all rounds of one comparison, between those two bounds.
    """

    small: bool
    block: float
    fewest_rounds: int
    most_rounds: int
    budget: float


THOROUGH = Effort(small=False, block=0.02, fewest_rounds=7, most_rounds=25, budget=8.0)
QUICK = Effort(small=True, block=0.001, fewest_rounds=3, most_rounds=3, budget=0.0)
# Most replays take less than a millisecond and vary by a per cent.
GPU_THOROUGH = Effort(small=False, block=0.005, fewest_rounds=7, most_rounds=15, budget=0.4)


def interleaved(
    contenders: Mapping[str, Call], effort: Effort, clock: Callable[[], float] = time.process_time
) -> dict[str, list[float]]:
    """Seconds per call of each contender, one number per round; in a round each takes one turn, in the given order.

    Args:
        contenders: name → a call without arguments.
        effort: length of a turn and number of rounds.
        clock: processor time by default, which other processes on the machine do not enter.

    Returns:
        name → one time per round. `ratio` compares two of them.

    Example:
        >>> times = interleaved({"sum": lambda: sum(range(10)), "max": lambda: max(range(10))}, QUICK)
        >>> [(name, len(seconds)) for name, seconds in times.items()]
        [('sum', 3), ('max', 3)]
    """
    collects = gc.isenabled()
    gc.disable()
    try:
        blocks = {name: _sized_block(call, effort.block, clock) for name, call in contenders.items()}
        rounds = _affordable_rounds(sum(seconds for _, seconds in blocks.values()), effort)
        times: dict[str, list[float]] = {name: [] for name in contenders}
        for _ in range(rounds):
            for name, call in contenders.items():
                calls = blocks[name][0]
                # One untimed call refills the caches that the previous contender has emptied; a call as long as a
                # block needs none.
                if calls > 1:
                    call()
                times[name].append(_block(call, calls, clock) / calls)
    finally:
        if collects:
            gc.enable()
    return times


@contextlib.contextmanager
def one_thread() -> Iterator[None]:
    """Run torch on one thread, and afterwards on its former number of threads."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def _sized_block(call: Call, block: float, clock: Callable[[], float]) -> tuple[int, float]:
    """How many calls fill a block, and their seconds; the first call, which compiles, does not count."""
    call()
    calls, elapsed = 1, _block(call, 1, clock)
    while elapsed < block:
        # Short times are inaccurate: grow at most tenfold, then measure again.
        calls = math.ceil(calls * min(10.0, 1.2 * block / max(elapsed, 1e-9)))
        elapsed = _block(call, calls, clock)
    return calls, elapsed


def _block(call: Call, calls: int, clock: Callable[[], float]) -> float:
    start = clock()
    for _ in range(calls):
        call()
    return clock() - start


def _affordable_rounds(seconds_per_round: float, effort: Effort) -> int:
    return max(effort.fewest_rounds, min(effort.most_rounds, int(effort.budget / max(seconds_per_round, 1e-6))))


class Clock:
    """How work on a GPU is measured: replays of CUDA graphs, and eager calls."""

    device: str = "cuda"

    def __init__(self) -> None:
        self._flushed = torch.empty(_FLUSHED_BYTES, dtype=torch.uint8, device=self.device)

    def device_times(self, calls: Mapping[str, Call], effort: Effort) -> dict[str, list[float]]:
        """Seconds between events around a replay of each call, one per round; they exclude the time of the host."""
        steps = {name: RecordedStep(call) for name, call in calls.items()}
        for step in steps.values():
            for _ in range(REHEARSALS):
                step()
        # The first replay also records.
        torch.cuda.synchronize()
        for step in steps.values():
            step()
        rounds = _affordable_rounds(sum(map(self._replayed, steps.values())), effort)
        times: dict[str, list[float]] = {name: [] for name in calls}
        for _ in range(rounds):
            for name, step in steps.items():
                times[name].append(self._replayed(step))
        return times

    def wall_times(self, calls: Mapping[str, Call], effort: Effort) -> dict[str, list[float]]:
        """Seconds per call by the wall clock, one per round, the device idle before and after each block of calls."""
        return interleaved(calls, effort, time_when_idle)

    def peak_memory(self, call: Callable[[], Any]) -> tuple[int, Any]:
        """Bytes by which a call raises the memory in use, at its highest, by torch's allocator; and its result."""
        call()
        torch.cuda.synchronize()
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated()
        result = call()
        torch.cuda.synchronize()
        return torch.cuda.max_memory_allocated() - before, result

    def bandwidth(self) -> float:
        """Bytes per second that the memory can move, from its clock rate and its width."""
        from triton.testing import get_dram_gbps

        return float(get_dram_gbps()) * 1e9

    def _replayed(self, step: RecordedStep) -> float:
        start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        self._flushed.zero_()
        start.record()
        step()
        end.record()
        torch.cuda.synchronize()
        return float(start.elapsed_time(end)) / 1000


def time_when_idle(device: str = "cuda") -> float:
    """The wall clock in seconds when all work of the device is done."""
    if device == "cuda":
        torch.cuda.synchronize()
    return time.perf_counter()


def percentiles(seconds: Sequence[float]) -> dict[str, float]:
    """Median, and the 20th and 80th percentile.

    Example:
        >>> percentiles([5.0, 1.0, 3.0, 2.0, 4.0])
        {'median': 3.0, 'p20': 1.8, 'p80': 4.2}
    """
    shares = torch.tensor([0.5, 0.2, 0.8], dtype=torch.float64)
    found = torch.tensor(seconds, dtype=torch.float64).quantile(shares).tolist()
    return dict(zip(("median", "p20", "p80"), found, strict=True))


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
    # Imports and compilation have left the mark above the memory in use, and an allocation below it would not show.
    # Ballast closes the gap: from then on every page counts.
    start = _high_water_mark()
    ballast = []
    while _high_water_mark() == start:
        ballast.append(b"\1" * _BALLAST_BLOCK)
    before = _high_water_mark()
    call()
    return (_high_water_mark() or 0) - (before or 0)


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
