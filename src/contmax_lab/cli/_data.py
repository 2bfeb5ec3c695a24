"""List what can be trained, unpack archives, check data files.

list shows all tasks, recipes and tables. prepare unpacks a downloaded archive. check reads the data of a recipe without
training: it counts the examples, or says which line of which file is wrong. features computes once what all trainings
of a recipe share, such as features of images (contmax data features vqa --data.path FOLDER); if it is stopped, the same
command continues.
"""

import argparse
from pathlib import Path

from contmax_lab.cli._options import add_variant_option
from contmax_lab.errors import UsageError

TAKES_OVERRIDES = True
_SHOWN = 10


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The action and what it acts on."""
    parser.add_argument(
        "action", choices=["list", "prepare", "check", "features"], nargs="?", help="what to do, see above"
    )
    parser.add_argument(
        "what",
        metavar="ARCHIVE|RECIPE",
        nargs="?",
        help="the archive to unpack, or the recipe whose data to check or prepare",
    )
    add_variant_option(parser)
    parser.add_argument("--into", type=Path, default=Path("data"), help="folder to unpack into (default: data)")


def run(options: argparse.Namespace) -> None:
    """Do it."""
    if options.action is None or options.help:
        options.show_help()
        if not options.help:
            raise UsageError("pass list, prepare, check or features")
        return
    if options.action != "list" and options.what is None:
        raise UsageError(
            f"contmax data {options.action} needs {'an ARCHIVE' if options.action == 'prepare' else 'a RECIPE'}"
        )
    if options.action == "list" and options.what is not None:
        raise UsageError(f"contmax data list takes nothing more; got {options.what}")
    if options.action in ("list", "prepare") and options.overrides:
        raise UsageError(f"contmax data {options.action} does not know {' '.join(options.overrides)}")
    {"list": _list, "prepare": _prepare, "check": _check, "features": _features}[options.action](options)


def _list(options: argparse.Namespace) -> None:
    from contmax_lab.recipes import task_recipe, variant_names
    from contmax_lab.registry import installed_task, task_names

    for name in task_names():
        task = installed_task(name)
        variants = variant_names(task_recipe(task.recipe_file, name))
        print(f"{name}: {task.summary}")
        print("  recipes: " + ", ".join([f"{name}/{variant}" for variant in variants] or [name]))
        for table in task.tables():
            print(f"  table {table.name}: {table.title}")


def _prepare(options: argparse.Namespace) -> None:
    from contmax_lab.data import unpack

    files = unpack(Path(options.what), options.into)
    for path in files[:_SHOWN]:
        print(path)
    if len(files) > _SHOWN:
        print(f"… {len(files):,} files in {options.into}")


def _check(options: argparse.Namespace) -> None:
    from contmax_lab.registry import load_recipe

    recipe = load_recipe(options.what, options.overrides, options.variant)
    splits = recipe.task.load(recipe.data, recipe.seed)
    print(f"train {len(splits.train)}, valid {len(splits.valid)}, test {len(splits.test)} examples")
    for key, value in splits.info.items():
        if isinstance(value, int | float | str):
            print(f"{key}: {value}")
        elif isinstance(value, tuple) and value:
            more = f" and {len(value) - _SHOWN} more" if len(value) > _SHOWN else ""
            print(f"{key}: {', '.join(map(str, value[:_SHOWN]))}{more}")


def _features(options: argparse.Namespace) -> None:
    from contmax_lab.registry import load_recipe

    recipe = load_recipe(options.what, options.overrides, options.variant)
    print(recipe.task.prepare(recipe.data))
