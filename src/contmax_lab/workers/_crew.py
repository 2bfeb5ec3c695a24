"""What trainings need of the place where they run, how a worker trains, and the loop that hands trainings out."""

import contextlib
import dataclasses
import math
import multiprocessing
import os
import signal
import time
import traceback
from collections.abc import Generator, Iterable, Iterator
from contextlib import AbstractContextManager
from multiprocessing import connection
from pathlib import Path
from typing import Any, Literal, Protocol

from contmax_lab.contract import Recipe
from contmax_lab.errors import Diverged, Interrupted, LabError
from contmax_lab.runs import Run
from contmax_lab.training import stop_requests, train, train_together

# What a worker returns: how a training ended, and a sentence about the end.
Kind = Literal["done", "diverged", "failed", "stopped"]
Verdict = tuple[Kind, str]
# The checkpoint in the folder of an ensemble, from which an interrupted training continues.
_CHECKPOINT = "ensemble.safetensors"
# Seconds between two checks of the deadline, of Ctrl-C and of outcomes.
_PATIENCE = 0.2


@dataclasses.dataclass(frozen=True)
class Training:
    """A training to be done.

    Args:
        recipe: what to train.
        folder: of the run; one that has begun goes on.
        test: whether to measure the test examples at the end.
    """

    recipe: Recipe
    folder: Path
    test: bool

    @property
    def runs(self) -> tuple["Training", ...]:
        """The run of this training, as a tuple, since an ensemble has several."""
        return (self,)


@dataclasses.dataclass(frozen=True)
class Ensemble:
    """Trainings that take every step together, and are tested at the end.

    Args:
        runs: equal except for data and seed.
        folder: what it is called, and where it keeps what it needs to go on.
    """

    runs: tuple[Training, ...]
    folder: Path


Work = Training | Ensemble


@dataclasses.dataclass(frozen=True)
class Outcome:
    """A training that is over; what came out of it lies in its folder.

    Args:
        training: which.
        problem: what went wrong, in one line; None = it is done.
        diverged: whether the hyper-parameters are to blame.
    """

    training: Work
    problem: str | None = None
    diverged: bool = False


class Crew(Protocol):
    """Workers that are ready."""

    def has_room(self) -> bool:
        """Whether one more training can begin now."""

    def begin(self, training: Work) -> None:
        """Give a training to a worker."""

    def outcomes(self, seconds: float) -> list[Outcome]:
        """Trainings that are over; waits at most these seconds for the first."""

    def stop(self) -> list[Outcome]:
        """Ask every training to save, and wait until it has; returns those that were done before that."""


class Workers(Protocol):
    """A description of workers, which start when it is opened."""

    def open(self) -> AbstractContextManager[Crew]:
        """Start or join them.

        Raises:
            LabError: if they cannot be had.
        """


def train_all(
    workers: Workers, trainings: Iterable[Work | None], deadline: float = math.inf
) -> Generator[Outcome | None, None, None]:
    """Train, as many at a time as there is room for.

    Args:
        workers: where.
        trainings: asked for the next one when there is room for it; None = not now, perhaps later.
        deadline: on the clock of `time.monotonic`.

    Yields:
        Outcomes as they come; None several times a second while nothing happens, for those who have to wait for more.

    Raises:
        Interrupted: if time was up or Ctrl-C came: "stopped" or "time is up". Trainings under way have saved.
    """
    left = iter(trainings)
    more, under_way = True, 0
    with workers.open() as crew, stop_requests() as request:
        while more or under_way:
            if request or time.monotonic() > deadline:
                yield from crew.stop()
                raise Interrupted("stopped" if request else "time is up", request.exit_code)
            while more and crew.has_room():
                try:
                    training = next(left)
                except StopIteration:
                    more = False
                    break
                if training is None:
                    break
                crew.begin(training)
                under_way += 1
            if more or under_way:
                news = crew.outcomes(_PATIENCE)
                under_way -= len(news)
                yield from news
                if not news:
                    yield None


def attempt(work: Work) -> Verdict:
    """Train, from the start or from a checkpoint. Errors are returned: they must not end the other trainings."""
    try:
        if isinstance(work, Ensemble):
            runs = [Run(training.folder) for training in work.runs]
            train_together([training.recipe for training in work.runs], runs, work.folder / _CHECKPOINT)
        else:
            train(work.recipe, Run(work.folder), resume=True, test=work.test)
    except LabError as error:
        kinds: dict[type, Kind] = {Interrupted: "stopped", Diverged: "diverged"}
        return kinds.get(type(error), "failed"), str(error)
    except Exception as error:  # it may not fit into memory, say
        traceback.print_exc()
        return "failed", " ".join(f"{type(error).__name__}: {error}".split())[:300]
    return "done", ""


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
