"""Steps that are recorded once and played back: a GPU then waits for no launch of their many small kernels."""

import functools
from collections import Counter
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

# First calls load libraries, compile kernels and allocate the state of an optimizer.
REHEARSALS = 3
# A shape is recorded at its third visit. The number of recordings is bounded, since each takes memory.
_VISITS = 3
_MOST = 128

Part = dict[str, Tensor]
_Shapes = tuple[tuple[str, torch.Size, torch.dtype], ...]


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


class RepeatedParts:
    """Learns from parts of batches on a GPU; parts whose shapes recur are replayed as CUDA graphs.

    With a model of many small steps, such as one that reads piece by piece, a GPU mostly waits for launches. All
    recordings share one pool of memory, since one ends before the next begins; a training takes up to twice the memory
    it takes without them. If a recording does not fit, no more are made; ``training.record`` switches them off.

    Args:
        learn: takes a batch on the device, adds to gradients in place, returns a small tensor.
        device: of the model.
    """

    def __init__(self, learn: Callable[[Part], Tensor], device: torch.device | str) -> None:
        self._learn, self._device = learn, device
        self._visits: Counter[_Shapes] = Counter()
        self._recorded: dict[_Shapes, _RecordedPart] = {}
        self._most = _MOST

    @functools.cached_property
    def _shared(self) -> dict[str, Any]:
        """The memory pool and the stream that all recordings share."""
        return {"pool": torch.cuda.graph_pool_handle(), "side": torch.cuda.Stream()}

    def __call__(self, part: Part) -> Tensor:
        """Learn from a part that is on the host or on the device."""
        shapes = tuple((name, tensor.shape, tensor.dtype) for name, tensor in part.items())
        if shapes not in self._recorded:
            self._visits[shapes] += 1
            if self._visits[shapes] < _VISITS or len(self._recorded) >= self._most:
                return self._learn(self._sent(part))
            self._recorded[shapes] = _RecordedPart(self._learn, self._sent(part), self._shared)
        recorded = self._recorded[shapes]
        was_rehearsed = recorded.result is not None
        try:
            return recorded(part)
        except torch.OutOfMemoryError:
            if not was_rehearsed:
                raise
            # There is memory for the step, but not for its recording.
            del self._recorded[shapes]
            self._most = len(self._recorded)
            return self._learn(self._sent(part))

    def _sent(self, part: Part) -> Part:
        return {name: tensor.to(self._device, non_blocking=True) for name, tensor in part.items()}


class _RecordedPart:
    def __init__(self, learn: Callable[[Part], Tensor], batch: Part, shared: dict[str, Any]) -> None:
        self._learn, self._batch = learn, batch
        self.result: Tensor | None = None
        self._step = RecordedStep(self._take, rehearsals=1, **shared)

    def __call__(self, part: Part) -> Tensor:
        for name, tensor in part.items():
            self._batch[name].copy_(tensor, non_blocking=True)
        self._step()
        assert self.result is not None
        return self.result.clone()

    def _take(self) -> None:
        result = self._learn(self._batch)
        if self.result is None:
            # The rehearsal allocates it outside the pool of the recordings.
            self.result = torch.empty_like(result)
        self.result.copy_(result)
