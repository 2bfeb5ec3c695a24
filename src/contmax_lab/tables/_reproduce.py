"""Make a table: many trainings, several side by side, in as many slices as it takes."""

import contextlib
import dataclasses
import math
import multiprocessing
import os
import queue
import shlex
import signal
import sys
import time
import traceback
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from contmax_lab.contract import Cell, Recipe, Table, Task
from contmax_lab.errors import Interrupted, LabError, UsageError
from contmax_lab.files import make_folder, write_json
from contmax_lab.provenance import provenance
from contmax_lab.recipes import RecipeSource, task_recipe, with_variant
from contmax_lab.registry import load_recipe
from contmax_lab.runs import Run
from contmax_lab.tables._outcome import as_text, summary
from contmax_lab.training import StopRequest, stop_requests, train

# Folder of the training that all rows begin with.
_START = "start"
_PACKAGES = ("contmax", "torch", "numpy", "accelerate")


@dataclasses.dataclass(frozen=True)
class Reproduction:
    """What is to be made, and with what.

    Args:
        task: whose table it is.
        table: the table.
        runs: folder for the trainings; those that are done are not done again.
        output: the file of results.
        overrides: dotted, for every cell, e.g. the path of the data.
        jobs: trainings side by side.
        budget_minutes: stop cleanly after so long; 0 = no limit.
    """

    task: Task
    table: Table
    runs: Path
    output: Path
    overrides: Sequence[str] = ()
    jobs: int = 1
    budget_minutes: float = 0.0


def reproduce(job: Reproduction) -> str:
    """Train what is not trained yet, then write the file and return the table as text.

    Raises:
        LabError: if a training failed.
        UsageError: if the folder holds a training by another recipe.
        Interrupted: if time was up or Ctrl-C came; trainings under way have saved, the file holds what is done.
    """
    deadline = time.monotonic() + 60 * job.budget_minutes if job.budget_minutes else math.inf
    begin = _start_override(job)
    recipes = {cell.folder: cell_recipe(job.task, cell, [*begin, *job.overrides]) for cell in job.table.cells()}
    left = [(recipe, str(job.runs / folder)) for folder, recipe in recipes.items() if not _done(job, folder, recipe)]
    make_folder(job.output.parent)
    if begin and left:
        _train_start(job, deadline, begun=any(Run(job.runs / folder).config.exists() for folder in recipes))
    complaint = _train_all(left, job.jobs, deadline) if left else None
    outcomes = [(c, results) for c in job.table.cells() if (results := _scored(job, c))]
    rows = summary(job.table, outcomes)
    write_json(job.output, _content(job, rows, outcomes))
    if complaint is not None:
        raise complaint
    return as_text(job.table, rows)


def cell_recipe(task: Task, cell: Cell, overrides: Sequence[str] = ()) -> Recipe:
    """The recipe of one training of a table.

    Args:
        task: whose table it is.
        cell: the training.
        overrides: dotted, for all cells; those of the cell come after them, so that a row stays that row.

    Raises:
        UsageError: if a variant, key or value is not understood.
    """
    name = f"{task.name}/{cell.row.variant}".rstrip("/")
    keys = with_variant(task_recipe(task.recipe_file, task.name), cell.row.variant, task.name)
    return RecipeSource(task, keys, name, cell.folder).recipe([*overrides, *cell.overrides])


def _start_override(job: Reproduction) -> list[str]:
    """The key that names what all rows begin with, unless there is nothing or the user has named something."""
    start = job.table.start
    if start is None or any(override.startswith(f"--{start.key}=") for override in job.overrides):
        return []
    return [f"--{start.key}={job.runs / _START}"]


def _train_start(job: Reproduction, deadline: float, *, begun: bool) -> None:
    """Train what all rows begin with, if that is not done."""
    start = job.table.start
    if start is None:
        return
    shared = tuple(f"--{key}" for key in start.shared)
    recipe = load_recipe(start.recipe, [override for override in job.overrides if override.startswith(shared)])
    if _done(job, _START, recipe):
        return
    if begun:
        raise UsageError(
            f"{job.runs / _START} is not done, but rows have begun with it; restore it, or choose another folder"
        )
    complaint = _train_all([(recipe, str(job.runs / _START))], 1, deadline)
    if complaint is not None:
        raise complaint


def _done(job: Reproduction, folder: str, recipe: Recipe) -> dict[str, Any] | None:
    """The results of a cell that is done; a table of several recipes under one name would be worse than none."""
    run = Run(job.runs / folder)
    results = run.results()
    if results and (changed := run.differences(recipe)):
        raise UsageError(f"{run.folder} is of another recipe ({changed[0]}); delete it, or choose another folder")
    return None if run.is_untested() else results


def _scored(job: Reproduction, cell: Cell) -> dict[str, Any] | None:
    """The results of a cell, with what can be measured of the texts it has kept and was not when it ended."""
    run = Run(job.runs / cell.folder)
    results = run.results()
    if results is None:
        return None
    added = False
    for part in ("valid", "test"):
        kept = run.kept(part) if results[part] else {}
        missing = {k: v for k, v in (job.task.score(kept) if kept else {}).items() if k not in results[part]}
        results[part] = {**results[part], **missing} if missing else results[part]
        added = added or bool(missing)
    if added:
        run.write_results(results)
    return results


def _content(job: Reproduction, rows: list[dict[str, Any]], outcomes: list[tuple[Cell, dict[str, Any]]]) -> Any:
    table = job.table
    comparisons = job.task.compare([(c, Run(job.runs / c.folder).kept("test")) for c, _ in outcomes])
    return {
        "table": table.name,
        "title": table.title,
        "command": _command(job),
        **_provenance(job, outcomes),
        "notes": [*table.notes, *comparisons.pop("notes", [])],
        "complete": len(outcomes) == len(list(table.cells())),
        "start": _start_results(job),
        "metrics": [dataclasses.asdict(metric) for metric in table.metrics],
        "rows": rows,
        "text": as_text(table, rows),
        **({"comparisons": comparisons} if comparisons else {}),
        "cells": [
            # What was measured on the test examples first: that is what a reader looks for.
            {"row": c.row.label, "variant": c.repetition.name, **(results["test"] or {}), "results": results}
            for c, results in outcomes
        ],
    }


def _provenance(job: Reproduction, outcomes: list[tuple[Cell, dict[str, Any]]]) -> dict[str, Any]:
    """Of this machine; or of the one machine that trained all cells, where these were only brought together here."""
    here = provenance(_PACKAGES)
    trained = [Run(job.runs / cell.folder).provenance() for cell, _ in outcomes]
    machines = [found.get("machine") for found in trained]
    if not machines or machines[0] in (None, here["machine"]) or machines.count(machines[0]) < len(machines):
        return here
    versions = {name: version for name, version in trained[0]["versions"].items() if name in here["versions"]}
    return {**{key: trained[0][key] for key in here}, "versions": versions}


def _start_results(job: Reproduction) -> dict[str, Any] | None:
    start = job.table.start
    return {"recipe": start.recipe, "results": Run(job.runs / _START).results()} if start else None


def _command(job: Reproduction) -> str:
    """What to type for the same table; where files lie here is nobody else's concern."""
    data = ["--data", "PATH"] if job.table.needs_data else []
    changed = [override for override in job.overrides if not override.startswith("--data.path=")]
    words = [word.partition("=")[0] + "=PATH" if "/" in word else word for word in changed]
    return shlex.join(["contmax", "reproduce", job.table.name, *data, *words])


# -- workers -----------------------------------------------------------------------------------------------------------


def _train_all(left: list[tuple[Any, str]], jobs: int, deadline: float) -> LabError | None:
    """Train in worker processes; what went wrong, or None."""
    # Workers are forked from a process that has imported torch once and started nothing, neither threads nor a GPU.
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["torch._dynamo", "contmax_lab.training"])
    todo, news, stopping = context.Queue(), context.Queue(), context.Event()
    count = min(max(jobs, 1), len(left))
    for entry in [*left, *[None] * count]:
        todo.put(entry)
    # What nobody takes any more, because we stop, must not keep us from leaving.
    todo.cancel_join_thread()
    workers = [context.Process(target=_work, args=(todo, news, stopping)) for _ in range(count)]
    for worker in workers:
        worker.start()
    with stop_requests() as request:
        return _watch(workers, news, stopping, len(left), deadline, request)


def _watch(
    workers: list[Any], news: Any, stopping: Any, count: int, deadline: float, request: StopRequest
) -> LabError | None:
    problems: list[str] = []
    done = 0

    def tell(folder: str, problem: str | None) -> None:
        nonlocal done
        done += problem is None
        print(f"[{done}/{count}] {folder}: {problem or 'done'}", file=sys.stderr, flush=True)
        problems.extend([f"{folder}: {problem}"] if problem else [])

    while any(worker.is_alive() for worker in workers):
        if request or time.monotonic() > deadline:
            _stop(workers, stopping)
            why = "stopped" if request else "time is up"
            error = Interrupted(f"{why} with {done} of {count} trainings done, all is saved; the same command goes on")
            error.exit_code = request.exit_code
            return error
        with contextlib.suppress(queue.Empty):
            tell(*news.get(timeout=0.2))
    while not news.empty():
        tell(*news.get())
    crashed = [worker.exitcode for worker in workers if worker.exitcode not in (0, None)]
    problems += [f"a process that trained ended with exit code {code}; the same command goes on" for code in crashed]
    more = f" ({len(problems)} of {count} trainings failed; the others are kept)" if len(problems) > 1 else ""
    return LabError(problems[0] + more) if problems else None


def _stop(workers: list[Any], stopping: Any) -> None:
    """Ask every training to save and stop, and wait until it has."""
    stopping.set()
    for worker in workers:
        if worker.is_alive():
            os.kill(worker.pid, signal.SIGTERM)
    for worker in workers:
        worker.join()


def _work(todo: Any, news: Any, stopping: Any) -> None:
    """Train one cell after the other until none is left or somebody asks to stop."""
    # Ctrl-C goes to the whole group of processes, and the parent passes it on as SIGTERM.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    parent = multiprocessing.parent_process()
    while not stopping.is_set() and parent is not None and parent.is_alive() and (entry := todo.get()) is not None:
        recipe, folder = entry
        try:
            train(recipe, Run(folder), resume=True, test=True)
            news.put((folder, None))
        except Interrupted:
            return
        except LabError as error:
            news.put((folder, str(error)))
        except Exception as error:  # one training that does not fit into memory, say, must not end the others
            traceback.print_exc()
            news.put((folder, " ".join(f"{type(error).__name__}: {error}".split())[:300]))
