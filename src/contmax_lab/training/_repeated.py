"""Parts of batches whose shapes recur on a GPU: their kernels are recorded once, then replayed."""

import functools
from collections import Counter
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from contmax_lab.contract import Batch
from contmax_lab.recorded import RecordedStep

# A shape is recorded at its third visit. The number of recordings is bounded, since each takes memory.
_VISITS = 3
_MOST = 128

_Shapes = tuple[tuple[str, torch.Size, torch.dtype], ...]


class RepeatedParts:
    """Learns from parts of batches on a GPU; parts whose shapes recur are replayed as CUDA graphs.

    With a model of many small steps, such as one that reads piece by piece, a GPU mostly waits for launches. All
    recordings share one pool of memory, since one ends before the next begins; a training takes up to twice the memory
    it takes without them. If a recording does not fit, no more are made; ``training.record`` switches them off.

    Args:
        learn: takes a batch on the device, adds to gradients in place, returns a small tensor.
        device: of the model.
    """

    def __init__(self, learn: Callable[[Batch], Tensor], device: torch.device | str) -> None:
        self._learn, self._device = learn, device
        self._visits: Counter[_Shapes] = Counter()
        self._recorded: dict[_Shapes, _RecordedPart] = {}
        self._most = _MOST

    @functools.cached_property
    def _shared(self) -> dict[str, Any]:
        """The memory pool and the stream that all recordings share."""
        return {"pool": torch.cuda.graph_pool_handle(), "side": torch.cuda.Stream()}

    def __call__(self, part: Batch) -> Tensor:
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

    def _sent(self, part: Batch) -> Batch:
        return {name: tensor.to(self._device, non_blocking=True) for name, tensor in part.items()}


class _RecordedPart:
    def __init__(self, learn: Callable[[Batch], Tensor], batch: Batch, shared: dict[str, Any]) -> None:
        self._learn, self._batch = learn, batch
        self.result: Tensor | None = None
        self._step = RecordedStep(self._take, rehearsals=1, **shared)

    def __call__(self, part: Batch) -> Tensor:
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
