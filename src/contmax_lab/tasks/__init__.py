"""Tasks: every folder here is one, found by its name; it exports `TASK` and keeps its recipes in ``recipes/``."""

import importlib
import pkgutil
from pathlib import Path

from contmax_lab.errors import UsageError
from contmax_lab.tasks._task import Batch as Batch
from contmax_lab.tasks._task import Splits as Splits
from contmax_lab.tasks._task import Task as Task

_FOLDER = Path(__file__).parent


def task_names() -> list[str]:
    """The tasks there are.

    Example:
        >>> "intervals" in task_names()
        True
    """
    return [module.name for module in pkgutil.iter_modules([str(_FOLDER)]) if module.ispkg]


def find_task(name: str) -> Task:
    """The task of that name.

    Raises:
        UsageError: if there is none.

    Example:
        >>> find_task("intervals").name
        'intervals'
    """
    if name not in task_names():
        raise UsageError(f"there is no task {name!r}; choose from {', '.join(task_names())}")
    task: Task = importlib.import_module(f"contmax_lab.tasks.{name}").TASK
    return task
