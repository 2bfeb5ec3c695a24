"""Model folders of any task, which ``contmax export`` has made. Nothing is imported because a folder says so."""

import json
from collections.abc import Sequence
from pathlib import Path

from contmax_lab.contract import Task
from contmax_lab.errors import LabError
from contmax_lab.registry._tasks import find_task, installed_task


def task_of_model(folder: Path, named: Sequence[str] = ()) -> Task:
    """The task that an exported model was trained on: one that is installed, or one that the user has named.

    Args:
        folder: that ``contmax export`` has made.
        named: tasks, as `find_task` takes them.

    Raises:
        LabError: if there is no model, or its task is neither.
    """
    try:
        name = str(json.loads((folder / "config.json").read_text(encoding="utf-8"))["task"])
    except FileNotFoundError as error:
        raise LabError(f"{error.filename}: no such file; make the folder with contmax export RUN") from None
    except (OSError, ValueError, KeyError, TypeError, RecursionError) as error:
        raise LabError(f"{folder} holds no model that can be read: {' '.join(str(error).split())}") from None
    for task in map(find_task, named):
        if task.name == name:
            return task
    return installed_task(name)
