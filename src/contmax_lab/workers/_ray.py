"""Workers of a Ray cluster, https://docs.ray.io: any number of machines that share a folder."""

import collections
import contextlib
import dataclasses
import logging
import os
import socket
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, TypedDict

from contmax_lab.errors import InUse, LabError, UsageError
from contmax_lab.packages import require
from contmax_lab.registry import find_task, task_reference
from contmax_lab.runs import Run
from contmax_lab.workers._crew import Ensemble, Outcome, Training, Verdict, Work, attempt

# Seconds until a file of another machine is seen here at the latest, and until a lost process is dead.
_PATIENCE = 60.0
# Seconds within which a machine must answer, and seconds between two checks of the machines.
_CONNECT, _LOOK = 10.0, 2.0
_SHARED = "storage that all machines share, under the same path"


class Order(TypedDict):
    """The order for a worker on another machine.

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
    """Train; if an earlier worker was lost, from its last checkpoint."""
    where = order["current_folder"]
    try:
        try:
            os.chdir(where)
        except OSError as error:
            told = f"cannot enter {where}: {error.strerror}; run the command in a folder of {_SHARED}"
            raise LabError(told) from None
        runs = tuple(_training(order, Path(folder)) for folder in order["runs"])
    except LabError as error:
        return "failed", f"{socket.gethostname()}: {error}"
    return attempt(runs[0] if order["runs"] == [order["folder"]] else Ensemble(runs, Path(order["folder"])))


def _training(order: Order, folder: Path) -> Training:
    run = Run(folder)
    if not _comes_true(run.config.exists):
        raise LabError(f"there is no {run.config.absolute()}; pass --runs with a folder of {_SHARED}")
    recipe = run.recipe(find_task(order["task"]))
    # The processes of a machine that was lost may outlive its connection for some seconds.
    _comes_true(lambda: _is_free(run))
    with run.claimed():
        return Training(recipe, folder, order["test"])


def _is_free(run: Run) -> bool:
    with contextlib.suppress(InUse), run.claimed():
        return True
    return False


def _comes_true(check: Callable[[], bool]) -> bool:
    """Whether a condition becomes true before patience ends; a file server may show a new file late."""
    started = time.monotonic()
    while not check():
        if time.monotonic() - started > _PATIENCE:
            return False
        time.sleep(0.5)
    return True


@dataclasses.dataclass(frozen=True)
class RayCluster:
    """A Ray cluster that runs already.

    Args:
        address: ``HOST:PORT`` of its first machine, ``auto`` = the one that this machine is part of, or
            ``ray://HOST:PORT`` for a machine that is not part of it.
        jobs: trainings side by side; 0 = as many as the cluster has CPUs and GPUs for.
        gpus: of each training, such as 0.25; None = one if the cluster has any.
        retries: how often a training whose worker was lost begins again, from its last checkpoint.
    """

    address: str
    jobs: int = 0
    gpus: float | None = None
    retries: int = 3

    def __post_init__(self) -> None:
        # Ray accepts a fraction of one GPU, or a whole number of them.
        if self.gpus is not None and not (0 <= self.gpus <= 1 or (self.gpus > 1 and self.gpus.is_integer())):
            raise UsageError(f"--gpus-per-cell must be between 0 and 1, or a whole number; got {self.gpus:g}")
        if self.retries < 0:
            raise UsageError(f"--retries must be at least 0; got {self.retries}")

    @contextlib.contextmanager
    def open(self) -> Iterator["RayCrew"]:
        """Join the cluster, and leave it at the end.

        Raises:
            LabError: if Ray is not installed, the address does not answer, or the cluster has no such GPUs.
        """
        ray = require("ray", "--ray")
        _check_address(self.address)
        try:
            ray.init(address=self.address, logging_level=logging.ERROR, log_to_driver=False)
        except Exception as error:  # a wrong address, another version of Ray or Python there, …
            raise LabError(f"--ray {self.address}: {' '.join(str(error).split())[:300]}") from None
        # Ray prints to standard output, where our results go: twenty lines of its log for each machine that is lost.
        with open(os.devnull, "w") as nowhere, contextlib.redirect_stdout(nowhere):
            try:
                yield RayCrew(ray, self)
            finally:
                ray.shutdown()


class RayCrew:
    """The trainings of one table or search on a cluster; a LabError if no machine has the GPUs that one needs."""

    def __init__(self, ray: Any, cluster: RayCluster) -> None:
        self._ray, self._cluster = ray, cluster
        has = max((node["Resources"].get("GPU", 0.0) for node in ray.nodes() if node["Alive"]), default=0.0)
        self._gpus = (1.0 if has else 0.0) if cluster.gpus is None else cluster.gpus
        if self._gpus > has:
            raise LabError(f"--gpus-per-cell {self._gpus:g}: no machine of the cluster {cluster.address} has that many")
        # If a worker or machine is lost, Ray itself starts its task again on another; not if the task raised an error.
        options = {"num_cpus": 1, "num_gpus": self._gpus, "max_retries": cluster.retries}
        self._train = ray.remote(**options)(train_ordered)
        self._under_way: dict[Any, Work] = {}
        self._refused: list[Outcome] = []
        self._stopped: collections.Counter[str] = collections.Counter()
        self._machines, self._looked = self._alive(), time.monotonic()

    def has_room(self) -> bool:
        """Whether the machines that the cluster has now have room for one more training."""
        if self._cluster.jobs:
            return len(self._under_way) < self._cluster.jobs
        resources = self._ray.cluster_resources()
        by_gpus = resources.get("GPU", 0.0) / self._gpus if self._gpus else float("inf")
        # If the cluster has no machine, one training waits for one.
        return len(self._under_way) < max(1, int(min(resources.get("CPU", 0.0), by_gpus)))

    def begin(self, training: Work) -> None:
        """Write the recipe into the folder of each run, where a worker finds it."""
        try:
            task = task_reference(training.runs[0].recipe.task)
            for run in training.runs:
                Run(run.folder).begin(run.recipe, resume=True)
        except LabError as error:
            self._refused.append(Outcome(training, str(error)))
            return
        order = Order(
            task=task,
            current_folder=os.getcwd(),
            folder=str(training.folder),
            runs=[str(run.folder) for run in training.runs],
            test=training.runs[0].test,
        )
        self._under_way[self._train.remote(order)] = training

    def outcomes(self, seconds: float) -> list[Outcome]:
        """Outcomes of the workers; a lost machine is reported, and its trainings continue on other machines."""
        self._notice_losses()
        refused, self._refused = self._refused, []
        if not refused and not self._under_way:
            time.sleep(seconds)
        if refused or not self._under_way:
            return refused
        done, _ = self._ray.wait(list(self._under_way), timeout=seconds)
        return [outcome for reference in done if (outcome := self._ended(reference))]

    def stop(self) -> list[Outcome]:
        """A cancelled task gets Ctrl-C, after which a training saves between two steps, and the task ends."""
        for reference in self._under_way:
            self._ray.cancel(reference, force=False, recursive=False)
        over = []
        for reference, training in self._under_way.items():
            with contextlib.suppress(self._ray.exceptions.RayError):
                kind, _ = self._ray.get(reference)
                over += [Outcome(training)] if kind == "done" else []
        return over

    def _alive(self) -> dict[str, str]:
        """The machines of the cluster, by their number."""
        return {node["NodeID"]: node["NodeManagerAddress"] for node in self._ray.nodes() if node["Alive"]}

    def _notice_losses(self) -> None:
        if time.monotonic() - self._looked < _LOOK:
            return
        before, self._machines, self._looked = self._machines, self._alive(), time.monotonic()
        for machine in before.keys() - self._machines.keys():
            lost = f"lost the machine {before[machine]}; its trainings continue elsewhere from the last checkpoints"
            print(lost, file=sys.stderr, flush=True)

    def _ended(self, reference: Any) -> Outcome | None:
        """The outcome of a task; None if the task starts again."""
        training = self._under_way.pop(reference)
        try:
            kind, text = self._ray.get(reference)
        except self._ray.exceptions.RayError as error:
            return Outcome(training, self._explained(error))
        if kind == "stopped" and self._stopped[str(training.folder)] < self._cluster.retries:
            # We did not stop it: its machine is leaving the cluster, and the training has saved.
            self._stopped[str(training.folder)] += 1
            self.begin(training)
            return None
        runs = [Run(run.folder) for run in training.runs]
        if kind == "done" and not _comes_true(lambda: all(run.results() is not None for run in runs)):
            return Outcome(training, f"done, but {training.folder} has no results here: it must lie on shared storage")
        return Outcome(training, text or None, kind == "diverged")

    def _explained(self, error: Exception) -> str:
        kinds = self._ray.exceptions
        if isinstance(error, kinds.NodeDiedError | kinds.WorkerCrashedError | kinds.OutOfMemoryError):
            times, name = self._cluster.retries + 1, type(error).__name__
            return f"its machine or process was lost {times} times ({name}, see --retries); the same command continues"
        lines = [line.strip() for line in str(error).splitlines() if line.strip()]
        return f"{type(error).__name__}: {' '.join(lines)}"[:300]


def _check_address(address: str) -> None:
    """Ray waits a minute for a machine that does not answer, and then ends the process."""
    if address in ("auto", "local"):
        return
    host, _, port = address.removeprefix("ray://").rpartition(":")
    if not host or not port.isdecimal():
        raise UsageError(
            f"--ray {address} is not an address; pass HOST:PORT as `ray start --head` prints it, or auto on a machine "
            "of the cluster"
        )
    try:
        socket.create_connection((host, int(port)), timeout=_CONNECT).close()
    except (OSError, OverflowError) as error:
        raise LabError(
            f"--ray {address}: no cluster answers there ({error}); start a cluster with ray start --head --port=6379"
        ) from None
