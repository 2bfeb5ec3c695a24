"""Checkpoints: tensors by section, written by a thread beside the training."""

from collections.abc import Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from types import TracebackType
from typing import Self

from torch import Tensor

from contmax_lab.errors import CannotWrite, LabError
from contmax_lab.files import Checkpoint
from contmax_lab.runs import Run


def joined(sections: Mapping[str, Mapping[str, Tensor]]) -> dict[str, Tensor]:
    """The tensors of all sections of a checkpoint, under ``section.name``."""
    return {f"{name}.{key}": tensor for name, found in sections.items() for key, tensor in found.items()}


def section(tensors: Mapping[str, Tensor], name: str) -> dict[str, Tensor]:
    """The tensors of one section of a checkpoint, without its prefix."""
    prefix = f"{name}."
    return {key.removeprefix(prefix): tensor for key, tensor in tensors.items() if key.startswith(prefix)}


class Saver:
    """Writes checkpoints of a run in a thread, one after the other; leaving it waits for the last one.

    Every method raises a LabError if the previous checkpoint could not be written.
    """

    def __init__(self, run: Run) -> None:
        self._run = run
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="checkpoint")
        self._writing: Future[None] | None = None

    @property
    def is_busy(self) -> bool:
        """Whether a checkpoint is being written."""
        return self._writing is not None and not self._writing.done()

    def save(self, step: int, checkpoint: Checkpoint) -> None:
        """Begin to write the checkpoint of a step, which must not change any more, after the previous one."""
        self.wait()
        self._writing = self._thread.submit(self._run.save, step, checkpoint)

    def check(self) -> None:
        """Look at a write that has ended; do not wait for one under way."""
        if not self.is_busy:
            self.wait()

    def wait(self) -> None:
        """Wait until everything is on disk."""
        writing, self._writing = self._writing, None
        if writing is not None:
            writing.result()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._thread.shutdown()
        try:
            self.wait()
        except LabError as failure:
            if error is None:
                raise
            raise CannotWrite(f"{failure} Before that: {error}") from error
