"""The demo: tables of several tasks that need no data, trained and drawn into one report."""

import contextlib
import dataclasses
import json
import shutil
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from contmax_lab.contract import Section, Table, Task
from contmax_lab.errors import LabError
from contmax_lab.packages import require_folder
from contmax_lab.provenance import provenance
from contmax_lab.registry import installed_task, shipped_tasks
from contmax_lab.report import learning_curves, write_page
from contmax_lab.runs import Run, load_trained
from contmax_lab.tables import Reproduction, as_lines, cell_recipe, reproduce
from contmax_lab.workers import LocalProcesses

_TITLE = "Where does attention look?"
_LEAD = (
    "Sparse and continuous attention beside the usual kind: small models, trained by contmax demo on real data that "
    "comes with Python packages: speech, images and temperatures."
)
_KINDS = (
    ("attention", "what it is", "exact zeros"),
    ("Discrete softmax", "weights of single observations, pₗ ∝ exp zₗ", "no"),
    ("Discrete sparsemax", "weights of single observations, p = argmin ‖p − z‖² over the simplex", "yes"),
    ("Continuous softmax", "a Gaussian density over continuous time or the plane", "no"),
    ("Continuous sparsemax", "a truncated parabola or paraboloid, p(t) = [f(t) − τ]₊", "yes"),
    ("Combined sparsemax", "discrete sparsemax plus the truncated parabola with the same mean and variance", "yes"),
)
# Order of the sections: pictures that speak for themselves come first.
_ORDER = ("places-utterance", "places-digit", "vowels", "digits", "seattle")
_PACKAGES = ("contmax", "torch", "numpy", "numba", "scikit-learn", "aeon", "vega_datasets", "matplotlib")


@dataclasses.dataclass(frozen=True)
class DemoJob:
    """What the demo makes.

    Args:
        folder: for ``runs/``, the JSON files of the tables, ``report.html`` and its pictures.
        jobs: trainings side by side.
        seeds: repetitions of every training, at most as many as a table has.
        overrides: dotted, for every recipe.
    """

    folder: Path
    jobs: int = 2
    seeds: int = 1
    overrides: Sequence[str] = ()


def demo_tables(seeds: int = 1) -> list[tuple[Task, Table]]:
    """The tables that the demo makes, each with its task.

    Args:
        seeds: repetitions.

    Example:
        >>> [table.name for _, table in demo_tables()]
        ['places-utterance', 'places-digit', 'vowels', 'digits', 'seattle']
    """
    tasks = map(installed_task, shipped_tasks())
    found = [(task, table) for task in tasks for table in task.tables() if table.in_demo]
    found.sort(key=lambda pair: (*_ORDER, pair[1].name).index(pair[1].name))
    return [(task, dataclasses.replace(table, repetitions=table.repetitions[:seeds])) for task, table in found]


def make_demo(job: DemoJob, tell: Callable[[Section], None]) -> Path:
    """Train what is not trained yet, and draw the report.

    Args:
        job: what to make.
        tell: is given every part of the report as soon as it is there.

    Returns:
        The page.

    Raises:
        LabError: if a package is missing, or a training failed.
    """
    for package in ("matplotlib", "sklearn", "aeon", "vega_datasets"):
        # Checked here, not after minutes of training.
        require_folder(package, "The demo")
    started = time.monotonic()
    parts = [Section("What is compared", table=_KINDS)]
    for task, table in demo_tables(job.seeds):
        parts.append(_chapter(task, table, job))
        tell(parts[-1])
    for name in shipped_tasks():
        for part in installed_task(name).showcase():
            parts.append(part)
            tell(part)
    parts.append(_colophon(job, time.monotonic() - started))
    return write_page(job.folder / "report.html", _TITLE, _LEAD, parts)[0]


def _chapter(task: Task, table: Table, job: DemoJob) -> Section:
    runs, output = job.folder / "runs" / table.name, job.folder / f"{table.name}.json"
    _forget_other_recipes(task, table, runs, job.overrides)
    reproduce(Reproduction(task, table, runs, output, job.overrides, LocalProcesses(job.jobs)))
    lines = as_lines(table, json.loads(output.read_text(encoding="utf-8"))["rows"])
    cells = list(table.cells())
    # Learning curves show all repetitions; the task's first picture shows the first repetition.
    trained = [load_trained(task, runs / cell.folder, label=cell.row.label) for cell in cells[: len(table.rows)]]
    curves = learning_curves(
        [Run(runs / cell.folder) for cell in cells],
        [cell.row.label for cell in cells],
        title=f"Learning curves, {table.name}",
        names=task.curves,
    )
    return Section(table.title, table.about, lines, [*task.figures(trained)[:1], curves], table.notes)


def _forget_other_recipes(task: Task, table: Table, runs: Path, overrides: Sequence[str]) -> None:
    """Remove trainings of an earlier version or of other keys: the folder is the demo's own, not the user's."""
    for cell in table.cells():
        run = Run(runs / cell.folder)
        recipe, is_other = cell_recipe(task, cell, overrides), run.config.exists()
        with contextlib.suppress(LabError):  # raised if its keys are no longer understood
            is_other = is_other and bool(run.differences(recipe))
        if is_other:
            with run.claimed():
                shutil.rmtree(run.folder)


def _colophon(job: DemoJob, seconds: float) -> Section:
    origin = provenance(_PACKAGES)
    versions = ", ".join(f"{name} {version}" for name, version in origin["versions"].items() if version)
    machine = origin["machine"]
    lines = [
        ("", ""),
        ("Time for this page", f"{seconds / 60:.1f} minutes, {job.jobs} trainings side by side"),
        ("Machine", f"{machine['cpu']}, {machine['cores']} cores"),
        ("Commit", f"{(origin['commit'] or 'not a checkout')[:12]}{', changed' if origin['dirty'] else ''}"),
        ("Date", origin["date"]),
    ]
    text = (
        "Every figure and number comes from the trainings under runs/ beside this page. Of each training the weights "
        "that were best on validation examples were kept, and measured once on the test examples, at the end. The "
        "settings of the recipes were not searched for, save where a note says so, and one training says little: "
        "contmax demo --seeds 3 shows the deviations, within which differences between rows mean nothing. "
        f"Versions: {versions}."
    )
    return Section("How this page was made", text, lines)
