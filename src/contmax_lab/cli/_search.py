"""Search for better settings (hyper-parameters) of a recipe.

The section `search` of the recipe lists what to try: a list of values, or {low: …, high: …, log: true} for a range.
Trials are judged on the validation examples; the test examples are not touched. All trials are kept in an SQLite file;
after an interruption, the same command continues, including trials that were not finished. With --over KEY=VALUE,… a
trial is trained once for each value and judged by the mean: --over data.split=0,1,2 where validation examples are few.
Several commands, on any machines, share a search if they have the same --storage and --runs; or one command trains on a
Ray cluster. docs/many-machines.md shows how.
"""

import argparse
from pathlib import Path

from contmax_lab.cli._options import add_variant_option, add_worker_options, chosen_workers
from contmax_lab.errors import UsageError

TAKES_OVERRIDES = True


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """RECIPE, --variant, --trials, --over, --storage, --runs, and where to train."""
    parser.add_argument("recipe", metavar="RECIPE", nargs="?", help="a YAML file, TASK, or TASK/VARIANT")
    add_variant_option(parser)
    parser.add_argument("--trials", type=int, default=20, help="number of trials, including earlier ones (default: 20)")
    parser.add_argument(
        "--over",
        metavar="KEY=VALUE,…",
        help="train each trial once for each of these values of a setting, and judge it by the mean",
    )
    text = "URL of a database for optuna (default: sqlite:///RUNS/search.db)"
    parser.add_argument("--storage", metavar="URL", help=text)
    parser.add_argument("--runs", type=Path, help="folder for the trials (default: runs/search/TASK/VARIANT)")
    add_worker_options(parser)


def run(options: argparse.Namespace) -> None:
    """Search, print the best trial as overrides."""
    if options.recipe is None or options.help:
        options.show_help()
        if not options.help:
            raise UsageError("pass a RECIPE, e.g. contmax search intervals/parabola")
        return
    if options.trials < 1:
        raise UsageError(f"--trials must be at least 1; got {options.trials}")
    from contmax_lab.packages import require
    from contmax_lab.registry import find_recipe

    require("optuna", "contmax search")
    source = find_recipe(options.recipe, options.variant)
    recipe = source.recipe(options.overrides)
    from contmax_lab.search import Search, search, trial_folder

    runs = options.runs or Path("runs") / "search" / recipe.task.name / source.name
    storage = options.storage or f"sqlite:///{runs / 'search.db'}"
    over = _repetitions(options.over) if options.over else ()
    workers = chosen_workers(options)
    best = search(Search(source, tuple(options.overrides), runs, storage, options.trials, over, workers))
    goal = f"{recipe.training.monitor} {best.value:.6g}"
    print(f"best trial, number {best.number}: {goal}, in {trial_folder(runs, best)}")
    print(" ".join(f"--{key} {value}" for key, value in best.params.items()))


def _repetitions(over: str) -> tuple[str, ...]:
    """ "data.split=0,1" as ("--data.split=0", "--data.split=1")."""
    key, separator, values = over.partition("=")
    if not key or not separator or not all(values.split(",")):
        raise UsageError(f"--over {over} is not KEY=VALUE,…; pass e.g. --over data.split=0,1,2")
    return tuple(f"--{key}={value}" for value in values.split(","))
