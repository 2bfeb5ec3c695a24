"""Train a recipe.

RECIPE is a YAML file, a task, or TASK/VARIANT (contmax data list shows them). A task of your own is MODULE:NAME, where
the module is installed or lies in the current folder: contmax train my_module:TASK. Data of your own needs no
code: contmax train texts --data.train reviews.csv --data.text review --data.label stars. Every key can be changed from
the command line: --model.hidden_dim 64 --training.learning_rate 0.002 --seed 1. `contmax train RECIPE --help` lists the
keys with their meaning. The run is a folder; the same command with --resume goes on after any interruption. What is
printed is measured on the validation examples; the test examples are for the end of all choices, with --test.
"""

import argparse
from pathlib import Path

from contmax_lab.cli._options import add_task_option, add_variant_option
from contmax_lab.errors import UsageError

TAKES_OVERRIDES = True


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """RECIPE, --variant, --task, --folder, --limit, --resume, --test."""
    parser.add_argument("recipe", metavar="RECIPE", nargs="?", help="a YAML file, TASK, or TASK/VARIANT")
    add_variant_option(parser)
    add_task_option(parser)
    parser.add_argument("--folder", type=Path, help="folder of the run (default: runs/TASK/VARIANT-seed-SEED)")
    parser.add_argument(
        "--limit", type=int, metavar="N", help="a quick try on N examples of each file of your own data"
    )
    parser.add_argument("--resume", action="store_true", help="go on where the run in that folder stopped")
    parser.add_argument("--test", action="store_true", help="measure the best weights on the test examples too")


def run(options: argparse.Namespace) -> None:
    """Train, and print what came out."""
    if options.recipe is None:
        options.show_help()
        if not options.help:
            raise UsageError("pass a RECIPE, e.g. contmax train intervals/seattle-parabola")
        return
    from contmax_lab.registry import find_recipe

    source = find_recipe(options.recipe, options.variant, options.task)
    if options.help:
        print(source.help())
        return
    limit = [] if options.limit is None else [f"--data.limit={options.limit}"]
    recipe = source.recipe([*options.overrides, *limit])
    from contmax_lab.cli._printing import on_main_process, print_results
    from contmax_lab.runs import Run
    from contmax_lab.training import train

    folder = options.folder or Path("runs") / recipe.task.name / f"{source.name}-seed-{recipe.seed}"
    results = train(recipe, Run(folder), resume=options.resume, test=options.test)
    if on_main_process():
        print_results(results)
        print(f"stored in {folder}")
