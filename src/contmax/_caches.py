"""All caches of contmax: what was computed once is kept for the next call, within bounds, until `clear_caches`.

Work on two streams of a CUDA device runs in any order, so a stream must not read a tensor that another is still making:
an event follows the work that makes it, and every other stream waits for this event before its first read. The host
waits for nothing.
"""

import contextlib
import functools
from collections.abc import Callable, Hashable, Iterator, Sequence
from typing import Any, Generic, TypeVar, cast

import torch
from torch import Tensor

from contmax._torch_private import (
    active_fake_mode,
    current_stream_of,
    number_of_modes,
    outside_of_transforms_and_modes,
)

_Function = TypeVar("_Function", bound=Callable[..., Any])
_Content = TypeVar("_Content")


_clearers: list[Callable[[], None]] = []


def clear_caches() -> None:
    """Forget everything that contmax keeps from call to call: constants on devices, weights of bases, launches.

    The next calls compute it again. What a CUDA graph reads stays, because the graph would read freed memory.

    Example:
        >>> import contmax
        >>> contmax.clear_caches()
    """
    for clear in _clearers:
        clear()


def on_clear(clear: Callable[[], None]) -> None:
    """Register a function that empties a cache."""
    _clearers.append(clear)


def cached(maxsize: int) -> Callable[[_Function], _Function]:
    """`functools.lru_cache`, emptied by `clear_caches`."""

    def decorate(function: _Function) -> _Function:
        remembering = functools.lru_cache(maxsize)(function)
        on_clear(remembering.cache_clear)
        return cast("_Function", remembering)

    return decorate


def is_captured(device: torch.device) -> bool:
    """Whether operations are being recorded into a CUDA graph: what they compute is there only when it is replayed."""
    return device.type == "cuda" and torch.cuda.is_current_stream_capturing()


@contextlib.contextmanager
def for_later() -> Iterator[None]:
    """A context for what is cached: part of no graph, trace or transform, and no inference tensor."""
    with outside_of_transforms_and_modes(), torch.inference_mode(False), torch.no_grad():
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
        if self._device is not None and current_stream_of(self._device) not in self._streams:
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
    """A function that makes a tensor, or a tuple of them: the last few results are kept.

    While a CUDA graph is captured nothing is added: the memory of what is made then belongs to the graph. Among fake
    tensors everything is made anew: they do not mix with others.

    Args:
        make: the function. Its arguments are hashable, and the last is the device of the tensors.
        maxsize: how many results are kept; the oldest go first.
    """

    def __init__(self, make: Callable[..., _Content], maxsize: int = 256) -> None:
        self._make, self._maxsize = make, maxsize
        self._made = dict[tuple[Hashable, ...], Shared[_Content]]()
        self._captured = dict[tuple[Hashable, ...], Shared[_Content]]()
        self.__doc__ = make.__doc__
        on_clear(self._made.clear)

    def __call__(self, *arguments: Hashable) -> _Content:
        """What the function makes of the arguments."""
        if number_of_modes() and active_fake_mode() is not None:
            return self._make(*arguments)
        shared = self._made.get(arguments)
        if is_captured(arguments[-1]):  # type: ignore[arg-type]
            if shared is None:
                return self._make(*arguments)
            # A graph reads it for as long as it lives, which nobody tells us.
            self._captured[arguments] = shared
        return (shared or self._added(arguments)).read()

    def finished(self, *arguments: Hashable) -> _Content:
        """What the function makes, after the host has waited for it: for a trace, whose program does not wait."""
        shared = self._made.get(arguments) or self._added(arguments)
        shared.finish()
        return shared.read()

    def _added(self, arguments: tuple[Hashable, ...]) -> Shared[_Content]:
        with for_later():
            content = self._make(*arguments)
            tensors: Any = content if isinstance(content, tuple) else (content,)
        # Two threads may get here at once: the first to arrive decides for both.
        shared = self._made.setdefault(arguments, Shared(content, tensors))
        while len(self._made) > self._maxsize:
            self._made.pop(next(iter(self._made)), None)
        return shared
