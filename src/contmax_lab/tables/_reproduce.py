"""Make a table: many trainings, several side by side, in as many slices as it takes."""

import dataclasses
import math
import shlex
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from contmax_lab.contract import Cell, Recipe, Start, Table, Task
from contmax_lab.errors import Interrupted, LabError, UsageError
from contmax_lab.files import make_folder
from contmax_lab.provenance import provenance
from contmax_lab.recipes import RecipeSource, task_recipe, with_variant
from contmax_lab.registry import load_recipe
from contmax_lab.runs import Run
from contmax_lab.tables._outcome import Outcomes
from contmax_lab.tables._results import printed, shared_and_own, summarised, write_results
from contmax_lab.workers import Ensemble, LocalProcesses, Training, Work, Workers, train_all

# Folder of the training that all rows begin with.
_START = "start"
_PACKAGES = ("contmax", "torch", "numpy", "accelerate")


@dataclasses.dataclass(frozen=True)
class Reproduction:
    """What is to be made, and with what.

    Args:
        task: the task that the table belongs to.
        table: the table.
        runs: folder for the trainings; those that are done are not done again.
        output: the file of results.
        overrides: dotted, for every cell, e.g. the path of the data.
        workers: where the trainings run.
        budget_minutes: stop cleanly after so long; 0 = no limit.
    """

    task: Task
    table: Table
    runs: Path
    output: Path
    overrides: Sequence[str] = ()
    workers: Workers = dataclasses.field(default_factory=LocalProcesses)
    budget_minutes: float = 0.0


def reproduce(job: Reproduction) -> str:
    """Train what is not trained yet, then write the file and return the table as text.

    Raises:
        LabError: if a training failed.
        UsageError: if the folder holds a training by another recipe.
        Interrupted: if time was up or Ctrl-C came; trainings under way have saved, the file holds what is done.
    """
    deadline = time.monotonic() + 60 * job.budget_minutes if job.budget_minutes else math.inf
    # A user who names another start replaces that of the table.
    start = job.table.start
    if start is not None and any(override.startswith(f"--{start.key}=") for override in job.overrides):
        start = None
    begin = [] if start is None else [f"--{start.key}={job.runs / _START}"]
    cells = [attempt for cell in job.table.cells() for attempt in cell.attempts]
    recipes = {cell.folder: cell_recipe(job.task, cell, [*begin, *job.overrides]) for cell in cells}
    left = [
        Training(recipe, job.runs / folder, test=True)
        for folder, recipe in recipes.items()
        if not _done(job, folder, recipe)
    ]
    make_folder(job.output.parent)
    if start is not None and left:
        _train_start(job, start, deadline, begun=any(Run(job.runs / folder).config.exists() for folder in recipes))
    work: Sequence[Work] = left
    if job.table.together:
        # The cells of each row are one training, in the folder of the row.
        rows: dict[Path, list[Training]] = {}
        for training in left:
            rows.setdefault(training.folder.parent, []).append(training)
        work = [Ensemble(tuple(cells), row) for row, cells in rows.items()]
    complaint = _train_all(job, work, deadline) if left else None
    outcomes = [found for cell in job.table.cells() if (found := _chosen(job, cell, recipes))]
    content = _content(job, recipes, outcomes)
    write_results(job.output, content)
    if complaint:
        raise complaint
    return printed(content)


def cell_recipe(task: Task, cell: Cell, overrides: Sequence[str] = ()) -> Recipe:
    """The recipe of one training of a table.

    Args:
        task: the task that the table belongs to.
        cell: the training.
        overrides: dotted, for all cells; those of the cell come after them, so that a row stays that row.

    Raises:
        UsageError: if a variant, key or value is not understood.
    """
    name = f"{task.name}/{cell.row.variant}".rstrip("/")
    keys = with_variant(task_recipe(task), cell.row.variant, task.name)
    return RecipeSource(task, keys, name, cell.folder).recipe([*overrides, *cell.overrides])


def _train_start(job: Reproduction, start: Start, deadline: float, *, begun: bool) -> None:
    """Train the model that all rows begin with, unless it is trained already."""
    shared = tuple(f"--{key}" for key in start.shared)
    recipe = load_recipe(start.recipe, [override for override in job.overrides if override.startswith(shared)])
    if _done(job, _START, recipe):
        return
    if begun:
        raise UsageError(
            f"{job.runs / _START} is not finished, but rows were trained from it; restore it, or choose another folder"
        )
    if complaint := _train_all(job, [Training(recipe, job.runs / _START, test=True)], deadline):
        raise complaint


def _done(job: Reproduction, folder: str, recipe: Recipe) -> dict[str, Any] | None:
    """The results of a cell that is done.

    Raises:
        UsageError: if it was trained by another recipe: a table must not mix two.
    """
    run = Run(job.runs / folder)
    results = run.results()
    if results and (changed := run.differences(recipe)):
        raise UsageError(
            f"{run.folder} was trained with another recipe ({changed[0]}); delete it, or choose another folder"
        )
    return None if run.is_untested() else results


def _chosen(job: Reproduction, cell: Cell, recipes: dict[str, Recipe]) -> tuple[Cell, dict[str, Any]] | None:
    """The try that is best on the validation examples, once all are done, and its results."""
    tried = [(attempt, _scored(job, attempt)) for attempt in cell.attempts]
    done = [(attempt, results) for attempt, results in tried if results is not None]
    if len(done) < len(tried):
        return None

    def merit(found: tuple[Cell, dict[str, Any]]) -> float:
        training = recipes[found[0].folder].training
        return (1.0 if training.goal == "max" else -1.0) * float(found[1]["valid"][training.monitor])

    attempt, results = max(done, key=merit)
    if attempt.attempt is None:
        return attempt, results
    return attempt, {**results, "try": {"number": attempt.attempt, "of": len(done)}}


def _scored(job: Reproduction, cell: Cell) -> dict[str, Any] | None:
    """The results of a cell; scores of its stored texts are added where the training could not measure them."""
    run = Run(job.runs / cell.folder)
    results = run.results()
    if results is None:
        return None
    before = dict(results)
    for part in ("valid", "test"):
        if results[part] and (kept := run.kept(part)):
            missing = {name: score for name, score in job.task.score(kept).items() if name not in results[part]}
            results[part] = {**results[part], **missing}
    if results != before:
        run.write_results(results)
    return results


def _content(job: Reproduction, recipes: dict[str, Recipe], outcomes: Outcomes) -> dict[str, Any]:
    table = job.table
    shared, own = shared_and_own(recipes)
    comparisons = job.task.compare([(c, Run(job.runs / c.folder).kept("test")) for c, _ in outcomes])
    return {
        "table": table.name,
        "title": table.title,
        "command": _command(job),
        **_provenance(job, outcomes),
        "notes": [*table.notes, *comparisons.pop("notes", [])],
        "start": table.start and {"recipe": table.start.recipe, "results": Run(job.runs / _START).results()},
        **summarised(table, outcomes),
        **({"comparisons": comparisons} if comparisons else {}),
        "recipe": shared,
        "cells": [
            # Test figures come first: readers look for them.
            {
                "row": c.row.label,
                "variant": c.repetition.name,
                **(results["test"] or {}),
                "recipe": own[c.folder],
                "results": results,
            }
            for c, results in outcomes
        ],
    }


def _provenance(job: Reproduction, outcomes: list[tuple[Cell, dict[str, Any]]]) -> dict[str, Any]:
    """Provenance of this machine; or of the machine that trained all cells, if it is another one."""
    here = provenance(_PACKAGES)
    trained = [Run(job.runs / cell.folder).provenance() for cell, _ in outcomes]
    machines = [_lasting(found.get("machine")) for found in trained]
    if not machines or machines[0] in ({}, _lasting(here["machine"])) or machines.count(machines[0]) < len(machines):
        return here
    versions = {name: version for name, version in trained[0]["versions"].items() if name in here["versions"]}
    return {**{key: trained[0][key] for key in here}, "versions": versions}


def _lasting(machine: dict[str, Any] | None) -> dict[str, Any]:
    """A machine without its load, which changes."""
    return {key: value for key, value in (machine or {}).items() if key != "load_at_start"}


def _command(job: Reproduction) -> str:
    """The command that makes this table, without the paths of this machine."""
    data = ["--data", "PATH"] if job.table.needs_data else []
    changed = [override for override in job.overrides if not override.startswith("--data.path=")]
    words = [word.partition("=")[0] + "=PATH" if "/" in word else word for word in changed]
    return shlex.join(["contmax", "reproduce", job.table.name, *data, *words])


def _train_all(job: Reproduction, left: Sequence[Work], deadline: float) -> LabError | None:
    """Train the cells that are left, and report progress; returns the error, or None."""
    problems: list[str] = []
    done = 0
    try:
        for outcome in train_all(job.workers, left, deadline):
            if outcome is None:
                continue
            folder, problem = outcome.training.folder, outcome.problem
            done += problem is None
            print(f"[{done}/{len(left)}] {folder}: {problem or 'done'}", file=sys.stderr, flush=True)
            problems.extend([f"{folder}: {problem}"] if problem else [])
    except Interrupted as stopped:
        error = Interrupted(
            f"{stopped} with {done} of {len(left)} trainings done, everything is saved; the same command continues"
        )
        error.exit_code = stopped.exit_code
        return error
    more = f" ({len(problems)} of {len(left)} trainings failed; the others are kept)" if len(problems) > 1 else ""
    return LabError(problems[0] + more) if problems else None
