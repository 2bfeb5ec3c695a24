"""Workers that are processes of this machine."""

import contextlib
import dataclasses
import multiprocessing
import os
import signal
import time
from collections.abc import Iterator
from multiprocessing import connection
from typing import Any

from contmax_lab.workers._crew import Outcome, Verdict, Work, attempt


@dataclasses.dataclass(frozen=True)
class LocalProcesses:
    """Processes of this machine, each of which trains one recipe after the other.

    Args:
        jobs: trainings side by side.
    """

    jobs: int = 1

    @contextlib.contextmanager
    def open(self) -> Iterator["LocalCrew"]:
        """Processes are started when there is something to train."""
        crew = LocalCrew(self.jobs)
        try:
            yield crew
        finally:
            crew.dismiss()


class LocalCrew:
    """The processes of one table or search, at most `jobs` of them."""

    def __init__(self, jobs: int) -> None:
        # Workers are forked from a server process that has imported torch, but started no threads and no GPU.
        self._context = multiprocessing.get_context("forkserver")
        self._context.set_forkserver_preload(["torch._dynamo", "contmax_lab.training"])
        self._jobs = jobs
        self._idle: list[_Worker] = []
        self._busy: list[_Worker] = []

    def has_room(self) -> bool:
        """Whether fewer trainings are under way than may be."""
        return len(self._busy) < self._jobs

    def begin(self, training: Work) -> None:
        """Give the training to an idle worker, whose GPU is initialised, or to a new one."""
        self._idle = [worker for worker in self._idle if worker.process.is_alive()]
        worker = self._idle.pop() if self._idle else _Worker(self._context)
        worker.begin(training)
        self._busy.append(worker)

    def outcomes(self, seconds: float) -> list[Outcome]:
        """Outcomes that workers have sent; a worker that has died makes room for another."""
        if not self._busy:
            time.sleep(seconds)
            return []
        heard = connection.wait([worker.pipe for worker in self._busy], seconds)
        return [self._ended(worker) for worker in list(self._busy) if worker.pipe in heard]

    def stop(self) -> list[Outcome]:
        """Send SIGTERM, after which a training saves its state between two steps."""
        for worker in self._busy:
            worker.ask_to_stop()
        return [outcome for worker in list(self._busy) if (outcome := self._ended(worker)).problem is None]

    def dismiss(self) -> None:
        """End the workers: an idle worker at once, any other, after an error, when it has saved its training."""
        for worker in self._busy:
            worker.ask_to_stop()
        workers = [*self._idle, *self._busy]
        for worker in workers:
            worker.pipe.close()
        for worker in workers:
            worker.process.join()

    def _ended(self, worker: "_Worker") -> Outcome:
        """Wait for the outcome of a worker."""
        try:
            kind, text = worker.pipe.recv()
            self._idle.append(worker)
        except (EOFError, ConnectionResetError):
            worker.process.join()
            code = worker.process.exitcode
            kind, text = "failed", f"the training process ended with exit code {code}; the same command continues"
        self._busy.remove(worker)
        return Outcome(worker.training, text or None, kind == "diverged")


class _Worker:
    def __init__(self, context: Any) -> None:
        self.pipe, theirs = context.Pipe()
        self.process = context.Process(target=_work, args=(theirs,))
        self.process.start()
        # Now only the worker holds this end of the pipe: its death closes the pipe.
        theirs.close()
        self.training: Work
        self._is_asked = False

    def begin(self, training: Work) -> None:
        self.training = training
        # A worker that died while it was idle is noticed when its outcome is read.
        with contextlib.suppress(BrokenPipeError):
            self.pipe.send(training)

    def ask_to_stop(self) -> None:
        """Send SIGTERM once: a second signal would end the worker before it has saved."""
        if self.process.is_alive() and not self._is_asked:
            self._is_asked = True
            os.kill(self.process.pid, signal.SIGTERM)


def _work(pipe: connection.Connection) -> None:
    """Train until the pipe ends: the parent has closed it, or is dead."""
    # Ctrl-C goes to the whole group of processes, and the parent passes it on as SIGTERM.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    with contextlib.suppress(EOFError, BrokenPipeError, ConnectionResetError):
        while True:
            verdict: Verdict = attempt(pipe.recv())
            pipe.send(verdict)
