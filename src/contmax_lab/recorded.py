"""A step that is recorded once and played back: a GPU then waits for no launch of its many small kernels."""

from collections.abc import Callable
from typing import Any

import torch

# First calls load libraries, compile kernels and allocate the state of an optimizer.
REHEARSALS = 3


class RecordedStep:
    """A step that works on fixed tensors, replayed as a CUDA graph after its first calls.

    The first calls take the step as it is; then it is recorded, which takes no step, and every later call plays it.
    Random numbers are those of the generator of the device, as if nothing had been recorded.

    Args:
        step: changes tensors in place, looks at none of their values, and leaves gradients of its own behind.
        rehearsals: how many calls take it as it is.
        pool: memory for what is made on the way, from `torch.cuda.graph_pool_handle`, for steps of which one ends
            before another begins; by default memory of its own.
        side: the stream of the rehearsals, by default a new one. Libraries keep memory for every stream that they see.
    """

    def __init__(
        self,
        step: Callable[[], object],
        rehearsals: int = REHEARSALS,
        pool: Any = None,
        side: torch.cuda.Stream | None = None,
    ) -> None:
        self._step, self._pool, self._side = step, pool, side
        self._rehearsals = rehearsals
        self._graph: torch.cuda.CUDAGraph | None = None

    def __call__(self) -> None:
        """Compute the step, or replay its recording."""
        if self._rehearsals > 0:
            # On a side stream, since autograd must not remember the stream of the recording.
            side = self._side or torch.cuda.Stream()
            side.wait_stream(torch.cuda.current_stream())
            with torch.cuda.stream(side):
                self._step()
            torch.cuda.current_stream().wait_stream(side)
            self._rehearsals -= 1
            return
        if self._graph is None:
            graph = torch.cuda.CUDAGraph()
            # thread_local, because another thread may copy batches to the device meanwhile.
            with torch.cuda.graph(graph, pool=self._pool, capture_error_mode="thread_local"):
                self._step()
            self._graph = graph
        self._graph.replay()
