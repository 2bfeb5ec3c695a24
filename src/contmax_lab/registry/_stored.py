"""Tasks of runs and of model folders. Nothing is imported from a folder, nor because it says so."""

from collections.abc import Sequence
from pathlib import Path

from contmax_lab.contract import Task, TrainedRun
from contmax_lab.errors import LabError
from contmax_lab.registry._tasks import installed_task, is_installed, named_task
from contmax_lab.runs import Run, load_trained


def task_of_run(folder: str | Path, named: Sequence[str] = ()) -> Task:
    """The task that a run was trained on: one that is installed, or one that the user has named.

    Args:
        folder: of the run.
        named: tasks, as `find_task` takes them.

    Raises:
        LabError: if there is no run, or its task is neither.
    """
    run = Run(folder)
    name = run.task_name()
    if task := named_task(name, named):
        return task
    if is_installed(name):
        return installed_task(name)
    origin = run.task_class()
    was = f" ({origin} where it was trained)" if origin else ""
    module = origin.partition(":")[0].partition(".")[0] or "my_module"
    raise LabError(
        f"{run.folder} is a run of the task {name!r}{was}, which is not installed; a run may not import modules by "
        f"itself. If you have that task, name it as MODULE:NAME, e.g. --task {module}:TASK"
    )


def open_trained(
    folder: str | Path, overrides: Sequence[str] = (), label: str | None = None, named: Sequence[str] = ()
) -> TrainedRun:
    """Load a run that is done.

    Args:
        folder: of the run.
        overrides: dotted, e.g. ``--data.path`` where the data has moved.
        label: what pictures and tables call it; by default the folder's name.
        named: tasks that are not installed, as `find_task` takes them.

    Raises:
        LabError: if there is no run, or it is not done, or its task is unknown, or its weights do not fit.
    """
    return load_trained(task_of_run(folder, named), folder, overrides, label)


def task_of_model(folder: Path, named: Sequence[str] = ()) -> Task:
    """The task that an exported model was trained on: one that is installed, or one that the user has named.

    Args:
        folder: that ``contmax export`` has made.
        named: tasks, as `find_task` takes them.

    Raises:
        LabError: if there is no model, or its task is neither.
    """
    from contmax_lab.labelled import read_card  # imports torch, which finding tasks does without

    name = read_card(folder, lambda card: str(card["task"]))
    return named_task(name, named) or installed_task(name)
