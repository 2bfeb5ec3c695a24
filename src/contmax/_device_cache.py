"""Constants that are made once on a device, and read there on every stream.

Work on two streams of a CUDA device runs in any order, so a stream must not read what another is still making. An event
follows the work that makes a constant, and every other stream waits for this event before its first read. The host
waits for nothing.
"""

import contextlib
from collections.abc import Callable, Hashable, Iterator, Sequence
from typing import Any, Generic, TypeVar

import torch
from torch import Tensor
from torch._C import _len_torch_dispatch_stack
from torch._functorch.pyfunctorch import temporarily_clear_interpreter_stack
from torch._guards import active_fake_mode
from torch.utils._python_dispatch import _disable_current_modes

_Content = TypeVar("_Content")


def is_captured(device: torch.device) -> bool:
    """Whether operations are being recorded into a CUDA graph: what they compute is there only when it is replayed."""
    return device.type == "cuda" and torch.cuda.is_current_stream_capturing()


@contextlib.contextmanager
def for_later() -> Iterator[None]:
    """A context for what is kept: part of no graph, no trace and no transform of torch.func, which would wrap it.

    Nor does it belong to inference mode, whose tensors training cannot use.
    """
    # Torch imports its compiler to switch modes off: that takes seconds, and most often there are none.
    without_modes = _disable_current_modes() if _len_torch_dispatch_stack() else contextlib.nullcontext()
    with temporarily_clear_interpreter_stack(), without_modes, torch.inference_mode(False), torch.no_grad():
        yield


class Shared(Generic[_Content]):
    """Something made of tensors on one device, just now and on the current stream, that all streams may read.

    Args:
        content: what is read.
        tensors: those it is made of.
    """

    def __init__(self, content: _Content, tensors: Sequence[Tensor]) -> None:
        self._content, self._tensors = content, tensors
        device = tensors[0].device
        # Only the streams of a CUDA device run at the same time.
        self._device = device.index if device.type == "cuda" else None
        if self._device is not None:
            stream = torch.cuda.current_stream(device)
            self._made = stream.record_event()
            self._streams = {stream.cuda_stream}

    def read(self) -> _Content:
        """The content, for work on the current stream."""
        if self._device is not None and torch._C._cuda_getCurrentRawStream(self._device) not in self._streams:
            self._wait()
        return self._content

    def finish(self) -> None:
        """Let the host wait until the content is there, for a compiled program, which reads it without asking here."""
        if self._device is not None:
            self._made.synchronize()

    def _wait(self) -> None:
        """Let the current stream wait, unless it is captured: a graph must not depend on work outside of it.

        What a graph reads is there by then: torch.cuda.graph lets the host wait for the device before it captures.
        """
        with torch.cuda.device(self._device):
            if torch.cuda.is_current_stream_capturing():
                return
            stream = torch.cuda.current_stream()
        stream.wait_event(self._made)
        for tensor in self._tensors:
            # Once a cache has dropped it, its memory must not be used again before this stream is done with it.
            tensor.record_stream(stream)
        self._streams.add(stream.cuda_stream)


class DeviceCache(Generic[_Content]):
    """A function that makes a tensor, or a tuple of them: for each of its arguments once.

    While a CUDA graph is captured nothing is added: the memory of what is made then belongs to the graph. Among fake
    tensors everything is made anew: they do not mix with others.

    Args:
        make: the function. Its arguments are hashable, and the last is the device of the tensors.
    """

    def __init__(self, make: Callable[..., _Content]) -> None:
        self._make, self._made = make, dict[tuple[Hashable, ...], Shared[_Content]]()
        self.__doc__ = make.__doc__

    def __call__(self, *arguments: Hashable) -> _Content:
        """What the function makes of the arguments."""
        if _len_torch_dispatch_stack() and active_fake_mode() is not None:
            return self._make(*arguments)
        shared = self._made.get(arguments)
        if shared is None:
            if is_captured(arguments[-1]):  # type: ignore[arg-type]
                return self._make(*arguments)
            shared = self._kept(arguments)
        return shared.read()

    def finished(self, *arguments: Hashable) -> _Content:
        """The same, after the host has waited for it: once in a trace, and never in the program that is traced."""
        shared = self._made.get(arguments) or self._kept(arguments)
        shared.finish()
        return shared.read()

    def _kept(self, arguments: tuple[Hashable, ...]) -> Shared[_Content]:
        with for_later():
            content = self._make(*arguments)
            tensors: Any = content if isinstance(content, tuple) else (content,)
        # Two threads may get here at the same time: the first to arrive decides for both.
        return self._made.setdefault(arguments, Shared(content, tensors))
