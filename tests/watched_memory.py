"""Triton's interpreter with a watch on memory: a kernel that reads or writes outside of its tensors raises an error.

Two programs of a launch that write different numbers to one address raise an error too: the interpreter runs programs
one after the other, in an order that a GPU does not keep. Memory that was never written holds NaN, or the largest
integer.
"""

import contextlib
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from triton.runtime.interpreter import InterpreterBuilder

from contmax.kernels.gpu._cached_launch import Launch


@contextlib.contextmanager
def watched_memory() -> Iterator[None]:
    """A context in which every launch is watched."""
    launch = Launch._by_triton
    load, store = InterpreterBuilder.create_masked_load, InterpreterBuilder.create_masked_store
    memories: list[_Memory] = []

    def watched(self: Launch, tensors: tuple[Tensor | None, ...]) -> Any:
        memories.append(_Memory(self.kernel.__name__, tensors))
        try:
            return launch(self, tensors)
        finally:
            memories.pop()

    def watched_load(self: Any, ptrs: Any, mask: Any, *rest: Any) -> Any:
        memories[-1].check(ptrs.data[mask.data.astype(bool)], "reads")
        return load(self, ptrs, mask, *rest)

    def watched_store(self: Any, ptrs: Any, value: Any, mask: Any, *rest: Any) -> Any:
        wanted = mask.data.astype(bool)
        memories[-1].write(ptrs.data[wanted], value.data[wanted], self.grid_idx)
        return store(self, ptrs, value, mask, *rest)

    fills = torch.are_deterministic_algorithms_enabled()
    torch.use_deterministic_algorithms(True)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(torch.utils.deterministic, "fill_uninitialized_memory", True)
        patch.setattr(Launch, "_by_triton", watched)
        patch.setattr(InterpreterBuilder, "create_masked_load", watched_load)
        patch.setattr(InterpreterBuilder, "create_masked_store", watched_store)
        yield
    torch.use_deterministic_algorithms(fills)


class _Memory:
    """The tensors of one launch, and which program has written what."""

    def __init__(self, kernel: str, tensors: tuple[Tensor | None, ...]) -> None:
        self._kernel = kernel
        spans = sorted({_span(x) for x in tensors if x is not None and x.numel()})
        self._starts, self._ends = (np.array(each, dtype=np.uint64) for each in zip(*spans, strict=True))
        self._written: dict[int, tuple[Any, Any]] = {}

    def check(self, addresses: np.ndarray, verb: str) -> None:
        """Raise where an address lies in no tensor."""
        inside = (self._starts <= addresses[:, None]) & (addresses[:, None] < self._ends)
        assert inside.any(1).all(), f"{self._kernel} {verb} outside of its tensors"

    def write(self, addresses: np.ndarray, values: np.ndarray, program: Any) -> None:
        """Raise where an address lies in no tensor, or another program has written another number there."""
        self.check(addresses, "writes")
        for address, value in zip(addresses.tolist(), values.tolist(), strict=True):
            writer, before = self._written.setdefault(address, (program, value))
            agrees = before == value or (before != before and value != value)
            assert writer == program or agrees, f"two programs of {self._kernel} write different numbers to one place"
            self._written[address] = program, value


def _span(x: Tensor) -> tuple[int, int]:
    """The first byte of the memory that a tensor is a view of, and the one behind the last.

    A kernel may read before the first element of a view: biases by distance have negative strides.
    """
    memory = x.untyped_storage()
    return memory.data_ptr(), memory.data_ptr() + memory.nbytes()
