"""Ctrl-C and kill ask a training to stop; it does so between two steps."""

import contextlib
import signal
import threading
from collections.abc import Iterator
from types import FrameType


class StopRequest:
    """Whether somebody asked to stop, and by which signal."""

    def __init__(self) -> None:
        self.signal: int | None = None

    def __bool__(self) -> bool:
        return self.signal is not None

    @property
    def exit_code(self) -> int:
        """What a shell expects of a process that ended by that signal."""
        return 128 + (self.signal or signal.SIGINT)


@contextlib.contextmanager
def stop_requests() -> Iterator[StopRequest]:
    """Listen for SIGINT and SIGTERM, unless ignored; the second one acts as usual."""
    request = StopRequest()
    if threading.current_thread() is not threading.main_thread():
        yield request
        return
    handlers = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    before = {number: handler for number, handler in handlers.items() if handler is not signal.SIG_IGN}

    def listen(number: int, frame: FrameType | None) -> None:
        request.signal = number
        for known, handler in before.items():
            signal.signal(known, handler)

    for number in before:
        signal.signal(number, listen)
    try:
        yield request
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
