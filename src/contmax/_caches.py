"""All caches of contmax: bounded, and emptied by `clear_caches`.

Streams of a CUDA device run at the same time, so one stream could read a cached tensor that another stream has not
finished. An event marks the end of the work that makes a tensor, and every other stream waits for this event before its
first read. The host does not wait.
"""

import functools
from collections.abc import Callable, Hashable, Sequence
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
    """Empty all caches of contmax: constants on devices, weights of bases, launches.

    The next calls compute them again. Tensors that a CUDA graph reads stay, because the graph would read freed memory.

    Example:
        >>> import contmax
        >>> contmax.clear_caches()
    """
    for clear in _clearers:
        clear()


def on_clear(clear: Callable[[], None]) -> None:
    """Register a function that empties a cache."""
    _clearers.append(clear)


def cached(function: _Function) -> _Function:
    """`functools.lru_cache` for launches of kernels, one per shape and layout of tensors; `clear_caches` empties it."""
    remembering = functools.lru_cache(1024)(function)
    on_clear(remembering.cache_clear)
    return cast("_Function", remembering)


def is_captured(device: torch.device) -> bool:
    """Whether a CUDA graph captures the operations on a device now: they run only when the graph is replayed."""
    return device.type == "cuda" and torch.cuda.is_current_stream_capturing()


class Shared(Generic[_Content]):
    """A result that was made on the current CUDA stream, and that all streams may read.

    Args:
        content: a tensor, or an object that holds tensors.
        tensors: the tensors of the content, all on one device.
    """

    def __init__(self, content: _Content, tensors: Sequence[Tensor]) -> None:
        self._content, self._tensors = content, tensors
        device = tensors[0].device
        # Track streams on CUDA devices only: no others have streams that run at the same time.
        self._device = device.index if device.type == "cuda" else None
        if self._device is not None:
            stream = torch.cuda.current_stream(device)
            self._made = stream.record_event()
            self._streams = {stream.cuda_stream}

    def read(self) -> _Content:
        """The content, after the current stream has been made to wait for it."""
        if self._device is not None and current_stream_of(self._device) not in self._streams:
            self._wait()
        return self._content

    def finish(self) -> None:
        """Let the host wait for the content, because compiled programs read tensors without calling `read`."""
        if self._device is not None:
            self._made.synchronize()

    def _wait(self) -> None:
        """Let the current stream wait for the content, except in a CUDA graph, which must not depend on outside work.

        A graph needs no wait, because torch.cuda.graph synchronises the device before it captures.
        """
        with torch.cuda.device(self._device):
            if torch.cuda.is_current_stream_capturing():
                return
            stream = torch.cuda.current_stream()
        stream.wait_event(self._made)
        for tensor in self._tensors:
            # Record the stream: the memory of an evicted tensor must not be reused before this stream has read it.
            tensor.record_stream(stream)
        self._streams.add(stream.cuda_stream)


class DeviceCache(Generic[_Content]):
    """A cache of a function that makes a tensor, or a tuple of tensors.

    While a CUDA graph is captured no new result is cached, because its memory belongs to the graph. The cache is not
    used under FakeTensorMode either, because fake tensors do not mix with real tensors.

    Args:
        make: the function. Its arguments are hashable, and the last is the device of the tensors.
        maxsize: how many results are cached; the oldest are evicted first.
    """

    def __init__(self, make: Callable[..., _Content], maxsize: int = 256) -> None:
        self._make, self._maxsize = make, maxsize
        self._made = dict[tuple[Hashable, ...], Shared[_Content]]()
        self._captured = dict[tuple[Hashable, ...], Shared[_Content]]()
        self.__doc__ = make.__doc__
        on_clear(self._made.clear)

    def __call__(self, *arguments: Hashable) -> _Content:
        """The result of the function, cached or new."""
        if number_of_modes() and active_fake_mode() is not None:
            return self._make(*arguments)
        shared = self._made.get(arguments)
        if is_captured(arguments[-1]):  # type: ignore[arg-type]
            if shared is None:
                return self._make(*arguments)
            # A graph reads the tensor until the graph is freed, which we cannot observe, so never evict the tensor.
            self._captured[arguments] = shared
        return (shared or self._added(arguments)).read()

    def finished(self, *arguments: Hashable) -> _Content:
        """The result, after the host has waited for it, because traced programs read a tensor without waiting."""
        shared = self._made.get(arguments) or self._added(arguments)
        shared.finish()
        return shared.read()

    def _added(self, arguments: tuple[Hashable, ...]) -> Shared[_Content]:
        with outside_of_transforms_and_modes():
            content = self._make(*arguments)
            tensors: Any = content if isinstance(content, tuple) else (content,)
        # If two threads make the result at once, `setdefault` gives both the first result.
        shared = self._made.setdefault(arguments, Shared(content, tensors))
        while len(self._made) > self._maxsize:
            self._made.pop(next(iter(self._made)), None)
        return shared
