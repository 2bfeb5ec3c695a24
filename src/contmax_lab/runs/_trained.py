"""A run that is done, with its model in memory."""

import dataclasses
from pathlib import Path
from typing import Any

from torch import nn

from contmax_lab.errors import LabError
from contmax_lab.recipes import Recipe, load_recipe
from contmax_lab.runs._checkpoint import read_checkpoint
from contmax_lab.runs._folder import Run
from contmax_lab.tasks import Splits, Task, find_task


@dataclasses.dataclass(frozen=True)
class TrainedRun:
    """What a report or an evaluation needs of a run.

    Args:
        run: its folder.
        recipe: what it was trained by.
        task: its task.
        splits: its data, loaded again.
        model: with the best weights, in evaluation mode, on the CPU.
        results: the content of results.json.
        label: what pictures and tables call it.
    """

    run: Run
    recipe: Recipe
    task: Task
    splits: Splits
    model: nn.Module
    results: dict[str, Any]
    label: str


def open_trained(folder: str | Path, overrides: tuple[str, ...] = (), label: str | None = None) -> TrainedRun:
    """Load a run that is done.

    Args:
        folder: of the run.
        overrides: dotted, e.g. ``--data.path`` where the data has moved.
        label: what pictures and tables call it; by default the folder's name.

    Raises:
        LabError: if there is no run, or it is not done, or its weights do not fit.
    """
    run = Run(folder)
    run.recipe()
    results = run.results()
    if results is None:
        raise LabError(f"{run.folder} is not done: contmax train {run.config} --folder {run.folder} --resume")
    recipe = load_recipe(run.config, overrides)
    task = find_task(recipe.task)
    splits = task.load(recipe.data, recipe.seed)
    model = task.build(recipe.model, splits)
    try:
        model.load_state_dict(read_checkpoint(run.weights).tensors)
    except RuntimeError as error:
        raise LabError(f"{run.weights} does not fit the model: {' '.join(str(error).split())}") from None
    return TrainedRun(run, recipe, task, splits, model.eval(), results, label or run.folder.name)
