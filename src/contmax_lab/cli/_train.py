"""Train a recipe.

RECIPE is a YAML file or the name of one in the package (contmax data list shows them). Every key can be changed from
the command line: --model.hidden_dim 64 --training.learning_rate 0.002 --seed 1. `contmax train RECIPE --help` lists the
keys with their meaning. The run is a folder; the same command with --resume goes on after any interruption.
"""

import argparse
from pathlib import Path

from contmax_lab.errors import UsageError

TAKES_OVERRIDES = True


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """RECIPE, --folder, --resume."""
    parser.add_argument("recipe", metavar="RECIPE", nargs="?", help="a YAML file, or TASK/NAME")
    parser.add_argument("--folder", type=Path, help="folder of the run (default: runs/TASK/NAME-seed-SEED)")
    parser.add_argument("--resume", action="store_true", help="go on where the run in that folder stopped")


def run(options: argparse.Namespace) -> None:
    """Train, and print what came out."""
    if options.recipe is None:
        options.show_help()
        if not options.help:
            raise UsageError("pass a RECIPE, e.g. contmax train intervals/seattle-parabola")
        return
    from contmax_lab.recipes import load_recipe, recipe_help

    if options.help:
        print(recipe_help(options.recipe))
        return
    recipe = load_recipe(options.recipe, options.overrides)
    from contmax_lab.cli._printing import on_main_process, print_results
    from contmax_lab.runs import Run
    from contmax_lab.training import train

    folder = options.folder or Path("runs") / recipe.task / f"{Path(options.recipe).stem}-seed-{recipe.seed}"
    results = train(recipe, Run(folder), resume=options.resume)
    if on_main_process():
        print_results(results)
        print(f"stored in {folder}")
