"""A training on another machine. Nothing but names and paths travels: the recipe lies in the folder of the run."""

import os
import socket
import time
from pathlib import Path
from typing import TypedDict

from contmax_lab.errors import InUse, LabError
from contmax_lab.registry import find_task
from contmax_lab.runs import Run
from contmax_lab.workers._attempt import Verdict, attempt
from contmax_lab.workers._crew import Ensemble, Training

# Seconds until a file of another machine is seen here at the latest, and until the process whose place we take is dead.
_PATIENCE = 60.0


class Order(TypedDict):
    """What a worker on another machine is told.

    Args:
        task: as `find_task` takes it; the user has named it, not the folder.
        current_folder: where the command was given, from which relative paths begin.
        folder: of the training.
        runs: the folder of each run, with its recipe in config.yaml; several are trained together.
        test: whether to measure the test examples at the end.
    """

    task: str
    current_folder: str
    folder: str
    runs: list[str]
    test: bool


def train_ordered(order: Order) -> Verdict:
    """Train, or go on from the last checkpoint, if a worker before this one was lost."""
    try:
        _enter(Path(order["current_folder"]))
        runs = tuple(_training(order, Path(folder)) for folder in order["runs"])
    except LabError as error:
        return "failed", f"{socket.gethostname()}: {error}"
    return attempt(runs[0] if order["runs"] == [order["folder"]] else Ensemble(runs, Path(order["folder"])))


def _training(order: Order, folder: Path) -> Training:
    run = Run(folder)
    _wait_for(run.config)
    recipe = run.recipe(find_task(order["task"]))
    _wait_until_free(run)
    return Training(recipe, folder, order["test"])


def _enter(folder: Path) -> None:
    try:
        os.chdir(folder)
    except OSError as error:
        raise LabError(f"cannot enter {folder}: {error.strerror}; run the command in a folder of {_SHARED}") from None


def _wait_for(file: Path) -> None:
    """A file server may show a new file late."""
    started = time.monotonic()
    while not file.exists():
        if time.monotonic() - started > _PATIENCE:
            raise LabError(f"there is no {file.absolute()}; pass --runs with a folder of {_SHARED}")
        time.sleep(0.5)


def _wait_until_free(run: Run) -> None:
    """The processes of a machine that was lost may outlive its connection for some seconds."""
    started = time.monotonic()
    while True:
        try:
            with run.claimed():
                return
        except InUse:
            if time.monotonic() - started > _PATIENCE:
                raise
            time.sleep(0.5)


_SHARED = "storage that all machines share, under the same path"
