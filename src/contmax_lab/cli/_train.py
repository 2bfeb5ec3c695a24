"""The subcommands that train or measure: train, evaluate, search, reproduce, demo."""

import argparse
import json
import os
import shlex
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from contmax_lab.cli._options import (
    TASK,
    VARIANT,
    WORKERS,
    Argument,
    at_least,
    chosen_workers,
    command,
    metrics_line,
    on_main_process,
    require_files,
)
from contmax_lab.errors import UsageError
from contmax_lab.launchers import start_missing_processes


@command(
    "train a model: on your own data, from a shipped recipe, or for your own task",
    (
        "contmax train texts --data.train reviews.csv --data.text review --data.label stars",
        "contmax train series --data.train sensors.csv --limit 200",
        "contmax train images/discrete-softmax --data.train pictures --model.alpha 1.5 --seed 1",
        "contmax train intervals/seattle-parabola --resume",
        "contmax train series --data.train sensors.csv --training.epochs 80 --resume    # longer than before",
        "contmax train texts --help             # every setting of this task",
    ),
    [
        Argument("recipe", metavar="RECIPE", nargs="?", help="what to train: a task, TASK/VARIANT, or a YAML file"),
        VARIANT,
        TASK,
        Argument("--folder", type=Path, help="folder of the run (default: runs/TASK/VARIANT-seed-SEED)"),
        Argument(
            "--limit", type=int, metavar="N", help="try it quickly: use only N examples of each file of your own data"
        ),
        Argument(
            "--resume", action="store_true", help="continue the run in that folder where it stopped, or make it longer"
        ),
        Argument("--test", action="store_true", help="also measure the best weights on the test examples"),
    ],
    needed="recipe",
    hint="pass a RECIPE, e.g. contmax train intervals/seattle-parabola",
)
def train(options: argparse.Namespace) -> None:
    """Train a model.

    RECIPE says what to train: a task (texts, series and images take your own data), TASK/VARIANT, or a YAML file;
    contmax data list shows them all. Your own task is MODULE:NAME; the module is installed, or in the current folder.

    Every setting can be changed here, e.g. --model.hidden_dim 64 --training.learning_rate 0.002 --seed 1, and contmax
    train RECIPE --help lists them all. Everything about the run is kept in one folder; after an interruption, the same
    command with --resume continues exactly where it stopped. With --resume and more --training.epochs, or another
    --training.patience, a run goes on for longer, even if it is finished. The printed figures are measured on
    validation examples. The test examples are left alone unless you pass --test: use it once, when all choices are
    made.

    Several processes, on one machine or more, are started by torchrun --nproc-per-node 2 -m contmax_lab train … or by
    accelerate launch --multi_gpu --num_processes 2 -m contmax_lab train …, also on machines without a GPU; on one
    machine accelerate launch --cpu --num_processes 2 -m contmax_lab train … works too.
    """
    from contmax_lab.registry import find_recipe, recipe_help

    if options.help:
        print(recipe_help(options.recipe, options.variant, options.task))
        return
    start_missing_processes(options.command_line)
    source = find_recipe(options.recipe, options.variant, options.task)
    at_least(options, limit=1)
    limit = [] if options.limit is None else [f"--data.limit={options.limit}"]
    recipe = source.recipe([*options.overrides, *limit])
    require_files(recipe.data)
    from contmax_lab.runs import Run
    from contmax_lab.training import extension_note, train

    folder = options.folder or Path("runs") / recipe.task.name / f"{source.name}-seed-{recipe.seed}"
    run = Run(folder)
    if options.resume and on_main_process() and (note := extension_note(recipe, run)):
        print(note)
    results = train(recipe, run, resume=options.resume, test=options.test, extend=True)
    if not on_main_process():
        return
    for remark in results.get("remarks", ()):
        print(f"note: {remark}")
    for split in ("valid", "test"):
        if results.get(split):
            print(metrics_line(split, results[split]))
    epochs = f"best epoch {results['best_epoch']} of {results['epochs']}"
    print(f"{epochs}, {results['parameters']:,} parameters, {results['timing']['seconds']:.1f} s")
    if options.test and results["test"] is None:
        print("test  there are no test examples")
    print(f"stored in {folder}")
    if advice := _more_epochs(results, recipe.training, options.command_line):
        print(advice)


def _more_epochs(results: dict[str, Any], training: Any, words: Sequence[str]) -> str:
    """Advice for a training whose last evaluation was its best, with the command that makes it longer; or nothing.

    Args:
        results: of the training.
        training: its section of the recipe.
        words: of the command line.
    """
    if results["best_epoch"] < results["epochs"] or results["epochs"] < training.epochs:
        return ""
    # The new number of epochs replaces an earlier one.
    words = [word for word in words if word != "--resume" and not word.startswith("--training.epochs=")]
    command = shlex.join(["contmax", *words, "--training.epochs", str(2 * results["epochs"]), "--resume"])
    return f"the last epoch was the best, so that more epochs may be better still: {command}"


@command(
    "measure a trained run again",
    (
        "contmax evaluate runs/texts/continuous-sparsemax-seed-0",
        "contmax evaluate runs/texts/continuous-sparsemax-seed-0 --test --json",
    ),
    [
        Argument("folder", metavar="RUN", nargs="?", type=Path, help="folder of a finished run"),
        (
            Argument("--split", choices=["train", "valid"], default="valid", help="which examples (default: valid)"),
            Argument("--test", dest="split", action="store_const", const="test", help="measure on the test examples"),
        ),
        TASK,
        Argument("--json", action="store_true", help="print the metrics as JSON"),
    ],
    needed="folder",
    hint="pass the folder of a RUN, e.g. contmax evaluate runs/texts/continuous-sparsemax-seed-0",
)
def evaluate(options: argparse.Namespace) -> None:
    """Measure the best weights of a run again.

    By default on the validation examples; with --test on the test examples: use it once, when all choices are made. If
    the data has moved, say where it is now, e.g. --data.train /new/place/reviews.csv.
    """
    from contmax_lab.registry import open_trained
    from contmax_lab.training import evaluate_trained

    trained = open_trained(options.folder, options.overrides, named=options.task)
    metrics = evaluate_trained(trained, options.split)
    if on_main_process():
        print(json.dumps(metrics) if options.json else metrics_line(options.split, metrics))


@command(
    "search for better settings of a recipe (hyper-parameters)",
    (
        "contmax search texts --data.train reviews.csv --data.text review --data.label stars",
        "contmax search intervals/parabola --data.path weather.csv --trials 50",
        "contmax search series --data.train sensors.csv --search '{\"model.functions\": [12, 24, 48]}'",
    ),
    [
        Argument("recipe", metavar="RECIPE", nargs="?", help="a YAML file, TASK, or TASK/VARIANT"),
        VARIANT,
        Argument("--trials", type=int, default=20, help="number of trials, including earlier ones (default: 20)"),
        Argument(
            "--over",
            metavar="KEY=VALUE,…",
            help="train each trial once for each of these values of a setting, and judge it by the mean",
        ),
        Argument("--storage", metavar="URL", help="URL of a database for optuna (default: sqlite:///RUNS/search.db)"),
        Argument("--runs", type=Path, help="folder for the trials (default: runs/search/TASK/VARIANT)"),
        *WORKERS,
    ],
    needed="recipe",
    hint="pass a RECIPE, e.g. contmax search intervals/parabola",
)
def search(options: argparse.Namespace) -> None:
    """Search for better settings (hyper-parameters) of a recipe.

    The section `search` of the recipe lists what to try: a list of values, or {low: …, high: …, log: true} for a range.
    The recipes of texts, series and images, which take your own data, have one; --search '{"KEY": [VALUE, …]}' replaces
    it. Trials are judged on the validation examples; the test examples are not touched. All trials are kept in an
    SQLite file; after an interruption, the same command continues, including trials that were not finished. With --over
    KEY=VALUE,… a trial is trained once for each value and judged by the mean: --over data.split=0,1,2 where validation
    examples are few. Several commands, on any machines, share a search if they have the same --storage and --runs; or
    one command trains on a Ray cluster. docs/many-machines.md shows how.
    """
    at_least(options, trials=1)
    from contmax_lab.packages import require
    from contmax_lab.registry import find_recipe

    require("optuna", "contmax search")
    source = find_recipe(options.recipe, options.variant)
    recipe = source.recipe(options.overrides)
    require_files(recipe.data)
    from contmax_lab.search import Search, search, trial_folder

    runs = options.runs or Path("runs") / "search" / recipe.task.name / source.name
    storage = options.storage or f"sqlite:///{runs / 'search.db'}"
    over: tuple[str, ...] = ()
    if options.over:
        key, separator, values = options.over.partition("=")
        if not key or not separator or not all(values.split(",")):
            raise UsageError(f"--over {options.over} is not KEY=VALUE,…; pass e.g. --over data.split=0,1,2")
        over = tuple(f"--{key}={value}" for value in values.split(","))
    workers = chosen_workers(options)
    best = search(Search(source, tuple(options.overrides), runs, storage, options.trials, over, workers))
    goal = f"{recipe.training.monitor} {best.value:.6g}"
    print(f"best trial, number {best.number}: {goal}, in {trial_folder(runs, best)}")
    own = [word for word in options.overrides if not word.startswith("--search=")]
    chosen = [word for key, value in best.params.items() for word in (f"--{key}", str(value))]
    print("train with its settings: " + shlex.join(["contmax", "train", source.origin, *own, *chosen]))


@command(
    "train all models of a table of results, and write the table",
    ("contmax reproduce seattle --jobs 2", "contmax reproduce intervals --data weather.csv"),
    [
        Argument("table", metavar="TABLE", nargs="?", help="name of a table (contmax data list shows them)"),
        Argument("--data", type=Path, help="path of the data"),
        Argument("--runs", type=Path, help="folder for the trainings (default: runs/reproduce/TABLE)"),
        Argument("--output", type=Path, help="file of results (default: results/TABLE.json)"),
        TASK,
        *WORKERS,
        Argument(
            "--budget-minutes", type=float, default=0.0, help="stop cleanly after this many minutes (default: no limit)"
        ),
    ],
    needed="table",
    hint="pass the name of a TABLE, e.g. contmax reproduce intervals --data weather.csv",
)
def reproduce(options: argparse.Namespace) -> None:
    """Train every cell of a table and write its results.

    Finished trainings are not repeated, so a table can be made in several sittings: stop it with Ctrl-C or
    --budget-minutes, and the same command continues. Settings of the recipes can be changed for all cells, e.g.
    --training.epochs 1. Trainings that run at the same time on one GPU take turns, unless NVIDIA's service for sharing
    it runs: nvidia-cuda-mps-control -d. To use several machines pass --ray ADDRESS; docs/many-machines.md shows how.
    """
    from contmax_lab.registry import experiments, find_table
    from contmax_lab.tables import Reproduction, reproduce, run_experiment

    output = options.output or Path("results") / f"{options.table}.json"
    runs = options.runs or Path("runs") / "reproduce" / options.table
    if options.budget_minutes < 0:
        raise UsageError(f"--budget-minutes must be at least 0 (no limit); got {options.budget_minutes:g}")
    experiment = experiments().get(options.table)
    if experiment is not None:
        refused = [*(["--data"] if options.data else []), *options.overrides]
        if refused:
            raise UsageError(f"{refused[0]}: the table {options.table} is trained by code of its own; leave it out")
        print(run_experiment(experiment, runs, output, options.budget_minutes))
        print(f"stored in {output}")
        return
    task, table = find_table(options.table, options.task)
    if table.needs_data and options.data is None:
        raise UsageError(f"the table {table.name} needs --data PATH")
    if options.data is not None and not options.data.exists():
        raise UsageError(f"--data {options.data}: no such file or folder")
    workers = chosen_workers(options)
    overrides = [*([f"--data.path={options.data}"] if options.data else []), *options.overrides]
    print(reproduce(Reproduction(task, table, runs, output, overrides, workers, options.budget_minutes)))
    print(f"stored in {output}")


@command(
    "train small models on data that is already installed, and draw a report",
    ("contmax demo", "contmax demo --training.epochs 1      # a quick look"),
    [
        Argument("--output", type=Path, default=Path("demo"), help="folder for the report (default: demo)"),
        Argument("--jobs", type=int, default=2, help="how many models to train at the same time (default: 2)"),
        Argument(
            "--seeds",
            type=int,
            default=1,
            choices=(1, 2, 3),
            help="how often to train each model, with different seeds (default: 1)",
        ),
    ],
)
def demo(options: argparse.Namespace) -> None:
    """Train small models on data that is already installed, and draw a report.

    Needs no data of yours and no network; takes a few minutes on two cores. The runs are kept in OUTPUT/runs; after an
    interruption, the same command continues. Settings can be changed for all models, e.g. --training.epochs 1.
    """
    at_least(options, jobs=1)
    # Small models gain nothing from a second thread, and concurrent trainings would compete for the cores. The
    # processes that train read this variable when they import torch.
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    from rich.console import Console

    from contmax_lab.demo import DemoJob, make_demo

    # Without a terminal rich would assume 80 columns and cut the tables.
    console = Console(width=None if os.isatty(1) else 120, highlight=False)
    job = DemoJob(options.output, options.jobs, options.seeds, options.overrides)
    page = make_demo(job, lambda section: _show(section, console))
    console.print(f"\nopen [bold]{page.resolve()}[/bold]; the pictures are beside it", soft_wrap=True)


def _show(section: Any, console: Any) -> None:
    from rich.box import SIMPLE_HEAD
    from rich.table import Table
    from rich.text import Text

    console.print()
    head, *body = section.table or [[""]]
    if not body:
        console.print(section.title, style="bold")
        console.print(section.text)
        return
    shown = Table(title=section.title, title_justify="left", title_style="bold", box=SIMPLE_HEAD)
    for index, name in enumerate(head):
        shown.add_column(name, justify="right" if index else "left")
    for line in body:
        # As Text, brackets are not taken for markup.
        shown.add_row(*map(Text, line))
    console.print(shown)
