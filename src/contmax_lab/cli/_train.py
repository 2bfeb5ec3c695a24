"""Train a model.

RECIPE says what to train: a task (texts, series and images take your own data), TASK/VARIANT, or a YAML file; contmax
data list shows them all. Your own task is MODULE:NAME; the module is installed, or in the current folder.

Every setting can be changed here, e.g. --model.hidden_dim 64 --training.learning_rate 0.002 --seed 1, and contmax train
RECIPE --help lists them all. Everything about the run is kept in one folder; after an interruption, the same command
with --resume continues exactly where it stopped. The printed figures are measured on validation examples. The test
examples are left alone unless you pass --test: use it once, when all choices are made.

Several processes, on one machine or more, are started by torchrun --nproc-per-node 2 -m contmax_lab train … or by
accelerate launch --multi_gpu --num_processes 2 -m contmax_lab train …, also on machines without a GPU; on one machine
accelerate launch --cpu --num_processes 2 -m contmax_lab train … works too.
"""

import argparse
from pathlib import Path

from contmax_lab.cli._options import add_task_option, add_variant_option
from contmax_lab.errors import UsageError
from contmax_lab.launchers import start_missing_processes

TAKES_OVERRIDES = True


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """RECIPE, --variant, --task, --folder, --limit, --resume, --test."""
    parser.add_argument(
        "recipe", metavar="RECIPE", nargs="?", help="what to train: a task, TASK/VARIANT, or a YAML file"
    )
    add_variant_option(parser)
    add_task_option(parser)
    parser.add_argument("--folder", type=Path, help="folder of the run (default: runs/TASK/VARIANT-seed-SEED)")
    parser.add_argument(
        "--limit", type=int, metavar="N", help="try it quickly: use only N examples of each file of your own data"
    )
    parser.add_argument("--resume", action="store_true", help="continue the run in that folder where it stopped")
    parser.add_argument("--test", action="store_true", help="also measure the best weights on the test examples")


def run(options: argparse.Namespace) -> None:
    """Train, and print what came out."""
    if options.recipe is None:
        options.show_help()
        if not options.help:
            raise UsageError("pass a RECIPE, e.g. contmax train intervals/seattle-parabola")
        return
    from contmax_lab.registry import find_recipe, recipe_help

    if options.help:
        print(recipe_help(options.recipe, options.variant, options.task))
        return
    start_missing_processes(options.command_line)
    source = find_recipe(options.recipe, options.variant, options.task)
    if options.limit is not None and options.limit < 1:
        raise UsageError(f"--limit must be at least 1; got {options.limit}")
    limit = [] if options.limit is None else [f"--data.limit={options.limit}"]
    recipe = source.recipe([*options.overrides, *limit])
    from contmax_lab.cli._printing import on_main_process, print_results
    from contmax_lab.runs import Run
    from contmax_lab.training import train

    folder = options.folder or Path("runs") / recipe.task.name / f"{source.name}-seed-{recipe.seed}"
    results = train(recipe, Run(folder), resume=options.resume, test=options.test)
    if on_main_process():
        print_results(results)
        if options.test and results["test"] is None:
            print("test  there are no test examples")
        print(f"stored in {folder}")
