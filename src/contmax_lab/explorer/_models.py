"""Which models there are to look with: those of the package, finished runs, and folders made by contmax export."""

import dataclasses
import functools
import os
from collections import OrderedDict
from collections.abc import Callable, Sequence, Sized
from pathlib import Path
from typing import Any, Literal

from torch import nn

from contmax_lab.contract import Look, Task
from contmax_lab.errors import LabError
from contmax_lab.registry import installed_task, open_trained, shipped_tasks, task_of_model, task_of_run

Kind = Literal["text", "image"]

# Depth of folders that is searched below the folder of runs, and most models of the list.
_DEPTH, _MOST_FOUND = 4, 500
_KEPT = 3
# A run is found by its recipe, an exported model by its card; a folder with both is a run.
_RECIPE, _CARD = "config.yaml", "config.json"
_RUN_FILES, _MODEL_FILES = {_RECIPE, "results.json"}, {_CARD, "model.safetensors"}


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
        """What the model attends to in a new input."""
        return self.task.look(self.network, self.info, given)


@dataclasses.dataclass(frozen=True)
class Source:
    """A model in the list.

    Args:
        name: by which the page asks for it.
        kind: what it looks at.
        title: what people call it.
        read: puts it into memory.
    """

    name: str
    kind: Kind
    title: str
    read: Callable[[], Model]


class Models:
    """All models there are. Nothing that the page says becomes a path: a name is in the list, or there is no model.

    Args:
        runs: folder below which runs and exported models lie.
        models: folders of exported models elsewhere.
    """

    def __init__(self, runs: Path, models: Sequence[Path] = ()) -> None:
        self._runs, self._models = runs, models
        self._open: OrderedDict[str, Model] = OrderedDict()
        # Path of a recipe or card → when it was written, and its task.
        self._known: dict[Path, tuple[int, Task]] = {}

    def open(self, name: str) -> Model:
        """The model with this name; a KeyError if there is none, a LabError if it cannot be opened."""
        if name in self._open:
            self._open.move_to_end(name)
            return self._open[name]
        opened = self._open[name] = {source.name: source for source in self.listed()}[name].read()
        if len(self._open) > _KEPT:
            self._open.popitem(last=False)
        return opened

    def listed(self) -> list[Source]:
        """Packaged models first, then exported ones that were named, then what was found below the folder of runs."""
        found = []
        for task in map(installed_task, shipped_tasks()):
            if type(task).packaged is not Task.packaged and task.looks_at is not None:
                title = f"{task.summary.partition(':')[0]} (comes with the package)"
                read = functools.partial(_packaged, task)
                found.append(Source(f"packaged:{task.name}", task.looks_at, title, read))
        root = self._runs.resolve()
        folders = [(f"model:{folder.as_posix()}", folder, _CARD) for folder in self._models]
        folders += [(folder.relative_to(root).as_posix(), folder, sign) for folder, sign in _folders(root)]
        for name, folder, sign in folders:
            own = self._task(folder, sign) if len(found) < _MOST_FOUND else None
            if own is None or own.looks_at is None:
                continue
            title, read = f"run {name} ({own.name})", functools.partial(_trained, folder)
            if sign == _CARD:
                title = f"exported model {name.removeprefix('model:')} ({own.name})"
                read = functools.partial(_exported, own, folder)
            found.append(Source(name, own.looks_at, title, read))
        return found

    def _task(self, folder: Path, sign: str) -> Task | None:
        """The task of a run or model, or None if it cannot be read; a file that has not changed is read once."""
        path = folder / sign
        try:
            written = path.stat().st_mtime_ns
            if path not in self._known or self._known[path][0] != written:
                task = task_of_run(folder) if sign == _RECIPE else task_of_model(folder)
                self._known[path] = (written, task)
        except (LabError, OSError):
            # The run is incomplete, or its task is not installed.
            return None
        return self._known[path][1]


def _folders(root: Path) -> list[tuple[Path, str]]:
    """Folders of finished runs and of exported models, found without following links, and their sign."""
    found = []
    for place, inner, files in os.walk(root):
        folder = Path(place)
        if len(folder.relative_to(root).parts) >= _DEPTH:
            inner.clear()
        inner[:] = sorted(name for name in inner if not name.startswith("."))
        # Walking follows no links to folders; a link to a file is refused too.
        own = {name for name in files if not (folder / name).is_symlink()}
        if own >= _RUN_FILES:
            found.append((folder, _RECIPE))
        elif own >= _MODEL_FILES:
            found.append((folder, _CARD))
    return sorted(found)


def _packaged(task: Task) -> Model:
    shipped = task.packaged()
    if shipped is None:
        raise LabError(f"no model of the task {task.name} comes with the package")
    network, splits = shipped
    return Model(task, network.eval(), splits.info, splits.valid)


def _trained(folder: Path) -> Model:
    run = open_trained(folder)
    return Model(run.task, run.model, run.splits.info, run.splits.valid)


def _exported(task: Task, folder: Path) -> Model:
    """An exported model, which has no examples, since its folder holds no data."""
    network, info = task.read_exported(folder)
    return Model(task, network, info, ())
