"""Device, precision and processes; their randomness, and the signals that stop them."""

import contextlib
import hashlib
import signal
import threading
from collections.abc import Iterator
from types import FrameType

import torch
from accelerate import Accelerator
from accelerate.state import AcceleratorState

from contmax_lab.contract import TrainingConfig
from contmax_lab.errors import UsageError
from contmax_lab.launchers import is_one_of_several


def accelerator_for(training: TrainingConfig) -> Accelerator:
    """Device, precision and processes that the recipe and the launcher want.

    Raises a UsageError if accelerate should have started several processes, but has started one.
    """
    if is_one_of_several():
        raise UsageError(
            "accelerate launch --cpu has started one process instead of several; use torchrun --nproc-per-node N -m "
            "contmax_lab train …, or accelerate launch --cpu --num_processes N -m contmax_lab train … on one machine"
        )
    # accelerate keeps the precision of the first recipe of a process unless its state is reset.
    AcceleratorState._reset_state()
    cpu = training.device == "cpu" or not torch.cuda.is_available()
    return Accelerator(cpu=cpu, mixed_precision=training.precision)


def seed_for(*path: int | str) -> int:
    """A seed in [0, 2⁶³) that depends on all the parts, e.g. seed, step and process.

    Example:
        >>> seed_for(0, "step", 1) == seed_for(0, "step", 1), seed_for(0, "step", 1) == seed_for(0, "step", 2)
        (True, False)
    """
    text = "/".join(str(part) for part in path)
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest()) >> 1


def seed_everything(seed: int, device: torch.device) -> None:
    """Seed the generators that a model on this device draws from.

    ``torch.manual_seed`` would do, were it not for the millisecond it takes to remember the seed for GPUs not in use.
    """
    torch.default_generator.manual_seed(seed)
    if device.type == "cuda":
        torch.cuda.manual_seed(seed)


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
