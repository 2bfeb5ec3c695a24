"""Parts of batches that go through a model on a GPU again and again in the same shapes: recorded, then played."""

import functools
from collections import Counter
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from contmax_lab.contract import Batch
from contmax_lab.recorded import RecordedStep

# A shape is recorded when it comes for the third time, and not more of them than this: each recording takes memory.
_VISITS = 3
_MOST = 128

_Shapes = tuple[tuple[str, torch.Size, torch.dtype], ...]


class RepeatedParts:
    """Learns from parts of batches on a GPU; what was seen often enough in its shape is a CUDA graph.

    A model of many small steps, such as one that reads piece by piece, keeps a GPU waiting for its launches most of the
    time. All recordings share their memory, as one ends before the next begins; it is kept, so that a training takes up
    to twice as much as without them. Where a recording does not fit, no more are made; ``training.record`` forbids all.

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
        """What all recordings have in common."""
        return {"pool": torch.cuda.graph_pool_handle(), "side": torch.cuda.Stream()}

    def __call__(self, part: Batch) -> Tensor:
        """Learn from a part that is on the host or on the device."""
        shapes = tuple((name, tensor.shape, tensor.dtype) for name, tensor in part.items())
        if shapes not in self._recorded:
            self._visits[shapes] += 1
            if self._visits[shapes] < _VISITS or len(self._recorded) >= self._most:
                return self._learn(self._sent(part))
            self._recorded[shapes] = _RecordedPart(self._learn, self._sent(part), self._shared)
        try:
            return self._recorded[shapes](part)
        except _DoesNotFitError:
            del self._recorded[shapes]
            self._most = len(self._recorded)
            return self._learn(self._sent(part))

    def _sent(self, part: Batch) -> Batch:
        return {name: tensor.to(self._device, non_blocking=True) for name, tensor in part.items()}


class _DoesNotFitError(Exception):
    """There is memory for a step, but not for its recording; nothing was learned."""


class _RecordedPart:
    def __init__(self, learn: Callable[[Batch], Tensor], batch: Batch, shared: dict[str, Any]) -> None:
        self._learn, self._batch = learn, batch
        self._result: Tensor | None = None
        self._step = RecordedStep(self._take, rehearsals=1, **shared)

    def __call__(self, part: Batch) -> Tensor:
        for name, tensor in part.items():
            self._batch[name].copy_(tensor, non_blocking=True)
        rehearsed = self._result is not None
        try:
            self._step()
        except torch.OutOfMemoryError:
            if rehearsed:
                raise _DoesNotFitError from None
            raise
        assert self._result is not None
        return self._result.clone()

    def _take(self) -> None:
        result = self._learn(self._batch)
        if self._result is None:
            # By the rehearsal, and so not in the memory of recordings.
            self._result = torch.empty_like(result)
        self._result.copy_(result)
