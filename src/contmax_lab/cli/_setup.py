"""The subcommands before a training: data, new-task."""

import argparse
import keyword
import string
import sys
from pathlib import Path

from contmax_lab.cli._options import VARIANT, Argument, command, require_files
from contmax_lab.errors import UsageError

_TEMPLATE = Path(__file__).parent / "template"
# Files or classes that are listed before the rest is only counted.
_SHOWN = 10


@command(
    "list tasks and recipes, unpack an archive, check a data file",
    (
        "contmax data list",
        "contmax data check texts --data.train reviews.csv --data.text review --data.label stars",
        "contmax data prepare aclImdb_v1.tar.gz --into data",
    ),
    [
        Argument("action", choices=["list", "prepare", "check", "features"], nargs="?", help="what to do, see above"),
        Argument(
            "what",
            metavar="ARCHIVE|RECIPE",
            nargs="?",
            help="the archive to unpack, or the recipe whose data to check or prepare",
        ),
        VARIANT,
        Argument("--into", type=Path, default=Path("data"), help="folder to unpack into (default: data)"),
    ],
    needed="action",
    hint="pass list, prepare, check or features",
)
def data(options: argparse.Namespace) -> None:
    """List what can be trained, unpack archives, check data files.

    list shows all tasks, recipes and tables. prepare unpacks a downloaded archive. check reads the data of a recipe
    without training: it counts the examples, or says which line of which file is wrong, and notes what is unusual: rare
    classes, gaps, values of another scale than those of training. features computes once what all
    trainings of a recipe share, such as features of images (contmax data features vqa --data.path FOLDER); if it is
    stopped, the same command continues.
    """
    if options.action != "list" and options.what is None:
        wanted = "an ARCHIVE" if options.action == "prepare" else "a RECIPE"
        raise UsageError(f"contmax data {options.action} needs {wanted}")
    if options.action == "list" and options.what is not None:
        raise UsageError(f"contmax data list takes nothing more; got {options.what}")
    if options.action in ("list", "prepare") and options.overrides:
        raise UsageError(f"contmax data {options.action} does not know {' '.join(options.overrides)}")
    {"list": _list, "prepare": _prepare, "check": _check, "features": _features}[options.action](options)


def _list(options: argparse.Namespace) -> None:
    from contmax_lab.recipes import task_recipe, variant_names
    from contmax_lab.registry import experiments, installed_task, task_names

    for name in task_names():
        task = installed_task(name)
        variants = variant_names(task_recipe(task))
        print(f"{name}: {task.summary}")
        print("  recipes: " + ", ".join([f"{name}/{variant}" for variant in variants] or [name]))
        for table in task.tables():
            print(f"  table {table.name}: {table.title}")
    for experiment in experiments().values():
        print(f"table {experiment.table.name}: {experiment.table.title}")


def _prepare(options: argparse.Namespace) -> None:
    from contmax_lab.data import unpack

    files = unpack(Path(options.what), options.into)
    print(*files[:_SHOWN], sep="\n")
    if len(files) > _SHOWN:
        print(f"… {len(files):,} files in {options.into}")


def _check(options: argparse.Namespace) -> None:
    from contmax_lab.registry import load_recipe

    recipe = load_recipe(options.what, options.overrides, options.variant)
    require_files(recipe.data)
    splits = recipe.load()
    print(f"train {len(splits.train)}, valid {len(splits.valid)}, test {len(splits.test)} examples")
    for key, value in splits.info.items():
        if isinstance(value, int | float | str):
            print(f"{key}: {value}")
        elif isinstance(value, tuple) and value:
            more = f" and {len(value) - _SHOWN} more" if len(value) > _SHOWN else ""
            print(f"{key}: {', '.join(map(str, value[:_SHOWN]))}{more}")
    for remark in splits.info.get("remarks", ()):
        print(f"note: {remark}")


def _features(options: argparse.Namespace) -> None:
    from contmax_lab.registry import load_recipe

    recipe = load_recipe(options.what, options.overrides, options.variant)
    print(recipe.task.prepare(recipe.data))


@command(
    "write a small working task, for you to change",
    ("contmax new-task tides", "contmax train tides:TASK"),
    [
        Argument("name", metavar="NAME", help="name of the task and of its folder: small letters, digits and _"),
        Argument("--into", type=Path, default=Path(), help="where to make the folder (default: the current folder)"),
    ],
    takes_overrides=False,
)
def new_task(options: argparse.Namespace) -> None:
    """Write a small working task into the folder NAME: data, model, task, recipe, test.

    It works as it is: contmax train NAME:TASK trains it, pytest NAME tests it. Then change it, piece by piece.
    """
    from contmax_lab.files import write_atomically
    from contmax_lab.registry import task_names

    name = options.name
    if not name.isidentifier() or keyword.iskeyword(name) or name != name.lower() or name.startswith("_"):
        raise UsageError(f"{name!r} cannot be the name of a module; pass small letters, digits and _, e.g. my_task")
    if name in task_names() or name in sys.stdlib_module_names:
        raise UsageError(f"{name} is a task of the laboratory or a module of Python; pass another name")
    folder = options.into / name
    if folder.exists():
        raise UsageError(f"{folder} already exists; pass another name")
    words = {"name": name, "title": "".join(part.capitalize() for part in name.split("_"))}
    for file in sorted(_TEMPLATE.glob("*.txt")):
        target = folder / file.stem.replace("test_task", f"test_{name}")
        text = string.Template(file.read_text(encoding="utf-8")).substitute(words)
        write_atomically(target, text.encode("utf-8"))
        print(target)
    print(f"now, in {options.into.resolve()}: contmax train {name}:TASK, and pytest {name}")
