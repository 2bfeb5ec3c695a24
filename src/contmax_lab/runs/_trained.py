"""A run that is done, with its model in memory."""

import shlex
from collections.abc import Sequence
from pathlib import Path

from contmax_lab.contract import Task, TrainedRun
from contmax_lab.errors import LabError
from contmax_lab.files import read_checkpoint
from contmax_lab.runs._folder import Run


def load_trained(task: Task, folder: str | Path, overrides: Sequence[str] = (), label: str | None = None) -> TrainedRun:
    """Load a run that is done.

    Args:
        task: that it was trained on.
        folder: of the run.
        overrides: dotted, e.g. ``--data.path`` where the data has moved.
        label: what pictures and tables call it; by default the folder's name.

    Raises:
        LabError: if there is no run, or it is not done, or its weights do not fit.
    """
    run = Run(folder)
    recipe = run.recipe(task, overrides)
    results = run.results()
    if results is None:
        command = shlex.join(["contmax", "train", str(run.config), "--folder", str(run.folder), "--resume"])
        raise LabError(f"{run.folder} is not finished; continue it: {command}")
    splits = task.load(recipe.data, recipe.seed)
    model = task.build(recipe.model, splits)
    try:
        model.load_state_dict(read_checkpoint(run.weights).tensors)
    except RuntimeError as error:
        raise LabError(f"{run.weights} does not fit the model: {' '.join(str(error).split())}") from None
    return TrainedRun(run.folder, recipe, splits, model.eval(), results, label or run.folder.name)
