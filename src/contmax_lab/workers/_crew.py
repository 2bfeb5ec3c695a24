"""What trainings need of the place where they run, how a worker trains, and the loop that hands trainings out."""

import dataclasses
import math
import time
import traceback
from collections.abc import Generator, Iterable
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Literal, Protocol

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
