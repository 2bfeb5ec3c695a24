"""Time and memory of work on a GPU: what the device takes by itself, and what a caller of eager code waits for."""

import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

import torch

from contmax_lab.bench._timing import Effort, interleaved

METHOD = (
    "device: a pass captured in a CUDA graph and replayed, the L2 cache overwritten before each, timed by events; "
    "contenders take turns in every round; eager: wall clock of passes launched from Python one after the other; "
    "a figure is the ratio of medians, with the 20th and 80th percentile of the seconds in its details; a pass whose "
    "result or gradient is farther from float64 than twice torch's own error plus rounding has no time"
)

Call = Callable[[], object]
# A replay takes less than a millisecond as a rule, and repeats to a per cent.
GPU_THOROUGH = Effort(small=False, block=0.005, fewest_rounds=7, most_rounds=15, budget=0.4)
# Larger than any L2 cache: 50 MB on an H200.
_FLUSHED_BYTES = 2**28


class Clock(Protocol):
    """How work on a device is measured; `GraphClock` is the one for CUDA."""

    device: str

    def device_times(self, calls: Mapping[str, Call], effort: Effort) -> dict[str, list[float]]:
        """Seconds that the device takes for each call, one number per round."""

    def wall_times(self, calls: Mapping[str, Call], effort: Effort) -> dict[str, list[float]]:
        """Seconds from the first launch to the end of the work, per call, one number per round."""

    def peak_memory(self, call: Callable[[], Any]) -> tuple[int, Any]:
        """Bytes by which one call raises the memory in use, at its highest, and what the call returned."""

    def bandwidth(self) -> float:
        """Bytes per second that the memory of the device can move at most."""


class GraphClock:
    """Replays of CUDA graphs on the current device."""

    device = "cuda"

    def __init__(self) -> None:
        self._flushed = torch.empty(_FLUSHED_BYTES, dtype=torch.uint8, device=self.device)

    def device_times(self, calls: Mapping[str, Call], effort: Effort) -> dict[str, list[float]]:
        """Seconds by events around a replay; the host is not in them."""
        graphs = {name: _captured(call) for name, call in calls.items()}
        rehearsal = sum(self._replayed(graph) for graph in graphs.values())
        rounds = max(effort.fewest_rounds, min(effort.most_rounds, int(effort.budget / max(rehearsal, 1e-6))))
        times: dict[str, list[float]] = {name: [] for name in calls}
        for _ in range(rounds):
            for name, graph in graphs.items():
                times[name].append(self._replayed(graph))
        return times

    def wall_times(self, calls: Mapping[str, Call], effort: Effort) -> dict[str, list[float]]:
        """Seconds by the wall clock, the device idle before and after each block of calls."""
        return interleaved(calls, effort, _time_when_idle)

    def peak_memory(self, call: Callable[[], Any]) -> tuple[int, Any]:
        """As torch's allocator counts."""
        call()
        torch.cuda.synchronize()
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated()
        result = call()
        torch.cuda.synchronize()
        return torch.cuda.max_memory_allocated() - before, result

    def bandwidth(self) -> float:
        """By the clock and the width of the memory."""
        from triton.testing import get_dram_gbps

        return float(get_dram_gbps()) * 1e9

    def _replayed(self, graph: torch.cuda.CUDAGraph) -> float:
        start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        self._flushed.zero_()
        start.record()
        graph.replay()
        end.record()
        torch.cuda.synchronize()
        return float(start.elapsed_time(end)) / 1000


def _time_when_idle() -> float:
    torch.cuda.synchronize()
    return time.perf_counter()


def _captured(call: Call) -> torch.cuda.CUDAGraph:
    """The call as a graph, after some runs on the side that load libraries and compile kernels."""
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(3):
            call()
    torch.cuda.current_stream().wait_stream(side)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        call()
    return graph


def percentiles(seconds: Sequence[float]) -> dict[str, float]:
    """Median, and the 20th and 80th percentile.

    Example:
        >>> percentiles([5.0, 1.0, 3.0, 2.0, 4.0])
        {'median': 3.0, 'p20': 1.8, 'p80': 4.2}
    """
    shares = torch.tensor([0.5, 0.2, 0.8], dtype=torch.float64)
    found = torch.tensor(seconds, dtype=torch.float64).quantile(shares).tolist()
    return dict(zip(("median", "p20", "p80"), found, strict=True))
