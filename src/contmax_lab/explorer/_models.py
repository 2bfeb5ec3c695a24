"""Which models there are to look with: those that come with the package, and finished runs below one folder."""

import dataclasses
import os
from collections import OrderedDict
from collections.abc import Sized
from pathlib import Path
from typing import Any, Literal

from torch import nn

from contmax_lab.contract import Look, Task
from contmax_lab.errors import LabError
from contmax_lab.registry import installed_task, open_trained, shipped_tasks, task_of_run

Kind = Literal["text", "image"]

# Folders below the folder of runs that are looked into, and runs that are listed.
_DEPTH, _MOST_RUNS = 4, 500
_KEPT = 3


@dataclasses.dataclass(frozen=True)
class Model:
    """A model in memory.

    Args:
        task: that it was trained on.
        network: in evaluation mode.
        info: of its data.
        examples: of its task, to be shown; they may be none.
    """

    task: Task
    network: nn.Module
    info: dict[str, Any]
    examples: Sized

    def look(self, given: Any) -> Look:
        """What it attends to in a new input."""
        return self.task.look(self.network, self.info, given)


@dataclasses.dataclass(frozen=True)
class Listed:
    """A model in the list.

    Args:
        name: by which the page asks for it.
        kind: what it looks at.
        title: what people call it.
    """

    name: str
    kind: Kind
    title: str


class Models:
    """All models there are. Nothing that the page says becomes a path: a name is in the list, or there is no model.

    Args:
        runs: folder below which runs lie.
    """

    def __init__(self, runs: Path) -> None:
        self._runs = runs
        self._open: OrderedDict[str, Model] = OrderedDict()
        # By folder: when its recipe was written, and its task, None where there is none to look with.
        self._known: dict[Path, tuple[int, Task | None]] = {}

    def listed(self) -> list[Listed]:
        """Packaged models first, then runs in the order of their names."""
        found = []
        for name, task in self._packaged().items():
            found.append(Listed(name, _kind(task), f"{task.summary.partition(':')[0]} (comes with the package)"))
        for name, (_, task) in self._trained().items():
            found.append(Listed(name, _kind(task), f"run {name} ({task.name})"))
        return found

    def open(self, name: str) -> Model:
        """The model with this name.

        Raises:
            KeyError: if there is none.
            LabError: if it cannot be opened, such as when its data has moved.
        """
        if name in self._open:
            self._open.move_to_end(name)
            return self._open[name]
        packaged, trained = self._packaged(), self._trained()
        if name in packaged:
            task = packaged[name]
            shipped = task.packaged()
            if shipped is None:
                raise KeyError(name)
            network, splits = shipped
            opened = Model(task, network.eval(), splits.info, splits.valid)
        elif name in trained:
            run = open_trained(trained[name][0])
            opened = Model(run.task, run.model, run.splits.info, run.splits.valid)
        else:
            raise KeyError(name)
        self._open[name] = opened
        if len(self._open) > _KEPT:
            self._open.popitem(last=False)
        return opened

    def _packaged(self) -> dict[str, Task]:
        tasks = map(installed_task, shipped_tasks())
        return {f"packaged:{task.name}": task for task in tasks if type(task).packaged is not Task.packaged}

    def _trained(self) -> dict[str, tuple[Path, Task]]:
        """Name → folder and task of every finished run that can be looked with."""
        found: dict[str, tuple[Path, Task]] = {}
        root = self._runs.resolve()
        for folder in _folders(root):
            task = self._task(folder)
            if task is not None and len(found) < _MOST_RUNS:
                found[folder.relative_to(root).as_posix()] = (folder, task)
        return found

    def _task(self, folder: Path) -> Task | None:
        """The task of a run, if it can be looked with; a recipe that has not changed is not read again."""
        try:
            written = (folder / "config.yaml").stat().st_mtime_ns
            if folder not in self._known or self._known[folder][0] != written:
                task = task_of_run(folder)
                self._known[folder] = (written, None if task.looks_at is None else task)
        except (LabError, OSError):
            # Half a run, or one of a task that is not installed.
            return None
        return self._known[folder][1]


def _folders(root: Path) -> list[Path]:
    """Folders of finished runs, none of which a link has led out of the root."""
    found = []
    for place, inner, files in os.walk(root):
        folder = Path(place)
        if len(folder.relative_to(root).parts) >= _DEPTH:
            inner.clear()
        inner[:] = sorted(name for name in inner if not name.startswith("."))
        # Walking follows no links to folders; a link to a file is refused too.
        if {"config.yaml", "results.json"} <= set(files) and not (folder / "config.yaml").is_symlink():
            found.append(folder)
    return sorted(found)


def _kind(task: Task) -> Kind:
    if task.looks_at is None:
        raise LabError(f"the task {task.name} has a model in the package, and nothing to look at with it")
    return task.looks_at
